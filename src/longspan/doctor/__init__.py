"""The doctor: names the root cause of a failed or silent launch from logs or from the live cluster."""

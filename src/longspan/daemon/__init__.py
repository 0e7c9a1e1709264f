"""The two kinds of long-lived processes: one controller, and one agent per node."""

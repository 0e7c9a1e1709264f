"""Models: what a checkpoint is made of, read from its config.json."""

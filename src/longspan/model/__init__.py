"""Models: what their configuration says, and where their files come from."""

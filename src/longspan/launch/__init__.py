"""Starts what a plan says, and proves that it answers as the checkpoint would."""

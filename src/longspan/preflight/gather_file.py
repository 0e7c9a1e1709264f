"""A small file of /proc or /sys, as the probes of `gather` read it. Standard library only."""

from pathlib import Path


def text_of(path: Path) -> str:
    """Its text without the blanks around it; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""

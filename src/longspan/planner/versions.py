"""vLLM versions: reading them, and what changed in which one as far as memory and legality go."""

import re

Version = tuple[int, int, int]
LATEST: Version = (0, 32, 0)


def parse_version(text: str | None) -> Version:
    """Reads "0.19.0", "v0.19", "0.32.0+cpu", "about 0.15/0.16" (the first); what has no number counts as the latest.

    A nightly without a number is newer than what we know, so it is treated as the latest.
    """
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text or "")
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else LATEST


def format_version(version: Version) -> str:
    """ "0.19.0" """
    return ".".join(map(str, version))

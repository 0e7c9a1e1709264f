"""Which versions are installed beside us."""

import contextlib
from importlib import metadata


def installed(*distributions: str) -> str:
    """The version of the first of these distributions that is installed here; empty where none is."""
    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""

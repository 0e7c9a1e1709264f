"""Which versions are installed beside us."""

import contextlib
import re
from importlib import metadata
from pathlib import Path

# The open modules say "Kernel Module for x86_64  550.54.15", the others "Kernel Module  550.54.15".
_DRIVER = re.compile(r"Kernel Module\s+(?:for \w+\s+)?(\d+\.\d+(?:\.\d+)?)")


def installed(*distributions: str) -> str:
    """The version of the first of these distributions that is installed here; empty where none is."""
    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The version of NVIDIA's kernel driver here; empty where there is none."""
    with contextlib.suppress(OSError):
        if match := _DRIVER.search(path.read_text(errors="replace")):
            return match[1]
    return ""

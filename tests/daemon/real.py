"""Real processes for the tests of agent and controller: small, and looked for afterwards by their environment."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import longspan

SOURCE = str(Path(longspan.__file__).parent.parent)
TIMEOUT_SECONDS = 120  # only ever waited for in full by a test that fails

# A daemon that ignores SIGTERM, a process that froze itself and one that is merely forgotten; their parent ends at once.
FAMILY = """
( setsid sh -c 'trap "" TERM; echo $$ >"$0/daemon"; while :; do sleep 0.1; done' "$0" & )
( setsid sh -c 'echo $$ >"$0/frozen"; kill -STOP $$' "$0" & )
( sleep 1000 & echo $! >"$0/sleeper" )
"""
MEMBERS = ("daemon", "frozen", "sleeper")


def environment(home: Path, **more: str) -> dict[str, str]:
    """The tests' own, with state and cache below `home` and our source in front."""
    path = os.pathsep.join(part for part in (SOURCE, os.environ.get("PYTHONPATH", "")) if part)
    return {
        **os.environ, "PYTHONPATH": path, "XDG_STATE_HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), **more,
    }  # fmt: skip


def wait_for(what: Callable[[], Any], *, seconds: float = TIMEOUT_SECONDS) -> Any:
    """The first true value of `what`."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"not true within {seconds:.0f} s: {what}"
        time.sleep(0.05)
    return found


def family(directory: Path) -> dict[str, int]:
    """The pids of FAMILY once all its members run."""

    def read() -> dict[str, int]:
        texts = {name: (directory / name) for name in MEMBERS}
        found = {name: path.read_text().strip() for name, path in texts.items() if path.exists()}
        return {name: int(text) for name, text in found.items() if text} if all(found.values()) else {}

    return wait_for(lambda: found if len(found := read()) == len(MEMBERS) else {})


def running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def processes_with(entry: str) -> list[str]:
    """Command lines of what runs with this `KEY=value` in its environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and entry.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [line for line in found if line]


def run_python(code: str, *arguments: str, home: Path) -> Any:
    """Runs a program in a process of its own and returns the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment(home), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def executable(path: Path, lines: Sequence[str]) -> Path:
    """A shell script."""
    path.write_text("#!/bin/sh\n" + "\n".join(lines) + "\n")
    path.chmod(0o755)
    return path

"""Running `longspan` as a user does, and looking for what it left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RUN = (sys.executable, "-c", "from longspan.cli.main import run; run()")
UP_TIMEOUT_SECONDS = 900


@dataclass(slots=True)
class Longspan:
    """The command line with a state directory of its own, by which everything that it starts can be told."""

    state: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """The user's, with our state directory."""
        return {**os.environ, "XDG_STATE_HOME": str(self.state), "COLUMNS": "200", **self.env}

    def run(self, *arguments: str, timeout_seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Runs one verb to its end."""
        return subprocess.run(
            [*RUN, *arguments],
            env=self.environment(), capture_output=True, text=True, timeout=timeout_seconds, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def up(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`longspan up`, as long as it takes."""
        return self.run("up", *arguments, timeout_seconds=UP_TIMEOUT_SECONDS)

    def status(self) -> dict[str, Any]:
        """`longspan status --json`."""
        done = self.run("status", "--json")
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def start_up(self, *arguments: str) -> subprocess.Popen[str]:
        """`longspan up` in the background, its words readable line by line."""
        return subprocess.Popen(
            [*RUN, "up", *arguments],
            env=self.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL, start_new_session=True,
            # A test run in the background ignores SIGINT, and so would `up`.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )  # fmt: skip

    def processes(self) -> list[str]:
        """What still runs with our state directory in its environment."""
        return processes_with(f"XDG_STATE_HOME={self.state}")


def is_running(pid: int) -> bool:
    """Whether a process is there and not only waits for its parent to take note of its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def processes_with(variable: str) -> list[str]:
    """The command lines of all processes that were started with this `NAME=value`, this one left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if variable.encode() not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            state = re.search(r"\) (\w)", (entry / "stat").read_text())
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if state and state[1] not in "ZX":
            found.append(f"{entry.name} {command[:150]}")
    return found


def orphaned_shm() -> set[str]:
    """The files in /dev/shm that no process has mapped or open; a live engine's are not orphans."""
    held: set[str] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                held |= set(re.findall(r"/dev/shm/\S+", (entry / "maps").read_text()))
                held |= {str(link.readlink()) for link in (entry / "fd").iterdir()}
            except OSError:
                continue
    return {str(path) for path in Path("/dev/shm").iterdir()} - held


def run_directories() -> set[str]:
    """The run directories of deployments on this machine; a lab's own folder is none."""
    return {str(path) for path in Path("/tmp").glob("longspan-*") if "-lab" not in path.name}


@dataclass(frozen=True, slots=True)
class Before:
    """What was there before, to compare with what is there after."""

    shm: set[str]
    directories: set[str]

    @classmethod
    def now(cls) -> "Before":
        """Looks around."""
        return cls(orphaned_shm(), run_directories())

    def left_by(self, longspan: Longspan) -> list[str]:
        """What `longspan` left behind; a process may take a moment to be gone after its parent was told so."""
        deadline = time.monotonic() + 20
        while (running := longspan.processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        left = {*(orphaned_shm() - self.shm), *(run_directories() - self.directories)}
        # Tests of controllers run beside these, and theirs last for seconds only.
        while left and time.monotonic() < deadline:
            time.sleep(0.2)
            left &= {*orphaned_shm(), *run_directories()}
        return [*(f"process {text}" for text in running), *sorted(left)]


def interrupt_after(process: subprocess.Popen[str], phase: str) -> str:
    """Sends Ctrl-C's signal once `phase` is done, and waits for the end.

    Returns:
        everything that was said on standard error.
    """
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if re.search(rf"✓ {phase}\b", line):
            process.send_signal(signal.SIGINT)
            break
    rest, _ = process.communicate(timeout=120)[1] or "", None
    return "".join(said) + rest


def words(sequence: Sequence[str]) -> str:
    """For assertion messages."""
    return "\n".join(sequence)

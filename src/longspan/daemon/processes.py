"""Starting processes and ending them whole: every process we started, everything it started, and nothing else.

An agent makes itself the subreaper of its descendants, so that a daemon that lost its parent is still found below
it. Processes that Ray starts in a cluster we only joined are not our descendants; they carry our mark in their
environment. Both ways name processes by identity, never by what they are called.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from longspan.launch.words import AGENT_VARIABLE, GROUP_VARIABLE, MARK_VARIABLE

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h
SHM = Path("/dev/shm")


def become_subreaper() -> None:
    """Orphans among our descendants are handed to this process instead of to init (prctl(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def die_with_parent() -> None:
    """In a child that is about to be: it is killed when the thread that started it ends (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def raise_open_files() -> None:
    """As many open files as the hard limit allows, for us and all we start: a login's soft limit of 1024 ends Ray early."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True)
class Identity:
    """A process by pid and start time (clock ticks since boot), so that a reused pid is never mistaken for it."""

    pid: int
    start_ticks: int


def identity(pid: int) -> Identity | None:
    """The identity of a running process; None when there is none, or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else Identity(pid, int(fields[19]))


def alive(process: Identity) -> bool:
    """Whether that very process still runs."""
    return identity(process.pid) == process


def descendants(root: int) -> set[int]:
    """All pids below `root`, itself and zombies left out."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for pid, state, parent in _table():
        children.setdefault(parent, []).append(pid)
        if state in "ZX":
            zombies.add(pid)
    found: set[int] = set()
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found - zombies


def _table() -> Iterator[tuple[int, str, int]]:
    """pid, state and parent of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                text = (entry / "stat").read_text(errors="replace")
                state, parent = text[text.rindex(")") + 2 :].split()[:2]
                yield int(entry.name), state, int(parent)


def marked(mark: str, variable: str = MARK_VARIABLE) -> set[int]:
    """All pids whose environment at their start carried `<variable>=<mark>`, ourselves left out.

    Only processes in our own network namespace count: containers and lab hosts may share the process table.
    """
    wanted = f"{variable}={mark}".encode()
    own_net = _net_namespace("self")
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if (
                wanted in (entry / "environ").read_bytes().split(b"\0")
                and _net_namespace(entry.name) == own_net
            ):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def ours(mark: str, *, joined: bool) -> set[int]:
    """Every process that this agent answers for: its descendants, and in a Ray that we joined the marked ones."""
    found = descendants(os.getpid())
    return found | marked(mark) if joined else found


def _net_namespace(pid: str) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def shm_files(pids: Iterable[int]) -> set[Path]:
    """The files under /dev/shm that these processes have mapped: vLLM's rings, semaphores, Ray's object store."""
    found: set[Path] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                path = line.split(None, 5)[-1]
                if path.startswith("/dev/shm/") and not path.endswith(" (deleted)"):
                    found.add(Path(path))
    return found


def remove_shm(files: set[Path]) -> None:
    """Removes what ended processes left under /dev/shm, unless a process that still runs has it mapped."""
    if not files:
        return
    for path in files - shm_files(pid for pid, _, _ in _table()):
        with contextlib.suppress(OSError):
            path.unlink()


def end(pids: set[int], *, grace_seconds: float) -> set[int]:
    """SIGTERM to each, then SIGKILL to those that remain after the grace.

    Returns:
        The pids that still run after the SIGKILL (uninterruptible in the kernel), which is worth a finding.
    """
    processes = {found for pid in pids if (found := identity(pid))}
    _signal(processes, signal.SIGTERM)
    _signal(processes, signal.SIGCONT)  # a frozen process takes no SIGTERM
    remaining = _wait(processes, grace_seconds)
    _signal(remaining, signal.SIGKILL)
    return {process.pid for process in _wait(remaining, 5)}


@dataclass(slots=True)
class Ended:
    """What `end_all` has come to.

    Attributes:
        seen: pids that were there; `left`: those of the last round that still run after a SIGKILL.
        shm: what they had mapped of shared memory.
    """

    seen: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    shm: set[Path] = field(default_factory=set)


def end_all(members: Callable[[], set[int]], *, grace_seconds: float) -> Ended:
    """Ends all members, again and again: a dying process can still have started another."""
    ended = Ended()
    for _ in range(3):
        found = members()
        ended.seen |= found
        ended.shm |= shm_files(found)
        ended.left = end(found, grace_seconds=grace_seconds)
        if not found:
            break
    reap()
    return ended


def of_group(group: str, mark: str, *, joined: bool) -> set[int]:
    """The processes of one engine group on this node; others of the same deployment may run beside it."""
    return marked(group, GROUP_VARIABLE) & ours(mark, joined=joined)


def end_group(group: str, mark: str, *, joined: bool) -> Ended:
    """Ends the processes of one engine group on this node and removes its shared memory; all else goes on."""
    ended = end_all(lambda: of_group(group, mark, joined=joined), grace_seconds=5)
    remove_shm(ended.shm)
    return ended


def _signal(processes: set[Identity], number: signal.Signals) -> None:
    for process in processes:
        if alive(process):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def _wait(processes: set[Identity], seconds: float) -> set[Identity]:
    deadline = time.monotonic() + seconds
    while processes := {process for process in processes if alive(process)}:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return processes


def reap() -> None:
    """Collects adopted children that ended. Our own children are left to `subprocess` and asyncio, which would read a
    wrong exit status otherwise: they collect theirs at once, so what was dead at the last call already is adopted.
    """
    global _dead
    me = os.getpid()
    dead = {pid for pid, state, parent in _table() if parent == me and state == "Z"}
    known = {child.pid for child in _started if child.poll() is None}
    for pid in (dead & _dead) - known:
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)
    _dead = dead


_dead: set[int] = set()
_started: list[subprocess.Popen[bytes]] = []


def start(
    argv: Sequence[str], *, env: Mapping[str, str], mark: str, log: Path, stdin: str = ""
) -> subprocess.Popen[bytes]:
    """Starts one process in a session of its own, its output appended to `log`, our mark in its environment."""
    log.parent.mkdir(parents=True, exist_ok=True)
    inherited = {key: value for key, value in os.environ.items() if key != AGENT_VARIABLE}
    full_env = {**inherited, **env, MARK_VARIABLE: mark, "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as out:
        child = subprocess.Popen(
            list(argv),
            env=full_env,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _started.append(child)
    if stdin:
        pipe: IO[bytes] | None = child.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.write(stdin.encode())
            pipe.close()
    return child

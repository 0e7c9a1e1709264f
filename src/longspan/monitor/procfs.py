"""CPU, memory and processes of a node out of /proc, file systems out of statvfs. The roots are arguments."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from longspan.monitor.view import DiskView

KIB = 1024


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Ticks of all cores together since the start of the machine."""

    busy: int
    total: int


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process: the kernel's name of it, ticks of CPU that it used, resident bytes."""

    pid: int
    start_ticks: int
    name: str
    ticks: int
    rss_bytes: int


def cpu_times(proc: Path) -> CpuTimes | None:
    """The first line of /proc/stat; waiting for a disk counts as idle (proc(5))."""
    try:
        line = (proc / "stat").read_text().split("\n", 1)[0]
        user, nice, system, idle, wait, *rest = [int(word) for word in line.split()[1:]]
    except (OSError, ValueError):
        return None
    busy = user + nice + system + sum(rest[:3])  # irq, softirq, steal; guest is within user
    return CpuTimes(busy, busy + idle + wait)


def memory(proc: Path) -> tuple[int | None, int | None]:
    """Total and used bytes of RAM; used is what is not available, so that caches do not count."""
    found: dict[str, int] = {}
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in {"MemTotal", "MemAvailable"}:
                found[name] = int(value.split()[0]) * KIB
    except (OSError, ValueError, IndexError):
        pass
    total, free = found.get("MemTotal"), found.get("MemAvailable")
    return total, None if total is None or free is None else total - free


def load_1min(proc: Path) -> float | None:
    """The load over the last minute."""
    try:
        return float((proc / "loadavg").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def disk(path: str) -> DiskView:
    """How full the file system of a path is; unknown where it cannot be asked. What only root may use counts as used."""
    try:
        found = os.statvfs(path)
    except OSError:
        return DiskView(path)
    used = (found.f_blocks - found.f_bavail) * found.f_frsize
    return DiskView(path, used, found.f_blocks * found.f_frsize)


def parents(proc: Path) -> dict[int, int]:
    """pid -> parent of every process. The dearest walk here: for every tenth sample or so."""
    found = {}
    for entry in _entries(proc):
        if entry.isdigit() and (fields := _stat(proc, int(entry))):
            found[int(entry)] = int(fields[2])
    return found


def below(root: int, parent_of: Mapping[int, int]) -> set[int]:
    """`root` and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, parent in parent_of.items():
        children.setdefault(parent, []).append(pid)
    found, queue = {root}, [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


def titles(proc: Path, pids: Iterable[int]) -> dict[int, str]:
    """How each of them calls itself now; vLLM and Ray change their titles once, when they begin to work."""
    return {pid: title for pid in pids if (title := _title(proc, pid))}


def processes(proc: Path, pids: Iterable[int]) -> list[ProcessReading]:
    """Those of them that still run, zombies left out."""
    found = []
    page = os.sysconf("SC_PAGE_SIZE")
    for pid in pids:
        fields = _stat(proc, pid)
        if fields and fields[1] not in "ZX":
            found.append(
                ProcessReading(
                    pid, int(fields[20]), fields[0], int(fields[12]) + int(fields[13]), int(fields[22]) * page,
                )
            )  # fmt: skip
    return found


def _entries(proc: Path) -> list[str]:
    try:
        return os.listdir(proc)  # noqa: PTH208 - names alone, thousands of them every few seconds
    except OSError:
        return []


def _stat(proc: Path, pid: int) -> list[str]:
    """Name, state, parent, ... of /proc/PID/stat; empty if it ended. The name may hold blanks and brackets."""
    try:
        descriptor = os.open(f"{proc}/{pid}/stat", os.O_RDONLY)
        try:
            text = os.read(descriptor, 4096).decode(errors="replace")
        finally:
            os.close(descriptor)
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :]
    except (OSError, ValueError):
        return []
    return [name, *rest.split()]


def _title(proc: Path, pid: int) -> str:
    """How it calls itself: the first word of its command line, where vLLM and Ray write their titles; with its module or
    script where that word is an interpreter."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    first = words[0].strip()
    if Path(first).name.startswith("python") and len(words) > 2 and words[1] == "-m":
        return words[2]
    if Path(first).name.startswith("python") and len(words) > 1 and words[1].endswith(".py"):
        return Path(words[1]).name
    return first if " " in first or ":" in first else Path(first).name

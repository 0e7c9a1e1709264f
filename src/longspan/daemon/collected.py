"""The logs of all nodes under one directory on the controller's machine: `collected/NODE/PROCESS.log`, each bounded.

A node on this machine writes below `logs/` anyway and has a link here; what the agents of others send is written by one thread, off
the event loop. A disk that is full or slow costs lines, never the deployment.
"""

import contextlib
import re
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MAX_LOG_BYTES = 64 << 20  # then it becomes NAME.log.1
MAX_PENDING = 200  # batches that wait for the disk
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,100}")


class Collected:
    """Writes what comes in.

    Attributes:
        lost: lines that found the disk full or too slow.
    """

    def __init__(self, root: Path, here: Iterable[str], logs: Path, limit_bytes: int = MAX_LOG_BYTES) -> None:
        self._root = root
        self._here = frozenset(here)
        self._limit_bytes = limit_bytes
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="collected-logs")
        self._pending = threading.Semaphore(MAX_PENDING)
        self.lost = 0
        with contextlib.suppress(OSError):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in self._here:
                link = root / name
                if not link.is_symlink() and not link.exists():
                    link.symlink_to(logs / name)

    def add(self, node: str, process: str, lines: Sequence[str]) -> None:
        """Lines of a process on a node; those of a node on this machine are there already."""
        if node in self._here or not lines or not (_NAME.fullmatch(node) and _NAME.fullmatch(process)):
            return
        if not self._pending.acquire(blocking=False):
            self.lost += len(lines)
            return
        self._pool.submit(self._write, self._root / node / f"{process}.log", list(lines))

    def _write(self, path: Path, lines: list[str]) -> None:
        try:
            if path.parent.is_symlink():  # the node was on this machine in an earlier start
                path.parent.unlink()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8", errors="replace") as file:
                file.write("".join(f"{line}\n" for line in lines))
                size_bytes = file.tell()
            if size_bytes > self._limit_bytes:
                path.replace(path.with_name(f"{path.name}.1"))
        except OSError:
            self.lost += len(lines)
        finally:
            self._pending.release()

    def close(self) -> None:
        """Waits until everything is written."""
        self._pool.shutdown()

"""Which log files belong to a replica, a rank or a node, and how they are read to their end and on."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.errors import LogsError

# What an engine's front end and ranks write into; the agents give the processes these names, later groups' with a number.
ENGINE_LOGS = ("engine", "launcher")
READ_BYTES = 1 << 20
TAIL_BYTES = 4 << 20  # of one file, for its last lines


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose logs.

    Attributes:
        processes: names of logs; empty for all of a node.
        pid: only lines that this process wrote, 0 for all.
    """

    nodes: tuple[str, ...]
    processes: tuple[str, ...] = ()
    pid: int = 0


def wanted(status: Mapping[str, Any], subject: str, rank: int | None) -> Wanted:
    """What a name on the command line means in this deployment.

    Raises:
        LogsError: no such replica, node or rank, or the rank has not said its pid.
    """
    nodes = [str(node["name"]) for node in status["nodes"]]
    replicas = {str(one["name"]): one["ranks"] for one in status["replicas"]}
    if subject in {"controller", "front", "gateway"}:
        return Wanted(
            ("" if subject == "controller" else "front",), ("controller",) if subject == "controller" else ()
        )
    if subject in nodes and rank is None:
        return Wanted((subject,))
    ranks = replicas.get(subject)
    if ranks is None and rank is not None and subject in nodes:
        ranks = [row for rows in replicas.values() for row in rows if row["planned_node"] == subject]
    if ranks is None:
        known = ", ".join([*replicas, *nodes, "front", "controller"])
        raise LogsError(f"There is no replica or node called {subject!r}.", f"Known: {known}.")
    where = tuple(dict.fromkeys(str(row["planned_node"]) for row in ranks))
    if rank is None:
        return Wanted(where, ENGINE_LOGS)
    row = next((one for one in ranks if one["rank"] == rank), None)
    if row is None:
        raise LogsError(f"{subject} has no rank {rank}.", f"It has {len(ranks)}, counted from 0.")
    if row.get("pid") is None:
        raise LogsError(
            f"Rank {rank} has not said which process it is.", f"`longspan logs {subject}` shows all."
        )
    # Under Ray all ranks write into the log of the launcher on the first node.
    return Wanted(where, ENGINE_LOGS, int(row["pid"]) if len(ranks) > 1 else 0)


@dataclass(slots=True)
class Source:
    """One log file, read from where it was left.

    Attributes:
        inode: of the file that `offset` belongs to; another one means that it was rotated.
    """

    path: Path
    node: str
    process: str
    offset: int = 0
    inode: int = 0
    rest: bytes = b""

    def tail(self, lines: int, pid: int = 0) -> list[str]:
        """Its last lines, or the last that a process wrote; reading goes on behind them."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                file.seek(max(0, found.st_size - TAIL_BYTES))
                data = file.read(TAIL_BYTES)
        except OSError:
            return []
        self.inode, self.offset = found.st_ino, found.st_size
        *whole, self.rest = data.split(b"\n")
        if not pid:
            return [_text(line) for line in whole[-lines:]] if lines else []
        mine = [text for line in whole if b"pid=" in line and wrote(text := _text(line), pid)]
        return mine[-lines:] if lines else []

    def more(self) -> list[str]:
        """What came since then; a file that was rotated or emptied is read from its beginning."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self.inode or found.st_size < self.offset:
                    self.inode, self.offset, self.rest = found.st_ino, 0, b""
                file.seek(self.offset)
                data = file.read(READ_BYTES)
        except OSError:
            return []
        self.offset += len(data)
        *whole, self.rest = (self.rest + data).split(b"\n")
        return [_text(line) for line in whole]


def _text(line: bytes) -> str:
    """A line for a terminal: what an engine writes goes to a person's screen, so no control character but the tab passes."""
    text = _COLOUR.sub("", line.decode(errors="replace")).rpartition("\r")[2]
    return "".join(c if c.isprintable() or c == "\t" else "�" for c in text)


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def sources(roots: tuple[Path, ...], want: Wanted) -> list[Source]:
    """The log files that there are, by node and name; where two roots have the same, the first one's."""
    found: dict[tuple[str, str], Source] = {}
    for root in roots:
        for node in want.nodes:
            folder = root / node
            for path in sorted(folder.glob("*.log")) if folder.is_dir() else ():
                if not want.processes or path.stem.partition(".")[0] in want.processes:
                    found.setdefault((node, path.stem), Source(path, node, path.stem))
    return list(found.values())


def wrote(line: str, pid: int) -> bool:
    """Whether that process wrote the line: vLLM and Ray begin it with "(Worker_TP0 pid=123)"."""
    return not pid or re.match(rf"(?:\([^)]*\) ?)*\([^)]*\bpid={pid}\b", line) is not None

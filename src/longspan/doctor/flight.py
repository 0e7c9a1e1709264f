"""Reads torch's NCCL flight recorder: which collectives had not finished on each rank when a dump was written.

A program of its own, because the dumps lie on the hosts and are large: its source is run there by `python3 -c`, so it
imports nothing of ours. A dump is a pickle in a directory that everybody may write to: no class in it is ever loaded.

The format is that of torch/csrc/distributed/c10d/FlightRecorder.hpp (2.5 to 2.13): {"entries": [{"process_group",
"collective_seq_id", "profiling_name", "input_sizes", "state", …}], …}.
"""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path
from typing import Any

PLACES = (
    "/tmp/nccl_trace_rank_*",
    "~/.cache/torch/comm_lib_trace_rank_*",
    "~/.cache/torch/nccl_trace_rank_*",
)
SHOWN = 8
LIMIT_BYTES = 256 << 20


class Plain(pickle.Unpickler):
    """Takes dictionaries, lists, texts and numbers only."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuses every class.

        Raises:
            UnpicklingError: always.
        """
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a dump")


def pending(dump: dict[str, Any]) -> list[str]:
    """The last collective of one dump that had finished, and those that had not, oldest first: lines of text."""
    entries = [entry for entry in dump.get("entries", ()) if isinstance(entry, dict)]
    lines = []
    done = [entry for entry in entries if entry.get("state") == "completed"]
    for entry in done[-1:] + [entry for entry in entries if entry.get("state") != "completed"][:SHOWN]:
        group = entry.get("process_group") or entry.get("pg_name") or "?"
        name = group[-1] if isinstance(group, (list, tuple)) and group else group
        lines.append(
            f"{entry.get('state')} seq {entry.get('collective_seq_id')} {entry.get('profiling_name')} "
            f"sizes {entry.get('input_sizes')} group {name}"
        )
    return lines


def dumps() -> list[Path]:
    """The dumps of this host."""
    found: list[Path] = []
    for place in PLACES:
        path = Path(place).expanduser()
        found += sorted(path.parent.glob(path.name))
    return found


def main(age_seconds: float) -> None:
    """Prints what every dump says that is not older than so many seconds."""
    for path in dumps():
        try:
            about = path.stat()
            if time.time() - about.st_mtime > age_seconds or about.st_size > LIMIT_BYTES:
                continue
            with path.open("rb") as file:
                lines = pending(Plain(file).load())
        except Exception as error:  # noqa: BLE001 - a broken dump is told and explains nothing
            lines = [f"unreadable: {type(error).__name__}"]
        print(path)
        print("\n".join(f"  {line}" for line in lines))


if __name__ == "__main__":
    main(float(sys.argv[1]))

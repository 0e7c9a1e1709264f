"""Structured logs: one JSON object a line, without prompts, answers or secrets. Written in batches off the hot path."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO


class Log:
    """Lines are collected and written by `flush`, ten times a second, or at once when many gather."""

    def __init__(self, path: Path | None, wall_clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = wall_clock
        self._lines: list[dict[str, Any]] = []
        self._file: TextIO | None = path.open("a", buffering=1) if path is not None else None

    def write(self, event: str, **fields: Any) -> None:
        """Adds a line."""
        self._lines.append({"at": round(self._clock(), 3), "event": event, **fields})
        if len(self._lines) >= 1000:
            self.flush()

    def flush(self) -> None:
        """Writes what gathered."""
        if self._lines:
            lines, self._lines = self._lines, []
            (self._file or sys.stderr).write("".join(json.dumps(line) + "\n" for line in lines))

    def reopen(self) -> None:
        """After log rotation (SIGHUP)."""
        if self._path is not None and self._file is not None:
            self._file.close()
            self._file = self._path.open("a", buffering=1)

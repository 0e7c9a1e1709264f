"""The record of every launch of a deployment, in SQLite: what it was made of, how it ended, which one was the last good.

One file per deployment, mode 0600, on the controller's machine. Each call opens and closes its own connection, so that
it may be made in any thread; the controller makes them in one of its own, never on its event loop.
"""

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS launches (
    id INTEGER PRIMARY KEY,
    started_at REAL NOT NULL,      -- seconds since the epoch
    ended_at REAL,
    outcome TEXT NOT NULL,         -- starting, good (serving or ended by the operator after serving), failed, stopped, lost, refused
    phase TEXT NOT NULL,
    what TEXT NOT NULL,            -- why it failed; empty otherwise
    digest TEXT NOT NULL,
    made_of TEXT NOT NULL,         -- JSON: "node/what" -> value
    seconds TEXT NOT NULL          -- JSON: phase -> how long it took
)
"""
KEPT = 1000
BUSY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch. `made_of` is flat: "node/what" and "deployment/what" -> value, no secret in it; `seconds`: by phase."""

    id: int
    started_at: float
    ended_at: float | None
    outcome: str
    phase: str
    what: str
    digest: str
    made_of: dict[str, str]
    seconds: dict[str, float]


def digest_of(made_of: Mapping[str, str]) -> str:
    """Two launches of the same digest were made of the same things."""
    return hashlib.sha256(json.dumps(dict(made_of), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class LaunchStore:
    """The file."""

    path: Path

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.path.exists():
            os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS)
        try:
            connection.execute(_SCHEMA)
            with connection:
                yield connection
        finally:
            connection.close()

    def begin(self, made_of: Mapping[str, str], outcome: str = "starting", what: str = "") -> int:
        """A launch begins; one that was still starting has lost its controller. Returns its id."""
        with self._open() as db:
            db.execute("UPDATE launches SET outcome = 'lost' WHERE outcome = 'starting'")
            row = db.execute(
                "INSERT INTO launches (started_at, outcome, phase, what, digest, made_of, seconds) VALUES (?, ?, '', ?, ?, ?, '{}')",
                (time.time(), outcome, what, digest_of(made_of), json.dumps(dict(made_of))),
            )
            db.execute("DELETE FROM launches WHERE id <= ?", ((row.lastrowid or 0) - KEPT,))
            return int(row.lastrowid or 0)

    def update(
        self,
        launch: int,
        made_of: Mapping[str, str],
        *,
        outcome: str,
        phase: str,
        what: str = "",
        seconds: Mapping[str, float] | None = None,
        ended: bool = False,
    ) -> None:
        """How far it is, or how it ended."""
        with self._open() as db:
            db.execute(
                "UPDATE launches SET digest = ?, made_of = ?, outcome = ?, phase = ?, what = ?, seconds = ?, ended_at = ? WHERE id = ?",
                (digest_of(made_of), json.dumps(dict(made_of)), outcome, phase, what, json.dumps(dict(seconds or {})),
                 time.time() if ended else None, launch),
            )  # fmt: skip

    def all(self, limit: int = 20) -> list[LaunchRecord]:
        """The last launches, the newest first; none where there is no file."""
        return self._read("ORDER BY id DESC LIMIT ?", (limit,))

    def last_good(self) -> dict[str, str]:
        """What the last launch that served was made of; empty if none did, or the file cannot be read."""
        found = self.good(1)
        return found[0].made_of if found else {}

    def good(self, limit: int = 40) -> list[LaunchRecord]:
        """The last launches that served, the newest first; none where the file cannot be read."""
        try:
            return self._read("WHERE outcome = 'good' ORDER BY id DESC LIMIT ?", (limit,))
        except sqlite3.Error:
            return []

    def _read(self, tail: str, values: tuple[Any, ...]) -> list[LaunchRecord]:
        if not self.path.is_file():
            return []
        with self._open() as db:
            rows = db.execute(
                f"SELECT id, started_at, ended_at, outcome, phase, what, digest, made_of, seconds FROM launches {tail}",  # noqa: S608 - our own words
                values,
            ).fetchall()
        return [_record(*row) for row in rows]


def _record(
    number: int,
    started: float,
    ended: float | None,
    outcome: str,
    phase: str,
    what: str,
    digest: str,
    made_of: str,
    seconds: str,
) -> LaunchRecord:
    flat = {str(key): str(value) for key, value in json.loads(made_of).items()}
    return LaunchRecord(number, started, ended, outcome, phase, what, digest, flat, json.loads(seconds))


@dataclass(slots=True)
class LaunchLog:
    """What the controller tells of one launch while it goes on. For one thread; nothing that fails here ends a launch.

    Attributes:
        id: of the launch's row, once it has begun.
        served: whether it has been good; what happens later does not take that back.
    """

    store: LaunchStore
    id: int = 0
    served: bool = False

    def go_on(self) -> None:
        """The launch that was recorded last is this one: another controller has noted it so far."""
        try:
            for last in self.store.all(1):
                self.id, self.served = last.id, last.outcome == "good"
        except (OSError, sqlite3.Error) as error:
            print(f"the launch record cannot be read: {error}", flush=True)

    def note(
        self, phase: str, made_of: Mapping[str, str], failure: str, seconds: Mapping[str, float]
    ) -> None:
        """The launch has reached a phase, made of what is known by now."""
        try:
            if not self.id:
                self.id = self.store.begin(made_of)
            self.served = self.served or phase == "serving"
            over = phase == "gone"
            outcome = (
                "good" if self.served else "starting" if not over else "failed" if failure else "stopped"
            )
            self.store.update(
                self.id, made_of, outcome=outcome, phase=phase, what=failure, seconds=seconds, ended=over
            )
        except (OSError, sqlite3.Error) as error:
            print(f"the launch record cannot be written: {error}", flush=True)

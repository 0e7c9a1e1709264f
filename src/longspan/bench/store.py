"""Results on disk: one SQLite file, in which each result is its JSON document; and documents that are files by themselves are read."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from longspan.bench.conditions import lock_digest
from longspan.bench.result import Result
from longspan.errors import ResultError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
    result_id TEXT PRIMARY KEY,
    started_unix_seconds REAL NOT NULL,
    url TEXT NOT NULL,
    model TEXT NOT NULL,
    conditions_digest TEXT NOT NULL,
    document TEXT NOT NULL
)
"""
# Another `longspan bench` may be writing; it holds the file for one insertion.
_BUSY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Stored:
    """One row of the list of results; runs of the same digest had the same conditions."""

    result_id: str
    started_unix_seconds: float
    url: str
    model: str
    conditions_digest: str


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as db, db:
            db.execute(_SCHEMA)
            yield db
    except (sqlite3.Error, OSError) as error:
        raise ResultError(
            f"The store of results, {path}, cannot be used: {error}.",
            "Free space on the disk, or name another file with --store.",
        ) from error


def save(path: Path, result: Result) -> None:
    """Adds a result.

    Raises:
        ResultError: one of this name is there already, or the file cannot be written.
    """
    document = json.dumps(result.to_json(), allow_nan=False)
    row = (
        result.result_id,
        result.started_unix_seconds,
        result.url,
        result.model,
        lock_digest(result.conditions),
        document,
    )
    with _opened(path) as db:
        kept = db.execute("SELECT document FROM results WHERE result_id = ?", row[:1]).fetchone()
        if kept is None:
            db.execute("INSERT INTO results VALUES (?, ?, ?, ?, ?, ?)", row)
        elif kept[0] != document:
            raise ResultError(
                f"{path} has another result named {result.result_id!r} already.", "Give it another name."
            )


def load(path: Path, result_id: str) -> Result:
    """One result of the store.

    Raises:
        ResultError: there is none of this name, or the file cannot be read.
    """
    found = None
    if path.exists():
        with _opened(path) as db:
            found = db.execute("SELECT document FROM results WHERE result_id = ?", (result_id,)).fetchone()
    if found is None:
        raise ResultError(
            f"{result_id!r} is neither a file nor a result in {path}.",
            "`longspan bench list` shows the results.",
        )
    return Result.from_json(json.loads(found[0]))


def listed(path: Path) -> list[Stored]:
    """What the store holds, the newest first; nothing where there is no store.

    Raises:
        ResultError: the file cannot be read.
    """
    if not path.exists():
        return []
    with _opened(path) as db:
        rows = db.execute(
            "SELECT result_id, started_unix_seconds, url, model, conditions_digest FROM results"
            " ORDER BY started_unix_seconds DESC, result_id"
        ).fetchall()
    return [Stored(*row) for row in rows]


def read_document(path: Path) -> object:
    """The JSON of a file, of ours or of another tool; of a file of JSON lines the list of them.

    Raises:
        ResultError: it cannot be read, or is no JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
        try:
            return json.loads(text)
        except ValueError:
            if not text.startswith("{") or "}\n{" not in text:
                raise
            return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} cannot be read as a result: {error}.", "Name a JSON file.") from error


def find(name: str, store: Path) -> Result:
    """A result by its file or, where there is no such file, by its name in the store.

    Raises:
        ResultError: neither is there, or it is broken.
    """
    path = Path(name)
    if path.is_file():
        return Result.from_json(read_document(path))
    return load(store, name)

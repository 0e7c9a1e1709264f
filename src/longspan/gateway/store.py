"""SQLite behind one writer thread: the ledger, keys made through the admin API, and the audit log.

The event loop only puts into a queue; rows are written in batches, at most ten a second, so that a slow disk delays
nobody. Readers (`gateway why`, exports) open the file themselves: WAL lets them.
"""

import contextlib
import json
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from longspan.errors import GatewayError
from longspan.gateway.config import KeyRule
from longspan.gateway.ledger import NO_FAILURE, Balance, Entry, Row, Sum, Try

BATCH_SECONDS = 0.1
# Older rows are deleted, so that the file does not grow for ever; once an hour, a slice at a time.
KEEP_DAYS = 90
FORGET_SECONDS = 3600.0
FORGET_ROWS = 20_000
SCHEMA = """
create table if not exists requests (
  request_id text, key text, model text, target text, outside integer, outcome text, status integer, stream integer,
  started real, seconds real, ttft_seconds real, prompt_tokens integer, completion_tokens integer,
  cached_tokens integer, usd real, reason text, trace text default '', response text default '', held_seconds real, predicted_seconds real, attempts text, avoided_usd real default 0
);
create index if not exists requests_id on requests (request_id);
create index if not exists requests_started on requests (started);
create table if not exists keys (name text primary key, sha256 text unique, rule text, created real, revoked real);
create table if not exists audit (at real, actor text, action text, subject text, detail text);
"""
# Columns that ledgers of earlier versions lack, and what needs them.
ADDED = {"avoided_usd": "real default 0", "trace": "text default ''", "response": "text default ''"}
INDEX = "create index if not exists requests_response on requests (started) where response != ''"
COLUMNS = (
    "request_id, key, model, target, outside, outcome, status, stream, started, seconds, ttft_seconds, "
    "prompt_tokens, completion_tokens, cached_tokens, usd, reason, trace, response, held_seconds, predicted_seconds, attempts, avoided_usd"
)
INSERT = f"insert into requests ({COLUMNS}) values ({','.join('?' * 22)})"  # noqa: S608 - constants only
GROUPS = ("key", "model", "target", "outcome")


class Job(NamedTuple):
    """One statement for the writer; `done` is told how it went, where somebody waits for that."""

    sql: str
    values: tuple[Any, ...]
    done: "Future[None] | None" = None


class Store:
    """The writer. `close` writes what is left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0
        try:
            with _open(path) as db:
                db.executescript(SCHEMA)
                known = {row[1] for row in db.execute("pragma table_info(requests)")}
                for name, kind in ADDED.items():
                    if name not in known:
                        db.execute(f"alter table requests add column {name} {kind}")
                db.execute(INDEX)
            path.chmod(0o600)
        except (sqlite3.Error, OSError) as error:
            text = f"The ledger {path} cannot be opened: {error}."
            raise GatewayError(text, "Give the gateway a writable `ledger` path.") from error
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="ledger", daemon=True)
        self._stop = threading.Event()
        self._thread.start()

    def add(self, row: Row) -> None:
        """Queues a ledger row."""
        self._queue.put(Job(INSERT, (row,)))

    def _queued(self, sql: str, values: tuple[Any, ...]) -> "Future[None]":
        done: Future[None] = Future()
        self._queue.put(Job(sql, values, done))
        return done

    def save_key(self, rule: KeyRule, at: float) -> "Future[None]":
        """Queues a key; only its hash is stored. The result comes when it is on disk, or the error that kept it off."""
        text = json.dumps({name: getattr(rule, name) for name in KeyRule.__dataclass_fields__})
        sql = "insert or replace into keys (name, sha256, rule, created, revoked) values (?, ?, ?, ?, null)"
        return self._queued(sql, (rule.name, rule.sha256, text, at))

    def revoke_key(self, name: str, at: float) -> "Future[None]":
        """Queues the end of a key; the result as for `save_key`."""
        return self._queued("update keys set revoked = ? where name = ?", (at, name))

    def audit(self, at: float, actor: str, action: str, subject: str, detail: str = "") -> None:
        """Queues a line of the audit log."""
        self._queue.put(Job("insert into audit values (?, ?, ?, ?, ?)", (at, actor, action, subject, detail)))

    def close(self) -> None:
        """Writes the rest and ends the thread."""
        self._stop.set()
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _write(self) -> None:
        db = _open(self.path)
        forget_at = written = 0.0
        while True:
            item = self._queue.get()
            batch = [item] if item is not None else []
            self._stop.wait(
                max(0.0, written + BATCH_SECONDS - time.monotonic())
            )  # the first of a calm is written at once
            while not self._queue.empty():
                more = self._queue.get()
                if more is not None:
                    batch.append(more)
            written = time.monotonic()
            self.lost += _run(db, batch)
            if (now := time.time()) > forget_at:
                forget_at = now + FORGET_SECONDS
                _forget(db, now)
            if self._stop.is_set() and self._queue.empty():
                db.close()
                return


def _run(db: sqlite3.Connection, batch: list[Job]) -> int:
    """Writes the ledger's rows together and everything else by itself, so that one cannot take the others with it.

    Returns:
        How many could not be written: a full disk must not stop the answers, `/metrics` shows the loss.
    """
    rows = [job for job in batch if job.sql is INSERT]
    lost = (
        0
        if _wrote(lambda: db.executemany(INSERT, [_columns(job.values[0]) for job in rows]), db) is None
        else len(rows)
    )
    for job in batch:
        if job.sql is not INSERT:
            error = _wrote(lambda job=job: db.execute(job.sql, job.values), db)  # type: ignore[misc]
            lost += error is not None
            if job.done is not None:
                job.done.set_exception(error) if error else job.done.set_result(None)
    return lost


def _wrote(write: Callable[[], object], db: sqlite3.Connection) -> Exception | None:
    """One transaction; what went wrong, since the thread must outlive what cannot be written."""
    try:
        with db:
            write()
    except (sqlite3.Error, OverflowError, ValueError) as error:
        return error
    return None


def _forget(db: sqlite3.Connection, now: float) -> None:
    with contextlib.suppress(sqlite3.Error), db:
        db.execute(
            "delete from requests where rowid in (select rowid from requests where started < ? limit ?)",
            (now - KEEP_DAYS * 86400, FORGET_ROWS),
        )


def _columns(row: Row) -> tuple[Any, ...]:
    entry, held, predicted, attempts, avoided = row
    return (*entry, held, predicted, json.dumps(attempts), avoided)


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=5)
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = normal")
    return db


def _reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write.

    Raises:
        GatewayError: there is no ledger.
    """
    if not path.exists():
        raise GatewayError(f"There is no ledger at {path}.", "Set `ledger` in the gateway's configuration.")
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)


def _row(values: tuple[Any, ...]) -> Row:
    *columns, held, predicted, attempts, avoided = values
    columns[4], columns[7] = bool(columns[4]), bool(columns[7])
    return Row(
        Entry(*columns), held, predicted, tuple(Try(*item) for item in json.loads(attempts)), avoided or 0.0
    )


def find_request(path: Path, request_id: str) -> Row | None:
    """The newest request with this id."""
    db = _reader(path)
    try:
        sql = f"select {COLUMNS} from requests where request_id = ? order by started desc limit 1"  # noqa: S608
        found = db.execute(sql, (request_id,)).fetchone()
    finally:
        db.close()
    return _row(found) if found else None


def read_rows(path: Path, since: float, until: float) -> Iterator[Row]:
    """Rows of a span of time, oldest first."""
    db = _reader(path)
    try:
        sql = f"select {COLUMNS} from requests where started >= ? and started < ? order by started"  # noqa: S608
        for values in db.execute(sql, (since, until)):
            yield _row(values)
    finally:
        db.close()


def sums(path: Path, by: str, since: float, until: float) -> list[Sum]:
    """Totals by `key`, `model`, `target` or `outcome`."""
    assert by in GROUPS
    db = _reader(path)
    try:
        sql = (
            f"select {by}, count(*), sum(outcome not in {NO_FAILURE}), "  # noqa: S608
            "sum(prompt_tokens), sum(completion_tokens), sum(usd), sum(avoided_usd) from requests "
            f"where started >= ? and started < ? group by {by} order by {by}"
        )
        return [Sum(*values) for values in db.execute(sql, (since, until))]
    finally:
        db.close()


def balance(path: Path, since: float, until: float) -> Balance:
    """The share of local and outside traffic in a span of time, and the money."""
    db = _reader(path)
    try:
        sql = (
            "select count(*), coalesce(sum(outside), 0), coalesce(sum(usd), 0), coalesce(sum(avoided_usd), 0) "
            "from requests where started >= ? and started < ?"
        )
        return Balance(*db.execute(sql, (since, until)).fetchone())
    finally:
        db.close()


def load_keys(path: Path) -> tuple[KeyRule, ...]:
    """Keys that were made and not revoked."""
    db = _reader(path)
    try:
        rules = db.execute("select rule from keys where revoked is null order by created").fetchall()
    finally:
        db.close()
    return tuple(_rule(json.loads(text)) for (text,) in rules)


def load_responses(path: Path, limit: int) -> list[tuple[str, str, str]]:
    """The newest stored responses, oldest first: id, replica, key."""
    db = _reader(path)
    try:
        sql = "select response, target, key from requests where response != '' order by started desc limit ?"
        return [tuple(row) for row in reversed(db.execute(sql, (limit,)).fetchall())]
    finally:
        db.close()


def _rule(values: dict[str, Any]) -> KeyRule:
    return KeyRule(**{**values, "models": tuple(values.get("models") or ())})


def read_audit(path: Path, limit: int) -> list[dict[str, Any]]:
    """The newest lines of the audit log."""
    db = _reader(path)
    try:
        found = db.execute("select * from audit order by at desc limit ?", (limit,)).fetchall()
    finally:
        db.close()
    return [dict(zip(("at", "actor", "action", "subject", "detail"), line, strict=True)) for line in found]

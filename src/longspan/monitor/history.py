"""24 hours of figures in one SQLite file that cannot grow beyond its bound, behind one writer thread.

A ring has a fixed number of slots, and a slot is written over when its turn comes again, so nothing needs to be deleted for the
file to stay small. Rows lie by slot: the thousands that come once a minute touch some thirty pages, and not one page each. A bucket keeps the mean and the highest value that fell into it.
"""

import contextlib
import math
import queue
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from longspan.errors import StateError

DAY_SECONDS = 86_400
# The most that the file may take, enforced by SQLite itself. 64 nodes of 8 GPUs and 10 ports need about a third of it.
MAX_FILE_BYTES = 512 << 20
PAGE_BYTES = 4096
MAX_SERIES = 8192
MAX_WAITING_BATCHES = 16
MAX_READ_SERIES = 64


class Ring(NamedTuple):
    """One resolution.

    Attributes:
        prefixes: which series are kept in it; ("",) for all.
    """

    table: str
    bucket_seconds: int
    slots: int
    prefixes: tuple[str, ...]


# An hour in detail for what charts zoom into, and a day for everything.
RINGS = (
    Ring("hour", 10, 360, ("cluster/", "replica/")),
    Ring("day", 60, DAY_SECONDS // 60, ("",)),
)
SCHEMA = (
    "create table if not exists series (id integer primary key, name text unique, seen integer);"
    + "".join(
        f"create table if not exists {ring.table} (series integer, slot integer, at integer, mean real, peak real,"
        " primary key (slot, series)) without rowid;"
        for ring in RINGS
    )
)


class Point(NamedTuple):
    """A bucket: when it began (Unix seconds), the mean and the highest value in it."""

    at: int
    mean: float
    peak: float


class _Bucket:
    """The bucket of one ring that is being filled."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.number = -1
        self.sums: dict[str, list[float]] = {}  # name -> sum, count, peak

    def add(self, at: float, values: Mapping[str, float]) -> list[tuple[str, int, float, float]]:
        """Takes values in; returns the rows of the bucket that they ended, or nothing."""
        number = int(at // self.ring.bucket_seconds)
        done = [] if number == self.number else self.rows()
        if number != self.number:
            self.number, self.sums = number, {}
        for name, value in values.items():
            if not math.isfinite(value) or not name.startswith(self.ring.prefixes):
                continue
            held = self.sums.setdefault(name, [0.0, 0.0, value])
            held[0] += value
            held[1] += 1
            held[2] = max(held[2], value)
        return done

    def rows(self) -> list[tuple[str, int, float, float]]:
        """What the bucket holds: name, when it began, mean, peak."""
        at = self.number * self.ring.bucket_seconds
        return [(name, at, total / count, peak) for name, (total, count, peak) in self.sums.items()]


class History:
    """The writer and the way to read. `add` never waits for the disk.

    Attributes:
        trouble: why nothing is being kept at the moment, empty while all is well.
        lost: points that could not be kept.
    """

    def __init__(self, path: Path) -> None:
        """Opens or makes the file.

        Raises:
            StateError: it cannot be used: not writable, or no such database.
        """
        self.path = path
        self.trouble = ""
        self.lost = 0
        self._buckets = [_Bucket(ring) for ring in RINGS]
        self._queue: queue.Queue[list[tuple[str, list[tuple[str, int, float, float]]]] | None] = queue.Queue(
            MAX_WAITING_BATCHES
        )
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.closing(_open(path)) as db:
                db.executescript(SCHEMA)
            path.chmod(0o600)
        except (sqlite3.Error, OSError) as error:
            raise StateError(
                f"The history {path} cannot be used: {error}.",
                "Move the file away, or free space there; a new one is made.",
            ) from error
        self._thread = threading.Thread(target=self._write, name="history", daemon=True)
        self._thread.start()

    def add(self, at: float, values: Mapping[str, float]) -> None:
        """Takes the values of one moment (Unix seconds)."""
        self._put([(bucket.ring.table, rows) for bucket in self._buckets if (rows := bucket.add(at, values))])

    def _put(self, batch: list[tuple[str, list[tuple[str, int, float, float]]]]) -> None:
        if not batch:
            return
        try:
            self._queue.put_nowait(batch)
        except queue.Full:
            self.lost += sum(len(rows) for _, rows in batch)
            self.trouble = "the disk is too slow to keep the history"

    @property
    def waiting(self) -> int:
        """Batches that are not yet with the writer."""
        return self._queue.qsize()

    def close(self) -> None:
        """Writes what the open buckets hold and ends the thread."""
        self._put([(bucket.ring.table, rows) for bucket in self._buckets if (rows := bucket.rows())])
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _write(self) -> None:
        ids: dict[str, int] = {}
        db: sqlite3.Connection | None = None
        file = -1
        while (batch := self._queue.get()) is not None:
            try:
                # Somebody removed or replaced the file, perhaps while it was being opened.
                if db is not None and (file == -1 or self._inode() != file):
                    db.close()
                    db = None
                if db is None:
                    ids.clear()
                    db = _open(self.path)
                    db.executescript(SCHEMA)
                    file = self._inode()
                with db:
                    for table, rows in batch:
                        self._write_rows(db, ids, table, rows)
                self.trouble = ""
            except (sqlite3.Error, OSError) as error:
                ids.clear()  # those of a transaction that was taken back
                self.lost += sum(len(rows) for _, rows in batch)
                self.trouble = f"it is not being kept: {error}"
        if db is not None:
            db.close()

    def _inode(self) -> int:
        try:
            return self.path.stat().st_ino
        except FileNotFoundError:
            return -1

    def _write_rows(
        self,
        db: sqlite3.Connection,
        ids: dict[str, int],
        table: str,
        rows: list[tuple[str, int, float, float]],
    ) -> None:
        ring = next(ring for ring in RINGS if ring.table == table)
        now = rows[0][1]
        if any(name not in ids for name, *_ in rows):
            _register(db, [name for name, *_ in rows], now)
            ids.clear()
            ids.update(db.execute("select name, id from series"))
        if ring.prefixes == ("",):
            db.executemany(
                "update series set seen = ? where id = ?", [(now, ids[n]) for n, *_ in rows if n in ids]
            )
        kept = [
            (ids[name], at // ring.bucket_seconds % ring.slots, at, mean, peak)
            for name, at, mean, peak in rows
            if name in ids
        ]
        self.lost += len(rows) - len(kept)
        db.executemany(f"insert or replace into {table} values (?, ?, ?, ?, ?)", kept)  # noqa: S608 - our own table's name

    def read(self, names: Sequence[str], since: float, until: float) -> tuple[int, dict[str, list[Point]]]:
        """Series between two moments, out of the finest ring that reaches back far enough; takes a disk read.

        Returns:
            the seconds of a bucket, and the points of each name that is known, in order of time.

        Raises:
            StateError: the file cannot be read.
        """
        span = until - since
        ring = next((r for r in RINGS if span <= r.bucket_seconds * r.slots), RINGS[-1])
        if not all(name.startswith(ring.prefixes) for name in names):
            ring = RINGS[-1]
        asked = list(names)[:MAX_READ_SERIES]
        marks = ",".join("?" * len(asked))
        # By slot first, as the rows lie: writing must be cheap, since it happens all day, and reading is this one walk.
        sql = (
            "with recursive every(slot) as (select 0 union all select slot + 1 from every where slot + 1 < ?)"  # noqa: S608 - as above
            f" select name, at, mean, peak from every cross join (select id, name from series where name in ({marks})) as wanted"
            f" cross join {ring.table} as kept on kept.slot = every.slot and kept.series = wanted.id"
            " where at > ? and at <= ? order by at"
        )
        found: dict[str, list[Point]] = {}
        try:
            with contextlib.closing(_open(self.path)) as db:
                for name, *point in db.execute(sql, (ring.slots, *asked, since, until)):
                    found.setdefault(name, []).append(Point(*point))
        except sqlite3.Error as error:
            raise StateError(f"The history {self.path} cannot be read: {error}.") from error
        return ring.bucket_seconds, found


def _register(db: sqlite3.Connection, names: list[str], now: int) -> None:
    """Gives new series a number; those that were silent for a day make room, with their points."""
    old = [
        (number,) for (number,) in db.execute("select id from series where seen < ?", (now - DAY_SECONDS,))
    ]
    for ring in RINGS if old else ():
        db.executemany(f"delete from {ring.table} where series = ?", old)  # noqa: S608 - as above
    db.executemany("delete from series where id = ?", old)
    (count,) = db.execute("select count(*) from series").fetchone()
    known = {name for (name,) in db.execute("select name from series")}
    new = [name for name in dict.fromkeys(names) if name not in known][: max(0, MAX_SERIES - count)]
    db.executemany("insert into series (name, seen) values (?, ?)", [(name, now) for name in new])


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=5)
    try:
        db.execute("pragma journal_mode = wal")
        db.execute("pragma synchronous = normal")
        db.execute("pragma cache_size = -1024")
        db.execute(f"pragma max_page_count = {MAX_FILE_BYTES // PAGE_BYTES}")
    except sqlite3.Error:
        db.close()
        raise
    return db

"""The history of a day: bounded by construction, honest about gaps and about what it could not keep."""

import sqlite3
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import StateError
from longspan.monitor import history
from longspan.monitor.history import RINGS, History, Ring, _Bucket

NOON = 1_700_000_000 // 60 * 60.0
HOUR, DAY = RINGS


def filled(path: Path, moments: dict[float, dict[str, float]]) -> History:
    """A history that has taken these values and written them."""
    found = History(path)
    for at, values in moments.items():
        found.add(at, values)
    found.close()
    return found


def rows(path: Path, table: str) -> int:
    """How many rows a ring holds."""
    with sqlite3.connect(path) as db:
        count: int = db.execute(f"select count(*) from {table}").fetchone()[0]
    db.close()
    return count


def test_a_bucket_keeps_mean_and_peak(tmp_path: Path) -> None:
    """Six values of a minute become one point of the day's ring, with their mean and the highest of them."""
    values = (1.0, 2.0, 3.0, 4.0, 5.0, 9.0)
    found = filled(tmp_path / "h", {NOON + 10 * n: {"node/a/cpu_share": v} for n, v in enumerate(values)})
    bucket, series = found.read(["node/a/cpu_share"], NOON - 1, NOON + 3000)
    assert bucket == DAY.bucket_seconds
    assert series == {"node/a/cpu_share": [(int(NOON), 4.0, 9.0)]}


def test_a_short_span_is_read_in_detail_and_a_long_one_is_not(tmp_path: Path) -> None:
    """An hour of the deployment's own figures has points of 10 s, a day those of a minute."""
    found = filled(tmp_path / "h", {NOON + n: {"cluster/running": 1.0} for n in range(120)})
    assert found.read(["cluster/running"], NOON - 1, NOON + 3500)[0] == HOUR.bucket_seconds
    assert len(found.read(["cluster/running"], NOON - 1, NOON + 3500)[1]["cluster/running"]) == 12
    assert len(found.read(["cluster/running"], NOON - 1, NOON + 80_000)[1]["cluster/running"]) == 2


def test_a_third_day_takes_no_more_room_than_the_first(tmp_path: Path) -> None:
    """Slots are written over: however long it runs, a series has no more rows than its rings have slots."""
    path = tmp_path / "h"
    found = History(path)
    for minute in range(3 * DAY.slots):
        found.add(NOON + 60 * minute, {"cluster/running": float(minute)})
        if minute % 8 == 0:
            while found.waiting > 8:
                time.sleep(0.005)  # the writer's thread needs the interpreter
    found.close()
    assert rows(path, "day") == DAY.slots
    assert rows(path, "hour") <= HOUR.slots
    now = NOON + 60 * 3 * DAY.slots
    kept = found.read(["cluster/running"], now - 86_401, now)[1]["cluster/running"]
    assert [point.mean for point in kept] == [float(m) for m in range(2 * DAY.slots, 3 * DAY.slots)]


def test_a_gap_stays_a_gap(tmp_path: Path) -> None:
    """Minutes in which nothing was known have no point, and none is invented."""
    found = filled(tmp_path / "h", {NOON: {"cluster/running": 1.0}, NOON + 600: {"cluster/running": 2.0}})
    points = found.read(["cluster/running"], NOON - 1, NOON + 80_000)[1]["cluster/running"]
    assert [point.at for point in points] == [int(NOON), int(NOON + 600)]


def test_points_of_a_clock_that_was_ahead_are_not_shown(tmp_path: Path) -> None:
    """What was written while the clock stood in the future is outside what is read, and its slots are taken again."""
    found = filled(tmp_path / "h", {NOON + 86_400: {"cluster/running": 7.0}, NOON: {"cluster/running": 1.0}})
    points = found.read(["cluster/running"], NOON - 3600, NOON + 60)[1]["cluster/running"]
    assert [point.mean for point in points] == [1.0]


def test_it_survives_a_restart(tmp_path: Path) -> None:
    """What one process wrote the next one shows."""
    filled(tmp_path / "h", {NOON: {"cluster/running": 1.0}})
    found = filled(tmp_path / "h", {NOON + 60: {"cluster/running": 2.0}})
    assert len(found.read(["cluster/running"], NOON - 1, NOON + 80_000)[1]["cluster/running"]) == 2


def test_the_file_is_the_owners(tmp_path: Path) -> None:
    """Nobody else may read what ran here."""
    filled(tmp_path / "h", {NOON: {"cluster/running": 1.0}})
    assert (tmp_path / "h").stat().st_mode & 0o077 == 0


def test_a_file_that_is_no_database_is_a_users_error(tmp_path: Path) -> None:
    """It is neither overwritten nor a traceback."""
    (tmp_path / "h").write_text("not a database, and of somebody else" * 100)
    with pytest.raises(StateError, match="cannot be used"):
        History(tmp_path / "h")
    assert (tmp_path / "h").read_text().startswith("not a database")


def test_a_full_file_is_said_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When nothing more fits, `trouble` says so, the loss is counted, and adding goes on."""
    found = History(tmp_path / "h")
    monkeypatch.setattr(history, "MAX_FILE_BYTES", 16 * 4096)
    for minute in range(40):
        found.add(NOON + 60 * minute, {f"cluster/{n}": 1.0 for n in range(400)})
    found.close()
    assert "full" in found.trouble
    assert found.lost > 0
    assert (tmp_path / "h").stat().st_size <= 16 * 4096


def test_a_removed_file_is_made_again(tmp_path: Path) -> None:
    """Somebody cleans up while the dashboard runs: the history begins anew and says nothing is wrong."""
    path = tmp_path / "h"
    found = History(path)
    found.add(NOON, {"cluster/running": 1.0})
    found.add(NOON + 60, {"cluster/running": 1.0})
    while found.waiting:
        pass
    for file in tmp_path.iterdir():
        file.unlink()
    found.add(NOON + 120, {"cluster/running": 2.0})
    found.close()
    assert found.trouble == ""
    assert path.exists()


def test_no_more_series_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of names is refused and counted; those that are known go on."""
    monkeypatch.setattr(history, "MAX_SERIES", 3)
    found = filled(tmp_path / "h", {NOON: {f"node/{n}/x": 1.0 for n in range(10)}})
    assert found.lost == 7
    assert len(found.read([f"node/{n}/x" for n in range(10)], NOON - 1, NOON + 9000)[1]) == 3


def test_series_that_were_silent_for_a_day_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced node's series are forgotten, with their points, when new names come a day later."""
    monkeypatch.setattr(history, "MAX_SERIES", 1)
    later = NOON + 90_000
    found = filled(tmp_path / "h", {NOON: {"node/old/x": 1.0}, later: {"node/new/x": 2.0}})
    assert set(found.read(["node/old/x", "node/new/x"], NOON - 1, later + 60)[1]) == {"node/new/x"}


@given(st.lists(st.tuples(st.integers(0, 400), st.floats(-1e9, 1e9)), max_size=60))
@settings(max_examples=60)
def test_every_value_lands_in_exactly_one_bucket(values: list[tuple[int, float]]) -> None:
    """However the clock jumps, the counts of all buckets add up to what was put in, and mean and peak are within the values."""
    bucket = _Bucket(Ring("t", 10, 10, ("",)))
    seen: list[tuple[str, int, float, float]] = []
    counts = 0
    for at, value in values:
        before = sum(int(held[1]) for held in bucket.sums.values())
        done = bucket.add(float(at), {"x": value})
        counts += before if done else 0
        seen += done
    counts += sum(int(held[1]) for held in bucket.sums.values())
    assert counts == len(values)
    for _, at, mean, peak in [*seen, *bucket.rows()]:
        inside = [value for when, value in values if when // 10 * 10 == at]
        assert min(inside) - 1e-3 <= mean <= max(inside) + 1e-3
        assert peak in inside


def test_what_is_not_finite_is_not_kept(tmp_path: Path) -> None:
    """NaN and infinity are no figures."""
    found = filled(tmp_path / "h", {NOON: {"cluster/a": float("nan"), "cluster/b": float("inf")}})
    assert found.read(["cluster/a", "cluster/b"], NOON - 1, NOON + 100)[1] == {}

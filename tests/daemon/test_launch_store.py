"""The record of launches: what each was made of, how it ended, and which was the last good one."""

import sqlite3
import threading
from pathlib import Path

import pytest

from longspan.daemon.launch_store import KEPT, LaunchLog, LaunchStore, digest_of

MADE = {"a/python": "3.11.2", "deployment/arguments": "none"}


@pytest.fixture
def store(tmp_path: Path) -> LaunchStore:
    """A new one."""
    return LaunchStore(tmp_path / "state" / "launches.sqlite3")


def test_nothing_is_recorded_yet(store: LaunchStore) -> None:
    """Reading makes no file."""
    assert (store.all(), store.last_good()) == ([], {})
    assert not store.path.exists()


def test_a_launch_that_serves_and_is_stopped(store: LaunchStore) -> None:
    """It is good from its first token on, whatever ends it later; the file is the owner's only."""
    log = LaunchLog(store)
    log.note("agents", {}, "", {})
    assert store.all()[0].outcome == "starting"
    for phase in ("ray", "serving", "stopping", "gone"):
        log.note(phase, MADE, "the link was lost" if phase == "gone" else "", {"ray": 2.0})
    (launch,) = store.all()
    assert (launch.outcome, launch.phase, launch.what) == ("good", "gone", "the link was lost")
    assert launch.ended_at is not None
    assert launch.digest == digest_of(MADE)
    assert launch.seconds == {"ray": 2.0}
    assert store.last_good() == MADE
    assert store.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("failure", "outcome"), [("no GPU", "failed"), ("", "stopped")])
def test_a_launch_that_never_served(store: LaunchStore, failure: str, outcome: str) -> None:
    """It is no good one, and the last good one before it stays."""
    good = LaunchLog(store)
    good.note("serving", MADE, "", {})
    bad = LaunchLog(store)
    bad.note("agents", {**MADE, "a/python": "3.12.0"}, "", {})
    bad.note("gone", {**MADE, "a/python": "3.12.0"}, failure, {})
    assert [one.outcome for one in store.all()] == [outcome, "good"]
    assert store.last_good() == MADE


@pytest.mark.parametrize("phase", ["engine", "serving"])
def test_a_controller_that_is_replaced(store: LaunchStore, phase: str) -> None:
    """The next one goes on with the same launch, which is as good as it was."""
    LaunchLog(store).note(phase, MADE, "", {})
    next_one = LaunchLog(store)
    next_one.go_on()
    next_one.note("gone", MADE, "", {})
    (launch,) = store.all()
    assert launch.outcome == ("good" if phase == "serving" else "stopped")


def test_a_controller_that_died(store: LaunchStore) -> None:
    """The next launch finds the one that was still starting, and calls it lost."""
    LaunchLog(store).note("engine", MADE, "", {})
    LaunchLog(store).note("agents", MADE, "", {})
    assert [one.outcome for one in store.all()] == ["starting", "lost"]


def test_a_file_that_cannot_be_written_ends_nothing(
    store: LaunchStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory in its place, or no database in it: said in the log, and no exception."""
    store.path.mkdir(parents=True)
    LaunchLog(store).note("serving", MADE, "", {})
    store.path.rmdir()
    store.path.write_text("this is no database, and longer than a header of one would be " * 9)
    LaunchLog(store).note("serving", MADE, "", {})
    assert capsys.readouterr().out.count("cannot be written") == 2
    assert store.last_good() == {}
    with pytest.raises(sqlite3.DatabaseError):
        store.all()


def test_several_writers(store: LaunchStore) -> None:
    """Launches of several threads are all there: a busy file is waited for."""
    threads = [
        threading.Thread(target=lambda: LaunchLog(store).note("serving", MADE, "", {})) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.all(100)) == 8


def test_old_launches_are_forgotten(store: LaunchStore) -> None:
    """The record does not grow for ever."""
    store.begin(MADE)
    with sqlite3.connect(store.path) as db:
        db.execute("UPDATE launches SET id = ?", (KEPT + 5,))
    db.close()
    store.begin(MADE)
    assert [one.id for one in store.all()] == [KEPT + 6, KEPT + 5]
    store.begin(MADE)
    with sqlite3.connect(store.path) as db:
        db.execute("UPDATE launches SET id = id + ? WHERE id > ?", (KEPT, KEPT + 5))
    db.close()
    store.begin(MADE)
    assert KEPT + 5 not in [one.id for one in store.all()]

"""Results on disk."""

from pathlib import Path

import pytest

from bench_made import made, write_file
from longspan.bench import store
from longspan.errors import ResultError


def test_a_result_survives_store_and_file(tmp_path: Path) -> None:
    """What comes back from either equals what went in, and a file is found by its path, a result by its name."""
    own = made(1, count=20)
    own = type(own).from_json(own.to_json())
    store.save(tmp_path / "sub" / "s.sqlite", own)
    write_file(tmp_path / "r.json", own)
    assert store.find("r1", tmp_path / "sub" / "s.sqlite") == own
    assert store.find(str(tmp_path / "r.json"), tmp_path / "none") == own
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", "sub"]


def test_saving_again_changes_nothing_and_another_of_the_name_is_refused(tmp_path: Path) -> None:
    """A result is never overwritten: the same is accepted, another one of the same name is not."""
    store.save(tmp_path / "s", made(1, count=5))
    store.save(tmp_path / "s", made(1, count=5))
    with pytest.raises(ResultError, match="another result named 'r1'"):
        store.save(tmp_path / "s", made(2, count=5, result_id="r1"))
    assert len(store.listed(tmp_path / "s")) == 1


def test_the_list_has_the_newest_first_and_tells_like_conditions(tmp_path: Path) -> None:
    """Runs under the same conditions share a digest."""
    for seed in (1, 2):
        store.save(tmp_path / "s", made(seed, count=5))
    store.save(tmp_path / "s", made(3, count=5, conditions={"engine/version": "2"}))
    rows = store.listed(tmp_path / "s")
    assert [row.result_id for row in rows] == ["r3", "r2", "r1"]
    assert rows[1].conditions_digest == rows[2].conditions_digest != rows[0].conditions_digest


def test_what_is_not_there_is_said_and_reading_makes_no_file(tmp_path: Path) -> None:
    """An unknown name, no JSON and no database are each one error; looking makes no store."""
    with pytest.raises(ResultError, match="neither a file nor a result"):
        store.find("r9", tmp_path / "s")
    assert store.listed(tmp_path / "s") == []
    assert not (tmp_path / "s").exists()
    (tmp_path / "bad").write_text(
        "no database, and no JSON either, long enough to be looked at by SQLite" * 20
    )
    with pytest.raises(ResultError, match="cannot be used"):
        store.listed(tmp_path / "bad")
    with pytest.raises(ResultError, match="cannot be read"):
        store.find(str(tmp_path / "bad"), tmp_path / "s")

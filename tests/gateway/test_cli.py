"""The verb's questions to the ledger."""

import json
import sqlite3
import time
from pathlib import Path

from click.testing import CliRunner

from gateway.helpers import BASE
from longspan.cli.gateway import command
from longspan.gateway.ledger import Entry, Row, Try
from longspan.gateway.store import ADDED, COLUMNS, Store, find_request


def a_ledger(directory: Path) -> Path:
    """Three requests: at home, outside after a wait, and one that failed."""
    now = time.time()
    base = Entry("r-1", "alice", "m", "r0", False, "ok", 200, True, now, 2.0, 0.5, 10, 100, 8)
    tries = (Try("r0", False, 0.0, 0.4, 0.5, "", "", {"r0": 0.4, "r1": 0.9}),)
    store = Store(directory / "ledger.db")
    store.add(Row(base, 0.0, 0.4, tries))
    outside = base._replace(request_id="r-2", target="p", outside=True, usd=0.02, reason="held=5.0s>=5s")
    store.add(Row(outside, 5.0, 0.0, (Try("p", True, 5.0, 0.0, 0.3, "", "held=5.0s>=5s", {}),)))
    store.add(
        Row(base._replace(request_id="r-3", key="bob", outcome="upstream_failed", status=502), 3.5, 0.1, ())
    )
    store.close()
    path = directory / "gateway.toml"
    path.write_text('ledger = "ledger.db"\n' + BASE)
    return path


def run(*arguments: str) -> str:
    """The verb's stdout."""
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_why_tells_the_story(tmp_path: Path) -> None:
    """Candidates, prediction against reality, the reason for leaving, the price."""
    path = str(a_ledger(tmp_path))
    story = run("why", "r-1", "--config", path)
    assert "attempt 1: replica r0 at +0.000 s, predicted 0.400 s, first content after 0.500 s" in story
    assert "r1 0.900 s" in story
    assert "8 from the prefix cache" in story
    assert "left because held=5.0s>=5s" in run("why", "r-2", "--config", path)
    assert json.loads(run("why", "r-2", "--config", path, "--json"))["usd"] == 0.02


def test_money_avoided_is_shown_and_replayed(tmp_path: Path) -> None:
    """A request that was served here has the price that it spared, and another threshold pays that price."""
    path = a_ledger(tmp_path)
    store = Store(tmp_path / "ledger.db")
    entry = Entry("r-9", "carol", "m", "r0", False, "ok", 200, True, time.time(), 2.0, 4.5, 10, 100)
    store.add(Row(entry, 4.0, 0.4, (), 0.03))
    store.close()
    assert "a provider would have charged 0.030000 USD" in run("why", "r-9", "--config", str(path))
    groups = json.loads(run("usage", "--config", str(path), "--json"))["groups"]
    assert {group["group"]: group["avoided_usd"] for group in groups} == {"alice": 0, "bob": 0, "carol": 0.03}
    three = json.loads(run("replay", "--config", str(path), "--threshold", "3.8", "--json"))
    five = json.loads(run("replay", "--config", str(path), "--threshold", "4.5", "--json"))
    assert round(three["usd_now"] - five["usd_now"], 6) == 0.03


def test_an_older_ledger_gains_its_columns_and_loses_old_rows(tmp_path: Path) -> None:
    """An upgrade keeps what was recorded; what is older than 90 days goes."""
    path = tmp_path / "ledger.db"
    with sqlite3.connect(path) as db:
        names = [name for name in COLUMNS.split(", ") if name not in ADDED]
        db.execute(f"create table requests ({', '.join(names)})")
        for name, started in (("new", time.time()), ("old", time.time() - 91 * 86400)):
            values = {
                "request_id": name,
                "key": "k",
                "started": started,
                "attempts": "[]",
                "outside": 0,
                "stream": 1,
            }
            marks = ", ".join("?" * len(values))
            db.execute(f"insert into requests ({', '.join(values)}) values ({marks})", tuple(values.values()))
    db.close()
    store = Store(path)
    store.audit(0.0, "test", "wakes the writer", "")
    store.close()
    row = find_request(path, "new")
    assert row is not None
    assert (row.avoided_usd, row.entry.trace) == (0.0, "")
    assert find_request(path, "old") is None


def test_usage_sums(tmp_path: Path) -> None:
    """By key, with failures apart; the share that went outside, and its price."""
    path = str(a_ledger(tmp_path))
    assert "33.3% of 3 requests went outside for 0.0200 USD" in run("usage", "--config", path)
    found = json.loads(run("usage", "--config", path, "--json"))
    assert found["balance"] == {"requests": 3, "outside": 1, "outside_usd": 0.02, "avoided_usd": 0.0}
    groups = found["groups"]
    assert [(g["group"], g["requests"], g["failures"], g["completion_tokens"]) for g in groups] == [
        ("alice", 2, 0, 200), ("bob", 1, 1, 100),
    ]  # fmt: skip


def test_replay_prices_another_threshold(tmp_path: Path) -> None:
    """At 3 s the request that waited 3.5 s would have left, too; at 10 s nothing would have."""
    path = str(a_ledger(tmp_path))
    three = json.loads(run("replay", "--config", path, "--threshold", "3", "--json"))
    assert (three["outside_then"], three["outside_now"]) == (1, 2)
    assert abs(three["usd_now"] - 0.04) < 1e-9
    ten = json.loads(run("replay", "--config", path, "--threshold", "10", "--json"))
    assert (ten["outside_now"], ten["usd_now"]) == (0, 0.0)


def test_a_key_is_shown_once_with_its_entry() -> None:
    """The secret alone on stdout; the configuration gets a hash."""
    result = CliRunner().invoke(command, ["key", "--name", "x"])
    assert result.stdout.startswith("lsp_")
    assert result.stdout.strip() not in result.stderr
    assert 'sha256 = "' in result.stderr

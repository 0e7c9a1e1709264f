"""The verb's questions to the ledger."""

import json
from pathlib import Path

from click.testing import CliRunner

from gateway.helpers import BASE
from longspan.cli.gateway import command
from longspan.gateway.ledger import Entry, Row, Try
from longspan.gateway.store import Store


def a_ledger(directory: Path) -> Path:
    """Three requests: at home, outside after a wait, and one that failed."""
    import time

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


def test_usage_sums(tmp_path: Path) -> None:
    """By key, with failures apart."""
    groups = json.loads(run("usage", "--config", str(a_ledger(tmp_path)), "--json"))["groups"]
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

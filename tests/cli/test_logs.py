"""`longspan logs`: whose lines, from which files, and on as they come."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from longspan.cli import logs
from longspan.cli.log_sources import Source, Wanted, sources, wanted, wrote
from longspan.daemon.places import Places
from longspan.errors import LogsError, NoDeploymentError


def rank(number: int, node: str, pid: int | None) -> dict[str, Any]:
    """A row of the status document."""
    return {"rank": number, "planned_node": node, "pid": pid}


STATUS = {
    "nodes": [{"name": "n0"}, {"name": "n1"}],
    "replicas": [{"name": "r0", "ranks": [rank(0, "n0", 70), rank(1, "n1", 71), rank(2, "n1", None)]}],
}


def test_names_mean_logs() -> None:
    """A replica is its engine's logs on all its nodes, a rank those lines that its process wrote, a node all of its logs."""
    assert wanted(STATUS, "r0", None) == Wanted(("n0", "n1"), ("engine", "launcher"))
    assert wanted(STATUS, "r0", 1) == Wanted(("n0", "n1"), ("engine", "launcher"), 71)
    assert wanted(STATUS, "n1", 1) == Wanted(("n1",), ("engine", "launcher"), 71)
    assert wanted(STATUS, "n1", None) == Wanted(("n1",))
    assert wanted(STATUS, "gateway", None).nodes == ("front",)
    several = {
        **STATUS,
        "replicas": [{"name": "a", "ranks": [rank(0, "n0", 5)]}, {"name": "b", "ranks": [rank(0, "n1", 6)]}],
    }
    assert wanted(several, "b", None).nodes == ("n1",)
    assert wanted(several, "b", 0).pid == 0  # alone in its replica: every line is its


@pytest.mark.parametrize(
    ("subject", "number", "words"),
    [("x", None, "Known: r0, n0, n1"), ("r0", 9, "no rank 9"), ("r0", 2, "not said")],
)
def test_what_is_not_there_is_said(subject: str, number: int | None, words: str) -> None:
    """Unknown names and ranks are refused with what there is."""
    with pytest.raises(LogsError) as found:
        wanted(STATUS, subject, number)
    assert words in str(found.value)


@pytest.mark.parametrize(
    ("line", "mine"),
    [("(Worker_TP0 pid=71) INFO x", True), ("(EngineFrontEnd pid=5) (RayWorkerProc pid=71, ip=10.0.0.2) x", True),
     ("(Worker pid=711) x", False), ("plain pid=71", False), ("", False)],
)  # fmt: skip
def test_a_rank_is_known_by_its_pid(line: str, mine: bool) -> None:
    """The prefixes of vLLM and Ray name the process; anything else in the line does not."""
    assert wrote(line, 71) is mine
    assert wrote(line, 0)


def test_a_log_is_followed_over_its_rotation(tmp_path: Path) -> None:
    """Lines come whole, once and in order, also when the file is emptied in place or replaced."""
    path = tmp_path / "e.log"
    path.write_text("one\ntwo\nthr")
    source = Source(path, "n", "e")
    assert source.tail(1) == ["two"]
    with path.open("a") as file:
        file.write("ee\n\x1b[31mred\x1b[0m\x07\rbar 100%\n")
    assert source.more() == ["three", "bar 100%"]
    path.write_text("new\n")
    assert source.more() == ["new"]
    path.rename(tmp_path / "e.log.1")
    path.write_text("after the rotation, longer than before\n")
    assert source.more() == ["after the rotation, longer than before"]
    path.unlink()
    assert source.more() == []
    assert source.tail(5) == []


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """What an engine writes cannot move the cursor or set the title of whoever reads it."""
    path = tmp_path / "e.log"
    path.write_bytes(b"a\x1b]0;evil\x07b\xff\n")
    (line,) = Source(path, "n", "e").tail(1)
    assert "\x1b" not in line
    assert "\x07" not in line


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A deployment that ended."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = Places.of("default")
    for node, name, text in (
        ("n0", "launcher", "(A pid=70) a\n(B pid=71) b\n"),
        ("n1", "agent", "x\n"),
        ("n1", "engine", "(C pid=71) c\n"),
    ):
        path = found.root / "collected" / node / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found.last_status.write_text(json.dumps(STATUS))
    return found


def test_the_verb_reads_all_nodes_after_the_end(places: Places) -> None:
    """Also once nothing runs any more: each line with its node and log where there are several."""
    done = CliRunner().invoke(logs.command, ["r0"])
    assert done.output.splitlines() == [
        "n0/launcher | (A pid=70) a",
        "n0/launcher | (B pid=71) b",
        "n1/engine | (C pid=71) c",
    ]
    one = CliRunner().invoke(logs.command, ["r0", "--rank", "1"])
    assert one.output.splitlines() == ["n0/launcher | (B pid=71) b", "n1/engine | (C pid=71) c"]
    document = json.loads(CliRunner().invoke(logs.command, ["n1", "--json", "-n", "1"]).output)
    assert [(part["process"], part["lines"]) for part in document["logs"]] == [
        ("agent", ["x"]),
        ("engine", ["(C pid=71) c"]),
    ]
    assert CliRunner().invoke(logs.command, ["n1", "--json", "-f"]).exit_code == 2
    with pytest.raises(LogsError, match="no log here yet"):
        CliRunner().invoke(logs.command, ["front"], catch_exceptions=False)


def test_nothing_ever_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any deployment there is nothing to read, and that is said."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(NoDeploymentError):
        CliRunner().invoke(logs.command, ["r0"], catch_exceptions=False)


def test_two_roots_give_each_log_once(tmp_path: Path) -> None:
    """A node of this machine stands in both directories: its logs are read once."""
    for root in ("collected", "logs"):
        (tmp_path / root / "n0").mkdir(parents=True)
        (tmp_path / root / "n0" / "engine.log").write_text("x\n")
    found = sources((tmp_path / "collected", tmp_path / "logs"), Wanted(("n0",)))
    assert [source.path.parts[-3] for source in found] == ["collected"]

"""`longspan top`: what keys do, and that the screen is readable at 100 columns with 2 and with 64 nodes."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from longspan.cli import control, top, top_state, top_words
from longspan.cli.render import alarm_lines
from longspan.cli.top import Scrolled, keys_of
from longspan.cli.top_detail import detail
from longspan.cli.top_screen import screen
from longspan.cli.top_state import TopState, press
from longspan.daemon.places import Places
from longspan.errors import ControlPlaneError, NoDeploymentError
from longspan.finding import Finding
from longspan.monitor.aging import aged
from longspan.monitor.view import (
    AlarmView,
    ClusterView,
    GatewayView,
    LatencyView,
    NodeView,
    QuantileView,
    ReplicaView,
)
from monitor.scenes import cluster, latency, with_gateway, with_node, with_replica

KEYS = ["up", "down", "page-up", "page-down", "enter", "escape", "tab", "s", "r", "j", "k", "x"]


def drawn(
    view: ClusterView, state: TopState, height: int = 30, width: int = 100, keys: bool = True
) -> list[str]:
    """The screen's lines."""
    console = Console(width=width, height=height or 1000, highlight=False, record=True, file=io.StringIO())
    console.print(screen(view, state, height=height, keys=keys))
    return console.export_text().splitlines()


@pytest.mark.parametrize("nodes", [1, 2, 64])
@pytest.mark.parametrize("table", ["replicas", "nodes"])
def test_the_screen_fits(nodes: int, table: Any) -> None:
    """100 x 30 hold it whatever the deployment's size, with gateway, replicas, nodes, alarms and keys on it."""
    alarms = tuple(AlarmView(f"k{i}", 0.0, Finding("n0", "warning", "c", "x" * 200)) for i in range(9))
    view = replace(cluster(nodes), alarms=alarms, unknown=("y" * 300,) * 5)
    lines = drawn(view, TopState(table, selected=nodes - 1))
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    for word in ("prod", "gateway", "REPLICA", "NODE", "RDMA IN", "warning", "and 3 more alarms", "q quit"):
        assert word in text
    assert (f"n{nodes - 1} " if table == "nodes" else f"r{max(1, nodes // 2) - 1} ") in text


def test_once_shows_everything() -> None:
    """Without a terminal no row is left out and no key is offered."""
    text = "\n".join(drawn(cluster(64), TopState(), height=0, keys=False))
    assert all(f"n{i} " in text for i in range(64))
    assert "q quit" not in text


def test_unknown_is_na_and_floors_show() -> None:
    """A node without GPUs and figures shows n/a and not 0; a latency in the first bucket is below its bound."""
    bare = replace(
        cluster(1), nodes=(NodeView("n0", "10.0.0.1"),), gateway=GatewayView(),
        replicas=(ReplicaView("r0", phase="serving", tpot=latency(0.01, bound="below")),),
    )  # fmt: skip
    text = "\n".join(drawn(bare, TopState()))
    assert "n/a" in text
    assert "<10ms" in text
    assert "never" in text
    assert " 0 " not in text.split("\n", 3)[1]


def test_an_opened_node_and_replica_tell_their_parts() -> None:
    """Opened: each GPU's memory in parts, each port, each rank; the alarms about it whole, not those of another."""
    alarms = tuple(
        AlarmView(s, 0.0, Finding(s, "error", "c", f"sick {s}", remedy=f"mend {s}"))
        for s in ("n1", "n1/3 clock", "n10", "r0")
    )
    view = replace(with_node(cluster(2), 1, missing=("GPU 7",)), alarms=alarms)
    console = Console(width=100, record=True, quiet=False, file=io.StringIO())
    console.print(detail(view, TopState(opened=("nodes", "n1"))))
    node = console.export_text()
    console.print(detail(view, TopState(opened=("replicas", "r0"))))
    replica = console.export_text()
    console.print(detail(view, TopState(opened=("nodes", "n9"))))
    gone = console.export_text()
    for word in (
        "WEIGHTS",
        "mlx5_3/1",
        "400 Gbit",
        "520/700",
        "mend n1",
        "mend n1/3 clock",
        "no longer tells GPU 7",
    ):
        assert word in node
    assert "mend n10" not in node
    assert all(word in replica for word in ("TTFT", "prefill", "mend r0", "1007"))
    assert "no longer there" in gone


def test_a_tall_detail_scrolls() -> None:
    """What is taller than the terminal is shown in part, and says how much is below."""
    console = Console(width=60, height=10, record=True, file=io.StringIO())
    console.print(Scrolled("\n".join(f"line {i}" for i in range(40)), 5))
    text = console.export_text()
    assert "line 5\n" in text
    assert "line 4\n" not in text
    assert "lines below" in text


@given(st.lists(st.sampled_from(KEYS), max_size=40), st.integers(0, 5))
def test_no_key_leads_astray(keys: list[str], nodes: int) -> None:
    """Whatever is pressed, what is selected or opened exists, and only q ends it."""
    view = cluster(nodes)
    state: TopState | None = TopState()
    for key in keys:
        state = press(state, key, view)
        assert state is not None
        rows = top_state.replicas(view, state) if state.table == "replicas" else top_state.nodes(view, state)
        assert 0 <= state.selected <= max(0, len(rows) - 1)
        assert state.opened is None or state.opened[1] in {row.name for row in (*view.replicas, *view.nodes)}
        assert state.scroll >= 0
    assert press(state, "q", view) is None


def test_sorting_puts_what_matters_first() -> None:
    """Each order of the tables shows the largest first, names as people count; reversed on demand."""
    view = with_replica(cluster(24), 3, waiting=9.0)
    state = press(TopState(), "s", view)
    assert state.sort_name == "waiting"
    assert top_state.replicas(view, state)[0].name == "r3"
    assert top_state.replicas(view, replace(state, reverse=True))[-1].name == "r3"
    assert [r.name for r in top_state.replicas(view, TopState())][:3] == ["r0", "r1", "r2"]
    old = with_node(view, 5, age_seconds=99.0)
    assert top_state.nodes(old, TopState("nodes", node_sort=1))[0].name == "n5"
    seen = {press(TopState("nodes", node_sort=i), "s", view).sort_name for i in range(6)}
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("text", "keys"),
    [("\x1b[Aj\x1b[6~", ["up", "j", "page-down"]), ("\x1b", ["escape"]), ("\x1b[15~q", ["q"]), ("\r\t\x7f", ["enter", "tab", "backspace"]),
     ("\x1b[", [])],
)  # fmt: skip
def test_keys_are_read_as_terminals_send_them(text: str, keys: list[str]) -> None:
    """Sequences of keys that we know become names; unknown ones are nothing."""
    assert keys_of(text) == keys


def test_an_old_picture_says_so() -> None:
    """Without the controller everything grows older: nodes become late and silent, and it is said first."""
    view = aged(with_gateway(cluster(2), age_seconds=None), 20.0)
    assert {node.state for node in view.nodes} == {"silent"}
    assert view.replicas[0].age_seconds == 20.5
    assert view.gateway.age_seconds is None
    assert "controller" in view.unknown[0]
    assert aged(cluster(2), 1.0).unknown == ()


@pytest.mark.parametrize(
    ("call", "value", "text"),
    [
        (top_words.number, None, "n/a"), (top_words.number, 123456.0, "123.5k"), (top_words.number, 7e6, "7.0M"),
        (top_words.percent, 0.004, "0.4 %"), (top_words.percent, 0.0, "0 %"), (top_words.percent, 1.0, "100 %"),
        (top_words.rate, 1.5e9, "1.5 GB/s"), (top_words.rate, None, "n/a"), (top_words.age, None, "never"),
        (top_words.age, 1.0, "now"), (top_words.age, 45.0, "45 s"), (top_words.age, 600.0, "10 min"),
        (top_words.quantile, QuantileView(80.0, "above"), ">80.0s"), (top_words.tails, LatencyView(0), ("-", "-", "-")),
        (top_words.mean, LatencyView(2, 0.0033), "3.3ms"),
    ],
)  # fmt: skip
def test_figures_in_words(call: Any, value: Any, text: Any) -> None:
    """Short, with units, and honest about what is not known."""
    assert call(value) == text


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A controller that answers with a picture."""
    answer: dict[str, Any] = cluster(2).to_json()
    monkeypatch.setattr(Places, "running", lambda self: {"url": "x", "key": "k", "pid": 1})
    monkeypatch.setattr(control, "request", lambda record, path, **_: answer)
    return answer


def test_the_verb_prints_text_and_json(running: dict[str, Any]) -> None:
    """Without a terminal it prints once, without colours; --json is the whole picture."""
    done = CliRunner().invoke(top.command, ["--once"])
    assert done.exit_code == 0
    assert "REPLICA" in done.output
    assert "\x1b" not in done.output
    document = json.loads(CliRunner().invoke(top.command, ["--json"]).output)
    assert ClusterView.from_json(document) == cluster(2)


def test_hostile_words_neither_mark_up_nor_move_the_cursor(running: dict[str, Any]) -> None:
    """Names and reasons of others are shown as they are: no markup of rich, no sequence of the terminal."""
    running["replicas"][0].update(name="[/red]r0", reason="\x1b]0;evil\x07[bold]")
    running["nodes"][0]["name"] = "[/x]\x1b[2J"
    running["unknown"] = ["[/y]\x1b[31m"]
    shown = CliRunner().invoke(top.command, ["--once"], catch_exceptions=False).output
    assert "[/red]r0" in shown
    assert "[/x]" in shown
    assert "[/y]" in shown
    assert "\x1b" not in shown
    view = top.fetch({})
    for opened in (("nodes", view.nodes[0].name), ("replicas", view.replicas[0].name)):
        console = Console(width=100, markup=False, record=True, file=io.StringIO())
        console.print(detail(view, TopState(opened=opened)))
        assert "\x1b" not in console.export_text()


def test_another_version_is_an_error_and_nothing_runs_too(
    running: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be read, or is not there, is said in our words."""
    running["nodes"] = "odd"
    with pytest.raises(ControlPlaneError, match="another version"):
        CliRunner().invoke(top.command, ["--once"], catch_exceptions=False)
    monkeypatch.setattr(Places, "running", lambda self: None)
    with pytest.raises(NoDeploymentError):
        CliRunner().invoke(top.command, [], catch_exceptions=False)


def test_status_tells_alarms_with_what_to_do() -> None:
    """Each in a line with its severity, the remedy below; words of others are no markup."""
    alarm = Finding("n0", "error", "c", "n0 is [bold] silent", remedy="look").to_json()
    lines = [line.plain for line in alarm_lines([alarm])]
    assert lines == ["  error: n0 is [bold] silent", "    look"]


def test_a_terminal_that_vanishes_ends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A closed terminal reads as q, so that no process stays behind a lost ssh session."""
    empty = tmp_path / "tty"
    empty.write_text("")
    with empty.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert top.read_keys(0.0) == ["q"]

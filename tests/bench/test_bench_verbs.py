"""`bench sweep` and `bench versus` against fake engines whose truth is known; gaps are large against a busy machine's noise."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result as Called

from bench.fake_engine import FakeEngine, stream
from bench_made import made
from longspan.bench.result import ClientQuality, Result
from longspan.bench.store import listed
from longspan.bench.summary import summarise
from longspan.cli.bench_measure import Bench
from longspan.cli.main import cli
from longspan.errors import ConditionsError, InputError, LongspanError, UndecidedError


def call(tmp_path: Path, *words: str) -> Called:
    """The verb with a small load and a store of its own."""
    common = ["--no-calibrate", "--prompt", "20", "--output", "4", "--store", str(tmp_path / "store.sqlite")]
    return CliRunner().invoke(cli, ["bench", *words, *common], standalone_mode=False)


def document(found: Called) -> dict[str, Any]:
    """What `--json` printed."""
    if found.exception is not None:
        raise found.exception
    document: dict[str, Any] = json.loads(found.stdout)
    return document


def test_a_sweep_without_objectives_doubles_and_finds_the_knee(tmp_path: Path) -> None:
    """Every load is a run of its own in the store, with prompts that no other one had; the page holds the plots."""
    engine = FakeEngine(lambda body, number: stream(4, first=0.1))
    page = tmp_path / "sweep.html"
    with engine.running() as url:
        found = document(
            call(tmp_path, "sweep", url, "--from", "1", "--to", "4", "-n", "4", "--html", str(page), "--json")
        )
    assert [one["load"] for one in found["points"]] == [1, 2, 4]
    assert found["highest_that_holds"] is None
    kept = listed(tmp_path / "store.sqlite")
    assert {one.result_id for one in kept} == {one["result_id"] for one in found["points"]}
    assert page.read_text().count("<svg") == 3
    assert "<script" not in page.read_text()
    prompts = [json.dumps(body["messages"]) for body in engine.bodies if "messages" in body]
    assert len(prompts) == len(set(prompts))


def test_a_sweep_with_objectives_ends_at_what_surely_holds(tmp_path: Path) -> None:
    """A server that answers at once up to a rate, and late above it, is found out; a load of a few requests proves nothing."""
    engine = FakeEngine(lambda body, number: stream(4, first=0.02))
    with engine.running() as url:
        few = document(
            call(
                tmp_path,
                "sweep",
                url,
                "--from",
                "1",
                "--to",
                "2",
                "-n",
                "4",
                "--slo",
                "ttft_p90=1s",
                "--json",
            )
        )
        many = document(
            call(
                tmp_path,
                "sweep",
                url,
                "--from",
                "2",
                "--to",
                "2",
                "-n",
                "60",
                "--slo",
                "ttft_p90=1s",
                "--json",
            )
        )
        late = document(
            call(
                tmp_path,
                "sweep",
                url,
                "--from",
                "1",
                "--to",
                "1",
                "-n",
                "30",
                "--slo",
                "ttft_p90=5ms",
                "--json",
            )
        )
    assert few["highest_that_holds"] is None
    assert few["points"][0]["holds"] is None
    # On a machine too busy for the client neither load says anything of the server, and the answer must say so.
    full = many["points"][0]["client_limited"]
    assert (many["share"], many["highest_that_holds"]) == (0.9, None if full else 2)
    assert many["client_limited_from"] == (2 if full else None)
    assert late["points"][0]["holds"] is (None if late["points"][0]["client_limited"] else False)


def test_what_a_sweep_knows_survives_ctrl_c_and_a_full_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --slo: the third load is cut off, the bracket of the first two is told, with 130; a client that is full is named, not the server."""

    def ended(change: dict[str, Any], at: int) -> Called:
        loads: list[int] = []

        def measure(bench: Bench) -> Result:
            loads.append(bench.spec.concurrency)
            made_run = made(len(loads), count=300, result_id=f"r{loads[-1]}")
            figures = summarise(made_run.requests, bench.objectives).figures
            changes: dict[str, Any] = change if loads[-1] >= at else {}
            return replace(made_run, summary=figures, **changes)

        with monkeypatch.context() as patch:
            patch.setattr("longspan.cli.bench_measure.measure", measure)
            words = (url, "--from", "1", "--to", "8", "--slo", "ttft_p95=1s", "--json")
            return call(tmp_path / f"{len(change)}{at}", "sweep", *words)

    with FakeEngine(lambda body, number: stream(4)).running() as url:
        cut_off = ended({"interrupted": "Ctrl-C"}, 4)
        full = ended({"client": ClientQuality(limited=True)}, 3)
    told = document(cut_off)
    assert cut_off.return_value == 130
    assert (told["interrupted"], told["highest_that_holds"], told["lowest_that_does_not"]) == (
        "Ctrl-C",
        2,
        None,
    )
    assert [one["holds"] for one in told["points"]] == [True, True, None]
    limited = document(full)
    assert (
        limited["highest_that_holds"],
        limited["lowest_that_does_not"],
        limited["client_limited_from"],
    ) == (2, None, 3)
    assert [one["holds"] for one in limited["points"]] == [True, True, None, None]


def test_a_sweep_tells_people(tmp_path: Path) -> None:
    """A table with units and the answer in a sentence; as Markdown too."""
    engine = FakeEngine(lambda body, number: stream(4, first=0.05))
    with engine.running() as url:
        plain = call(tmp_path, "sweep", url, "--over", "rate", "--from", "20", "--to", "40", "-n", "8")
        pasted = call(tmp_path, "sweep", url, "--from", "1", "--to", "1", "-n", "2", "--markdown")
    assert "requests/s" in plain.stdout
    assert "TTFT p95 ms" in plain.stdout
    assert "| clients |" in pasted.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--from", "0"), "is no range"), (("--from", "8", "--to", "4"), "is no range"), (("--from", "1.5"), "is no range"),
        (("-c", "4"), "is what the sweep changes"), (("--over", "rate", "--rate", "3"), "is what the sweep changes"),
    ],
)  # fmt: skip
def test_sweeps_that_make_no_sense(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    """Refused before anything is asked."""
    found = call(tmp_path, "sweep", "http://127.0.0.1:9", *words)
    assert isinstance(found.exception, InputError)
    assert says in found.exception.what


def versus(tmp_path: Path, first: float, second: float, *words: str) -> Called:
    """Two fake engines that answer after so many seconds."""
    a = FakeEngine(lambda body, number: stream(4, first=first))
    b = FakeEngine(lambda body, number: stream(4, first=second))
    with a.running() as one, b.running() as two:
        return call(tmp_path, "versus", one, two, "-c", "2", "-n", "10", "--pairs", "4", "--unsound", *words)


def test_a_slower_engine_is_worse(tmp_path: Path) -> None:
    """Four times the latency is found in eight short blocks, in turn; both sides of a pair had the same prompts."""
    found = versus(tmp_path, 0.05, 0.2, "--json")
    told = json.loads(found.stdout)
    assert told["verdict"] == "worse"
    assert len(told["runs"]["a"]) == len(told["runs"]["b"]) == 4
    kept = {one.result_id: one.started_unix_seconds for one in listed(tmp_path / "store.sqlite")}
    in_turn = sorted(kept, key=lambda name: kept[name])
    sides = ["a" if name in told["runs"]["a"] else "b" for name in in_turn]
    assert "".join(sides) == "abbaabba"


def test_versus_itself_is_not_called_different(tmp_path: Path) -> None:
    """An engine against its twin."""
    found = versus(tmp_path, 0.1, 0.1, "--json", "--margin", "30")
    assert json.loads(found.stdout)["verdict"] in {"same", "cannot tell"}


def test_versus_refuses_other_conditions_before_the_load(tmp_path: Path) -> None:
    """Another engine version is no fair comparison unless it is what is under test."""
    a = FakeEngine(lambda body, number: stream(4), version="0.31.0")
    b = FakeEngine(lambda body, number: stream(4), version="0.32.0")
    with a.running() as one, b.running() as two:
        found = call(tmp_path, "versus", one, two, "-n", "4")
        assert isinstance(found.exception, ConditionsError)
        assert "engine/version" in found.exception.what
        assert not (tmp_path / "store.sqlite").exists()
        allowed = call(
            tmp_path,
            "versus",
            one,
            two,
            "-n",
            "4",
            "--pairs",
            "2",
            "--unsound",
            "--allow",
            "engine/version",
            "--json",
        )
    told = json.loads(allowed.stdout)
    assert [one["name"] for one in told["under_test"]] == ["engine/version"]


def test_what_versus_does_not_take(tmp_path: Path) -> None:
    """An odd number of pairs, an endpoint that is away; and `compare` names the verb for endpoints."""
    odd = call(tmp_path, "versus", "http://127.0.0.1:9", "http://127.0.0.1:9", "--pairs", "3")
    assert isinstance(odd.exception, InputError)
    away = call(tmp_path, "versus", "http://127.0.0.1:9", "http://127.0.0.1:9")
    assert isinstance(away.exception, LongspanError)
    store = str(tmp_path / "store.sqlite")
    named = CliRunner().invoke(
        cli, ["bench", "compare", "http://a:1", "http://b:2", "--store", store], standalone_mode=False
    )
    assert isinstance(named.exception, InputError)
    assert "bench versus" in named.exception.remedy
    assert issubclass(UndecidedError, LongspanError)

"""`bench scaling`: the ledger sums to 100, causes are told apart, what must be equal is, and the planner reads the rows."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result as Called
from hypothesis import given
from hypothesis import strategies as st

from bench_made import write_file
from longspan.bench.causes import Predicted, outside_seconds
from longspan.bench.engine_counters import read_counters
from longspan.bench.ledger import WHOLE, Cause, kept, ledger
from longspan.bench.record import RequestRecord
from longspan.bench.result import ClientQuality, EngineObservation, EngineSample, Result
from longspan.bench.scaling import scaling
from longspan.bench.series import Law, Measured, Split, law_of, ordered, parse_split, split_of
from longspan.bench.summary import summarise
from longspan.cli.main import cli
from longspan.errors import ConditionsError, InputError, ResultError, UnsoundRunError
from longspan.workload import parse_objectives

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture(autouse=True)
def no_corrections_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own calibration file must not reach the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def closed(
    name: str, clients: int, seconds: float, rounds: int = 20, failing: int = 0, **changes: Any
) -> Result:
    """A closed loop in which every request lasts `seconds` for 100 tokens; the first `failing` of each client's requests fail."""
    records = []
    for index in range(clients * rounds):
        at = index // clients * seconds
        is_lost = index // clients < failing
        records.append(
            RequestRecord(
                index, at, at, None if is_lost else at + seconds / 100, None if is_lost else at + seconds, at + seconds,
                chunks=0 if is_lost else 100, first_chunk_tokens=1, prompt_tokens=512, output_tokens=100, counted=True,
                outcome="http_status" if is_lost else "",
            )
        )  # fmt: skip
    summed = summarise(records)
    values: dict[str, Any] = {
        "result_id": name, "started_unix_seconds": 1.0, "url": "http://127.0.0.1:1", "kind": "chat", "model": "m",
        "load": {"concurrency": clients, "pattern": {"kind": "closed", "rate": 0.0}}, "seeds": {},
        "conditions": {
            "model/name": MODEL, "engine/version": "0.19.0", "layout/tp": 1, "layout/pp": 1, "load/concurrency": clients,
            "load/prompt/mean": 512, "engine/argument/max-model-len": "4096",
        },
        "summary": summed.figures, "client": ClientQuality(), "engine": None, "window_seconds": (0.0, rounds * seconds),
        "requests": tuple(records),
    }  # fmt: skip
    return Result(**{**values, **changes})


def lock(result: Result, **conditions: Any) -> dict[str, Any]:
    """Its conditions with some changed; "layout_tp" is "layout/tp"."""
    return {**result.conditions, **{name.replace("_", "/", 1): value for name, value in conditions.items()}}


def counted(result: Result, inside: float, running: float) -> EngineObservation:
    """What engines say: `inside` seconds in them of each request, so many running at once."""
    number = float(len(result.requests))
    samples = tuple(EngineSample(at / 4, running) for at in range(1, 40))
    before = {"e2e_seconds": 5.0, "e2e_requests": 1.0}
    after = {"e2e_seconds": 5.0 + inside * number, "e2e_requests": 1.0 + number}
    return EngineObservation(before=before, after=after, samples=samples)


def call(tmp_path: Path, *words: str) -> Called:
    """The verb with a store of its own."""
    arguments = ["bench", "scaling", *words, "--offline", "--store", str(tmp_path / "store.sqlite")]
    return CliRunner().invoke(cli, arguments, standalone_mode=False)


def files(tmp_path: Path, *results: Result) -> list[str]:
    """Their files."""
    for one in results:
        write_file(tmp_path / f"{one.result_id}.json", one)
    return [str(tmp_path / f"{one.result_id}.json") for one in results]


causes = st.lists(
    st.builds(
        Cause, st.text(max_size=5), st.sampled_from(["observed", "predicted"]), st.none() | st.floats(0, 1.5), st.text(max_size=5)
    ),
    max_size=8,
)  # fmt: skip


@given(st.floats(0.0001, 3), causes)
def test_the_ledger_sums_to_100_exactly(efficiency: float, given_causes: list[Cause]) -> None:
    """What is left, every line and the rest are whole hundredths that sum to 100 %; a cause without data has no line."""
    found = ledger(efficiency, given_causes)
    assert (
        found.efficiency_hundredths + sum(one.hundredths for one in (*found.lines, found.unexplained))
        == WHOLE
    )
    assert len(found.lines) + len(found.absent) == len(given_causes)
    assert {id(cause) for cause in found.absent} == {id(one) for one in given_causes if one.kept is None}


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6))
def test_causes_that_explain_all_leave_nothing_unexplained(shares: list[float]) -> None:
    """If the efficiency is the product of what each cause keeps, the rest is nothing but rounding."""
    efficiency = 1.0
    for share in shares:
        efficiency *= share
    found = ledger(efficiency, [Cause("c", "observed", share, "") for share in shares])
    assert abs(found.unexplained.hundredths) <= len(shares) + 1
    assert sum(one.hundredths for one in found.lines) <= WHOLE + len(shares)


def test_a_base_that_loses_as_much_explains_nothing() -> None:
    """A cause counts by what it takes more than at the base; where the base lost more it is a gain."""
    assert kept(0.2, 0.2) == pytest.approx(1.0)
    assert kept(0.5, 0.0) == pytest.approx(0.5)
    assert kept(0.0, 0.2) > 1


@pytest.mark.parametrize(
    ("text", "split"),
    [("4", Split(4)), ("tp4", Split(4, 4)), ("TP2PP3", Split(6, 2, 3)), ("3xtp2pp2", Split(12, 2, 2, 3))],
)
def test_splits_are_read(text: str, split: Split) -> None:
    """A number of GPUs, or how they are split."""
    assert parse_split(text) == split


@pytest.mark.parametrize("text", ["", "0", "tp0", "pp2", "x", "2x4", "-1", "1.5", "tp٣"])
def test_what_is_no_split(text: str) -> None:
    """Refused with an example."""
    with pytest.raises(InputError, match="no number of GPUs"):
        parse_split(text)


def test_conditions_tell_the_split() -> None:
    """Replicas count; without TP and PP nothing is known."""
    one = closed("a", 4, 1.0)
    assert split_of(one) == Split(1, 1, 1, 1)
    several = closed("b", 4, 1.0, conditions=lock(one, layout_tp=2, layout_pp=2, layout_replicas=3))
    assert split_of(several) == Split(12, 2, 2, 3)
    assert str(split_of(several)) == "3 x TP2 PP2"
    assert split_of(closed("c", 4, 1.0, conditions={})) is None


@pytest.mark.parametrize(
    ("clients", "law"),
    [((8, 8, 8), "strong"), ((8, 16, 32), "weak"), ((8, 16, 16), None), ((8, 9, 10), None)],
)
def test_the_law_follows_from_the_loads(clients: tuple[int, ...], law: Law | None) -> None:
    """The same load, or the same a GPU; anything else is refused with every load named."""
    runs = [
        Measured(closed(f"r{gpus}", many, 1.0, 3), Split(gpus))
        for gpus, many in zip((1, 2, 4), clients, strict=True)
    ]
    if law:
        assert law_of(runs) == law
        return
    with pytest.raises(ConditionsError, match="neither the same") as refusal:
        law_of(runs)
    assert all(f"r{gpus}: load" in refusal.value.what for gpus in (1, 2, 4))


def test_a_series_needs_two_numbers_of_gpus() -> None:
    """One run is none, and two of the same number are named."""
    one = Measured(closed("a", 4, 1.0, 3), Split(2))
    with pytest.raises(InputError, match="at least two"):
        ordered([one])
    with pytest.raises(InputError, match="had 2 GPUs: a, a"):
        ordered([one, one])


def test_known_efficiency_and_a_loss_that_failures_explain() -> None:
    """Four GPUs at twice the throughput: 50 % is left. A quarter of the requests failed: 25 points are theirs, the rest is unexplained."""
    base, four = closed("a", 4, 1.0), closed("b", 16, 1.5, failing=5)
    found = scaling([Measured(base, Split(1)), Measured(four, Split(4))])
    assert found.law == "weak"
    book = found.points[1].ledger
    lines = {one.name: one.percent for one in book.lines}
    assert found.points[0].efficiency == 1
    assert found.points[1].efficiency == pytest.approx(0.75 / 1.5, rel=0.02)
    assert lines == {"failed requests": pytest.approx(25, abs=0.1)}
    assert book.unexplained.percent == pytest.approx(25, abs=1)
    assert {cause.name for cause in book.absent} >= {
        "the client",
        "gateway and network",
        "smaller batch",
        "communication",
    }


def test_the_engines_own_request_times_are_read() -> None:
    """vLLM's histogram, summed over engines; its buckets are no sums."""
    name = "vllm:e2e_request_latency_seconds"
    text = "\n".join([
        f'{name}_bucket{{engine="0",le="0.3"}} 1.0', f'{name}_sum{{engine="0"}} 2.5', f'{name}_count{{engine="0"}} 4.0',
        f'{name}_sum{{engine="1"}} 1.5', f'{name}_count{{engine="1"}} 2.0',
    ])  # fmt: skip
    found = read_counters(text)
    assert (found["e2e_seconds"], found["e2e_requests"]) == (4.0, 6.0)


def test_each_cause_has_its_own_line() -> None:
    """The client's part, time outside the engine, a batch that shrank: each from what the run holds, and they explain the loss."""
    calibrated = ClientQuality(null_ttft_p50_seconds=0.01)
    base = closed("a", 8, 1.0, client=calibrated)
    base = closed("a", 8, 1.0, client=calibrated, engine=counted(base, 0.99, 8.0))
    slow = closed("b", 8, 1.25, client=calibrated)
    slow = closed("b", 8, 1.25, client=calibrated, engine=counted(slow, 0.99, 6.4))
    assert outside_seconds(Measured(slow, Split(1, 1))) == pytest.approx(0.25)
    found = scaling([Measured(base, Split(1, 1)), Measured(slow, Split(2, 1, 1, 2))])
    lines = {one.name: one.percent for one in found.points[1].ledger.lines}
    assert found.law == "strong"
    assert lines["gateway and network"] == pytest.approx(20, abs=0.5)
    assert abs(lines["the client"]) < 0.5
    # Engines with 3.2 instead of 8 running, and steps that are no shorter: 60 % of what the lines above left.
    assert lines["smaller batch"] == pytest.approx(0.6 * 80, abs=1)


def test_a_handful_of_samples_is_no_batch() -> None:
    """The engine's gauges of a run of seconds are chance: no line, and it says why."""
    base = closed("a", 8, 1.0)
    few = replace(counted(base, 1.0, 8.0), samples=tuple(EngineSample(at, 2.0) for at in range(6)))
    runs = [
        Measured(replace(base, engine=few), Split(1, 1)),
        Measured(replace(base, engine=few), Split(2, 1, 1, 2)),
    ]
    absent = {cause.name: cause.why for cause in scaling(runs).points[1].ledger.absent}
    assert "ten samples" in absent["smaller batch"]


def test_tensor_parallelism_is_not_called_a_smaller_batch() -> None:
    """The same clients on TP4 that answers four times as fast: nothing is lost, so no line takes anything."""
    base, four = closed("a", 8, 1.0), closed("b", 8, 0.25)
    runs = [
        Measured(closed("a", 8, 1.0, engine=counted(base, 1.0, 8.0)), Split(1, 1)),
        Measured(closed("b", 8, 0.25, engine=counted(four, 0.25, 8.0)), Split(4, 4)),
    ]
    point = scaling(runs).points[1]
    assert point.efficiency == pytest.approx(1, rel=0.02)
    assert {one.name: one.percent for one in point.ledger.lines}["smaller batch"] == pytest.approx(0, abs=0.5)


def test_predictions_are_kept_apart_from_observations() -> None:
    """Communication and bubbles are lines of their own kind, after all that was observed, and count against the base."""
    runs = [Measured(closed("a", 4, 1.0), Split(1, 1)), Measured(closed("b", 8, 1.5), Split(2, 1, 2))]
    found = scaling(runs, predicted=[Predicted(0.0, 0.0), Predicted(0.1, 0.18)])
    lines = found.points[1].ledger.lines
    assert [(one.name, one.basis) for one in lines[-2:]] == [
        ("communication", "predicted"),
        ("pipeline bubble", "predicted"),
    ]
    assert [one.percent for one in lines[-2:]] == [10.0, 18.0]
    assert all(one.basis == "observed" for one in lines[:-2])


def test_goodput_counts_what_came_in_time() -> None:
    """With objectives T is the goodput, computed anew from the requests; late answers have a line."""
    runs = [Measured(closed("a", 4, 1.0), Split(1)), Measured(closed("b", 4, 2.5), Split(2))]
    found = scaling(runs, parse_objectives("e2el=3s"))
    assert found.metric == "goodput_requests_per_second"
    assert {one.name: one.percent for one in found.points[1].ledger.lines}["objectives missed"] == 0
    with pytest.raises(InputError, match="no request met"):
        scaling(runs, parse_objectives("e2el=2s"))


def test_the_verb_prints_one_document_a_table_and_a_page(tmp_path: Path) -> None:
    """JSON by its schema, Markdown, a page with plots that loads nothing; all say what has no line and why."""
    base = closed("one", 4, 1.0)
    names = files(
        tmp_path, base, closed("two", 8, 1.2, conditions=lock(base, layout_tp=2, load_concurrency=8))
    )
    page = tmp_path / "scaling.html"
    found = call(tmp_path, *names, "--json", "--html", str(page))
    assert found.exception is None, found.exception
    document = json.loads(found.stdout)
    assert (document["schema"], document["law"], document["base_gpus"]) == (
        "longspan.bench.scaling/1",
        "weak",
        1,
    )
    book = document["points"][1]["ledger"]
    assert book["efficiency_percent"] + sum(line["percent"] for line in book["lines"]) == pytest.approx(
        100, abs=1e-9
    )
    assert {
        "name": "the client",
        "basis": "observed",
        "why": "a client was not calibrated (--calibrate)",
    } in book["absent"]
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "<script" not in text
    assert "unexplained" in text
    plain, pasted = call(tmp_path, *names).stdout, call(tmp_path, *names, "--markdown").stdout
    assert "From 1 to 2 GPUs (weak scaling" in plain
    assert "the client: not measured" in plain
    assert "The base is 1 GPU, the fewest that were measured" in plain
    assert "| unexplained |" in pasted


def test_other_conditions_are_refused_by_name(tmp_path: Path) -> None:
    """Another checkpoint and engine are named; what is allowed may differ; what GPUs change by themselves may, too."""
    base = closed("one", 4, 1.0)
    other = closed(
        "two",
        8,
        1.2,
        conditions=lock(base, layout_tp=2, load_concurrency=8, engine_version="0.20.0", model_name="x"),
    )
    names = files(tmp_path, base, other)
    refusal = call(tmp_path, *names).exception
    assert isinstance(refusal, ConditionsError)
    assert "engine/version: one has 0.19.0, two has 0.20.0" in refusal.what
    assert "model/name" in refusal.what
    assert "layout" not in refusal.what
    assert call(tmp_path, *names, "--allow", "engine/version", "--allow", "model/name").exception is None


def test_nodes_that_the_base_did_not_have(tmp_path: Path) -> None:
    """Their names and networks are no difference; another driver on one of them is, and is named."""
    base = closed("one", 4, 1.0, 5)
    first = {"node/a/driver": "570", "node/a/NCCL_SOCKET_IFNAME": "eth0"}
    second = {"node/b/driver": "570", "node/b/NCCL_SOCKET_IFNAME": "ens7"}
    one = closed("one", 4, 1.0, 5, conditions={**base.conditions, **first})
    two = {**lock(base, layout_tp=2), **first, **second}
    found = call(tmp_path, *files(tmp_path, one, closed("two", 4, 1.0, 5, conditions=two)), "--json")
    assert found.exception is None, found.exception
    assert json.loads(found.stdout)["unknown"] == []
    other = closed("two", 4, 1.0, 5, conditions={**two, "node/b/driver": "550"})
    refusal = call(tmp_path, *files(tmp_path, one, other)).exception
    assert isinstance(refusal, ConditionsError)
    assert "node/b/driver: one has 570, two has 550" in refusal.what
    assert call(tmp_path, *files(tmp_path, one, other), "--allow", "node").exception is None


def test_a_load_that_nobody_tells_has_no_law() -> None:
    """An imported run says nothing of its load: refused; a trace is the same load for all."""
    silent = [Measured(closed("a", 4, 1.0, 3, load={}), Split(gpus)) for gpus in (1, 2)]
    with pytest.raises(ConditionsError, match="not known with which load a, a"):
        law_of(silent)
    trace = {"concurrency": 0, "pattern": {"kind": "trace", "rate": 0.0}}
    assert law_of([Measured(closed("a", 4, 1.0, 3, load=trace), Split(gpus)) for gpus in (1, 2)]) == "strong"


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        (["{one}", "{nosplit}"], InputError, "does not tell on how many GPUs"),
        (["{one}", "{nosplit}=zwei"], InputError, "no number of GPUs"),
        (["{one}"], InputError, "at least two"),
        (["{one}", "nowhere=2"], ResultError, "neither a file"),
        (["{one}", "{two}", "--gpu", "H999"], InputError, "not in the catalogue"),
        (["{one}", "{two}", "--rows", "rows.csv"], InputError, "no rows to write"),
        (["{one}", "{limited}"], UnsoundRunError, "says nothing of the servers"),
    ],
)
def test_what_the_verb_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], kind: type[Exception], says: str
) -> None:
    """Each with its own error, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    base = closed("one", 4, 1.0, 5)
    two = lock(base, layout_tp=2)
    paths = files(
        tmp_path, base, closed("two", 4, 1.0, 5, conditions=two), closed("nosplit", 4, 1.0, 5, conditions={}),
        closed("limited", 4, 1.0, 5, conditions=two, client=ClientQuality(limited=True, reasons=("late",))),
    )  # fmt: skip
    places = dict(zip(("one", "two", "nosplit", "limited"), paths, strict=True))
    found = call(tmp_path, *(word.format(**places) for word in words))
    assert isinstance(found.exception, kind), found.exception
    assert says in str(found.exception)
    assert not (tmp_path / "rows.csv").exists()


def estimated(tmp_path: Path, rows: Path, *words: str) -> dict[str, Any]:
    """What `plan --rows` says of the file's rows."""
    arguments = ["plan", "--rows", str(rows), "--offline", "--json", *words]
    found = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert found.exception is None, found.exception
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def test_the_planner_reads_the_rows_and_moves_towards_the_measurement(tmp_path: Path) -> None:
    """Twice as slow as estimated: after `plan --calibrate` the estimates are what was measured. A second call adds nothing."""
    base = closed("one", 4, 6.0)
    names = files(
        tmp_path, base, closed("two", 8, 6.6, conditions=lock(base, layout_tp=2, load_concurrency=8))
    )
    rows, corrections = tmp_path / "rows.csv", tmp_path / "calibration.toml"
    for new in (6, 0):
        found = call(tmp_path, *names, "--gpu", "H100", "--rows", str(rows), "--json")
        assert found.exception is None, found.exception
        assert f"{new} of 6 rows are new" in found.stderr
    assert 0.4 < json.loads(found.stdout)["points"][1]["planned_efficiency"] < 1.5
    plan = {one["quantity"]: one for one in json.loads(found.stdout)["points"][0]["plan"]}
    assert plan["TPOT mean"]["verdict"] == "above"
    assert plan["output"]["verdict"] == "below"
    before = estimated(tmp_path, rows)
    made = CliRunner().invoke(
        cli,
        ["plan", "--calibrate", str(rows), "--calibration", str(corrections), "--offline"],
        standalone_mode=False,
    )
    assert made.exception is None, made.exception
    after = estimated(tmp_path, rows, "--calibration", str(corrections))
    with rows.open(newline="") as file:
        measured = list(csv.DictReader(file))
    for key, quantity, is_up in (
        ("tpot_ms", "tpot_mean", True),
        ("output_tok_s", "output_throughput", False),
    ):
        old, new_value = (answers[f"one/{quantity}"][key]["p50"] for answers in (before, after))
        assert (new_value > old) == is_up
        value = next(float(row["value"]) for row in measured if row["row_id"] == f"one/{quantity}")
        assert abs(new_value / value - 1) < abs(old / value - 1)


def test_rows_are_not_added_to_another_table(tmp_path: Path) -> None:
    """A file with other columns stays as it is."""
    base = closed("one", 4, 6.0)
    names = files(tmp_path, base, closed("two", 4, 3.0, conditions=lock(base, layout_tp=2)))
    rows = tmp_path / "mine.csv"
    rows.write_text("a,b\n1,2\n")
    found = call(tmp_path, *names, "--gpu", "H100", "--rows", str(rows))
    assert isinstance(found.exception, InputError)
    assert rows.read_text() == "a,b\n1,2\n"
    away = call(tmp_path, *names, "--gpu", "H100", "--rows", str(tmp_path))
    assert isinstance(away.exception, ResultError)

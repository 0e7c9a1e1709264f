"""Better, worse, the same, or not to be told: the statistics, the order of blocks, and the verb with its exit codes."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_made import LOCK, made, write_file
from longspan.bench import interleave
from longspan.bench.blocks import METRICS, quantile
from longspan.bench.compare import compare
from longspan.bench.cut import cut
from longspan.bench.record import RequestRecord
from longspan.bench.result import ClientQuality, Result
from longspan.bench.summary import summarise
from longspan.cli.bench_compare import command
from longspan.errors import ConditionsError, InputError, UnsoundRunError
from longspan.workload import parse_objectives

DECIDE = ("ttft_p50", "tpot_p50", "output_throughput")


def run(tmp_path: Path, a: Result, b: Result, *options: str) -> tuple[int, dict[str, object]]:
    """Exit code and document of the verb; an error of ours is raised."""
    write_file(tmp_path / "a.json", a)
    write_file(tmp_path / "b.json", b)
    arguments = [str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--json", *options]
    found = CliRunner().invoke(command, arguments, standalone_mode=False)
    if found.exception:
        raise found.exception
    return found.return_value or 0, json.loads(found.output)


def test_two_equal_sides_are_seldom_called_different() -> None:
    """A against A, 60 times: at a level of 5 % no more than 8 are called different (binomial: 99 of 100 such tests)."""
    wrong = 0
    for seed in range(60):
        a, b = (cut(made(1000 + 2 * seed + i, count=200), ()) for i in (0, 1))
        verdict = compare(
            a,
            b,
            is_paired=False,
            uniform=Random(seed).random,
            decide=DECIDE,
            shown=(),
            margin=0.0,
            resamples=200,
        )
        wrong += verdict.outcome in ("better", "worse")
    assert wrong <= 8


def test_a_known_effect_is_found_and_its_interval_holds_it() -> None:
    """10 % slower is worse; 10 % lies within the interval of nearly every repetition; the MDE is below it."""
    held = 0
    for seed in range(20):
        a, b = cut(made(seed, count=300), ()), cut(made(500 + seed, 1.1, count=300), ())
        verdict = compare(
            a, b, is_paired=False, uniform=Random(seed).random, decide=["ttft_p50"], shown=(), resamples=300
        )
        assert verdict.outcome == "worse"
        assert verdict.judged[0].smallest_seen < 0.1
        held += verdict.judged[0].low <= 0.1 <= verdict.judged[0].high
    assert held >= 16


@given(st.integers(1, 20))
def test_each_pair_has_both_sides_and_the_order_turns(pairs: int) -> None:
    """A B B A …: each side once per pair, and over an even number of pairs both have the same mean place."""
    order = interleave.order(pairs)
    assert sorted(order) == sorted((side, pair) for pair in range(pairs) for side in ("a", "b"))
    places = {side: sum(i for i, one in enumerate(order) if one[0] == side) for side in ("a", "b")}
    assert pairs % 2 or places["a"] == places["b"]


def test_interleaved_blocks_take_out_a_drift() -> None:
    """Both sides get slower by 5 % a block; in turn, equal sides are not called different, and a slower B is."""
    for slower, wanted in ((1.0, {"same", "cannot tell"}), (1.25, {"worse"})):
        clock = iter(range(100))

        def runner(side: str, pair: int, slower: float = slower, clock: Iterator[int] = clock) -> Result:
            at = next(clock)
            return made(at, 1.05**at * (slower if side == "b" else 1.0), count=60)

        a, b = interleave.measure(runner, 8)
        verdict = compare(
            interleave.blocks(a, ()), interleave.blocks(b, ()), is_paired=True, uniform=Random(1).random,
            decide=["ttft_p50"], shown=(),
        )  # fmt: skip
        assert verdict.outcome in wanted


@settings(max_examples=50)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=50), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_quantile_is_the_smallest_value_that_enough_do_not_exceed(
    values: list[float], share: float
) -> None:
    """At least the share lies at or below it, and less than the share lies below it."""
    found = quantile(sorted(values), share)
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6
    assert sum(value < found for value in values) < share * len(values)


def test_exit_codes_tell_ci_what_happened(tmp_path: Path) -> None:
    """0 for the same run and for a better one, 93 for worse, 94 where a run is too short to tell."""
    options = ("--metric", "ttft_p50", "--metric", "failed_share")
    assert run(tmp_path, made(1), made(1), "--margin", "5", *options)[0] == 0
    code, found = run(tmp_path, made(1), made(2, 1.3), *options)
    assert (code, found["verdict"]) == (93, "worse")
    assert "TTFT p50 is" in str(found["sentence"])
    assert run(tmp_path, made(1), made(2, 0.7), *options)[0] == 0
    code, found = run(tmp_path, made(1, count=30), made(2, count=30), "--margin", "0", *options)
    assert (code, found["verdict"]) == (94, "cannot tell")


def test_failures_are_worse_whatever_the_latency(tmp_path: Path) -> None:
    """B answers faster, but a tenth of its requests fails: worse."""
    code, found = run(
        tmp_path, made(1), made(2, 0.7, failing=0.1), "--metric", "ttft_p50", "--metric", "failed_share"
    )
    assert code == 93
    assert found["mixed"]


def test_differing_conditions_are_refused_by_name_and_allowed_by_name(tmp_path: Path) -> None:
    """Each difference that matters is named in the refusal; the one that is allowed is what is under test."""
    other = made(2, conditions=LOCK | {"engine/version": "2", "model/name": "other"})
    with pytest.raises(ConditionsError) as refusal:
        run(tmp_path, made(1), other)
    assert "engine/version: A has 1, B has 2" in str(refusal.value)
    assert "model/name" in str(refusal.value)
    with pytest.raises(ConditionsError, match="model/name"):
        run(tmp_path, made(1), other, "--allow", "engine/version")
    _, found = run(tmp_path, made(1), other, "--allow", "engine/version", "--allow", "model")
    assert [one["name"] for one in found["under_test"]] == ["engine/version", "model/name"]  # type: ignore[attr-defined]


def test_a_run_that_measured_its_client_is_not_compared(tmp_path: Path) -> None:
    """CLIENT-LIMITED is refused, and with --unsound it is a caveat."""
    limited = made(2, client=ClientQuality(limited=True, reasons=("a core is full",)))
    with pytest.raises(UnsoundRunError, match="a core is full"):
        run(tmp_path, made(1), limited)
    _, found = run(tmp_path, made(1), limited, "--unsound")
    assert "a core is full" in str(found["caveats"])


@pytest.mark.parametrize(
    "options", [("--metric", "speed"), ("--slo", "ttft"), ("--slo", "x=1s"), ("--slo", "e2e=1s")]
)
def test_wrong_names_are_one_error(tmp_path: Path, options: tuple[str, ...]) -> None:
    """An unknown metric or objective is refused with those that exist."""
    with pytest.raises(InputError):
        run(tmp_path, made(1, count=20), made(2, count=20), *options)


def test_goodput_is_the_same_in_a_run_and_in_a_comparison() -> None:
    """A single token has no TPOT to miss; an answer without a TTFT misses one of TTFT, and meets one of its end."""
    whole = RequestRecord(
        0, 0, 0, 0.1, 1.0, 1.0, chunks=9, first_chunk_tokens=1, output_tokens=9, counted=True
    )
    single = RequestRecord(
        1, 0, 0, 0.1, 0.1, 0.1, chunks=1, first_chunk_tokens=1, output_tokens=1, counted=True
    )
    plain = RequestRecord(2, 0, 0, None, 1.0, 1.0, output_tokens=9, counted=True)
    failed = RequestRecord(3, 0, 0, None, None, 1.0, outcome="reset")
    run_made = made(1, requests=(whole, single, plain, failed), window_seconds=(0.0, 2.0))
    for text, good in (("ttft=1s", 2), ("tpot=50ms", 2), ("e2el=2s", 3), ("ttft=1s,e2el=500ms", 1)):
        objectives = parse_objectives(text)
        assert sum(block.good for block in cut(run_made, objectives)) == good
        assert summarise(run_made.requests, objectives).figures["slo_attainment"].value == good / 4


def test_the_same_seed_gives_the_same_answer(tmp_path: Path) -> None:
    """The resampling is seeded; goodput is among the metrics when objectives are given."""
    found = [run(tmp_path, made(1, count=150), made(2, count=150), "--slo", "ttft=100ms") for _ in range(2)]
    assert found[0] == found[1]
    assert any(one["metric"] == "goodput" and one["decides"] for one in found[0][1]["metrics"])  # type: ignore[attr-defined]
    assert set(METRICS) == {one["metric"] for one in found[0][1]["metrics"]}  # type: ignore[attr-defined]


def test_the_table_has_units_and_the_answer_first(tmp_path: Path) -> None:
    """For people: the sentence is the first line, and every figure has its unit."""
    for name, own in (("a", made(1)), ("b", made(2, 1.3))):
        write_file(tmp_path / name, own)
    shown = (
        CliRunner().invoke(command, [str(tmp_path / "a"), str(tmp_path / "b")], standalone_mode=False).output
    )
    assert shown.splitlines()[0].startswith("B is worse than A: ")
    assert " ms" in shown
    assert " tok/s" in shown
    assert "did not run in turn" in shown


def test_no_failure_in_few_requests_is_no_proof_of_none() -> None:
    """Without a failure on either side the smallest share that could have been seen falls with the requests, and is not 0."""
    seen = []
    for count in (100, 1000):
        a, b = cut(made(1, count=count), ()), cut(made(2, count=count), ())
        verdict = compare(
            a, b, is_paired=False, uniform=Random(1).random, decide=["failed_share"], shown=(), resamples=50
        )
        seen.append(verdict.judged[0].smallest_seen)
    assert seen[0] > 5 * seen[1] > 0

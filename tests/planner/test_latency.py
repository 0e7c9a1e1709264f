"""Latency: statistics from simulated requests, honest intervals, and rows in the form that scoring reads."""

import csv
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.cluster.catalog import find_gpu, require_gpu
from longspan.model.fetch import load_indexed, load_model
from longspan.plan import Layout
from longspan.planner.engine_model import EngineModel, Site, engine_model
from longspan.planner.latency import (
    BURST,
    WARM,
    Percentiles,
    capacity,
    closed_loop,
    highest_rate,
    open_loop,
    serve,
    steady,
    with_interval,
)
from longspan.planner.latency_rows import LATENCY_KEYS, evaluate_latency
from longspan.planner.links import Path as LinkPath
from longspan.planner.rows import Row, parse_row, row_facts
from longspan.planner.simulate import Limits
from longspan.planner.step_costs import together
from longspan.workload import Workload, parse_objectives

SHARED = Path(__file__).parents[2] / ".." / "shared" / "planner"
LLAMA = load_model("meta-llama/Meta-Llama-3-70B-Instruct", None, offline=True)
LIMITS = Limits(8192, 1024, 400_000.0)


def engine(gpu: str = "H100", tp: int = 4, kind: str = "nvlink") -> EngineModel:
    """Llama-3-70B on one stage."""
    return engine_model(LLAMA, Layout(tp), (Site(require_gpu(gpu), LinkPath(kind, 450e9)),))


def row(**fields: str) -> Row:
    """A row of a CSV file with these columns."""
    known = {
        "row_id": "a",
        "repo_id": "m",
        "gpu": "H100",
        "tp": "4",
        "isl": "1024",
        "osl": "256",
        "concurrency": "8",
    }
    return parse_row({**known, **fields})


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_lie_between_the_extremes(values: list[float], percentile: float) -> None:
    """A percentile is never outside the data and grows with its rank."""
    found = Percentiles(sum(values) / len(values), tuple(sorted(values)))
    assert min(values) <= found.at(percentile) <= max(values)
    assert found.at(percentile) <= found.at(100)


def test_more_clients_wait_longer_and_give_more() -> None:
    """With the number of clients throughput, TTFT and TPOT all rise."""
    seen = [closed_loop(engine(), LIMITS, 1024, 256, clients) for clients in (1, 8, 64)]
    for few, many in itertools.pairwise(seen):
        assert few.output_tokens_per_second < many.output_tokens_per_second
        assert few.ttft.mean < many.ttft.mean
        assert few.tpot.mean < many.tpot.mean


def test_the_first_burst_counts_in_one_protocol_only() -> None:
    """All clients starting at once raise TTFT where the burst is counted."""
    cold = closed_loop(engine(), LIMITS, 1024, 256, 64, BURST)
    warm = closed_loop(engine(), LIMITS, 1024, 256, 64, WARM)
    assert cold.ttft.at(99) > 1.5 * warm.ttft.at(99)


def test_prefix_hits_shorten_the_wait() -> None:
    """Cached prompts reach their first token sooner."""
    none = closed_loop(engine(), LIMITS, 4000, 100, 16)
    half = closed_loop(engine(), LIMITS, 4000, 100, 16, prefix_hit_share=0.75)
    assert half.ttft.mean < none.ttft.mean
    assert half.output_tokens_per_second > none.output_tokens_per_second


def test_overload_is_noticed() -> None:
    """Beyond its capacity a replica does not complete what arrives, and no objective hides that."""
    calm = open_loop(engine(), LIMITS, Workload(requests_per_second=1.0))
    flood = open_loop(engine(), LIMITS, Workload(requests_per_second=100.0))
    assert calm.completed_share > 0.9
    assert flood.completed_share < 0.8
    assert flood.ttft.at(95) > 5 * calm.ttft.at(95)


def test_the_highest_rate_keeps_the_objectives() -> None:
    """At the rate found the objectives hold; well above it they do not."""
    workload = Workload(objectives=parse_objectives("ttft_p95=1s,tpot_p95=60ms"))
    rate = highest_rate(engine(), LIMITS, workload, 50.0)
    assert rate > 0
    at, above = (open_loop(engine(), LIMITS, workload.at_rate(rate * factor)) for factor in (1.0, 2.0))
    assert all(at.meets(one) for one in workload.objectives)
    assert not all(above.meets(one) for one in workload.objectives) or above.completed_share < 0.8


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 128))
def test_the_closed_form_is_near_the_simulation(clients: int) -> None:
    """The steady state ranks layouts, so it must be within a third of the simulated time per token."""
    workload = Workload(concurrency=clients)
    seen = serve(engine(), LIMITS, workload)
    found = steady(engine(), LIMITS, workload, clients)
    assert found.tpot_seconds == pytest.approx(seen.tpot.mean, rel=0.35)


def test_capacity_respects_time_per_token() -> None:
    """A bound on time per token limits the batch."""
    free = capacity(engine(), LIMITS, Workload(requests_per_second=1))
    bound = capacity(
        engine(), LIMITS, Workload(requests_per_second=1, objectives=parse_objectives("tpot_p95=25ms"))
    )
    assert bound.batch < free.batch
    assert bound.tpot_seconds <= 0.025


def test_guesses_have_wider_intervals() -> None:
    """What nobody measured is called a guess, and its interval is wider."""
    measured = with_interval(100.0, "tpot", engine(), "ms")
    guessed = with_interval(100.0, "tpot", engine("A100"), "ms")
    unmeasured_link = with_interval(100.0, "tpot", engine("H100", 4, "pcie"), "ms")
    assert measured.p10 < 100 < measured.p90
    assert guessed.p90 - guessed.p10 > 1.8 * (measured.p90 - measured.p10)
    assert unmeasured_link.p90 > measured.p90
    assert guessed.source.startswith("guess")
    assert "guesses" in unmeasured_link.source


def test_rows_without_a_basis_are_none() -> None:
    """No lengths, or a model that does not fit: no number."""
    gpu = require_gpu("H100")
    assert set(evaluate_latency(row(isl="", osl=""), LLAMA, gpu).values()) == {None}
    assert set(evaluate_latency(row(tp="1"), LLAMA, gpu).values()) == {None}


def test_rows_answer_every_key() -> None:
    """A complete row has all keys, consistent with each other."""
    found = evaluate_latency(row(), LLAMA, require_gpu("H100"))
    assert set(found) == set(LATENCY_KEYS)
    values = {key: value.p50 for key, value in found.items() if value is not None}
    assert len(values) == len(LATENCY_KEYS)
    assert values["output_tok_s_per_gpu"] == pytest.approx(values["output_tok_s"] / 4)
    assert values["user_tok_s"] == pytest.approx(1000 / values["tpot_ms"])
    assert values["e2e_ms"] > values["ttft_ms"]


def test_open_loop_rows() -> None:
    """A rate makes a row an open loop: throughput follows the arrivals, not the machine."""
    found = evaluate_latency(row(concurrency="", request_rate_per_s="1"), LLAMA, require_gpu("H100"))
    assert found["request_per_s"] is not None
    assert found["request_per_s"].p50 == pytest.approx(1.0, rel=0.1)


def test_the_median_is_another_statistic() -> None:
    """`ttft_median` is not the mean, which the first burst pulls up."""
    gpu = require_gpu("H100")
    mean = evaluate_latency(row(concurrency="64", quantity="ttft_mean"), LLAMA, gpu)["ttft_ms"]
    median = evaluate_latency(row(concurrency="64", quantity="ttft_median"), LLAMA, gpu)["ttft_ms"]
    assert mean is not None
    assert median is not None
    assert median.p50 < mean.p50


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared measurements are not on this machine")
def test_measured_points_are_near() -> None:
    """On every twentieth published point the median error stays within the aims (TPOT 10 %, TTFT 20 %)."""
    with (SHARED / "inputs.csv").open() as file:
        inputs = {r["row_id"]: r for r in csv.DictReader(file) if r["file"] == "aic_vllm_agg.csv"}
    with (SHARED / "row_flags.csv").open() as file:
        scored = {r["row_id"] for r in csv.DictReader(file) if r["score"] == "yes"}
    with (SHARED / "aic_vllm_agg.csv").open() as file:
        points = [r for r in csv.DictReader(file) if r["row_id"] in scored][::20]
    models, errors = {}, {"ttft_ms": [], "tpot_ms": []}
    for point in points:
        wanted = parse_row(inputs[point["row_id"]])
        key = (wanted.repo_id, wanted.weight_dtype)
        if key not in models:
            facts = load_indexed(wanted.repo_id, SHARED / "model_configs")
            assert facts is not None
            models[key] = row_facts(wanted, facts)
        gpu = find_gpu(wanted.gpu)
        assert gpu is not None
        found = evaluate_latency(wanted, models[key], gpu)
        for name, seen in errors.items():
            value = found[name]
            if value is not None:
                seen.append(abs(value.p50 / float(point[f"silicon_{name}"]) - 1))
    assert sorted(errors["tpot_ms"])[len(errors["tpot_ms"]) // 2] < 0.10
    assert sorted(errors["ttft_ms"])[len(errors["ttft_ms"]) // 2] < 0.20


def test_reasons_for_wider_intervals_add_in_squares() -> None:
    """One reason alone is its factor, two are less than their product, and none changes nothing."""
    assert together(1.0) == 1.0
    assert together(2.5, 1.0) == pytest.approx(2.5)
    assert 2.5 < together(2.5, 1.8) < 2.5 * 1.8


def test_inverse_quantities_have_inverse_intervals() -> None:
    """Tokens a second of one user are one over the time per token, and so are their bounds."""
    tpot = with_interval(0.02, "tpot", engine(), "s")
    speed = with_interval(50.0, "user_speed", engine(), "tokens/s")
    assert speed.p10 == pytest.approx(1 / tpot.p90)
    assert speed.p90 == pytest.approx(1 / tpot.p10)

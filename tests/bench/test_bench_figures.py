"""Arrivals, statistics and figures keep their rules."""

import itertools
import json
import math
import random
from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.bench import record, stats
from longspan.bench.arrivals import Pattern, offsets
from longspan.bench.load import Lengths, LoadSpec
from longspan.bench.prompts import PromptMaker, WordRate, word_rate
from longspan.bench.quality import Lateness, judge, turns, withhold
from longspan.bench.record import RequestRecord
from longspan.bench.result import ClientQuality
from longspan.bench.steady import mark_transient
from longspan.bench.summary import summarise
from longspan.bench.traces import TraceRequest, parse_sharegpt, parse_trace
from longspan.errors import InputError
from longspan.workload import parse_objectives


def answered(index: int, scheduled: float, sent: float, end: float, tokens: int = 10) -> RequestRecord:
    """A success whose tokens come evenly up to its end."""
    stamps = array("d", [sent + (end - sent) * (n + 1) / tokens for n in range(tokens)])
    return RequestRecord(
        index, scheduled, sent, stamps[0], stamps[-1], end, stamps, tokens, 1, 5, tokens, counted=True
    )


@pytest.mark.parametrize(
    "pattern", [Pattern("poisson", 200), Pattern("gamma", 200, burstiness=0.25), Pattern("constant", 200)]
)
def test_random_arrivals_have_their_rate_and_no_rescaled_end(pattern: Pattern) -> None:
    """The mean gap is within 4 standard errors of the rate's, and the same seed gives the same arrivals."""
    found = list(itertools.islice(offsets(pattern, random.Random(7)), 10000))
    spread = {"poisson": 1.0, "gamma": 2.0, "constant": 0.0}[pattern.kind]
    assert abs(found[-1] * 200 / 10000 - 1) <= 4 * spread / 100 + 1e-3
    assert found == list(itertools.islice(offsets(pattern, random.Random(7)), 10000)) == sorted(found)


def test_a_ramp_reaches_its_last_rate() -> None:
    """From 10 to 90 a second in 100 s: about 1000 in the first 40 s, 5000 in 100 s, then 90 a second."""
    found = list(itertools.islice(offsets(Pattern("ramp", 10, 90, 100), random.Random(3)), 10000))
    inside = sum(when <= 100 for when in found)
    later = sum(100 < when <= 110 for when in found)
    assert abs(inside - 5000) < 300
    assert abs(later - 900) < 130


def test_bursts_come_together() -> None:
    """Five at a time, at ten a second: two bursts a second."""
    assert list(itertools.islice(offsets(Pattern("bursts", 10, burst=5), random.Random(0)), 11)) == [
        0
    ] * 5 + [0.5] * 5 + [1.0]


@pytest.mark.parametrize("kind", ["poisson", "constant", "ramp", "nothing"])
def test_a_load_without_a_rate_is_refused(kind: str) -> None:
    """A rate of 0 is no load."""
    with pytest.raises(InputError):
        Pattern(kind)


def test_both_traces_are_read_and_a_broken_line_is_named() -> None:
    """Mooncake's milliseconds and BurstGPT's seconds; line 3 is broken."""
    mooncake = '{"timestamp": 1000, "input_length": 6, "output_length": 2, "hash_ids": [1]}\n' * 2
    burst = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,G,6,2,8,x\n5.5,G,6,0,6,x\n7,G,6,3,9,x\n"
    assert [one.seconds for one in parse_trace(mooncake)] == [0, 0]
    assert [(one.seconds, one.output_tokens) for one in parse_trace(burst)] == [(0, 2), (2, 3)]
    for text in (mooncake + '{"timestamp": 1}\n', burst.replace("5.5,G,6", "5.5,G,six")):
        with pytest.raises(InputError, match="Line 3"):
            parse_trace(text)


def test_prompts_differ_between_runs_and_requests_and_not_between_processes() -> None:
    """Distinct from the first words on, of the length asked for, and the same wherever they are made."""
    specs = [LoadSpec(seed=1, salt=salt, prompt=Lengths(100)) for salt in (1, 2)]
    texts = [
        PromptMaker(spec, WordRate(2.0, 10.0), random.Random).make(index).texts[0]
        for spec in specs
        for index in range(50)
    ]
    assert len({text[:60] for text in texts}) == 100
    assert {len(text.split()) for text in texts} == {45}
    assert texts[7] == PromptMaker(specs[0], WordRate(2.0, 10.0), random.Random).make(7).texts[0]
    assert word_rate((10, 35), (110, 235)) == WordRate(2.0, 15.0)


def test_prompts_of_traces_and_conversations_are_theirs() -> None:
    """Equal leading blocks are an equal prefix and the next block differs; a conversation's questions follow the salt."""
    trace = tuple(TraceRequest(0, 1024, 2, blocks) for blocks in ((1, 2), (1, 3)))
    maker = PromptMaker(LoadSpec(prompts="trace"), WordRate(), random.Random, trace=trace)
    first, second = (maker.make(index).texts[0].split() for index in (0, 1))
    assert len(first) == len(second) == 1024
    assert first[:512] == second[:512]
    assert first[512:524] != second[512:524]
    talk = [{"from": who, "value": text} for who, text in (("human", "a?"), ("gpt", "b"), ("human", "c?"))]
    talks = parse_sharegpt(json.dumps([{"conversations": talk}, {"conversations": talk[1:]}]))
    assert talks == (("a?", "c?"),)
    asked = PromptMaker(LoadSpec(prompts="sharegpt", turns=2), WordRate(), random.Random, talks)
    texts = asked.make(5).texts
    assert texts == (f"{asked.salt(5)}a?", "c?")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_a_percentile_lies_in_its_interval(values: list[float], share: float) -> None:
    """At least `share` of the sample is at or below it, and the interval holds it."""
    ordered = sorted(values)
    found = stats.percentile(ordered, share)
    low, high = stats.percentile_interval(ordered, share)
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-6
    assert low is None or low <= found
    assert high is None or found <= high


@pytest.mark.parametrize(("count", "share"), [(100, 0.5), (400, 0.95), (5000, 0.99)])
def test_the_interval_covers_what_it_says(count: int, share: float) -> None:
    """By the binomial itself: P(l <= number below the quantile < u) is at least 94.5 %, and hardly more than it must be."""
    low, high = stats._ranks(count, share)
    assert 0.945 <= sum(stats._binomial(count, k, share) for k in range(low, high)) <= 0.97


def test_intervals_are_those_of_the_tables() -> None:
    """Of 100 values the 40th and the 61st hold the median; of 10 nothing bounds p99 from above; 97 of 100 after Wilson."""
    assert stats.percentile_interval(range(1, 101), 0.5) == (40, 61)
    assert stats.percentile_interval(range(1, 11), 0.99)[1] is None
    found = stats.share_figure(97, 100)
    assert (found.low, found.high) == (pytest.approx(0.9155, abs=1e-4), pytest.approx(0.9897, abs=1e-4))


def test_latency_counts_from_the_schedule_too() -> None:
    """One server slot of 500 ms, 10 requests a second: E2EL p99 is 3.3 s from schedule and 0.5 s from sending."""
    records = [answered(n, n * 0.1, n * 0.5, n * 0.5 + 0.5) for n in range(8)]
    found = summarise(records).figures
    assert found["e2el_scheduled_p99_seconds"].value == pytest.approx(3.3)
    assert found["e2el_sent_p99_seconds"].value == pytest.approx(0.5)
    assert found["dispatch_mean_seconds"].value == pytest.approx(1.4)


def test_failures_stay_in_the_adjusted_percentiles() -> None:
    """3 % instant failures: p95 is that of a success, p99 has no bound; the plain table has successes only."""
    records = [answered(n, n, n, n + 1) for n in range(97)]
    records += [RequestRecord(97 + n, n, n, end_seconds=n, outcome=record.HTTP_STATUS) for n in range(3)]
    found = summarise(records, parse_objectives("e2el=2s")).figures
    assert found["e2el_sent_adjusted_p95_seconds"].value == pytest.approx(1.0)
    assert found["e2el_sent_adjusted_p99_seconds"].value == math.inf
    assert found["e2el_sent_p99_seconds"].value == pytest.approx(1.0)
    assert found["slo_attainment"].value == pytest.approx(0.97)


def test_the_drain_does_not_hide_what_was_sustained() -> None:
    """100 requests of 1 s and one of 60 s: the window's rate is more than five times the whole run's."""
    records = [answered(n, 0, 0, 1.0, 100) for n in range(100)] + [answered(100, 0, 0, 60.0, 100)]
    found = summarise(records).figures
    window, whole = found["output_window_tokens_per_second"], found["output_run_tokens_per_second"]
    assert window.value > 5 * whole.value  # type: ignore[operator]


def test_a_transient_is_found_and_a_steady_run_has_none() -> None:
    """The first 50 of 500 are slow: the cut is near 50; a growing latency has no steady state."""
    noise = [math.sin(n * 12.9898) * 0.1 for n in range(500)]
    assert 40 <= (stats.steady_from([5.0 + x for x in noise[:50]] + [1.0 + x for x in noise[50:]]) or 0) <= 70
    assert (stats.steady_from([1.0 + x for x in noise]) or 0) < 250
    assert stats.drift([1 + n / 100 for n in range(500)]) > 0.5


def test_a_transient_is_taken_off_unless_warm_up_was_given() -> None:
    """The slow first 50 of 500 are marked as warm-up and in no figure; where one is marked already, nothing is."""
    lasting = [(5.0 if n < 50 else 1.0) + math.sin(n * 12.9898) * 0.1 for n in range(500)]
    records = [answered(n, n, n, n + value) for n, value in enumerate(lasting)]
    marked, note = mark_transient(records)
    cut = sum(one.warmup for one in marked)
    assert 40 <= cut <= 70
    assert [one.index for one in marked if one.warmup] == list(range(cut))
    assert f"the first {cut} answered" in note
    assert summarise(marked).figures["requests_sent"].value == 500 - cut
    given = [replace(records[0], warmup=True), *records[1:]]
    assert mark_transient(given) == (tuple(given), "")


def test_a_tail_that_the_client_could_have_made_is_withheld() -> None:
    """ITL of 20 ms with a p99 of 24 ms is no figure when the client was 4 ms late; the median stays."""
    figures = {
        f"itl_{name}_seconds": stats.Figure(value, "s", count=9)
        for name, value in (("p50", 0.020), ("p99", 0.024))
    }
    found = withhold(figures, Lateness(0.001, 0.002, 0.003, 0.004, 0.01))
    assert (found["itl_p50_seconds"].value, found["itl_p99_seconds"].value) == (0.020, None)
    assert "withheld" in found["itl_p99_seconds"].note
    assert withhold(figures, Lateness(p99=0.0005)) == figures


def test_a_busy_client_says_so() -> None:
    """A worker that used its whole core, or woke late, makes the run CLIENT-LIMITED; a quiet one does not."""
    assert judge(ClientQuality(cpu_share=0.99), {}, capped=False).limited
    assert judge(ClientQuality(lag_p99_seconds=0.03), {}, capped=False).limited
    assert judge(ClientQuality(batch_seconds=0.03), {}, capped=False).limited
    late = ClientQuality(cpu_share=0.3, dispatch_p99_seconds=0.2)
    assert judge(late, {}, capped=False).limited
    assert not judge(late, {}, capped=True).limited
    slow = summarise([answered(n, n * 0.1, n * 0.2, n * 0.2 + 0.1) for n in range(200)]).figures
    (reason,) = judge(ClientQuality(), slow, capped=False, requested_rate=10).reasons
    assert "it reached 5 of 10 requests a second" in reason
    assert not judge(ClientQuality(), slow, capped=True, requested_rate=10).limited
    assert turns([1.0, 1.00001, 1.00002, 2.0]) == pytest.approx([0, 1e-5, 2e-5, 0])

"""The figures of a run, out of its records. docs/bench.md defines each. Pure.

Names: `{quantity}_{t0}_{statistic}` for latencies, t0 being `scheduled` (what a user who does not wait for others sees) or `sent`
(what the server did); `..._adjusted_p99` has failures in it as infinite.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from longspan.bench import record, stats
from longspan.bench.record import RequestRecord
from longspan.bench.result import Figure
from longspan.workload import Objective

STARTS = (("scheduled", True), ("sent", False))


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures by name, the window they are of, and what a reader must know."""

    figures: dict[str, Figure]
    window_seconds: tuple[float, float]
    notes: tuple[str, ...] = ()


def measured(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Without warm-up and without what the end of the run cut off."""
    return [one for one in records if not one.warmup and (one.ok or one.failed)]


def window_of(records: Sequence[RequestRecord]) -> tuple[float, float]:
    """The window: from the first measured request's scheduled time to the first end of a request after the last was sent.

    From then on the load falls, and the tail of the longest answers would count as if the load were still there.
    """
    counted = measured(records)
    if not counted:
        return 0.0, 0.0
    begin = min(one.scheduled_seconds for one in counted)
    last_sent = max((one.sent_seconds for one in counted if one.sent_seconds is not None), default=begin)
    ends = [one.end_seconds for one in counted if one.end_seconds is not None and one.end_seconds > last_sent]
    return begin, min(ends, default=last_sent)


def run_of(records: Sequence[RequestRecord]) -> tuple[float, float]:
    """From the first measured request's scheduled time to the end of the last, drain included."""
    counted = measured(records)
    begin = min((one.scheduled_seconds for one in counted), default=0.0)
    return begin, max((one.end_seconds for one in counted if one.end_seconds is not None), default=begin)


def summarise(
    records: Sequence[RequestRecord], objectives: Sequence[Objective] = (), requested_rate: float = 0.0
) -> Summary:
    """All figures of a run.

    Args:
        records: of the whole run, in any order.
        objectives: what a good request must meet, each of them; their percentile is what a run must hold, not a request.
        requested_rate: requests per second that the load asked for; 0: a closed loop.
    """
    counted = measured(records)
    good = [one for one in counted if one.ok]
    window, run = window_of(records), run_of(records)
    figures: dict[str, Figure] = {}
    for start, scheduled in STARTS:
        ttft = [value for one in good if (value := one.ttft_seconds(scheduled)) is not None]
        e2el = [value for one in good if (value := one.e2el_seconds(scheduled)) is not None]
        streams = any(one.first_seconds is not None for one in good)
        lost = len(counted) - len(good)
        for quantity, values in (("ttft", ttft), ("e2el", e2el)):
            figures |= _named(f"{quantity}_{start}", values)
            if quantity == "e2el" or streams:
                figures |= _named(f"{quantity}_{start}_adjusted", values + [math.inf] * lost)
    figures |= _named("tpot", [value for one in good if (value := one.tpot_seconds) is not None])
    gaps = [b - a for one in good for a, b in zip(one.chunk_seconds, one.chunk_seconds[1:], strict=False)]
    figures |= _named("itl", gaps)
    figures |= _named(
        "dispatch",
        [sent - one.scheduled_seconds for one in counted if (sent := one.sent_seconds) is not None],
    )
    figures |= _amounts(good, window, run)
    figures |= _counts(records, counted, good, requested_rate)
    figures |= goodput(counted, objectives, window)
    return Summary(figures, window, _notes(records, counted, good))


def _named(front: str, values: list[float]) -> dict[str, Figure]:
    return {f"{front}_{name}_seconds": figure for name, figure in stats.distribution(values).items()}


def token_times(one: RequestRecord) -> Iterator[tuple[float, float]]:
    """(when, tokens) of each content chunk: the first chunk's own count, the others in equal parts."""
    if not one.chunk_seconds:
        if one.last_seconds is not None and one.output_tokens > 0:
            yield one.last_seconds, float(one.output_tokens)
        return
    first = max(0, one.first_chunk_tokens) or 1
    others = len(one.chunk_seconds) - 1
    yield one.chunk_seconds[0], float(first if others else max(first, one.output_tokens))
    each = max(0, one.output_tokens - first) / others if others else 0.0
    for stamp in one.chunk_seconds[1:]:
        yield stamp, each


def _amounts(
    good: list[RequestRecord], window: tuple[float, float], run: tuple[float, float]
) -> dict[str, Figure]:
    """Throughputs of the window and of the whole run, and the busiest second."""
    tokens = [pair for one in good for pair in token_times(one)]
    ends = [(one.end_seconds, 1.0) for one in good if one.end_seconds is not None]
    prompts = [(first, float(one.prompt_tokens)) for one in good
               if one.prompt_tokens > 0 and (first := one.first_seconds or one.last_seconds) is not None]  # fmt: skip
    span = run[1] - run[0]
    whole = math.fsum(amount for _, amount in tokens)
    found = {
        "output_window_tokens_per_second": stats.rate_figure(tokens, window, "tok/s"),
        "prompt_window_tokens_per_second": stats.rate_figure(prompts, window, "tok/s"),
        "requests_window_per_second": stats.rate_figure(ends, window, "req/s"),
        "output_run_tokens_per_second": Figure(whole / span if span > 0 else None, "tok/s", count=len(good)),
        "requests_run_per_second": Figure(len(good) / span if span > 0 else None, "req/s", count=len(good)),
        "output_peak_tokens_per_second": Figure(_peak(tokens), "tok/s", count=len(tokens)),
    }
    chunks = sum(one.chunks for one in good)
    if chunks:
        share = sum(max(0, one.output_tokens) for one in good if one.chunks) / chunks
        found["tokens_per_chunk"] = Figure(share, "tok", count=chunks)
    return found


def _peak(tokens: list[tuple[float, float]]) -> float | None:
    """Most tokens that arrived within one whole second of the run's axis."""
    seconds: dict[int, float] = {}
    for when, amount in tokens:
        seconds[int(when)] = seconds.get(int(when), 0.0) + amount
    return max(seconds.values(), default=None)


def _counts(
    records: Sequence[RequestRecord],
    counted: list[RequestRecord],
    good: list[RequestRecord],
    requested: float,
) -> dict[str, Figure]:
    sent = sorted(one.sent_seconds for one in counted if one.sent_seconds is not None)
    found = {
        "requests_sent": Figure(float(len(counted)), "1"),
        "requests_succeeded": Figure(float(len(good)), "1"),
        "failed_share": stats.share_figure(len(counted) - len(good), len(counted)),
        "warmup_requests": Figure(float(sum(one.warmup for one in records)), "1"),
    }
    for kind in record.FAILURES:
        if number := sum(one.outcome == kind for one in counted):
            found[f"failed_{kind}"] = Figure(float(number), "1", count=len(counted))
    for name, values in (
        ("prompt_tokens", [float(one.prompt_tokens) for one in good if one.prompt_tokens >= 0]),
        ("output_tokens", [float(one.output_tokens) for one in good if one.output_tokens >= 0]),
    ):
        if values:
            found[f"{name}_mean"] = Figure(math.fsum(values) / len(values), "tok", count=len(values))
    found["requested_rate_per_second"] = Figure(
        requested or None, "req/s", note="" if requested else "closed loop"
    )
    if len(sent) > 1 and sent[-1] > sent[0]:
        found["achieved_rate_per_second"] = Figure(
            (len(sent) - 1) / (sent[-1] - sent[0]), "req/s", count=len(sent)
        )
    found["concurrency_peak"] = Figure(float(peak_concurrency(records)), "1")
    return found


def peak_concurrency(records: Sequence[RequestRecord]) -> int:
    """Most requests in flight at one moment."""
    begins = sorted(
        one.sent_seconds for one in records if one.sent_seconds is not None and one.end_seconds is not None
    )
    ends = sorted(
        one.end_seconds for one in records if one.sent_seconds is not None and one.end_seconds is not None
    )
    return max((index + 1 - bisect_left(ends, begin) for index, begin in enumerate(begins)), default=0)


def meets(one: RequestRecord, objectives: Sequence[Objective]) -> bool:
    """Whether a request met every objective, from its scheduled time; a failure does not. Every goodput counts by this.

    A TPOT that is undefined (a single token) breaks no objective. An answer without a TTFT (no stream) does not meet one of TTFT: nobody saw
    its first token in time.
    """
    if not one.ok:
        return False
    values = {
        "ttft": one.ttft_seconds(True),
        "tpot": one.tpot_seconds or 0.0,
        "e2el": one.e2el_seconds(True),
    }
    return all((value := values[item.quantity]) is not None and value <= item.seconds for item in objectives)


def goodput(
    counted: Sequence[RequestRecord], objectives: Sequence[Objective], window: tuple[float, float]
) -> dict[str, Figure]:
    """Good requests per second of the window, and their share of those sent; empty without objectives."""
    if not objectives:
        return {}
    ends = [
        (one.end_seconds, 1.0) for one in counted if meets(one, objectives) and one.end_seconds is not None
    ]
    found = {
        "goodput_requests_per_second": stats.rate_figure(ends, window, "req/s"),
        "slo_attainment": stats.share_figure(len(ends), len(counted)),
    }
    for item in objectives:
        share = stats.share_figure(sum(meets(one, [item]) for one in counted), len(counted))
        found[f"slo_attainment_{item.quantity}"] = share
    return found


def _notes(
    records: Sequence[RequestRecord], counted: list[RequestRecord], good: list[RequestRecord]
) -> tuple[str, ...]:
    notes = []
    cut = sum(one.outcome in (record.ABORTED, record.NOT_SENT) for one in records)
    if cut:
        notes.append(f"{cut} requests were cut off by the end of the run; they are in no figure")
    if good and any(one.chunks for one in good) and not all(one.counted for one in good):
        missing = sum(not one.counted for one in good)
        notes.append(
            f"{missing} of {len(good)} answers had no usage; their tokens are counted as chunks, which may be too few"
        )
    at_once = sum(one.chunks > 4 and one.first_seconds == one.last_seconds for one in good)
    if good and at_once > len(good) / 2:
        notes.append(
            f"{at_once} of {len(good)} streams came all at once: something between buffers them, and TTFT is no TTFT"
        )
    lasting = [value for one in good if (value := one.e2el_seconds(True)) is not None]
    if len(lasting) >= stats.MIN_STEADY and stats.drift(lasting) > 0.5:
        notes.append(
            "no steady state: latency from schedule grew throughout, so the load is above what is served and every percentile is a "
            "function of how long the run was"
        )
    return tuple(notes)

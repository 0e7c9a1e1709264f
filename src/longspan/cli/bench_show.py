"""A result of a load test as text for a terminal."""

import math
from collections.abc import Iterator

import click

from longspan.bench.result import Figure, Result

_LATENCIES = (
    ("TTFT from schedule", "ttft_scheduled"),
    ("TTFT from sent", "ttft_sent"),
    ("E2EL from schedule", "e2el_scheduled"),
    ("E2EL from sent", "e2el_sent"),
    ("E2EL, failures as inf", "e2el_scheduled_adjusted"),
    ("TPOT", "tpot"),
    ("ITL (between chunks)", "itl"),
)
_RATES = (
    ("output, window", "output_window_tokens_per_second"),
    ("output, whole run", "output_run_tokens_per_second"),
    ("output, busiest second", "output_peak_tokens_per_second"),
    ("requests, window", "requests_window_per_second"),
    ("requests, whole run", "requests_run_per_second"),
    ("goodput", "goodput_requests_per_second"),
    ("SLO held by", "slo_attainment"),
    ("rate asked for", "requested_rate_per_second"),
    ("rate achieved", "achieved_rate_per_second"),
    ("tokens per chunk", "tokens_per_chunk"),
    ("in flight at most", "concurrency_peak"),
)


def number(figure: Figure | None, scale: float = 1.0) -> str:
    """A value; "withheld" or "-" where there is none."""
    if figure is None or figure.value is None:
        return "withheld" if figure is not None and figure.note.startswith("withheld") else "-"
    return "inf" if math.isinf(figure.value) else f"{figure.value * scale:.4g}"


def _interval(figure: Figure, scale: float = 1.0) -> str:
    if figure.value is None or figure.low is None or figure.high is None:
        return ""
    return f"  95 %: {figure.low * scale:.4g} to {figure.high * scale:.4g}"


def lines(result: Result) -> Iterator[str]:
    """The report, line by line."""
    get = result.summary.get
    yield f"{result.model} at {result.url}, {result.kind}" + (
        f" (interrupted: {result.interrupted})" if result.interrupted else ""
    )
    yield (
        f"{number(get('requests_succeeded'))} of {number(get('requests_sent'))} requests succeeded, "
        f"{number(get('warmup_requests'))} more were warm-up"
    )
    for name, figure in result.summary.items():
        if name.startswith("failed_") and name != "failed_share":
            example = next((one.error for one in result.requests if one.outcome == name[7:]), "")
            yield f"  {number(figure)} failed: {name[7:]}, e.g. {example}"
    yield ""
    yield f"{'ms':<24}{'mean':>10}{'p50':>10}{'p90':>10}{'p95':>10}{'p99':>10}"
    for title, front in _LATENCIES:
        row = [get(f"{front}_{end}_seconds") for end in ("mean", "p50", "p90", "p95", "p99")]
        if not any(one is not None and one.count for one in row):
            continue
        p99 = row[-1]
        shown = _interval(p99, 1000).replace("95 %", "p99 95 %") if p99 is not None else ""
        yield f"{title:<24}" + "".join(f"{number(one, 1000):>10}" for one in row) + shown
    yield ""
    for title, name in _RATES:
        rate = get(name)
        if rate is not None and rate.value is not None:
            unit = "" if rate.unit == "1" else f" {rate.unit}"
            yield f"{title:<24}{number(rate):>10}{unit}{_interval(rate)}"
    yield ""
    yield from _trust(result)


def _trust(result: Result) -> Iterator[str]:
    client, engine = result.client, result.engine
    begin, end = result.window_seconds
    yield f"window: {begin:.2f} s to {end:.2f} s, from the first measured request to the first end after the last was sent"
    bar = f"error bar ±{client.error_seconds * 1000:.2f} ms" if client.error_seconds else "not calibrated"
    yield (
        f"client: {client.processes} processes, {client.cpu_share:.0%} of a core at most, woke {client.lag_p99_seconds * 1000:.2f} ms "
        f"late (p99); {bar}"
    )
    if client.limited:
        yield f"CLIENT-LIMITED: {'; '.join(client.reasons)}"
    if engine is not None:
        share = "n/a" if engine.prefix_hit_share is None else f"{engine.prefix_hit_share:.1%}"
        preempted = "n/a" if engine.preemptions is None else f"{engine.preemptions:.0f}"
        yield f"engine: prefix-cache hits {share}, preemptions {preempted}; tokens {engine.audit.verdict}: {engine.audit.reason}"
    else:
        yield "engine: not read (--metrics URL); prefix-cache hits and preemptions are unknown"
    for figure in result.summary.values():
        if figure.note.startswith("withheld"):
            yield f"note: {figure.note}"
    for note in result.notes:
        yield f"note: {note}"


def print_result(result: Result, err: bool = False) -> None:
    """Prints the report; what came from elsewhere cannot move the cursor."""
    for line in lines(result):
        clean = "".join(letter if letter.isprintable() else " " for letter in line)
        click.echo(clean, err=err)

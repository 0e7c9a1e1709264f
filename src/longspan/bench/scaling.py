"""Weak and strong scaling efficiency out of measured runs. Pure.

Efficiency is (T / GPUs) / (T of the base / its GPUs); the base is the run with the fewest GPUs. T is the goodput where there are objectives, else
output tokens per second, both of the window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, fsum, log, sqrt

from longspan.bench import summary
from longspan.bench.causes import Predicted, expected, observed
from longspan.bench.ledger import Ledger, ledger
from longspan.bench.result import Figure
from longspan.bench.series import Law, Measured, law_of
from longspan.errors import InputError
from longspan.workload import Objective


@dataclass(frozen=True, slots=True)
class Point:
    """One run against the base.

    Attributes:
        throughput: T, with its interval. efficiency: 1 is all; low, high: its 95 % interval, None where T has none.
    """

    run: Measured
    throughput: Figure
    efficiency: float
    low: float | None
    high: float | None
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Scaling:
    """The answer: points by GPUs, the base first.

    Attributes:
        law: "weak" (load grows with the GPUs) or "strong" (the same load). metric: T, a figure's name.
        notes: what a reader must know.
    """

    law: Law
    metric: str
    points: tuple[Point, ...]
    notes: tuple[str, ...]


def throughput(run: Measured, objectives: Sequence[Objective]) -> Figure:
    """T of a run.

    Raises:
        InputError: there is none, so nothing can be divided by it.
    """
    records = summary.measured(run.result.requests)
    if objectives:
        found = summary.goodput(records, objectives, run.result.window_seconds)["goodput_requests_per_second"]
    else:
        found = run.result.summary.get("output_window_tokens_per_second", Figure(None, "tok/s"))
    if not found.value:
        what = "no request met the objectives" if objectives else "it has no output throughput"
        raise InputError(
            f"Nothing can be said of {run.result.result_id} ({run.split.gpus} GPUs): {what}.",
            "Leave it out, or measure again.",
        )
    return found


def scaling(
    runs: Sequence[Measured],
    objectives: Sequence[Objective] = (),
    predicted: Sequence[Predicted | None] = (),
    why_not_predicted: str = "",
) -> Scaling:
    """Efficiency and ledger of each run.

    Args:
        runs: by GPUs, the base first. predicted: in the same order; empty: none, for the reason given.
    """
    law = law_of(runs)
    figures = [throughput(run, objectives) for run in runs]
    guesses = list(predicted) or [None] * len(runs)
    points = []
    for run, figure, guess in zip(runs, figures, guesses, strict=True):
        efficiency, low, high = _efficiency(run, figure, runs[0], figures[0])
        causes = (
            []
            if run is runs[0]
            else [
                *observed(run, runs[0], objectives),
                *expected(run, guess, guesses[0], why_not_predicted),
            ]
        )
        points.append(Point(run, figure, efficiency, low, high, ledger(efficiency, causes)))
    metric = "goodput_requests_per_second" if objectives else "output_window_tokens_per_second"
    return Scaling(law, metric, tuple(points), tuple(_notes(runs)))


def _efficiency(
    run: Measured, figure: Figure, base: Measured, first: Figure
) -> tuple[float, float | None, float | None]:
    """The ratio with its interval: both runs are independent, so their relative errors add in squares on a logarithmic scale."""
    assert figure.value is not None
    assert first.value is not None
    ratio = (figure.value / run.split.gpus) / (first.value / base.split.gpus)
    widths = [_log_width(one) for one in (figure, first)]
    if run is base or None in widths:
        return ratio, None, None
    width = sqrt(fsum(one * one for one in widths if one is not None))
    return ratio, ratio * exp(-width), ratio * exp(width)


def _log_width(figure: Figure) -> float | None:
    if not figure.value or not figure.low or not figure.high:
        return None
    return log(figure.high / figure.low) / 2


def _notes(runs: Sequence[Measured]) -> list[str]:
    base = runs[0].split.gpus
    found = [
        f"The base is {base} GPU{'s' if base > 1 else ''}, the fewest that were measured; efficiency against fewer is not known."
    ]
    if any(run.is_open for run in runs):
        found.append(
            "The load is an open loop: below the limit its efficiency only says that the rate was kept. Clients that wait (--concurrency) show the limit."
        )
    found.append("The runs were not made in turn: whatever else changed between them is in unexplained.")
    return found

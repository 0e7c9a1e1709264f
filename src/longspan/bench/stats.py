"""Statistics of latencies: percentiles with confidence intervals, failures kept, steady state. Pure.

Percentiles are order statistics, never interpolated: the p-th is the smallest observation with at least p % of all at or
below it, so an infinite one (a failure) stays infinite. Their intervals are order statistics too, by the binomial
distribution (Hahn and Meeker, Statistical Intervals, 5.2): they assume no shape, only that observations are independent, which requests
that queue behind each other are not; `compare` therefore resamples whole blocks.
"""

import math
from collections.abc import Sequence

from longspan.bench.result import Figure
from longspan.bench.student import wilson

PERCENTILES = (50, 90, 95, 99)
CONFIDENCE = 0.95
# Student's t for 19 degrees of freedom and 95 %: batch means over BATCHES parts.
BATCHES = 20
_T19 = 2.093
# Fewer observations than this have no steady state to find.
MIN_STEADY = 100


def percentile(ordered: Sequence[float], share: float) -> float:
    """The order statistic of `share` (0 to 1) of an ascending sample.

    Raises:
        ValueError: the sample is empty.
    """
    if not ordered:
        raise ValueError("no observations")
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def percentile_interval(ordered: Sequence[float], share: float) -> tuple[float | None, float | None]:
    """The ends of a 95 % interval of a percentile; None where the sample is too small to bound it on that side."""
    count = len(ordered)
    low, high = _ranks(count, share)
    return (ordered[low - 1] if low >= 1 else None), (ordered[high - 1] if high <= count else None)


def _ranks(count: int, share: float) -> tuple[int, int]:
    """Ranks l and u, counted from 1, with P(X_l <= quantile) and P(quantile < X_u) at least 97.5 % each; 0 and count + 1: none.

    X_l lies above the quantile iff fewer than l observations are below it: P(Bin(n, share) < l). X_u lies at or below it iff at least
    u are: P(Bin(n, share) >= u).
    """
    tail = (1 - CONFIDENCE) / 2
    if count > 2000:  # the normal limit; the binomial's tails are long to sum and no other there
        middle, spread = count * share, 1.959964 * math.sqrt(count * share * (1 - share))
        low, high = math.floor(middle - spread), math.ceil(middle + spread) + 1
        return max(0, low), min(count + 1, high)
    below, low, high = 0.0, 0, count + 1
    for found in range(count + 1):  # below = P(Bin < found)
        if below <= tail:
            low = found
        if 1 - below <= tail and high == count + 1:
            high = found
        below += _binomial(count, found, share)
    return low, high


def _binomial(count: int, found: int, share: float) -> float:
    if share in (0.0, 1.0):
        return float(found == count * share)
    log = (
        math.lgamma(count + 1) - math.lgamma(found + 1) - math.lgamma(count - found + 1)
        + found * math.log(share) + (count - found) * math.log1p(-share)
    )  # fmt: skip
    return math.exp(log)


def distribution(values: Sequence[float], unit: str = "s") -> dict[str, Figure]:
    """Mean and percentiles of a sample, by the end of a figure's name ("mean", "p50", ...); infinite values are failures."""
    if not values:
        return {
            name: Figure(None, unit, note="no observations")
            for name in ("mean", *(f"p{q}" for q in PERCENTILES))
        }
    ordered = sorted(values)
    count = len(ordered)
    found = {"mean": _mean(ordered, unit)}
    for whole in PERCENTILES:
        low, high = percentile_interval(ordered, whole / 100)
        note = "" if high is not None else f"{count} observations do not bound p{whole} from above"
        found[f"p{whole}"] = Figure(percentile(ordered, whole / 100), unit, low, high, count, note)
    return found


def _mean(values: Sequence[float], unit: str) -> Figure:
    count = len(values)
    mean = math.fsum(values) / count
    if not math.isfinite(mean) or count < 2:
        return Figure(mean, unit, count=count)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    return Figure(mean, unit, mean - 1.959964 * spread, mean + 1.959964 * spread, count)


def rate_figure(amounts: Sequence[tuple[float, float]], window: tuple[float, float], unit: str) -> Figure:
    """Amounts per second in a window [begin, end), with an interval from the means of `BATCHES` equal parts of it.

    Args:
        amounts: (when, how much).
    """
    begin, end = window
    span = end - begin
    if span <= 0:
        return Figure(None, unit, note="the window is empty")
    parts = [0.0] * BATCHES
    count = 0
    for when, amount in amounts:
        if begin <= when < end or when == end:
            parts[min(BATCHES - 1, int((when - begin) / span * BATCHES))] += amount
            count += 1
    rate = math.fsum(parts) / span
    each = [part * BATCHES / span for part in parts]
    if count < 2 * BATCHES:
        return Figure(rate, unit, count=count, note="too few events for an interval")
    spread = math.sqrt(math.fsum((value - rate) ** 2 for value in each) / (BATCHES - 1) / BATCHES)
    return Figure(rate, unit, max(0.0, rate - _T19 * spread), rate + _T19 * spread, count)


def share_figure(good: int, count: int) -> Figure:
    """A share with Wilson's interval."""
    if not count:
        return Figure(None, "1", note="nothing was sent")
    low, high = wilson(good, count, CONFIDENCE)
    return Figure(good / count, "1", low, high, count)


def steady_from(values: Sequence[float]) -> int | None:
    """How many of the first observations belong to the transient: MSER-5 (White, Simulation 69(6), 1997).

    The cut minimises the standard error of the mean of what is left, over means of five. None: there is no steady state,
    because the best cut lies in the second half, or too few observations to tell.
    """
    if len(values) < MIN_STEADY:
        return 0
    means = [math.fsum(values[at : at + 5]) / 5 for at in range(0, len(values) - 4, 5)]
    total = squares = 0.0
    best, cut = math.inf, 0
    middle = means[len(means) // 2]  # sums around a typical value keep their digits
    for at in range(len(means) - 1, -1, -1):
        value = means[at] - middle
        total += value
        squares += value * value
        left = len(means) - at
        if left < 5:
            continue
        error = (squares - total * total / left) / (left * left)
        if error <= best:
            best, cut = error, at
    return cut * 5 if cut <= len(means) // 2 else None


def drift(values: Sequence[float]) -> float:
    """How much the mean of the last third lies above that of the first, relative to the whole mean; 0 where there is none."""
    third = len(values) // 3
    mean = math.fsum(values) / len(values) if values else 0.0
    if third < 10 or mean <= 0:
        return 0.0
    return (math.fsum(values[-third:]) - math.fsum(values[:third])) / third / mean

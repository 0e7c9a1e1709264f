"""How large a change between two sides is, and how sure: a bootstrap over blocks.

Requests of one run are not independent (they share batches, queues and the minute they ran in), so whole blocks are
resampled, never requests. Sides that ran in turn are resampled pair by pair, which takes out whatever drifts slowly.
A bootstrap of few blocks is too narrow; its standard error is widened by sqrt(n / (n - 1)) and used with Student's t
(the expanded interval of Hesterberg, "What Teachers Should Know about the Bootstrap", 2015, section 4.2).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt

from longspan.bench.blocks import Arm, Block, Metric, enough
from longspan.bench.student import t_quantile

RESAMPLES = 1000
POWER = 0.8
# A standard error needs this many blocks; with two, the t value alone is 12.7 at 95 %.
FEWEST_BLOCKS = 3

# A number from 0 (inclusive) to 1 (exclusive): `random.Random(seed).random` of the caller.
Uniform = Callable[[], float]


@dataclass(frozen=True)
class Effect:
    """The change of one metric from A to B.

    Attributes:
        a, b: values of both sides, in the metric's unit; None where there is none (no requests, too many failed).
        change: B against A: relative (0.1 = B is 10 % larger); of a share the difference itself.
        error, freedom: standard error of the change (on the logarithmic scale where it is relative) and its degrees of freedom.
        pairs: blocks of the side that has fewer, or pairs of blocks.
        note: why there is no change; empty where there is one.
    """

    metric: Metric
    a: float | None
    b: float | None
    change: float | None
    error: float
    freedom: float
    pairs: int
    note: str = ""

    def interval(self, confidence: float) -> tuple[float, float]:
        """Where the true change lies with this confidence; from minus to plus infinity where nothing is known."""
        if self.change is None or not isfinite(self.error):
            return -inf, inf
        half = t_quantile(0.5 + confidence / 2, self.freedom) * self.error if self.error else 0.0
        if self.metric.kind == "share":
            return self.change - half, self.change + half
        middle = log(1 + self.change)
        return _grown(middle - half), _grown(middle + half)

    def smallest_seen(self, confidence: float, power: float = POWER) -> float:
        """The smallest effect that a measurement of this size finds with this power; infinite where nothing is known."""
        if self.change is None or not isfinite(self.error):
            return inf
        if not self.error:
            return 0.0
        size = (t_quantile(0.5 + confidence / 2, self.freedom) + t_quantile(power, self.freedom)) * self.error
        return size if self.metric.kind == "share" else _grown(size)


def _grown(logarithm: float) -> float:
    return exp(logarithm) - 1 if logarithm < 700 else inf


def estimate(
    metric: Metric,
    a: Sequence[Block],
    b: Sequence[Block],
    *,
    is_paired: bool,
    uniform: Uniform,
    resamples: int,
) -> Effect:
    """The change of a metric from A to B with its standard error.

    Args:
        a, b: blocks of both sides; where `is_paired`, a[i] and b[i] ran one after the other.
        uniform: the source of chance, seeded by the caller.
    """
    pairs = min(len(a), len(b))
    if missing := max(enough(metric, a), enough(metric, b)):
        return Effect(
            metric, None, None, None, inf, 0, pairs,
            f"{missing:,} more requests are needed on each side before p{metric.share * 100:g} means something",
        )  # fmt: skip
    arms = Arm(metric, a), Arm(metric, b)
    seen = [arm.observed() for arm in arms]
    left, right = (value if isfinite(value) else None for value in seen)
    change = _change(metric, seen[0], seen[1])
    if change is None:
        why = "a failed request lies in it" if left is None or right is None else "it is 0"
        return Effect(metric, left, right, None, inf, 0, pairs, f"there is no ratio: {why}")
    if pairs < FEWEST_BLOCKS:
        return Effect(
            metric,
            left,
            right,
            _told(metric, change),
            inf,
            0,
            pairs,
            f"{pairs} blocks are too few for an interval",
        )
    error, freedom = (_paired if is_paired else _apart)(metric, arms, uniform, resamples)
    if metric.kind == "share" and not error:
        error = _never_seen(a, b)
    note = "" if isfinite(error) else "some blocks alone would have no value: too many requests failed"
    return Effect(metric, left, right, _told(metric, change), error, freedom, pairs, note)


def _never_seen(a: Sequence[Block], b: Sequence[Block]) -> float:
    """Standard error of the difference of two shares where every block had the same share, mostly 0.

    None in 250 is no proof of none at all: half a case is added to each side (Jeffreys' prior mean), so that the error
    falls with the number of requests and never is 0.
    """
    found = 0.0
    for side in (a, b):
        count, cases = sum(block.sent for block in side), sum(block.failed for block in side)
        share = (cases + 0.5) / (count + 1)
        found += share * (1 - share) / max(count, 1)
    return sqrt(found)


def _told(metric: Metric, change: float) -> float:
    return change if metric.kind == "share" else _grown(change)


def _change(metric: Metric, a: float, b: float) -> float | None:
    """The difference of two shares; of everything else the logarithm of the ratio, None where there is none."""
    if metric.kind == "share":
        return b - a
    if not (0 < a < inf and 0 < b < inf):
        return None
    return log(b / a)


def _drawn(count: int, uniform: Uniform) -> list[int]:
    times = [0] * count
    for _ in range(count):
        times[int(uniform() * count)] += 1
    return times


def _spread(values: Sequence[float | None]) -> float:
    """The standard deviation of resampled values; infinite where more than a hundredth has none."""
    known = [value for value in values if value is not None]
    if len(known) < 0.99 * len(values) or len(known) < 2:
        return inf
    middle = sum(known) / len(known)
    return sqrt(sum((value - middle) ** 2 for value in known) / (len(known) - 1))


def _widened(error: float, blocks: int) -> float:
    return error * sqrt(blocks / (blocks - 1))


def _paired(metric: Metric, arms: tuple[Arm, Arm], uniform: Uniform, resamples: int) -> tuple[float, float]:
    """Both sides are resampled with the same pairs."""
    count = arms[0].count
    found = []
    for _ in range(resamples):
        times = _drawn(count, uniform)
        found.append(_change(metric, arms[0].value(times), arms[1].value(times)))
    return _widened(_spread(found), count), count - 1


def _apart(metric: Metric, arms: tuple[Arm, Arm], uniform: Uniform, resamples: int) -> tuple[float, float]:
    """Each side by itself; the errors add up as squares, the degrees of freedom after Welch and Satterthwaite."""
    errors = []
    for arm in arms:
        own = [arm.value(_drawn(arm.count, uniform)) for _ in range(resamples)]
        logs = [value if metric.kind == "share" else log(value) if 0 < value < inf else None for value in own]
        errors.append(_widened(_spread(logs), arm.count))
    squares = [error**2 for error in errors]
    total = sum(squares)
    if not isfinite(total):
        return inf, 0
    if not total:
        return 0.0, sum(arm.count for arm in arms) - 2
    freedom = total**2 / sum(square**2 / (arm.count - 1) for square, arm in zip(squares, arms, strict=True))
    return sqrt(total), freedom

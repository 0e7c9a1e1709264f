"""A verdict on two measurements: better, worse, the same, or cannot tell and how much longer it would take.

Several metrics decide together. Each is tested at the level divided by their number (Bonferroni), so that two equal sides
are called different in fewer cases than the level says, however many metrics are looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, log1p
from typing import Any, Literal

from longspan.bench.blocks import METRICS, Block, Metric
from longspan.bench.effect import RESAMPLES, Effect, Uniform, estimate
from longspan.units import format_seconds

Outcome = Literal["better", "worse", "same", "cannot tell"]

LEVEL = 0.05
MARGIN = 0.02
# Of a share, which is compared by its difference: at one failure in a hundred p99 has no value any more.
SHARE_MARGIN = 0.01
# Nobody runs longer than that to find out.
MOST_TIMES_LONGER = 400.0


@dataclass(frozen=True)
class Judged:
    """One metric's part of the verdict.

    Attributes:
        effect: the change. low, high: where it lies, at 95 % for this metric alone.
        sure_low, sure_high: the same at the level that decides, which allows for the other metrics.
        smallest_seen: the smallest effect that would have been found, at the deciding level, four times in five.
        outcome: for B against A. decides: whether it is part of the verdict.
        times_longer: how many times as many blocks would decide it; 1 where it is decided, infinite where unknown.
    """

    effect: Effect
    low: float
    high: float
    sure_low: float
    sure_high: float
    smallest_seen: float
    outcome: Outcome
    decides: bool
    times_longer: float

    def to_json(self) -> dict[str, Any]:
        """The form in documents; what is not known is null."""
        effect = self.effect
        return {
            "metric": effect.metric.name,
            "unit": effect.metric.unit or "1",
            "a": effect.a,
            "b": effect.b,
            "change": effect.change,
            "change_is": "difference" if effect.metric.kind == "share" else "relative",
            "low": _finite(self.low),
            "high": _finite(self.high),
            "deciding_low": _finite(self.sure_low),
            "deciding_high": _finite(self.sure_high),
            "smallest_effect_seen": _finite(self.smallest_seen),
            "outcome": self.outcome,
            "decides": self.decides,
            "blocks": effect.pairs,
            "note": effect.note,
        }


@dataclass(frozen=True)
class Verdict:
    """The answer.

    Attributes:
        outcome: "worse" if any deciding metric is worse, whatever else is better. mixed: some are better all the same.
        sentence: the answer in one sentence. judged: every metric. caveats: what a reader must know.
        more_seconds: how much longer both sides together must run to decide; 0 where it is decided, None where unknown.
    """

    outcome: Outcome
    mixed: bool
    sentence: str
    judged: tuple[Judged, ...]
    margin: float
    level: float
    more_seconds: float | None
    caveats: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The form that `--json` prints."""
        return {
            "verdict": self.outcome,
            "mixed": self.mixed,
            "sentence": self.sentence,
            "margin": self.margin,
            "level": self.level,
            "more_seconds": self.more_seconds,
            "metrics": [one.to_json() for one in self.judged],
            "caveats": list(self.caveats),
        }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def deciding(quantities: Sequence[Block]) -> tuple[str, ...]:
    """The metrics that decide unless the user names others: those that the measurement has.

    TTFT and TPOT at p95, throughput and failures; goodput only says something where there are objectives, and the caller adds it.
    """
    has = {name for block in quantities for name, values in block.latencies.items() if values}
    found = [f"{name}_p95" for name in ("ttft", "tpot") if name in has]
    return (*(found or ["e2el_p95"]), "output_throughput", "failed_share")


def compare(
    a: Sequence[Block],
    b: Sequence[Block],
    *,
    is_paired: bool,
    uniform: Uniform,
    decide: Sequence[str],
    shown: Sequence[str] = tuple(METRICS),
    margin: float = MARGIN,
    level: float = LEVEL,
    caveats: Sequence[str] = (),
    resamples: int = RESAMPLES,
) -> Verdict:
    """Compares B with A.

    Args:
        a, b: blocks; where `is_paired`, a[i] and b[i] ran one after the other, in either order.
        uniform: the source of chance, seeded by the caller.
        decide: names of the metrics whose change makes the verdict. shown: those that are only reported as well.
        margin: changes within it, relative, do not matter; of shares, see `SHARE_MARGIN`.
        level: the chance of calling two equal sides different, over all deciding metrics together.
    """
    own = level / max(len(decide), 1)
    judged = []
    for name in dict.fromkeys([*decide, *shown]):
        effect = estimate(METRICS[name], a, b, is_paired=is_paired, uniform=uniform, resamples=resamples)
        judged.append(_judge(effect, margin, own, level, name in decide))
    return _verdict(tuple(judged), a, b, margin, level, tuple(caveats))


def _judge(effect: Effect, margin: float, own: float, level: float, decides: bool) -> Judged:
    low, high = effect.interval(1 - level)
    sure_low, sure_high = effect.interval(1 - own)
    width = SHARE_MARGIN if effect.metric.kind == "share" else margin
    outcome: Outcome = "cannot tell"
    if -width <= sure_low and sure_high <= width:
        outcome = "same"
    elif sure_low > 0 or sure_high < 0:
        outcome = "worse" if (sure_low > 0) == effect.metric.is_cost else "better"
    longer = 1.0 if outcome != "cannot tell" else _times_longer(effect, sure_low, sure_high, width)
    return Judged(
        effect, low, high, sure_low, sure_high, effect.smallest_seen(1 - own), outcome, decides, longer
    )


def _times_longer(effect: Effect, low: float, high: float, width: float) -> float:
    """How many times as many blocks make the interval narrow enough to leave 0, or to lie within the margin.

    The error falls with the root of the number of blocks; that Student's t falls too is left out, so this says rather too much.
    """
    if effect.change is None or not (isfinite(low) and isfinite(high)):
        return inf
    is_share = effect.metric.kind == "share"
    size = abs(effect.change if is_share else log1p(effect.change))
    half = (high - low) / 2 if is_share else (log1p(high) - log1p(low)) / 2
    limit = width if is_share else log1p(width)
    wanted = max(size, limit - size)
    return max((half / wanted) ** 2, 1.0) if wanted > 0 else inf


def _verdict(
    judged: tuple[Judged, ...],
    a: Sequence[Block],
    b: Sequence[Block],
    margin: float,
    level: float,
    caveats: tuple[str, ...],
) -> Verdict:
    own = [one for one in judged if one.decides]
    by = {
        name: [one for one in own if one.outcome == name]
        for name in ("better", "worse", "same", "cannot tell")
    }
    more: float | None = 0.0
    outcome: Outcome = "same"
    if by["worse"]:
        outcome = "worse"
    elif by["better"]:
        outcome = "better"
    elif by["cannot tell"] or not own:
        outcome = "cannot tell"
        longest = max((one.times_longer for one in own), default=inf)
        spent = sum(block.seconds for block in (*a, *b))
        more = (longest - 1) * spent if longest <= MOST_TIMES_LONGER else None
    mixed = bool(by["worse"] and by["better"])
    return Verdict(outcome, mixed, _sentence(outcome, by, margin, more), judged, margin, level, more, caveats)


LABELS = {
    "output_throughput": "output throughput",
    "request_throughput": "request throughput",
    "goodput": "goodput",
    "failed_share": "the share of failed requests",
}


def label(metric: Metric) -> str:
    """ "TTFT p95", "output throughput"."""
    return LABELS.get(metric.name) or f"{metric.quantity.upper()} p{metric.share * 100:g}"


def in_percent(metric: Metric, change: float) -> str:
    """ "+12.3 %"; of a share the difference in points."""
    return f"{change * 100:+.1f} {'points' if metric.kind == 'share' else '%'}"


def _change_words(one: Judged) -> str:
    metric, change = one.effect.metric, one.effect.change
    assert change is not None
    size = f"{abs(change) * 100:.1f} {'points' if metric.kind == 'share' else '%'}"
    way = "higher" if change > 0 else "lower"
    return f"{label(metric)} is {size} {way} ({in_percent(metric, one.sure_low)} to {in_percent(metric, one.sure_high)})"


def _sentence(outcome: Outcome, by: dict[str, list[Judged]], margin: float, more: float | None) -> str:
    undecided = by["cannot tell"]
    rest = f" It cannot be told for {_listed(undecided)}." if undecided else ""
    if outcome in ("better", "worse"):
        told = "; ".join(_change_words(one) for one in by[outcome])
        other = by["better"] if outcome == "worse" else []
        but = f"; but {'; '.join(_change_words(one) for one in other)}" if other else ""
        return f"B is {outcome} than A: {told}{but}.{rest}"
    if outcome == "same":
        return (
            f"B is as good as A: nothing that decides differs by more than the margin ({margin * 100:g} %)."
        )
    if not undecided:
        return "Cannot tell: nothing was measured that decides."
    worst = max(undecided, key=lambda one: one.times_longer)
    if not isfinite(worst.smallest_seen):
        why = worst.effect.note or "the blocks vary too much"
        return f"Cannot tell: of {_listed(undecided)} nothing is known ({why})."
    seen = f"an effect below {worst.smallest_seen * 100:.1f} % on {label(worst.effect.metric)} could not have been seen"
    if more is None:
        return f"Cannot tell: {seen}, and the sides vary so much that running longer is no way to find out."
    minutes = ceil(more / 60) if more > 90 else 0
    longer = f"{minutes} more minutes" if minutes else f"{format_seconds(max(more, 1))} more"
    return f"Cannot tell: {seen}; run about {longer}."


def _listed(judged: Sequence[Judged]) -> str:
    names = [label(one.effect.metric) for one in judged]
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]

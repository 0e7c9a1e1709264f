"""Which loads a sweep tries next, where the knee is, and the highest load that surely holds the objectives. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, sqrt

from longspan.bench.student import wilson

# Two-sided, so 95 % at each end: a load holds when so large a share is good that chance alone hardly explains it.
_CONFIDENCE = 0.9
# Two loads nearer than this are the same one for whoever sizes a deployment.
CLOSE = 0.1
GROWTH = 2.0


@dataclass(frozen=True, slots=True)
class Point:
    """One load of a sweep.

    Attributes:
        load: concurrency, or requests per second. throughput: output tokens per second. latency_seconds: of the request.
        good, count: requests that met every objective, and all that were measured; a failed one is not good.
        is_judged: whether it says anything of the server; False where the client was the limit, or the run did not end by itself.
    """

    load: float
    throughput: float
    latency_seconds: float
    good: int = 0
    count: int = 0
    is_judged: bool = True


def share_bounds(good: int, count: int) -> tuple[float, float]:
    """Wilson's interval of a share, each end one-sided at 95 %; 0 to 1 where nothing was measured."""
    return wilson(good, count, _CONFIDENCE)


def holds(point: Point, share: float) -> bool | None:
    """Whether a load keeps at least `share` of its requests good: surely, surely not, or None: cannot be told."""
    if not point.is_judged:
        return None
    low, high = share_bounds(point.good, point.count)
    return True if low >= share else False if high < share else None


@dataclass(frozen=True, slots=True)
class Highest:
    """The answer of a search.

    Attributes:
        holds: highest load that surely holds, with every lower one that was tried; None: none does.
        fails: lowest load above it that does not, or whose requests are too few to tell; None: the search met no limit of the server.
        limited: lowest load above it at which the client was the limit, so that the search had to end below it; None: nowhere.
        points: all that was measured, by load.
    """

    holds: float | None
    fails: float | None
    points: tuple[Point, ...]
    limited: float | None = None

    def sentence(self, unit: str) -> str:
        """The answer for people; `unit` is "requests/s" or "clients"."""
        if not self.points:
            return "No load was measured to its end, so nothing can be said of the objectives."
        unknown = (
            f"at {self.limited:g} {unit} the client was the limit, so nothing is known of the server there"
            if self.limited
            else ""
        )
        if self.holds is None and self.fails is None:
            return f"It cannot be told what holds the objectives: {unknown}."
        if self.holds is None:
            return f"No load that was tried surely holds the objectives; the lowest was {self.fails or 0:g} {unit}."
        if self.fails is None:
            return f"{self.holds:g} {unit} holds the objectives, and so may more: {unknown or 'no limit was met'}."
        return f"{self.holds:g} {unit} holds the objectives; {self.fails:g} {unit} does not, or cannot be said to."


def bracket(points: Sequence[Point], share: float) -> Highest:
    """The highest load that surely holds below the lowest that does not (surely, or as far as one can tell) and below the lowest at which the
    client was the limit: that one has not failed, but nothing above it can be judged."""
    ordered = sorted(points, key=lambda point: point.load)
    fails = next((one.load for one in ordered if one.is_judged and holds(one, share) is not True), None)
    limited = next((one.load for one in ordered if not one.is_judged), None)
    end = min((load for load in (fails, limited) if load is not None), default=inf)
    good = [one.load for one in ordered if one.load < end]
    return Highest(
        good[-1] if good else None,
        fails if fails == end else None,
        tuple(ordered),
        limited if limited == end else None,
    )


def next_load(
    points: Sequence[Point], share: float, lowest: float, highest: float, is_whole: bool, close: float = CLOSE
) -> float | None:
    """The load to try next: doubling until one fails, then halving the gap; None when the answer is known.

    Args:
        lowest, highest: loads to stay within. is_whole: only whole numbers (concurrency). close: gap to end at, relative.
    """
    found = bracket(points, share)
    low, high = found.holds, found.fails if found.limited is None else found.limited
    if low is None:
        tried = min((point.load for point in points), default=None)
        if tried is None:
            return lowest
        return None if tried <= lowest else _between(lowest, tried, is_whole)
    if high is None:
        return None if low >= highest else min(low * GROWTH, highest)
    if high - low <= close * low:
        return None
    return _between(low, high, is_whole)


def _between(low: float, high: float, is_whole: bool) -> float | None:
    if not is_whole:
        return sqrt(low * high)
    middle = int((low + high) // 2)
    return float(middle) if low < middle < high else None


def search(
    measure: Callable[[float], Point | None],
    share: float,
    lowest: float,
    highest: float,
    is_whole: bool,
    most: int = 16,
) -> Highest:
    """Measures loads until the answer is known, `most` were measured, or `measure` gives None: no more; then the answer is what is known."""
    points: list[Point] = []
    while len(points) < most:
        load = next_load(points, share, lowest, highest, is_whole)
        point = None if load is None else measure(load)
        if point is None:
            break
        points.append(point)
    return bracket(points, share)


def knee(points: Sequence[Point]) -> Point | None:
    """The point farthest above the line from the first to the last, both axes scaled to 0..1 (Kneedle, Satopää 2011).

    None where the throughput has no knee: fewer than three loads, or it rises in a line to the end.
    """
    ordered = sorted(points, key=lambda point: point.load)
    if len(ordered) < 3:
        return None
    loads = [point.load for point in ordered]
    peak, floor = max(point.throughput for point in ordered), min(point.throughput for point in ordered)
    if peak <= floor or loads[-1] <= loads[0]:
        return None
    above = [
        (point.throughput - floor) / (peak - floor) - (point.load - loads[0]) / (loads[-1] - loads[0])
        for point in ordered
    ]
    best = max(range(len(ordered)), key=lambda i: above[i])
    return ordered[best] if above[best] > CLOSE else None

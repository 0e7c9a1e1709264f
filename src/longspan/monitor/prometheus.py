"""Prometheus' text form: samples out of it, increases of counters between two of them, quantiles out of buckets. Pure."""

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from longspan.monitor.rates import increase
from longspan.monitor.view import LatencyView, QuantileView

MAX_LINES = 200_000
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_ESCAPED = re.compile(r'\\[\\"n]')

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: a name, its labels in the order of their names, a value."""

    name: str
    labels: Labels
    value: float

    def label(self, name: str) -> str:
        """A label's value; empty where there is none."""
        return next((value for key, value in self.labels if key == name), "")


def parse(text: str, wanted: Callable[[str], str | None]) -> list[Sample]:
    """The samples of a scrape. Lines that are none, and values that are no number, are left out.

    Args:
        wanted: gives each name the one that it shall have here, or None to leave it out.
    """
    found = []
    names: dict[str, str | None] = {}
    for line in text.splitlines()[:MAX_LINES]:
        if line.startswith("#") or not (match := _LINE.match(line)):
            continue
        raw = match[1]
        if raw not in names:
            names[raw] = wanted(raw)
        name = names[raw]
        if name is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isnan(value):
            continue
        labels = tuple(sorted((key, _unescape(text)) for key, text in _LABEL.findall(match[2] or "")))
        found.append(Sample(name, labels, value))
    return found


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], text) if "\\" in text else text


Series = tuple[str, Labels]


def cumulative(samples: Iterable[Sample], names: Iterable[str]) -> dict[Series, float]:
    """The counters among the samples, by name and labels; buckets, sums and counts of a histogram are counters too."""
    known = set(names)
    return {(s.name, s.labels): s.value for s in samples if s.name in known}


@dataclass(frozen=True, slots=True)
class Step:
    """How much each series grew between two scrapes that lie `seconds` apart: name -> [(labels, by how much)]."""

    at: float
    seconds: float
    grown: Mapping[str, list[tuple[Labels, float]]]


def step(before: Mapping[Series, float], after: Mapping[Series, float], at: float, seconds: float) -> Step:
    """From one scrape to the next. Each series by itself, so that the restart of one process does not hide the others'
    work; a series that was not there before began at 0 (Ray leaves a counter out until it moves)."""
    grown: dict[str, list[tuple[Labels, float]]] = {}
    for series, value in after.items():
        more = increase(before.get(series, 0.0), value)
        if more:
            grown.setdefault(series[0], []).append((series[1], more))
    return Step(at, seconds, grown)


@dataclass(slots=True)
class Window:
    """The steps of the last while.

    Attributes:
        seconds: how far it reaches back. names: of the last scrape's counters.
    """

    seconds: float
    last: Mapping[Series, float] | None = None
    last_at: float = 0.0
    names: frozenset[str] = frozenset()
    steps: deque[Step] = field(default_factory=deque)

    def observe(self, values: Mapping[Series, float], now: float) -> None:
        """Another scrape, at a time on a steady clock."""
        if self.last is not None and now > self.last_at:
            self.steps.append(step(self.last, values, now, now - self.last_at))
        self.last, self.last_at = values, now
        self.names = frozenset(name for name, _ in values)
        while self.steps and self.steps[0].at <= now - self.seconds:
            self.steps.popleft()

    def _recent(self, seconds: float | None) -> list[Step]:
        if seconds is None:
            return list(self.steps)
        return [one for one in self.steps if one.at > self.last_at - seconds]

    def grown(
        self, name: str, seconds: float | None = None, where: Callable[[Labels], bool] = lambda _: True
    ) -> float:
        """How much a counter grew, all its series together."""
        return sum(
            value
            for one in self._recent(seconds)
            for labels, value in one.grown.get(name, ())
            if where(labels)
        )

    def rate(
        self, name: str, seconds: float | None = None, where: Callable[[Labels], bool] = lambda _: True
    ) -> float | None:
        """Per second; None where there are not two scrapes, or the counter is not among the last one's."""
        span = sum(one.seconds for one in self._recent(seconds))
        return self.grown(name, seconds, where) / span if span and name in self.names else None

    def latency(self, family: str) -> LatencyView | None:
        """A histogram's figures over the window; None where it is not among the last scrape's metrics."""
        if self.last is None or f"{family}_count" not in self.names:
            return None
        name = f"{family}_bucket"
        # The bounds of buckets that did not grow matter too: the first of them is the floor.
        buckets = {b: 0.0 for key, labels in self.last if key == name and (b := _bound(labels)) is not None}
        for one in self.steps:
            for labels, value in one.grown.get(name, ()):
                if (bound := _bound(labels)) is not None:
                    buckets[bound] = buckets.get(bound, 0.0) + value
        return latency(sorted(buckets.items()), self.grown(f"{family}_count"), self.grown(f"{family}_sum"))


def _bound(labels: Labels) -> float | None:
    text = next((value for key, value in labels if key == "le"), "")
    try:
        return float(text)
    except ValueError:
        return None


def latency(buckets: list[tuple[float, float]], count: float, total: float) -> LatencyView:
    """The figures of a histogram from its cumulative buckets (upper bound -> how many lie at or below it)."""
    if count <= 0:
        return LatencyView(0.0)
    return LatencyView(
        count, total / count, quantile(buckets, 0.5), quantile(buckets, 0.95), quantile(buckets, 0.99)
    )


def quantile(buckets: list[tuple[float, float]], q: float) -> QuantileView | None:
    """Linear within its bucket, as Prometheus does it; but in the first bucket, and above the last bound, only that bound is
    known: 3 ms a token lie wholly in vLLM's first bucket of 10 ms, where interpolation says 5 ms (vllm#55276).

    Args:
        buckets: (upper bound, count at or below), bounds ascending.
        q: above 0, at most 1.
    """
    everything = buckets[-1][1] if buckets else 0.0
    if everything <= 0:
        return None
    wanted = q * everything
    lower, below = 0.0, 0.0
    for index, (bound, count) in enumerate(buckets):
        if count < wanted:
            lower, below = bound, max(below, count)
            continue
        if math.isinf(bound):
            return QuantileView(lower, "above") if index else None
        if index == 0:
            return QuantileView(bound, "below")
        inside = count - below
        part = (wanted - below) / inside if inside > 0 else 1.0
        return QuantileView(lower + (bound - lower) * min(1.0, max(0.0, part)))
    return None

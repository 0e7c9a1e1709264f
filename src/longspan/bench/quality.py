"""What the client may have added itself, and which figures it therefore withholds. Pure.

A client's stamp is late by what its event loop was busy with: a wake-up that came late (`lag`), or the chunks of other streams that
were ready in the same turn (`batch`). Both are measured in the run; the calibration against the null server measures all that client, kernel
and loopback add together. Each is an upper bound of the client's own part.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from longspan.bench import stats
from longspan.bench.result import ClientQuality, Figure

# Stamps closer than this belong to one turn of the loop: a turn's stamps are a callback apart, 5 to 15 microseconds.
TURN_GAP_SECONDS = 50e-6
# From here on the client is what was measured.
LIMIT_LAG_SECONDS = 0.025
LIMIT_DISPATCH_SECONDS = 0.050
LIMIT_CPU_SHARE = 0.95
LIMIT_RATE_SHARE = 0.98
# A tail is withheld when the client could have made more than this part of what it rises above the median ...
TAIL_SHARE = 0.5
# ... and when that is more than this part of the value at all.
VALUE_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late stamps may be: percentiles in seconds. `p50` and `p99` bound figures of the same percentile."""

    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    longest: float = 0.0

    def at(self, name: str) -> float:
        """By the percentile's name; the longest for another."""
        return float(getattr(self, name, self.longest))


def lateness(values: Iterable[float]) -> Lateness:
    """Percentiles of measured lateness."""
    ordered = sorted(values)
    if not ordered:
        return Lateness()
    return Lateness(*(stats.percentile(ordered, share) for share in (0.5, 0.9, 0.95, 0.99, 1.0)))


def turns(stamps: Sequence[float]) -> list[float]:
    """For each stamp of one worker, how long after the first of the same turn of the loop it was taken."""
    found: list[float] = []
    begin = before = float("-inf")
    for stamp in sorted(stamps):
        if stamp - before > TURN_GAP_SECONDS:
            begin = stamp
        before = stamp
        found.append(stamp - begin)
    return found


def worst(items: Iterable[Lateness]) -> Lateness:
    """The larger of each."""
    found = list(items) or [Lateness()]
    return Lateness(*(max(getattr(item, name) for item in found) for name in Lateness.__slots__))


def judge(
    quality: ClientQuality, figures: Mapping[str, Figure], *, capped: bool, requested_rate: float = 0.0
) -> ClientQuality:
    """Says whether the run measured the client, and why.

    Args:
        quality: the measured numbers.
        figures: of the run.
        capped: whether a limit of concurrency may hold requests back, which is no fault of the client's.
        requested_rate: of an open loop; 0: closed.
    """
    reasons = []
    if quality.cpu_share > LIMIT_CPU_SHARE:
        reasons.append(f"a worker used {quality.cpu_share:.0%} of its core")
    if quality.lag_p99_seconds > LIMIT_LAG_SECONDS:
        reasons.append(f"its event loop woke up to {quality.lag_p99_seconds * 1000:.0f} ms late (p99)")
    if quality.batch_seconds > LIMIT_LAG_SECONDS:
        reasons.append(
            f"it took {quality.batch_seconds * 1000:.0f} ms to stamp chunks that came together (p99)"
        )
    dispatch = quality.dispatch_p99_seconds
    if not capped and dispatch is not None and dispatch > LIMIT_DISPATCH_SECONDS:
        reasons.append(f"it sent requests up to {dispatch * 1000:.0f} ms after their time (p99)")
    achieved = figures.get("achieved_rate_per_second")
    count = figures.get("requests_sent")
    if (
        not capped
        and requested_rate
        and achieved
        and achieved.value
        and count
        and (count.value or 0) >= MIN_RATE_REQUESTS
    ):
        late = figures.get("dispatch_p50_seconds")
        if (
            achieved.value < LIMIT_RATE_SHARE * requested_rate
            and late
            and (late.value or 0) > 1 / requested_rate
        ):
            reasons.append(f"it reached {achieved.value:.4g} of {requested_rate:g} requests a second")
    return replace(quality, limited=bool(reasons), reasons=tuple(reasons) + quality.reasons)


MIN_RATE_REQUESTS = 100


def withhold(figures: Mapping[str, Figure], own: Lateness) -> dict[str, Figure]:
    """The figures, without the latencies' tails that the client's own lateness could have made."""
    found = dict(figures)
    for name, figure in figures.items():
        front, _, rest = name.rpartition("_p")
        whole = rest.removesuffix("_seconds")
        if not front or not rest.endswith("_seconds") or not whole.isdigit() or front.startswith("dispatch"):
            continue
        middle = figures.get(f"{front}_p50_seconds")
        value = figure.value
        if value is None or value == float("inf") or middle is None or middle.value is None:
            continue
        late = own.at(f"p{whole}")
        rise = value - middle.value if whole != "50" else value
        if late > TAIL_SHARE * rise and late > VALUE_SHARE * value:
            note = f"withheld: the client itself may be {late * 1000:.2f} ms late at p{whole}, of {value * 1000:.2f} ms measured"
            found[name] = Figure(None, figure.unit, count=figure.count, note=note)
    return found

"""When requests are due, as seconds from the start of the run. Pure and seeded: the same arguments give the same offsets.

Deadlines are absolute, so the cost of sending one request never delays the next. Random gaps are not rescaled to hit the
rate exactly: rescaling removes the variance that real arrivals have (`vllm bench serve` does it, vllm#21108). A run of n Poisson arrivals
therefore differs from its rate by about 1/sqrt(n), and the report prints the rate that was asked for beside the one that came.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from longspan.bench.draws import Draws
from longspan.errors import InputError

OPEN_KINDS = ("constant", "poisson", "gamma", "ramp", "bursts")
KINDS = ("closed", *OPEN_KINDS, "trace")


@dataclass(frozen=True, slots=True)
class Pattern:
    """How requests arrive.

    Attributes:
        kind: one of `KINDS`.
        rate: requests per second (of a ramp: at its begin; of bursts: of all requests together). 0 in a closed loop.
        rate_end: of a ramp, at its end.
        ramp_seconds: how long a ramp takes; afterwards its last rate stays.
        burstiness: of a gamma load, the gaps' shape: 1 is Poisson, less comes in clusters, more is more even (as in vLLM).
        burst: requests that are due at the same moment.
        offsets: of a trace, its own times.
    """

    kind: str = "closed"
    rate: float = 0.0
    rate_end: float = 0.0
    ramp_seconds: float = 0.0
    burstiness: float = 1.0
    burst: int = 1
    offsets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuses what cannot be.

        Raises:
            InputError: an unknown kind, a rate that is none, and the like.
        """
        if self.kind not in KINDS:
            raise InputError(f"{self.kind!r} is no kind of arrivals.", f"One of: {', '.join(KINDS)}.")
        numbers = {
            "rate": self.rate if self.kind in OPEN_KINDS else 1.0,
            "rate at the end": self.rate_end if self.kind == "ramp" else 1.0,
            "ramp's seconds": self.ramp_seconds if self.kind == "ramp" else 1.0,
            "burstiness": self.burstiness,
            "burst": self.burst,
        }
        for name, value in numbers.items():
            if not 0 < value < 1e9:
                raise InputError(f"The load's {name} is {value}, which is no load.", "Give a number above 0.")
        if self.kind == "trace" and not self.offsets:
            raise InputError("The trace holds no request.")

    @property
    def is_open(self) -> bool:
        """Whether arrivals do not wait for answers."""
        return self.kind != "closed"


def offsets(pattern: Pattern, rng: Draws) -> Iterator[float]:
    """When requests are due, ascending, without end except for a trace; in a closed loop all are due at once."""
    if pattern.kind == "closed":
        return itertools.repeat(0.0)
    if pattern.kind == "trace":
        return iter(pattern.offsets)
    if pattern.kind == "constant":
        return (index / pattern.rate for index in itertools.count())
    if pattern.kind == "bursts":
        return (index // pattern.burst * pattern.burst / pattern.rate for index in itertools.count())
    if pattern.kind == "ramp":
        return (_ramp_time(pattern, unit) for unit in _sums(lambda: rng.expovariate(1.0)))
    shape = 1.0 if pattern.kind == "poisson" else pattern.burstiness
    return _sums(lambda: rng.gammavariate(shape, 1.0 / (shape * pattern.rate)))


def _sums(draw: Callable[[], float]) -> Iterator[float]:
    now = 0.0
    while True:
        now += draw()
        yield now


def _ramp_time(pattern: Pattern, unit: float) -> float:
    """When the expected number of arrivals reaches `unit`: the inverse of the integral of the rate (an inhomogeneous
    Poisson process by change of time; Cinlar, Introduction to Stochastic Processes, 4.7).
    """
    begin, slope = pattern.rate, (pattern.rate_end - pattern.rate) / pattern.ramp_seconds
    whole = (pattern.rate + pattern.rate_end) / 2 * pattern.ramp_seconds
    if unit >= whole:
        return pattern.ramp_seconds + (unit - whole) / pattern.rate_end
    if abs(slope) < 1e-12:
        return unit / begin
    return (math.sqrt(begin * begin + 2 * slope * unit) - begin) / slope

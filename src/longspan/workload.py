"""What the users will send: lengths, load, prefix hits, and the objectives that the answer must meet."""

import re
from dataclasses import dataclass, replace
from math import log

from longspan.errors import InputError

QUANTITIES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Objective:
    """A service objective: `quantity` (ttft, tpot or e2el, to the last token) at `percentile` is at most `seconds`."""

    quantity: str
    percentile: float
    seconds: float

    def __str__(self) -> str:
        value = f"{self.seconds * 1000:g} ms" if self.seconds < 1 else f"{self.seconds:g} s"
        return f"{self.quantity.upper()} p{self.percentile:g} <= {value}"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace."""

    seconds: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """The traffic of one model.

    Attributes:
        prompt_tokens, output_tokens: means.
        spread: lengths are uniform within this share around the mean (0.5: from half to one and a half).
        requests_per_second: open loop with Poisson arrivals; 0 means closed loop with `concurrency` clients.
        prefix_hit_share: of prompt tokens found in the prefix cache.
        objectives: all must hold.
        trace: the user's own arrivals; overrides lengths and rate.
    """

    prompt_tokens: int = 1000
    output_tokens: int = 300
    spread: float = 0.5
    requests_per_second: float = 0.0
    concurrency: int = 0
    prefix_hit_share: float = 0.0
    objectives: tuple[Objective, ...] = ()
    trace: tuple[Arrival, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether arrivals do not wait for answers."""
        return bool(self.trace) or self.requests_per_second > 0

    @property
    def max_context_tokens(self) -> int:
        """The longest request."""
        if self.trace:
            return max(arrival.prompt_tokens + arrival.output_tokens for arrival in self.trace)
        return round((self.prompt_tokens + self.output_tokens) * (1 + self.spread))

    def at_rate(self, requests_per_second: float) -> "Workload":
        """The same requests at another rate; a trace is compressed or stretched in time."""
        if self.trace:
            factor = self.trace_rate / requests_per_second
            trace = tuple(replace(arrival, seconds=arrival.seconds * factor) for arrival in self.trace)
            return replace(self, trace=trace)
        return replace(self, requests_per_second=requests_per_second, concurrency=0)

    @property
    def open_rate(self) -> float:
        """Requests per second of the trace or as stated; 0 in a closed loop."""
        return self.trace_rate if self.trace else self.requests_per_second

    @property
    def trace_rate(self) -> float:
        """Requests per second of the trace."""
        span = self.trace[-1].seconds - self.trace[0].seconds
        return (len(self.trace) - 1) / span if span > 0 else float(len(self.trace))

    def arrivals(self, count: int, seed: int = 1) -> list[Arrival]:
        """`count` requests: the trace's first ones, or drawn by a fixed generator, so that equal inputs give equal plans.

        In a closed loop all arrival times are 0.
        """
        if self.trace:
            return list(self.trace[:count])
        numbers = _splitmix(seed)
        found, now = [], 0.0
        for _ in range(count):
            if self.requests_per_second > 0:
                now -= log(1 - next(numbers)) / self.requests_per_second
            found.append(
                Arrival(
                    now,
                    self._length(self.prompt_tokens, next(numbers)),
                    self._length(self.output_tokens, next(numbers)),
                )
            )
        if self.requests_per_second > 0 and now > 0:
            # The sample's own rate differs from the stated one by chance; without this, so would the throughput.
            scale = count / (now * self.requests_per_second)
            found = [replace(one, seconds=one.seconds * scale) for one in found]
        return found

    def _length(self, mean: int, position: float) -> int:
        return max(1, round(mean * (1 - self.spread + 2 * self.spread * position)))


class _Splitmix:
    """SplitMix64 (Steele, Lea and Flood 2014): uniform numbers in [0, 1) from plain arithmetic."""

    def __init__(self, seed: int) -> None:
        self.state = seed & _MASK

    def __iter__(self) -> "_Splitmix":
        return self

    def __next__(self) -> float:
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        value = self.state
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((value ^ (value >> 31)) >> 11) / (1 << 53)


_MASK = (1 << 64) - 1


def _splitmix(seed: int) -> _Splitmix:
    return _Splitmix(seed)


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """Reads "ttft_p95=2s,tpot_p99=50ms"; without a percentile p95 is meant.

    Raises:
        InputError: it cannot be read.
    """
    found = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(
            r"(ttft|tpot|e2el)(?:[_ ]?p(\d+(?:\.\d+)?))?\s*(?:=|<=?)\s*(\d+(?:\.\d+)?)\s*(ms|s)", part.lower()
        )
        percentile = float(match[2] or 95) if match else 0.0
        if match is None or not 0 < float(match[3]) < 1e9 or not 0 < percentile < 100:
            raise InputError(
                f"{part[:80]!r} is no objective.",
                'Write "ttft_p95=2s,tpot_p95=50ms" (ttft, tpot or e2el; ms or s).',
            )
        found.append(Objective(match[1], percentile, float(match[3]) / (1000 if match[4] == "ms" else 1)))
    return tuple(found)


def parse_trace(text: str) -> tuple[Arrival, ...]:
    """Reads a CSV with the columns seconds, prompt_tokens, output_tokens, in any order, sorted by time or not.

    Raises:
        InputError: a column is missing or a value is no number; the message names the line.
    """
    # Spreadsheets put a mark before the first column's name, and quotes around names.
    lines = [line for line in text.removeprefix("\ufeff").splitlines() if line.strip()]
    names = [name.strip().strip('"').lower() for name in lines[0].split(",")] if lines else []
    wanted = ("seconds", "prompt_tokens", "output_tokens")
    if any(name not in names for name in wanted) or len(lines) < 2:
        raise InputError(
            f"The trace needs a header with the columns {', '.join(wanted)} and at least one request."
        )
    places = [names.index(name) for name in wanted]
    found = []
    for number, line in enumerate(lines[1:], 2):
        cells = line.split(",")
        try:
            seconds, prompt, output = (float(cells[place].strip().strip('"')) for place in places)
        except (ValueError, IndexError):
            raise InputError(f"Line {number} of the trace is no request: {line[:80]!r}.") from None
        if not (0 <= seconds < 1e12 and 1 <= prompt < 1e9 and 1 <= output < 1e9):
            raise InputError(
                f"Line {number} of the trace has a time below 0, no tokens, or numbers that cannot be: {line[:80]!r}."
            )
        found.append(Arrival(seconds, int(prompt), int(output)))
    return tuple(sorted(found, key=lambda arrival: arrival.seconds))

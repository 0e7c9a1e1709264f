"""The ledger: one row a request; sums by key, model, replica and provider; money; and a replay of another threshold.

Pure. `store.py` keeps the rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

# Outcomes that are no failure of the gateway or an upstream.
NO_FAILURE = ("ok", "client_error", "client_gone")


class Entry(NamedTuple):
    """One finished request as its worker saw it.

    outcome: `ok`, `client_error`, `client_gone`, or the code of the error that ended it.
    started: wall clock, seconds since the epoch. ttft_seconds: None if no content came.
    usd: price at a provider; 0 at a replica of our own. trace: its ids (`trace.py`) where it is recorded.
    response: the id of a stored response that it made at a replica.
    """

    request_id: str
    key: str
    model: str
    target: str
    outside: bool
    outcome: str
    status: int
    stream: bool
    started: float
    seconds: float
    ttft_seconds: float | None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    usd: float = 0.0
    reason: str = ""
    trace: str = ""
    response: str = ""


class Try(NamedTuple):
    """One attempt, its times relative to the arrival of the request or to its own sending."""

    target: str
    outside: bool
    at_seconds: float
    predicted_seconds: float
    first_seconds: float | None
    cause: str
    reason: str
    candidates: dict[str, float]
    continues: bool = False


class Row(NamedTuple):
    """An entry with what the dispatcher knew: seconds held, the first prediction, and every attempt.

    avoided_usd: what a request that was served here would have cost at its model's provider; 0 without one.
    """

    entry: Entry
    held_seconds: float
    predicted_seconds: float
    attempts: tuple[Try, ...] = ()
    avoided_usd: float = 0.0

    def document(self) -> dict[str, Any]:
        """All of it by name, for JSON."""
        known = {
            "held_seconds": self.held_seconds,
            "predicted_seconds": self.predicted_seconds,
            "avoided_usd": self.avoided_usd,
        }
        return {**self.entry._asdict(), **known, "attempts": [attempt._asdict() for attempt in self.attempts]}


@dataclass(frozen=True, slots=True)
class Sum:
    """Totals of a group of requests."""

    group: str
    requests: int
    failures: int
    prompt_tokens: int
    completion_tokens: int
    usd: float
    avoided_usd: float


@dataclass(frozen=True, slots=True)
class Balance:
    """Where requests went and what that cost; avoided_usd as in a row, before the price of our own replicas."""

    requests: int
    outside: int
    outside_usd: float
    avoided_usd: float


@dataclass(frozen=True, slots=True)
class Replay:
    """What another threshold would have meant on the same requests.

    Only requests whose wait is known are moved: those held here. The price of one that was served here is the
    provider's as it was then, else the ledger's average per token, else the one given: the result is an estimate.
    """

    threshold_seconds: float
    requests: int
    outside_then: int
    outside_now: int
    usd_then: float
    usd_now: float


def outside_price(rows: Iterable[Row]) -> float | None:
    """Mean dollars per completion token of what went outside, None if nothing did."""
    usd = tokens = 0.0
    for row in rows:
        if row.entry.outside and row.entry.usd > 0:
            usd += row.entry.usd
            tokens += row.entry.completion_tokens
    return usd / tokens if tokens else None


def replay(rows: Iterable[Row], threshold_seconds: float, usd_per_completion_token: float) -> Replay:
    """Sends outside what waited, or was predicted to wait, longer than the other threshold; brings back the rest."""
    requests = then = now = 0
    usd_then = usd_now = 0.0
    for row in rows:
        requests += 1
        entry = row.entry
        known = entry.usd if entry.outside else row.avoided_usd
        price = known or entry.completion_tokens * usd_per_completion_token
        waited = max(row.held_seconds, row.predicted_seconds)
        forced = entry.outside and not entry.reason.startswith(("queue_eta", "held"))
        then += entry.outside
        usd_then += price if entry.outside else 0.0
        if forced or waited > threshold_seconds:
            now += 1
            usd_now += price
    return Replay(threshold_seconds, requests, then, now, usd_then, usd_now)


def explain(row: Row) -> list[str]:
    """The story of a request in sentences, for `gateway why`."""
    entry = row.entry
    lines = [
        f"request {entry.request_id}: {entry.outcome} (HTTP {entry.status}) after {entry.seconds:.3f} s",
        f"model {entry.model}, key {entry.key}",
        f"held in the gateway {row.held_seconds:.3f} s before it was first sent",
    ]
    for number, attempt in enumerate(row.attempts, 1):
        where = "provider" if attempt.outside else "replica"
        first = attempt.first_seconds
        answered = number == len(row.attempts) and entry.outcome in ("ok", "client_error")
        got = f"first content after {first:.3f} s" if first is not None else "no content"
        got = "answered in one piece" if answered and first is None else got
        guess = "" if attempt.outside else f", predicted {attempt.predicted_seconds:.3f} s"
        line = f"attempt {number}: {where} {attempt.target} at +{attempt.at_seconds:.3f} s{guess}, {got}"
        line += f"; ended by {attempt.cause}" if attempt.cause else ""
        line += f"; left because {attempt.reason}" if attempt.reason else ""
        line += "; goes on with what the attempt before delivered" if attempt.continues else ""
        lines.append(line)
        if attempt.candidates:
            parts = ", ".join(
                f"{name} {seconds:.3f} s" for name, seconds in sorted(attempt.candidates.items())
            )
            lines.append(f"  candidates (predicted to first token): {parts}")
    if entry.ttft_seconds is not None:
        lines.append(f"first content reached the client after {entry.ttft_seconds:.3f} s")
    cached = f" ({entry.cached_tokens} from the prefix cache)" if entry.cached_tokens else ""
    if entry.trace:
        lines.append(f"trace {entry.trace.split('-', 1)[0]}")
    lines.append(f"{entry.prompt_tokens} prompt tokens{cached}, {entry.completion_tokens} completion tokens")
    spared = f"; a provider would have charged {row.avoided_usd:.6f} USD" if row.avoided_usd else ""
    lines.append(
        f"cost {entry.usd:.6f} USD at {entry.target}" if entry.outside else "no outside cost" + spared
    )
    return lines

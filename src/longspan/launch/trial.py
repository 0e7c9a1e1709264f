"""An engine of a changed specification until it is trusted, and what the gateway's figures say against it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longspan.deployment import DeploymentSpec

# One failed request is chance, three are none, unless the others fail as often.
LEAST_FAILURES = 3
FAILED_SHARE = 0.05
# Fewer requests say nothing about how long the first token takes.
LEAST_REQUESTS = 20
# Twice the others', and half a second more: the first requests of a new engine meet cold caches.
SLOW_FACTOR = 2.0
SLOW_SECONDS = 0.5

Figures = Mapping[str, Mapping[str, Any]]


@dataclass(slots=True)
class Trial:
    """What a replica goes back to when its engine fails meanwhile.

    Attributes:
        old: its specification before; None for one that was not there before, which leaves.
        failed: why it has gone back.
    """

    old: DeploymentSpec | None
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Next:
    """What a replica is started with once its group has ended, on trial or not."""

    spec: DeploymentSpec
    trial: Trial | None = None


def worse(name: str, before: Figures, now: Figures, *, at_the_end: bool) -> str:
    """Why a replica does worse than the others do; empty where it does not, or where too little is known.

    Args:
        before: replica -> the gateway's counts of requests and failures, and its seconds to the first token, when the trial began.
        at_the_end: of the trial, when the first requests have stopped to weigh.
    """
    if name not in now or name not in before:
        return ""
    others = [other for other in now if other != name and other in before]
    requests, failures = _since(name, before, now)
    theirs = [_since(other, before, now) for other in others]
    if failures >= LEAST_FAILURES and failures > FAILED_SHARE * requests:
        their_requests, their_failures = sum(r for r, _ in theirs), sum(f for _, f in theirs)
        if failures * max(1, their_requests) > 2 * their_failures * max(1, requests):
            return f"{failures} of its {requests} requests failed, {their_failures} of {their_requests} elsewhere"
    seconds = now[name].get("ttft_seconds")
    usual = [float(now[other]["ttft_seconds"]) for other in others if now[other].get("ttft_seconds")]
    if at_the_end and seconds and usual and requests >= LEAST_REQUESTS:
        limit = SLOW_FACTOR * max(usual) + SLOW_SECONDS
        if seconds > limit:
            return f"its first token takes {seconds:.2f} s, at most {max(usual):.2f} s elsewhere"
    return ""


def _since(name: str, before: Figures, now: Figures) -> tuple[int, int]:
    """Requests and failures since then; a gateway that was started again counts from nothing."""
    counts = [(int(now[name][what]), int(before[name][what])) for what in ("requests", "failures")]
    requests, failures = (new - old if new >= old else new for new, old in counts)
    return requests, failures

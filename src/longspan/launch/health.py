"""Whether an engine that serves still moves: from its own counters and from a tiny generation while it is idle. Pure.

vLLM's `/health` says 200 while every request hangs: measured on 0.32 with a model over two hosts, one of them cut off, for
over two minutes. A group is healthy while its tokens move. Busy is not dead: a long prefill moves no token counter, only the
use of the KV cache; silent with work outstanding is.
"""

import re
from dataclasses import dataclass

STALL_SECONDS = 8.0  # no counter moves while requests are outstanding
# A step of the slowest kind may take longer than that: it is known by those that have been seen, and on a CPU one batch of
# 512 tokens took 8 s (AVX2).
STALL_FACTOR = 3.0
CPU_STALL_SECONDS = 30.0
UNREACHABLE_SECONDS = 3.0  # the front end does not answer its metrics
CANARY_EVERY_SECONDS = 5.0  # while it is idle
CANARY_SECONDS = 5.0

_VALUE = re.compile(
    r"^vllm:(num_requests_running|num_requests_waiting|prompt_tokens_total|generation_tokens_total|kv_cache_usage_perc"
    r"|gpu_cache_usage_perc)(?:\{[^}]*\})? ([0-9.eE+-]+|NaN)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the engine's counters said, summed over its data-parallel engines.

    Attributes:
        outstanding: requests that run or wait.
        moved: whatever changes when any work is done: tokens computed and the use of the KV cache.
    """

    outstanding: int
    moved: tuple[float, float, float]


def sample_of(metrics: str) -> Sample | None:
    """Reads the text of `/metrics`; None where it holds no vLLM counters."""
    sums: dict[str, float] = {}
    for name, value in _VALUE.findall(metrics):
        sums[name] = sums.get(name, 0.0) + float(value)
    if "num_requests_running" not in sums:
        return None
    usage = sums.get("kv_cache_usage_perc", sums.get("gpu_cache_usage_perc", 0.0))
    outstanding = int(sums["num_requests_running"] + sums.get("num_requests_waiting", 0.0))
    return Sample(
        outstanding, (sums.get("prompt_tokens_total", 0.0), sums.get("generation_tokens_total", 0.0), usage)
    )


@dataclass(slots=True)
class Health:
    """The opinion on one engine, from samples about once a second. `reason` is empty while nothing speaks against it.

    Attributes:
        least_stall_seconds: patience with counters that stand still; grows with the longest pause that ended by itself.
        quiet_since: when the counters last moved, or the engine had nothing to do.
    """

    now: float
    least_stall_seconds: float = STALL_SECONDS
    last: Sample | None = None
    quiet_since: float = 0.0
    longest_pause_seconds: float = 0.0
    unreachable_since: float | None = None
    canary_error: str = ""
    canary_at: float = 0.0

    def __post_init__(self) -> None:
        """Time begins now."""
        self.quiet_since = self.canary_at = self.now

    @property
    def stall_seconds(self) -> float:
        """How long the counters may stand still."""
        return max(self.least_stall_seconds, STALL_FACTOR * self.longest_pause_seconds)

    def observe(self, sample: Sample | None, now: float) -> None:
        """A sample; None where the front end did not answer."""
        self.now = now
        if sample is None:
            self.unreachable_since = self.unreachable_since if self.unreachable_since is not None else now
            return
        self.unreachable_since = None
        moved = self.last is not None and sample.moved != self.last.moved
        if moved and self.last and self.last.outstanding:
            self.longest_pause_seconds = max(self.longest_pause_seconds, now - self.quiet_since)
        if moved:
            self.canary_error = ""
        if self.last is None or moved or not sample.outstanding:
            self.quiet_since = now
        self.last = sample

    @property
    def wants_canary(self) -> bool:
        """Nothing is outstanding, so only a request of ours can tell; one that failed is tried again at once."""
        idle = self.last is not None and not self.last.outstanding
        return idle and (bool(self.canary_error) or self.now - self.canary_at >= CANARY_EVERY_SECONDS)

    def canary(self, error: str, now: float) -> None:
        """How the canary went; empty where a token came."""
        self.canary_error = error
        self.canary_at = now

    @property
    def reason(self) -> str:
        """Why traffic should go elsewhere; empty if it need not."""
        if self.unreachable_since is not None:
            silent = self.now - self.unreachable_since
            return (
                f"the engine's front end has not answered for {silent:.0f} s"
                if silent >= UNREACHABLE_SECONDS
                else ""
            )
        if self.canary_error:
            return f"a one-token request failed: {self.canary_error}"
        quiet = self.now - self.quiet_since
        if self.last and self.last.outstanding and quiet >= self.stall_seconds:
            return f"{self.last.outstanding} requests are outstanding and nothing has moved for {quiet:.0f} s"
        return ""

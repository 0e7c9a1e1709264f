"""Blocks: the pieces of two measurements that a comparison resamples. A block is a stretch of load on one side."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

from longspan.bench.stats import percentile

# The latencies that a block holds one value of for every request; a request that failed has infinity.
LATENCIES = ("ttft", "tpot", "itl", "e2el")
# Candidate values for a quantile of resampled blocks; thinner than the requests, fine enough for a standard error.
CANDIDATES = 2000


@dataclass(frozen=True)
class Block:
    """One stretch of load.

    Attributes:
        seconds: how long it took. sent, good, failed: requests; good ones met every objective.
        output_tokens: that arrived in it.
        latencies: quantity -> seconds, ascending, infinity for a request that failed.
    """

    seconds: float
    sent: int
    failed: int
    good: int
    output_tokens: float
    latencies: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Metric:
    """What is compared.

    Attributes:
        name: "ttft_p95", "output_throughput", ... kind: how it comes out of blocks.
        quantity, share: of a quantile: one of `LATENCIES`, and 0.95 for p95.
        unit: of its values: s, tokens/s, requests/s, or none for a share.
        is_cost: whether less is better.
    """

    name: str
    kind: Literal["quantile", "rate", "share"]
    unit: str
    is_cost: bool
    quantity: str = ""
    share: float = 0.0


def _quantiles() -> dict[str, Metric]:
    return {
        f"{quantity}_p{percent}": Metric(
            f"{quantity}_p{percent}", "quantile", "s", True, quantity, percent / 100
        )
        for quantity in LATENCIES
        for percent in (50, 95, 99)
    }


METRICS: dict[str, Metric] = {
    **_quantiles(),
    "output_throughput": Metric("output_throughput", "rate", "tokens/s", False),
    "request_throughput": Metric("request_throughput", "rate", "requests/s", False),
    "goodput": Metric("goodput", "rate", "requests/s", False),
    "failed_share": Metric("failed_share", "share", "", True),
}


def enough(metric: Metric, blocks: Sequence[Block]) -> int:
    """How many requests are missing before a quantile means something: ten must lie beyond it."""
    if metric.kind != "quantile":
        return 0
    count = sum(len(block.latencies.get(metric.quantity, ())) for block in blocks)
    return max(ceil(10 / (1 - metric.share) - 1e-9) - count, 0)


def _numerator(metric: Metric, block: Block) -> float:
    return {
        "output_throughput": block.output_tokens,
        "request_throughput": block.sent - block.failed,
        "goodput": block.good,
        "failed_share": block.failed,
    }[metric.name]


class Arm:
    """The blocks of one side, ready to be resampled many times."""

    def __init__(self, metric: Metric, blocks: Sequence[Block]) -> None:
        self.metric = metric
        self.count = len(blocks)
        if metric.kind != "quantile":
            self._over = [float(_numerator(metric, block)) for block in blocks]
            self._under = [block.seconds if metric.kind == "rate" else float(block.sent) for block in blocks]
            return
        lists = [block.latencies.get(metric.quantity, ()) for block in blocks]
        values = sorted(value for one in lists for value in one)
        step = max(len(values) / CANDIDATES, 1.0)
        chosen = sorted(
            {min(int((i + 1) * step) - 1, len(values) - 1) for i in range(ceil(len(values) / step))}
        )
        self._values = [values[i] for i in chosen]
        self._ranks = [[bisect_right(one, value) for value in self._values] for one in lists]
        self._sizes = [len(one) for one in lists]
        self._all = values

    def observed(self) -> float:
        """The value over all blocks; a quantile is exact, the smallest value that the share of requests stays within."""
        if self.metric.kind == "quantile":
            return quantile(self._all, self.metric.share)
        return self.value([1] * self.count)

    def value(self, times: Sequence[int]) -> float:
        """The value where block i counts `times[i]` times; infinite or 0 where nothing is left to count."""
        if self.metric.kind != "quantile":
            under = sum(n * t for n, t in zip(self._under, times, strict=True))
            return sum(n * t for n, t in zip(self._over, times, strict=True)) / under if under > 0 else 0.0
        used = [
            (t, ranks, size)
            for t, ranks, size in zip(times, self._ranks, self._sizes, strict=True)
            if t and size
        ]
        wanted = ceil(sum(t * size for t, _, size in used) * self.metric.share - 1e-9)
        if wanted <= 0:
            return inf
        at = bisect_left(
            range(len(self._values) - 1), wanted, key=lambda i: sum(t * ranks[i] for t, ranks, _ in used)
        )
        return self._values[at]


def quantile(ascending: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed; infinite without values."""
    return percentile(ascending, share) if ascending else inf

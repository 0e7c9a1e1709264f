"""Figures of the picture as short words for a terminal: what is not known is "n/a", and what is old says so."""

from longspan.monitor.rates import share, total
from longspan.monitor.view import GpuView, LatencyView, NodeView, QuantileView

NA = "n/a"


def number(value: float | None, digits: int = 0) -> str:
    """A count or rate: "7", "1.2k", "3.4M"."""
    if value is None:
        return NA
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if sign == 'k' else size):.1f}{sign}"
    return f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share: "47 %"."""
    if value is None:
        return NA
    return f"{value:.1%}".replace("%", " %") if 0 < value < 0.0995 else f"{value:.0%}".replace("%", " %")


def rate(value: float | None) -> str:
    """Bytes a second in the decimal units of networks: "1.2 GB/s"."""
    if value is None:
        return NA
    for size, sign in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size:
            return f"{value / size:.1f} {sign}/s"
    return f"{value:.0f} B/s"


def gib(value: float | None) -> str:
    """Bytes as GiB: "127"."""
    return NA if value is None else f"{value / (1 << 30):.0f}"


def age(seconds: float | None) -> str:
    """How old: "now" within three seconds."""
    if seconds is None:
        return "never"
    if seconds <= 3:
        return "now"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def quantile(found: QuantileView | None) -> str:
    """ "31ms", "<10ms" where it lies in the first bucket, ">80s" above the last."""
    if found is None:
        return NA
    value = found.seconds
    text = f"{value * 1000:.0f}ms" if value < 1 else (f"{value:.1f}s" if value < 100 else f"{value:.0f}s")
    return {"below": "<", "above": ">"}.get(found.bound, "") + text


def tails(found: LatencyView | None) -> tuple[str, str, str]:
    """p50, p95 and p99; "-" where nothing was measured lately."""
    if found is None:
        return NA, NA, NA
    if not found.count:
        return "-", "-", "-"
    return quantile(found.p50), quantile(found.p95), quantile(found.p99)


def mean(found: LatencyView | None) -> str:
    """The exact mean."""
    if found is None or found.mean_seconds is None:
        return NA if found is None else "-"
    return f"{found.mean_seconds * 1000:.1f}ms" if found.mean_seconds < 1 else f"{found.mean_seconds:.1f}s"


def highest(values: list[float | None]) -> float | None:
    """The largest of what is known."""
    return max((value for value in values if value is not None), default=None)


def middle(values: list[float | None]) -> float | None:
    """The mean of what is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def fullness(gpu: GpuView) -> float | None:
    """The share of its memory in use."""
    return share(gpu.memory_used_bytes, gpu.memory_total_bytes)


def traffic(node: NodeView, kind: str) -> tuple[float | None, float | None]:
    """Received and sent a second over all its ports of a kind. On a machine that is all nodes at once, the loopback is the
    network."""
    ports = [p for p in node.ports if p.kind == kind and (not p.virtual or node.address.startswith("127."))]
    return total(*(p.rx_bytes_per_second for p in ports)), total(*(p.tx_bytes_per_second for p in ports))

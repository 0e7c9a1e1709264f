"""Writes a vLLM engine's Prometheus text for tests."""

from collections.abc import Mapping, Sequence

GAP_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1)


def line(name: str, value: float, **labels: str) -> str:
    """One sample."""
    inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {value}"


def histogram(
    name: str, values: Sequence[float], bounds: Sequence[float] = GAP_BOUNDS, **labels: str
) -> list[str]:
    """A histogram of these values."""
    rows = [line(f"{name}_bucket", sum(v <= b for v in values), **labels, le=str(b)) for b in bounds]
    return [
        *rows, line(f"{name}_bucket", len(values), **labels, le="+Inf"),
        line(f"{name}_sum", sum(values), **labels), line(f"{name}_count", len(values), **labels),
    ]  # fmt: skip


def engine(
    values: Mapping[str, float],
    gaps: Sequence[float] = (),
    ttft: Sequence[float] = (),
    prefix: str = "vllm:",
    **labels: str,
) -> str:
    """Gauges and counters by name, with two histograms."""
    labels = {"engine": "0", "model_name": "m", **labels}
    return "\n".join(
        [
            "# HELP something about it",
            *(line(prefix + name, value, **labels) for name, value in values.items()),
            *histogram(f"{prefix}inter_token_latency_seconds", gaps, **labels),
            *histogram(f"{prefix}time_to_first_token_seconds", ttft, (0.1, 0.5, 1.0, 2.5), **labels),
        ]
    )  # fmt: skip

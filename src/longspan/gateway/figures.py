"""The gateway's own Prometheus metrics. Labels are bounded: models, upstreams and keys come from the configuration,
codes from a fixed list; nothing that a client writes becomes a label.
"""

from collections import Counter
from collections.abc import Iterable

from longspan.gateway.ledger import Row
from longspan.gateway.standing import Standing

TTFT_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ERROR_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Cumulative buckets in Prometheus' sense."""

    __slots__ = ("bounds", "counts", "sum", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * len(bounds)
        self.sum = 0.0
        self.total = 0

    def observe(self, value: float) -> None:
        """Adds a value."""
        self.sum += value
        self.total += 1
        for index, bound in enumerate(self.bounds):
            if value <= bound:
                self.counts[index] += 1
                return

    def lines(self, name: str, labels: str = "") -> Iterable[str]:
        """Exposition lines."""
        comma = "," if labels else ""
        below = 0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {below}'
        yield f'{name}_bucket{{{labels}{comma}le="+Inf"}} {self.total}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self.sum}"
        yield f"{name}_count{braces} {self.total}"


class Figures:
    """Counts what ends; gauges are read from the dispatcher when asked for."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.tokens: Counter[tuple[str, str, str]] = Counter()
        self.usd: Counter[str] = Counter()
        self.avoided_usd = 0.0
        self.local_usd: dict[str, float] = {}
        self.failed_attempts: Counter[str] = Counter()
        self.refused: Counter[tuple[int, str]] = Counter()
        self.overflows: Counter[str] = Counter()
        self.ttft = Histogram(TTFT_BOUNDS)
        self.prediction_error = Histogram(ERROR_BOUNDS)

    def had(self, replica: str, usd: float) -> None:
        """A replica cost this much, whether it was busy or not."""
        self.local_usd[replica] = self.local_usd.get(replica, 0.0) + usd

    def money(self) -> dict[str, float]:
        """Dollars since the start: spent at providers, avoided by serving here, the price of our replicas, the balance."""
        outside, local = float(sum(self.usd.values())), sum(self.local_usd.values())
        return {"outside_usd": outside, "avoided_usd": self.avoided_usd, "local_usd": local,
                "saved_usd": self.avoided_usd - local}  # fmt: skip

    def attempt_failed(self, cause: str) -> None:
        """An attempt failed before content."""
        self.failed_attempts[cause] += 1

    def request(self, row: Row) -> None:
        """A request ended."""
        entry = row.entry
        target = entry.target or "none"
        self.requests[entry.model, target, entry.outcome] += 1
        self.tokens[entry.key, target, "prompt"] += entry.prompt_tokens
        self.tokens[entry.key, target, "completion"] += entry.completion_tokens
        self.avoided_usd += row.avoided_usd
        if entry.usd:
            self.usd[target] += entry.usd  # type: ignore[assignment]  # a Counter adds floats just as well
        if entry.outside and entry.reason:
            self.overflows[entry.reason.split("=", 1)[0].split(":", 1)[0]] += 1
        if entry.ttft_seconds is not None and entry.stream and entry.outcome == "ok":
            self.ttft.observe(entry.ttft_seconds)
            if len(row.attempts) == 1 and not entry.outside:
                self.prediction_error.observe(
                    abs(entry.ttft_seconds - row.held_seconds - row.predicted_seconds)
                )

    def text(self, standings: Iterable[Standing], waiting: dict[str, int], running: int, now: float) -> str:
        """Everything as Prometheus text."""
        out: list[str] = []

        def family(name: str, kind: str, text: str, values: Iterable[tuple[str, float]]) -> None:
            out.extend((f"# HELP {name} {text}", f"# TYPE {name} {kind}"))
            out.extend(f"{name}{labels} {value}" for labels, value in values)

        family(
            "longspan_gateway_requests_total", "counter", "Requests that ended.",
            ((f'{{model="{_label(m)}",target="{_label(t)}",outcome="{o}"}}', n) for (m, t, o), n in self.requests.items()),
        )  # fmt: skip
        family(
            "longspan_gateway_tokens_total", "counter", "Tokens accounted.",
            ((f'{{key="{_label(k)}",target="{_label(t)}",kind="{kind}"}}', n) for (k, t, kind), n in self.tokens.items()),
        )  # fmt: skip
        family(
            "longspan_gateway_outside_usd_total", "counter", "Spent at providers.",
            ((f'{{target="{_label(t)}"}}', n) for t, n in self.usd.items()),
        )  # fmt: skip
        family(
            "longspan_gateway_avoided_usd_total", "counter", "What requests served here would have cost at providers.",
            (("", self.avoided_usd),),
        )  # fmt: skip
        family(
            "longspan_gateway_local_usd_total", "counter", "What our replicas cost, busy or not (usd_per_hour).",
            ((f'{{replica="{_label(r)}"}}', n) for r, n in self.local_usd.items()),
        )  # fmt: skip
        family(
            "longspan_gateway_failed_attempts_total", "counter", "Attempts that failed before content.",
            ((f'{{cause="{c}"}}', n) for c, n in self.failed_attempts.items()),
        )  # fmt: skip
        family(
            "longspan_gateway_refused_total", "counter", "Requests refused before they were routed, by status and reason.",
            ((f'{{status="{status}",reason="{reason}"}}', n) for (status, reason), n in self.refused.items()),
        )  # fmt: skip
        family(
            "longspan_gateway_overflows_total", "counter", "Requests that left for a provider, by reason.",
            ((f'{{reason="{_label(r)}"}}', n) for r, n in self.overflows.items()),
        )  # fmt: skip
        family("longspan_gateway_running", "gauge", "Requests at an upstream.", (("", running),))
        family(
            "longspan_gateway_waiting", "gauge", "Requests held in the gateway.",
            ((f'{{model="{_label(m)}"}}', n) for m, n in waiting.items()),
        )  # fmt: skip
        all_standings = list(standings)
        family(
            "longspan_gateway_replica_usable", "gauge", "1 if requests are sent to it.",
            ((f'{{replica="{_label(s.name)}"}}', int(s.usable(now))) for s in all_standings),
        )  # fmt: skip
        family(
            "longspan_gateway_replica_inflight", "gauge", "Our requests at a replica.",
            ((f'{{replica="{_label(s.name)}"}}', len(s.flight)) for s in all_standings),
        )  # fmt: skip
        family(
            "longspan_gateway_replica_queue_seconds", "gauge", "Predicted seconds of queue.",
            ((f'{{replica="{_label(s.name)}"}}', round(s.queue_only(), 3)) for s in all_standings),
        )  # fmt: skip
        for name, histogram, text in (
            ("longspan_gateway_ttft_seconds", self.ttft, "Seconds to first content of streams."),
            ("longspan_gateway_prediction_error_seconds", self.prediction_error, "Predicted against real."),
        ):
            out.extend((f"# HELP {name} {text}", f"# TYPE {name} histogram"))
            out.extend(histogram.lines(name))
        return "\n".join(out) + "\n"


def _label(value: str) -> str:
    """A label's value as the exposition format wants it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

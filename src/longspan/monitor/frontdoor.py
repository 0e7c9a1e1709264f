"""What the gateway's Prometheus text means (its names: gateway/figures.py). Pure."""

from dataclasses import dataclass, field, replace

from longspan.monitor.prometheus import Labels, Sample, Window, cumulative, parse
from longspan.monitor.rates import share, total
from longspan.monitor.view import GatewayView

WINDOW_SECONDS = 60.0
# Money trickles: over a minute one request more or less would be a different price.
MONEY_SECONDS = 600.0
_PREFIX = "longspan_gateway_"
_COUNTERS = (
    "requests_total", "outside_usd_total", "avoided_usd_total", "local_usd_total", "overflows_total",
    "ttft_seconds_bucket", "ttft_seconds_sum", "ttft_seconds_count",
)  # fmt: skip
_GAUGES = ("running", "waiting", "replica_usable")
_KNOWN = frozenset((*_COUNTERS, *_GAUGES))


def _wanted(name: str) -> str | None:
    rest = name.removeprefix(_PREFIX)
    return rest if rest != name and rest in _KNOWN else None


@dataclass(slots=True)
class GatewayFigures:
    """The gateway's metrics over time; see `EngineFigures`.

    Attributes:
        replicas: names of our own replicas, as its metrics list them: all other targets are providers.
    """

    window: Window = field(default_factory=lambda: Window(WINDOW_SECONDS))
    money: Window = field(default_factory=lambda: Window(MONEY_SECONDS))
    samples: list[Sample] = field(default_factory=list)
    last_at: float | None = None
    replicas: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)

    def observe(self, text: str, now: float) -> bool:
        """A scrape. Returns whether it was one of the gateway's."""
        samples = parse(text, _wanted)
        if not samples:
            return False
        self.samples, self.last_at = samples, now
        self.replicas |= {s.label("replica") for s in samples if s.name == "replica_usable"}
        self.seen |= {s.name for s in samples}
        values = cumulative(samples, _COUNTERS)
        self.window.observe(values, now)
        self.money.observe({k: v for k, v in values.items() if k[0].endswith("usd_total")}, now)
        return True

    def fill(self, view: GatewayView, now: float) -> GatewayView:
        """The gateway with its figures, those of the last scrape."""
        if self.last_at is None:
            return view
        window = self.window
        ended = window.grown("requests_total")
        spent, avoided, local = (self._sum(f"{kind}_usd_total") for kind in ("outside", "avoided", "local"))
        per_second = self.money.rate("outside_usd_total")
        return replace(
            view,
            age_seconds=max(0.0, now - self.last_at),
            waiting=self._sum("waiting"),
            running=self._sum("running"),
            requests_per_second=window.rate("requests_total"),
            failed_share=share(window.grown("requests_total", where=_failed), ended),
            overflow_share=share(window.grown("requests_total", where=self._outside), ended),
            overflow_reasons=tuple(sorted({s.label("reason") for s in self.samples if s.name == "overflows_total"})),
            outside_usd=spent or 0.0,
            avoided_usd=avoided,
            local_usd=local or 0.0,
            saved_usd=None if avoided is None else avoided - (local or 0.0),
            outside_usd_per_hour=None if per_second is None else per_second * 3600,
            ttft=window.latency("ttft_seconds"),
            missing=tuple(sorted(self.seen - {s.name for s in self.samples})),
        )  # fmt: skip

    def _outside(self, labels: Labels) -> bool:
        target = dict(labels).get("target", "none")
        return target != "none" and target not in self.replicas

    def _sum(self, name: str) -> float | None:
        """Over all labels; a family with no series yet has had nothing to count, and is unknown here."""
        return total(*(s.value for s in self.samples if s.name == name))


def _failed(labels: Labels) -> bool:
    return dict(labels).get("outcome") not in {"ok", "client_error", "client_gone"}

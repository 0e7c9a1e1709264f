"""What an engine's Prometheus text means: current and old vLLM names, Ray's form of them, several engines and processes. Pure.

Names and semantics are those of vLLM 0.33 (v1/metrics/loggers.py); the old ones are listed with what took their place.
"""

from dataclasses import dataclass, field, replace

from longspan.monitor.prometheus import Sample, Window, cumulative, parse
from longspan.monitor.rates import share, total
from longspan.monitor.view import LatencyView, ReplicaView

# Quantiles need many requests, a rate should follow what happens.
WINDOW_SECONDS = 60.0
RATE_SECONDS = 10.0

RUNNING, WAITING, KV = "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"
CACHE = "cache_config_info"
PROMPT, GENERATED = "prompt_tokens", "generation_tokens"
FINISHED, PREEMPTED = "request_success", "num_preemptions"
QUERIES, HITS = "prefix_cache_queries", "prefix_cache_hits"
TTFT, QUEUE, PREFILL = "time_to_first_token_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"  # fmt: skip
TPOT, GAP = "request_time_per_output_token_seconds", "inter_token_latency_seconds"
OLD_NAMES = {
    "gpu_cache_usage_perc": KV, "gpu_prefix_cache_queries": QUERIES, "gpu_prefix_cache_hits": HITS,
    "time_per_output_token_seconds": GAP,
}  # fmt: skip
GAUGES = (RUNNING, WAITING, KV, CACHE)
COUNTERS = (PROMPT, GENERATED, FINISHED, PREEMPTED, QUERIES, HITS)
HISTOGRAMS = (TTFT, QUEUE, PREFILL, TPOT, GAP)
_SUFFIXES = ("_bucket", "_sum", "_count")
_PARTS = tuple(f"{name}{part}" for name in HISTOGRAMS for part in _SUFFIXES)
_KNOWN = frozenset((*GAUGES, *COUNTERS, *_PARTS))
_PREFIXES = ("vllm:", "ray_vllm_", "vllm_")
# Series that differ in nothing else are one gauge that several processes write.
_SOURCES = frozenset({"pid", "WorkerId"})


def canonical(name: str) -> str | None:
    """vLLM's present name of a metric, without prefix and `_total`; None for all that is not used here."""
    rest = next((name[len(p) :] for p in _PREFIXES if name.startswith(p)), None)
    if rest is None:
        return None
    rest = rest.removesuffix("_total")
    for old, new in OLD_NAMES.items():
        if rest == old or rest.removeprefix(old) in _SUFFIXES:
            rest = new + rest.removeprefix(old)
            break
    return rest if rest in _KNOWN else None


def gauge(samples: list[Sample], name: str) -> list[float]:
    """One value for each engine. API-server processes each have a series of the engine's gauge, of which one is alive and the
    others stand at 0 (vllm#28792): the largest is it."""
    by_engine: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        if sample.name == name:
            engine = tuple(label for label in sample.labels if label[0] not in _SOURCES)
            by_engine[engine] = max(by_engine.get(engine, sample.value), sample.value)
    return list(by_engine.values())


def _kv_tokens(samples: list[Sample]) -> int | None:
    """How many tokens the caches of all engines hold, as their configuration says."""
    sizes = {}
    for sample in samples:
        if sample.name == CACHE:
            blocks, size = sample.label("num_gpu_blocks"), sample.label("block_size")
            if blocks.isdecimal() and size.isdecimal():
                sizes[sample.label("engine"), sample.label("ReplicaId")] = int(blocks) * int(size)
    return sum(sizes.values()) if sizes else None


@dataclass(slots=True)
class EngineFigures:
    """One replica's metrics over time, from its scrapes. Feed it with `observe`, read it with `fill`.

    Attributes:
        seen: names that were ever there; what of them the last scrape lacks is missing.
    """

    window: Window = field(default_factory=lambda: Window(WINDOW_SECONDS))
    samples: list[Sample] = field(default_factory=list)
    last_at: float | None = None
    seen: set[str] = field(default_factory=set)

    def observe(self, text: str, now: float) -> bool:
        """A scrape. Returns whether there were vLLM's metrics in it; a text without any changes nothing."""
        samples = parse(text, canonical)
        if not samples:
            return False
        self.samples, self.last_at = samples, now
        self.seen |= {sample.name for sample in samples}
        self.window.observe(cumulative(samples, (*COUNTERS, *_PARTS)), now)
        return True

    def fill(self, view: ReplicaView, now: float) -> ReplicaView:
        """The replica with its figures. They are those of the last scrape, whose age stands beside them."""
        if self.last_at is None:
            return view
        window = self.window
        kv = gauge(self.samples, KV)
        names = {sample.name for sample in self.samples}
        has_cache = QUERIES in names
        return replace(
            view,
            age_seconds=max(0.0, now - self.last_at),
            running=total(*gauge(self.samples, RUNNING)),
            waiting=total(*gauge(self.samples, WAITING)),
            kv_use_share=max(kv) if kv else None,
            kv_tokens=_kv_tokens(self.samples),
            prompt_tokens_per_second=window.rate(PROMPT, RATE_SECONDS),
            generation_tokens_per_second=window.rate(GENERATED, RATE_SECONDS),
            requests_per_second=window.rate(FINISHED),
            ttft=window.latency(TTFT),
            tpot=self._tpot(),
            queue=window.latency(QUEUE),
            prefill=window.latency(PREFILL),
            prefix_hit_share=share(window.grown(HITS), window.grown(QUERIES)) if has_cache else None,
            preemptions_total=total(
                *(value for (name, _), value in (window.last or {}).items() if name == PREEMPTED)
            ),
            preemptions_per_second=window.rate(PREEMPTED),
            missing=tuple(sorted({_family(name) for name in self.seen - names})),
        )

    def _tpot(self) -> LatencyView | None:
        """Of requests that finished lately; where none did, the gaps between tokens of those that run."""
        finished, gaps = self.window.latency(TPOT), self.window.latency(GAP)
        return finished if finished and finished.count else gaps or finished


def _family(name: str) -> str:
    return next((name.removesuffix(part) for part in _SUFFIXES if name.endswith(part)), name)  # fmt: skip

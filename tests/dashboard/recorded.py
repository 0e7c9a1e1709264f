"""Metrics of two deployments, one that is well and one in which everything is wrong, moving with time.

The engine's text has the names, labels and buckets of vLLM 0.33 (v1/metrics/loggers.py and buckets.py); the gateway's and the
nodes' come out of our own renderers, so that a name that changes there is noticed here.
"""

import dataclasses
from collections.abc import Iterator

from dashboard.simulated import deployment
from longspan.gateway.config import BreakerRule, Replica
from longspan.gateway.figures import Figures
from longspan.gateway.ledger import Entry, Row, Try
from longspan.gateway.standing import Standing
from longspan.monitor import exposition
from longspan.monitor.view import ClusterView, NodeView

TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
HISTOGRAMS = {
    "time_to_first_token_seconds": (TTFT, 0.4, 12.0), "inter_token_latency_seconds": (TOKEN, 0.02, 0.3),
    "request_time_per_output_token_seconds": (TOKEN, 0.02, 0.3), "e2e_request_latency_seconds": (REQUEST, 4.0, 60.0),
    "request_queue_time_seconds": (REQUEST, 0.1, 9.0), "request_prefill_time_seconds": (REQUEST, 0.3, 2.0),
    "request_decode_time_seconds": (REQUEST, 3.0, 50.0), "iteration_tokens_total": (STEP, 100.0, 100.0),
}  # fmt: skip


def engine(seconds: float, *, bad: bool) -> str:
    """A vLLM front end's text `seconds` after its start. The bad one has requests, a full cache, and stands still."""
    labels = 'model_name="demo",engine="0"'
    moved = 1000.0 if bad else 1000.0 + 900 * seconds
    lines = [
        *_family("num_requests_running", "gauge", labels, 7.0),
        *_family("num_requests_waiting", "gauge", labels, 30.0 if bad else 0.0),
        *_family("kv_cache_usage_perc", "gauge", labels, 0.99 if bad else 0.4 + 0.01 * (seconds % 3)),
        *_family("prompt_tokens_total", "counter", labels, moved * 4),
        *_family("generation_tokens_total", "counter", labels, moved),
        *_family("prefix_cache_queries_total", "counter", labels, moved * 4),
        *_family("prefix_cache_hits_total", "counter", labels, moved),
        *_family("num_preemptions_total", "counter", labels, 5 * seconds if bad else 3.0),
        "# TYPE vllm:num_requests_waiting_by_reason gauge",
        *(f'vllm:num_requests_waiting_by_reason{{{labels},reason="{one}"}} 0' for one in ("capacity", "deferred")),
        "# TYPE vllm:request_success_total counter",
        *(f'vllm:request_success_total{{{labels},finished_reason="{one}"}} {seconds:.0f}' for one in ("stop", "length", "abort", "error")),
    ]  # fmt: skip
    for name, (bounds, well, ill) in HISTOGRAMS.items():
        lines += _histogram(name, bounds, labels, ill if bad else well, 10 + int(5 * seconds))
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, labels: str, value: float) -> Iterator[str]:
    yield f"# TYPE vllm:{name} {kind}"
    yield f"vllm:{name}{{{labels}}} {value}"


def _histogram(
    name: str, bounds: tuple[float, ...], labels: str, typical: float, count: int
) -> Iterator[str]:
    yield f"# TYPE vllm:{name} histogram"
    for bound in bounds:
        yield f'vllm:{name}_bucket{{{labels},le="{bound}"}} {count if bound >= typical else 0}'
    yield f'vllm:{name}_bucket{{{labels},le="+Inf"}} {count}'
    yield f"vllm:{name}_sum{{{labels}}} {typical * count}"
    yield f"vllm:{name}_count{{{labels}}} {count}"


def gateway(seconds: float, *, bad: bool) -> str:
    """The gateway's own text after so many seconds: 4 requests a second, all kinds of ends; the bad one mostly fails."""
    figures = Figures()
    figures.had("r0", 0.001 * seconds)
    for number in range(20 + int(4 * seconds)):
        outside = number % 10 == 0
        outcome = "upstream_failed" if bad and number % 2 else "ok"
        entry = Entry(
            str(number), "team", "demo", "provider" if outside else "r0", outside, outcome, 200, True, 0.0, 2.0, 0.3, 900, 200,
            usd=(0.9 if bad else 0.0001) if outside else 0.0, reason="wait=6.1" if outside else "",
        )  # fmt: skip
        figures.request(
            Row(entry, 0.0, 0.25, (Try(entry.target, outside, 0.0, 0.25, 0.3, "", "", {}),), 0.002)
        )
        if number % 7 == 0:
            figures.attempt_failed("refused")
    standing = Standing(Replica("r0", "http://127.0.0.1:1", "demo"), BreakerRule(), 0.0)
    return figures.text([standing], {"demo": 40 if bad else 0}, 3, seconds)


def nodes(at: float, *, bad: bool) -> str:
    """The controller's text: two nodes that are well, or with a silent node and every hardware trouble there is a rule for."""
    view = deployment(2, at, silent=(1,) if bad else ())
    view = _troubled(view) if bad else _untroubled(view)
    return exposition.render(dataclasses.replace(view, name="bad" if bad else "good"))


def _untroubled(view: ClusterView) -> ClusterView:
    return dataclasses.replace(view, alarms=(), nodes=tuple(_quiet(node) for node in view.nodes))


def _quiet(node: NodeView) -> NodeView:
    return dataclasses.replace(node, disks=node.disks[:1])


def _troubled(view: ClusterView) -> ClusterView:
    first, *rest = view.nodes
    gpu = dataclasses.replace(
        first.gpus[0],
        memory_used_bytes=first.gpus[0].memory_total_bytes,
        ecc_uncorrected=1,
        xid=79,
        nvlink_down=2,
    )
    ports = (
        dataclasses.replace(first.ports[0], up=False),
        dataclasses.replace(first.ports[1], drops_per_second=40.0, errors_per_second=3.0),
        *first.ports[2:],
    )
    disks = (dataclasses.replace(first.disks[0], used_bytes=first.disks[0].total_bytes),)
    node = dataclasses.replace(first, gpus=(gpu, *first.gpus[1:]), ports=ports, disks=disks)
    return dataclasses.replace(view, nodes=(node, *rest))

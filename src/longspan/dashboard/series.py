"""One picture to the numbers that are kept of it. Pure; what is not known is left out, so that a chart shows a gap.

Names are `cluster/FIGURE`, `replica/NAME/FIGURE`, `node/NAME/FIGURE`, `gpu/NODE/INDEX/FIGURE`, `port/NODE/PORT/FIGURE`, with
the unit at the end of the figure.
"""

from collections.abc import Iterable

from longspan.monitor.rates import share, total
from longspan.monitor.view import ClusterView, GatewayView, LatencyView, NodeView, ReplicaView

# The series of the page's overview; the page asks for others by name.
OVERVIEW = (
    "cluster/generation_tokens_per_second", "cluster/running", "cluster/waiting", "cluster/kv_use_share",
    "cluster/ttft_p50_seconds", "cluster/ttft_p95_seconds", "cluster/ttft_p99_seconds",
    "cluster/tpot_p50_seconds", "cluster/tpot_p95_seconds", "cluster/tpot_p99_seconds",
    "cluster/overflow_share", "cluster/outside_usd_per_hour", "cluster/network_bytes_per_second",
    "cluster/gpu_memory_share", "cluster/gpu_utilisation_share", "cluster/nodes_up", "cluster/alarms",
)  # fmt: skip


def series(view: ClusterView) -> dict[str, float]:
    """Every number of the picture that is known now; values of a node or replica that fell silent are not."""
    found: dict[str, float] = {}
    nodes = [node for node in view.nodes if node.state in {"up", "late"}]
    for node in nodes:
        found.update(_node(node))
    for replica in view.replicas:
        found.update(_named(f"replica/{replica.name}", _replica(replica)))
    found.update(_named("cluster", _cluster(view, nodes)))
    return found


def _named(prefix: str, figures: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in figures if value is not None}


def _latency(name: str, value: LatencyView | None) -> Iterable[tuple[str, float | None]]:
    for quantile in ("p50", "p95", "p99"):
        found = getattr(value, quantile) if value else None
        yield f"{name}_{quantile}_seconds", found.seconds if found else None


def _replica(replica: ReplicaView) -> Iterable[tuple[str, float | None]]:
    yield "serving", float(replica.phase == "serving")
    yield "running", replica.running
    yield "waiting", replica.waiting
    yield "kv_use_share", replica.kv_use_share
    yield "generation_tokens_per_second", replica.generation_tokens_per_second
    yield "prompt_tokens_per_second", replica.prompt_tokens_per_second
    yield "prefix_hit_share", replica.prefix_hit_share
    yield "preemptions_per_second", replica.preemptions_per_second
    yield from _latency("ttft", replica.ttft)
    yield from _latency("tpot", replica.tpot)


def _node(node: NodeView) -> dict[str, float]:
    found = _named(
        f"node/{node.name}",
        (
            ("cpu_share", node.cpu_share),
            ("ram_share", share(node.ram_used_bytes, node.ram_total_bytes)),
            ("shm_share", share(node.shm_used_bytes, node.shm_total_bytes)),
        ),
    )
    for gpu in node.gpus:
        figures = (
            ("memory_share", share(gpu.memory_used_bytes, gpu.memory_total_bytes)),
            ("utilisation_share", gpu.utilisation_share),
            ("power_watts", gpu.power_watts),
            ("temperature_celsius", gpu.temperature_celsius),
        )
        found.update(_named(f"gpu/{node.name}/{gpu.index}", figures))
    for port in node.ports:
        rates = (
            ("rx_bytes_per_second", port.rx_bytes_per_second),
            ("tx_bytes_per_second", port.tx_bytes_per_second),
        )
        if not port.virtual:
            found.update(_named(f"port/{node.name}/{port.name}", rates))
    return found


def _cluster(view: ClusterView, nodes: list[NodeView]) -> Iterable[tuple[str, float | None]]:
    gateway: GatewayView = view.gateway
    replicas = view.replicas
    gpus = [gpu for node in nodes for gpu in node.gpus]
    yield "nodes_up", float(len(nodes))
    yield "alarms", float(len(view.alarms))
    yield "running", total(*(r.running for r in replicas))
    yield "waiting", total(gateway.waiting, *(r.waiting for r in replicas))
    yield "generation_tokens_per_second", total(*(r.generation_tokens_per_second for r in replicas))
    yield "kv_use_share", _most(r.kv_use_share for r in replicas)
    # The client's side of the first token is the gateway's; without it, the worst replica speaks.
    if gateway.ttft is not None:
        yield from _latency("ttft", gateway.ttft)
    else:
        yield from _worst("ttft", [r.ttft for r in replicas])
    yield from _worst("tpot", [r.tpot for r in replicas])
    yield "overflow_share", gateway.overflow_share
    yield "outside_usd_per_hour", gateway.outside_usd_per_hour
    ports = [port for node in nodes for port in node.ports if not port.virtual]
    yield (
        "network_bytes_per_second",
        total(*(rate for p in ports for rate in (p.rx_bytes_per_second, p.tx_bytes_per_second))),
    )
    yield "gpu_memory_share", _most(share(g.memory_used_bytes, g.memory_total_bytes) for g in gpus)
    used = [g.utilisation_share for g in gpus if g.utilisation_share is not None]
    yield "gpu_utilisation_share", sum(used) / len(used) if used else None


def _worst(name: str, values: list[LatencyView | None]) -> Iterable[tuple[str, float | None]]:
    for quantile in ("p50", "p95", "p99"):
        known = [getattr(value, quantile) for value in values if value is not None]
        yield f"{name}_{quantile}_seconds", _most(one.seconds if one else None for one in known)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def thin(points: list[tuple[int, float, float]], most: int) -> list[tuple[int, float, float]]:
    """At most `most` points (at, mean, peak): neighbours become one, with the mean of their means and the highest peak.

    Neighbours are those of one stretch of time, so that a gap stays a gap.
    """
    if len(points) <= most or most < 1:
        return points
    begin, end = points[0][0], points[-1][0]
    stretch = (end - begin) // most + 1
    found: list[tuple[int, float, float]] = []
    held: list[tuple[int, float, float]] = []
    for point in points:
        if held and (point[0] - begin) // stretch != (held[0][0] - begin) // stretch:
            found.append(_merged(held))
            held = []
        held.append(point)
    return [*found, _merged(held)]


def _merged(points: list[tuple[int, float, float]]) -> tuple[int, float, float]:
    return points[0][0], sum(mean for _, mean, _ in points) / len(points), max(peak for *_, peak in points)

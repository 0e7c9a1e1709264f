"""Pictures for tests: a healthy deployment of any size, to be changed where a test wants something wrong."""

from dataclasses import replace

from longspan.monitor.view import (
    ClusterView,
    DiskView,
    GatewayView,
    GpuView,
    LatencyView,
    NodeView,
    PortView,
    ProcessView,
    QuantileView,
    RankView,
    ReplicaView,
)

GIB = 1 << 30


def gpu(node: int, index: int, **changes) -> GpuView:
    """A busy H200."""
    found = GpuView(
        f"GPU-{node}-{index}", index, "NVIDIA H200", memory_total_bytes=141 * GIB, memory_used_bytes=127 * GIB,
        weights_bytes=60 * GIB, kv_bytes=60 * GIB, other_bytes=7 * GIB, utilisation_share=0.7, power_watts=520.0,
        power_limit_watts=700.0, temperature_celsius=62.0, sm_clock_mhz=1900.0, throttled_by=(), ecc_uncorrected=0,
        ecc_corrected=0, nvlink_up=18, nvlink_down=0, replica=f"r{node // 2}", rank=(node % 2) * 8 + index,
    )  # fmt: skip
    return replace(found, **changes)


def port(name: str, kind: str = "netdev", **changes) -> PortView:
    """A healthy port."""
    rate = 400e9 if kind == "rdma" else 25e9
    found = PortView(
        name, kind, True, rate, 1e9 if kind == "rdma" else 1e5, 1e9 if kind == "rdma" else 1e5, 0.0, 0.0, 0, 0
    )
    return replace(found, **changes)


def node(number: int, gpus: int = 8, **changes) -> NodeView:
    """A node whose figures are fresh."""
    found = NodeView(
        f"n{number}", f"10.0.0.{number + 1}", "up", 0.5, 0.01, tuple(gpu(number, i) for i in range(gpus)), "NVML, driver 575",
        (port("eth0"), *(port(f"mlx5_{i}/1", "rdma") for i in range(4))), 192, 0.1, 4.0, 2048 * GIB, 300 * GIB, 1024 * GIB,
        10 * GIB, (DiskView("/", 100 * GIB, 1000 * GIB),), (ProcessView(10, "agent", None, 0.004, 40 << 20),),
    )  # fmt: skip
    return replace(found, **changes)


def latency(
    p99: float, mean: float | None = None, bound: str = "estimate", count: float = 100
) -> LatencyView:
    """A latency with this tail."""
    return LatencyView(
        count,
        p99 / 2 if mean is None else mean,
        QuantileView(p99 / 2),
        QuantileView(p99 * 0.9),
        QuantileView(p99, bound),
    )


def replica(number: int, gpus: int = 8, **changes) -> ReplicaView:
    """A replica over two nodes, a pipeline stage on each."""
    ranks = tuple(
        RankView(s * gpus + i, f"n{2 * number + s}", i, s, 1000 + i, (f"GPU-{2 * number + s}-{i}",))
        for s in (0, 1)
        for i in range(gpus)
    )
    found = ReplicaView(
        f"r{number}", "llama-405b", "serving", "", (f"n{2 * number}", f"n{2 * number + 1}"), ranks, 0.5, 24.0, 0.0, 0.55,
        2_000_000, 3000.0, 900.0, 4.0, latency(0.8), latency(0.03), latency(0.05), latency(0.3), 0.4, 0.0, 0.0,
    )  # fmt: skip
    return replace(found, **changes)


def cluster(nodes: int = 2, **changes) -> ClusterView:
    """A healthy deployment of so many nodes, two of them a replica."""
    gateway = GatewayView(
        "http://10.0.0.1:8000", 0.5, 0.0, 24.0, 4.0, 0.0, 0.0, (), 0.0, 12.0, 30.0, -18.0, 0.0, latency(0.9)
    )
    found = ClusterView(
        "prod", 1_800_000_000.0, "serving", "llama-405b", "cuda", tuple(node(i) for i in range(nodes)),
        tuple(replica(i) for i in range(max(1, nodes // 2))), gateway,
    )  # fmt: skip
    return replace(found, **changes)


def with_gpu(view: ClusterView, node_index: int, gpu_index: int, **changes) -> ClusterView:
    """The same with one GPU changed."""
    nodes = list(view.nodes)
    gpus = list(nodes[node_index].gpus)
    gpus[gpu_index] = replace(gpus[gpu_index], **changes)
    nodes[node_index] = replace(nodes[node_index], gpus=tuple(gpus))
    return replace(view, nodes=tuple(nodes))


def with_node(view: ClusterView, index: int, **changes) -> ClusterView:
    """The same with one node changed."""
    nodes = list(view.nodes)
    nodes[index] = replace(nodes[index], **changes)
    return replace(view, nodes=tuple(nodes))


def with_replica(view: ClusterView, index: int = 0, **changes) -> ClusterView:
    """The same with one replica changed."""
    replicas = list(view.replicas)
    replicas[index] = replace(replicas[index], **changes)
    return replace(view, replicas=tuple(replicas))


def with_gateway(view: ClusterView, **changes) -> ClusterView:
    """The same with the gateway changed."""
    return replace(view, gateway=replace(view.gateway, **changes))

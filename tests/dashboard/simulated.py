"""A deployment that exists only as numbers: waves and a few troubles, the same for the same moment."""

import json
import math
from dataclasses import dataclass, field

from longspan.dashboard.source import VERBS, Away, Outcome, Picture
from longspan.finding import Evidence, Finding
from longspan.monitor.view import (
    AlarmView,
    ClusterView,
    DiskView,
    EventView,
    GatewayView,
    GpuView,
    LatencyView,
    NodeView,
    PortView,
    ProcessView,
    QuantileView,
    RankView,
    ReplicaView,
    node_state,
)

GIB = 1 << 30
DONE = Outcome(200, "")


def wave(at: float, phase: float, low: float, high: float, period: float = 240.0) -> float:
    """Between low and high, slow, different for each phase."""
    mixed = math.sin(2 * math.pi * at / period + phase * 1.7) + 0.4 * math.sin(at / 17 + phase * 5.1)
    return low + (high - low) * (0.5 + mixed / 2.8)


def latency(count: float, p50: float, below: bool = False) -> LatencyView:
    """A latency whose tail grows with its middle."""
    if below:
        first = QuantileView(0.01, "below")
        return LatencyView(count, 0.006, first, first, QuantileView(0.019))
    return LatencyView(count, p50 * 1.2, QuantileView(p50), QuantileView(p50 * 2.4), QuantileView(p50 * 4.1))


def gpu(node: int, index: int, at: float, replica: str | None, rank: int | None) -> GpuView:
    """An 80 GiB GPU of a rank, or one without work."""
    busy = replica is not None
    kv = int(wave(at, node + index / 9, 6, 21) * GIB) if busy else 0
    weights, other = (44 * GIB, 3 * GIB) if busy else (0, GIB // 2)
    return GpuView(
        uuid=f"GPU-{node:04d}-{index:04d}", index=index, name="NVIDIA H100 80GB HBM3",
        memory_total_bytes=80 * GIB, memory_used_bytes=weights + kv + other,
        weights_bytes=weights if busy else None, kv_bytes=kv if busy else None, other_bytes=other,
        utilisation_share=wave(at, node * 3 + index, 0.35, 1.0) if busy else 0.0,
        power_watts=wave(at, node + index, 310, 690) if busy else 71.0, power_limit_watts=700.0,
        temperature_celsius=wave(at, node + index, 48, 74) if busy else 33.0,
        sm_clock_mhz=1755.0 if busy else 345.0, memory_clock_mhz=2619.0,
        throttled_by=("power cap",) if busy and (node + index) % 11 == 5 else (),
        ecc_corrected=2 if index == 3 else 0, ecc_uncorrected=0, xid=None, nvlink_up=18, nvlink_down=0,
        nvlink_rx_bytes_per_second=wave(at, node, 1e9, 60e9) if busy else 0.0,
        nvlink_tx_bytes_per_second=wave(at, node + 1, 1e9, 60e9) if busy else 0.0,
        replica=replica, rank=rank,
    )  # fmt: skip


def port(node: int, number: int, at: float, busy: bool) -> PortView:
    """Eight InfiniBand ports of 400 Gbit/s and an Ethernet interface."""
    if number == 8:
        return PortView("eth0", "netdev", True, 25e9, wave(at, node, 2e5, 4e7), wave(at, node + 2, 2e5, 9e7),
                        12.0 if node % 13 == 4 else 0.0, 0.0, 8812 if node % 13 == 4 else 0, 0)  # fmt: skip
    if node % 9 == 7 and number == 2:
        return PortView(f"mlx5_{number}/1", "rdma", False, 400e9)
    load = wave(at, node + number / 3, 0.02, 0.93) if busy else 0.0
    return PortView(
        f"mlx5_{number}/1",
        "rdma",
        True,
        400e9,
        load * 46e9,
        load * 44e9,
        0.0,
        0.0,
        0,
        0,
        netdev=f"ib{number}",
    )


def deployment(
    nodes: int, at: float, *, gpus: int = 8, silent: tuple[int, ...] = (), per_replica: int = 2
) -> ClusterView:
    """A picture of `nodes` nodes, `per_replica` of them a replica; the last node is spare where they do not divide.

    Args:
        at: Unix seconds.
        silent: indices of nodes whose agents went silent 23 s ago.
    """
    per_replica = min(per_replica, nodes)
    names = [f"gpu-{index + 1:02d}" for index in range(nodes)]
    replicas: list[ReplicaView] = []
    node_views: list[NodeView] = []
    for first in range(0, nodes - per_replica + 1, per_replica):
        replicas.append(_replica(len(replicas), names[first : first + per_replica], gpus, at, silent, first))
    for index, name in enumerate(names):
        number = index // per_replica
        replica = replicas[number].name if number < len(replicas) else None
        age = 23.4 if index in silent else 0.4 + (index % 5) / 10
        node_views.append(
            NodeView(
                name, f"10.4.0.{index + 11}", node_state(age), age, 0.002 if index % 7 else 4.2,
                tuple(gpu(index, i, at, replica, (index % per_replica) * gpus + i if replica else None) for i in range(gpus)),
                "NVML 12.570.86" if gpus else "no NVML on this machine",
                tuple(port(index, i, at, replica is not None) for i in range(9)), 192, wave(at, index, 0.05, 0.4), 31.5,
                2048 * GIB, int(wave(at, index, 300, 600)) * GIB, 1024 * GIB, 14 * GIB,
                (DiskView("/var/lib/longspan", 410 * GIB, 890 * GIB), DiskView("/models", 6800 * GIB, 7000 * GIB)),
                (ProcessView(4711, "agent", None, 0.004, 48 << 20), ProcessView(4790, "ray", None, 0.12, 910 << 20),
                 *(ProcessView(5000 + i, f"rank {(index % per_replica) * gpus + i}", (index % per_replica) * gpus + i, 1.02, 9 * GIB, 68 * GIB) for i in range(gpus if replica else 0))),
                ("mlx5_2/1: hw_counters",) if index % 9 == 7 else (),
            )
        )  # fmt: skip
    alarms, events = _alarms(names, replicas, silent, at)
    return ClusterView(
        "default", at, "serving", "deepseek-ai/DeepSeek-V3.2", "cuda", tuple(node_views), tuple(replicas),
        _gateway(len(replicas), at), alarms, events,
        tuple(f"{names[i]} has been silent for 23 s: its GPUs and ports are what they were then." for i in silent),
    )  # fmt: skip


def _replica(
    number: int, nodes: list[str], gpus: int, at: float, silent: tuple[int, ...], first: int
) -> ReplicaView:
    hurt = any(first <= index < first + len(nodes) for index in silent)
    ranks = tuple(
        RankView(n * gpus + i, node, i, n, 5000 + i, (f"GPU-{first + n:04d}-{i:04d}",))
        for n, node in enumerate(nodes)
        for i in range(gpus or 1)
    )
    return ReplicaView(
        f"r{number}", "deepseek-ai/DeepSeek-V3.2", "suspected" if hurt else "serving",
        f"{nodes[0]} has not answered for 23 s" if hurt else "", tuple(nodes), ranks, 0.6,
        float(int(wave(at, number, 8, 120))), float(int(wave(at, number, 0, 9))), wave(at, number, 0.2, 0.97), 812_000,
        wave(at, number, 4000, 19000), 0.0 if hurt else wave(at, number, 900, 4200), wave(at, number, 1, 9),
        latency(431, wave(at, number, 0.18, 0.6)), latency(431, 0.02, below=number % 3 == 1) if number % 3 == 1 else latency(431, wave(at, number, 0.014, 0.034)),
        latency(431, 0.012), latency(431, 0.11), wave(at, number, 0.3, 0.6), 12.0, 0.0,
    )  # fmt: skip


def _gateway(replicas: int, at: float) -> GatewayView:
    return GatewayView(
        "10.4.0.10:8000", 0.5, float(int(wave(at, 3, 0, 14))), wave(at, 1, 8, 120) * replicas, wave(at, 1, 2, 9) * replicas,
        0.001, wave(at, 5, 0.0, 0.12), ("predicted wait over 5 s",), 41.72, 913.40, 402.11, 469.57, wave(at, 5, 0.0, 7.5),
        latency(2210, wave(at, 2, 0.21, 0.7)),
    )  # fmt: skip


def _alarms(
    names: list[str], replicas: list[ReplicaView], silent: tuple[int, ...], at: float
) -> tuple[tuple[AlarmView, ...], tuple[EventView, ...]]:
    alarms = [
        AlarmView(f"node-silent:{names[i]}", at - 23, Finding(names[i], "error", "node-silent",
                  f"{names[i]} has not answered for 23 s; the replica on it gets no traffic.",
                  (Evidence("agent", 0, "last beat 23 s ago"),), "Look at the machine's power and network.", source="agent's beats"))
        for i in silent
    ]  # fmt: skip
    alarms.append(
        AlarmView("nic-drops:gpu-05", at - 340, Finding(names[min(4, len(names) - 1)], "warning", "nic-drops",
                  "eth0 dropped 12 packets a second for 5 min, so collectives over it retransmit.",
                  (Evidence("/sys/class/net/eth0/statistics/rx_dropped", 0, "8812"),),
                  "Raise the ring buffer: ethtool -G eth0 rx 8192", "ethtool -G eth0 rx 1024", "sysfs"))
    )  # fmt: skip
    events = [
        EventView(1, at - 7200, "state", "default", "default: loading -> serving"),
        EventView(
            2, at - 3100, "alarm", "r0", "TTFT p99 was over its objective for 4 min: 2.9 s against 2.0 s"
        ),
        EventView(3, at - 2860, "over", "r0", "TTFT p99 is below its objective again"),
        EventView(4, at - 340, "alarm", names[min(4, len(names) - 1)], "eth0 drops packets"),
        *(
            EventView(5 + n, at - 23, "state", names[i], f"{names[i]}: up -> silent")
            for n, i in enumerate(silent)
        ),
    ]
    return tuple(alarms), tuple(events)


@dataclass(slots=True)
class SimulatedSource:
    """Gives `view`, or raises Away with `away` where that is set; remembers what was asked of it.

    Attributes:
        answer: what an action is answered with.
    """

    view: ClusterView
    away: str = ""
    known: tuple[str, ...] = VERBS
    answer: Outcome = DONE
    acted: list[tuple[str, str]] = field(default_factory=list)

    async def picture(self) -> Picture:
        """See `Source`."""
        if self.away:
            raise Away(self.away)
        return Picture(self.view, json.dumps(self.view.to_json()))

    async def verbs(self) -> dict[str, bool]:
        """See `Source`."""
        return {verb: verb in self.known for verb in VERBS}

    async def act(self, verb: str, subject: str) -> Outcome:
        """See `Source`."""
        if self.away:
            raise Away(self.away)
        self.acted.append((verb, subject))
        return self.answer

    async def metrics(self, path: str, authorization: str) -> tuple[int, str]:
        """See `Source`."""
        if self.away:
            raise Away(self.away)
        return 401, f"{path} {authorization}"

    async def close(self) -> None:
        """See `Source`."""

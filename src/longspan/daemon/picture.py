"""The controller's status, its nodes' telemetry and its engines' metrics put together: `monitor.view.ClusterView`. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from longspan.monitor.frontdoor import GatewayFigures
from longspan.monitor.metrics import EngineFigures
from longspan.monitor.view import (
    SILENT_SECONDS,
    ClusterView,
    GatewayView,
    GpuView,
    NodeView,
    RankView,
    ReplicaView,
    node_state,
)

STALE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class NodeSample:
    """A node's last telemetry and when it came, on the controller's steady clock."""

    view: NodeView
    came_at: float
    clock_skew_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RankUse:
    """What a rank's process said of its memory, in bytes; None where it did not."""

    weights_bytes: int | None = None
    kv_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """All that the controller knows beside its status document.

    Attributes:
        addresses: node -> address, of all nodes that have an agent; Ray's head may be one without ranks, which the status leaves out.
        engines: replica -> its metrics; `memory`: (node, pid) -> what that rank uses, pid 0 where a line named none.
    """

    samples: Mapping[str, NodeSample]
    engines: Mapping[str, EngineFigures]
    gateway: GatewayFigures
    memory: Mapping[tuple[str, int], RankUse]
    addresses: Mapping[str, str] = field(default_factory=dict)


def picture(status: Mapping[str, Any], known: Known, *, now: float, wall: float) -> ClusterView:
    """Everything at one moment, alarms and events left to the caller.

    Args:
        now: the controller's steady clock; wall: seconds since 1970 by its other one.
    """
    replicas = tuple(_replica(status, one, known, now) for one in status["replicas"])
    addresses = {str(found["name"]): str(found["address"]) for found in status["nodes"]}
    nodes = tuple(_node(*found, known, replicas, now) for found in {**known.addresses, **addresses}.items())
    gateway = known.gateway.fill(GatewayView(status.get("endpoint") or ""), now)
    view = ClusterView(
        status["name"], wall, status["phase"], status["served_name"], status["layout"]["device"], nodes, replicas, gateway,
    )  # fmt: skip
    return replace(view, unknown=tuple(unknown(view)))


def _replica(status: Mapping[str, Any], found: Mapping[str, Any], known: Known, now: float) -> ReplicaView:
    name = str(found["name"])
    ranks = tuple(
        RankView(
            int(row["rank"]), str(row["planned_node"]), int(row.get("tp_rank", 0)), int(row.get("pp_rank", 0)),
            row.get("pid"), tuple(uuid for uuid in row.get("gpu") or () if not uuid.startswith("index ")),
        )
        for row in found["ranks"]
    )  # fmt: skip
    nodes = tuple(dict.fromkeys(rank.node for rank in ranks)) or tuple(found.get("nodes", ()))
    view = ReplicaView(
        name, str(found.get("served_name", status["served_name"])), str(found.get("phase", "")),
        str(found.get("reason", "") or ""), nodes, ranks,
    )  # fmt: skip
    figures = known.engines.get(name)
    return figures.fill(view, now) if figures else view


def _node(
    name: str,
    address: str,
    known: Known,
    replicas: tuple[ReplicaView, ...],
    now: float,
) -> NodeView:
    here = [(r.name, rank) for r in replicas for rank in r.ranks if rank.node == name]
    places = {uuid: place for place in here for uuid in place[1].gpu_uuids}
    sample = known.samples.get(name)
    if sample is None:
        return NodeView(name, address)
    age = max(0.0, now - sample.came_at)
    gpus = tuple(_gpu(gpu, name, known, places) for gpu in sample.view.gpus)
    pids = {rank.pid: rank.rank for _, rank in here if rank.pid}
    processes = tuple(replace(one, rank=pids.get(one.pid, one.rank)) for one in sample.view.processes)
    return replace(
        sample.view, name=name, address=address, state=node_state(age), age_seconds=age, gpus=gpus, processes=processes,
        clock_skew_seconds=sample.clock_skew_seconds,
    )  # fmt: skip


def _gpu(gpu: GpuView, node: str, known: Known, places: Mapping[str, tuple[str, RankView]]) -> GpuView:
    """With who works on it, and how its memory is divided as far as that rank said."""
    replica, rank = places.get(gpu.uuid, (None, None))
    if rank is None:
        return gpu
    use = known.memory.get((node, rank.pid or 0)) or known.memory.get(("", rank.pid or 0)) or RankUse()
    parts = (gpu.memory_used_bytes, use.weights_bytes, use.kv_bytes)
    rest = None
    if all(part is not None for part in parts):
        used, weights, kv = (part or 0 for part in parts)
        rest = max(0, used - weights - kv)
    return replace(
        gpu, replica=replica, rank=rank.rank, weights_bytes=use.weights_bytes, kv_bytes=use.kv_bytes, other_bytes=rest
    )  # fmt: skip


def unknown(view: ClusterView) -> list[str]:
    """What the picture no longer knows, in sentences."""
    found = []
    for node in view.nodes:
        if node.age_seconds is None:
            found.append(f"{node.name} has sent no telemetry yet.")
        elif node.age_seconds > SILENT_SECONDS:
            found.append(
                f"{node.name} was last heard of {node.age_seconds:.0f} s ago: its figures are from then."
            )
        found += [f"{node.name} no longer tells {what}." for what in node.missing]
    for replica in view.replicas:
        if replica.phase not in {"serving", "suspected"}:
            continue
        if replica.age_seconds is None:
            found.append(f"{replica.name} has given no metrics yet.")
        elif replica.age_seconds > STALE_SECONDS:
            found.append(
                f"{replica.name}'s metrics are {replica.age_seconds:.0f} s old: its front end does not answer."
            )
        found += [f"{replica.name} no longer gives the metric {name}." for name in replica.missing]
    gateway = view.gateway
    if gateway.age_seconds is not None and gateway.age_seconds > STALE_SECONDS:
        found.append(f"The gateway's figures are {gateway.age_seconds:.0f} s old.")
    found += [f"The gateway no longer gives the metric {name}." for name in gateway.missing]
    return found


_GPU_FIGURES = {
    "memory_used_bytes": "memory", "utilisation_share": "utilisation", "power_watts": "power",
    "temperature_celsius": "temperature", "sm_clock_mhz": "clock",
}  # fmt: skip


def told(view: NodeView) -> list[str]:
    """What a node tells, in words: its GPUs and ports, and of each GPU the figures that its driver gives."""
    found = []
    for gpu in view.gpus:
        name = f"GPU {gpu.index} ({gpu.name})" if gpu.name else f"GPU {gpu.index}"
        found += [name, *(f"{word} of {name}" for key, word in _GPU_FIGURES.items() if getattr(gpu, key) is not None)]  # fmt: skip
    return found + [f"port {port.name}" for port in view.ports]


def vanished(before: NodeView, after: NodeView) -> list[str]:
    """What a node told once and does not tell now; a GPU that is gone altogether is named without its figures."""
    now = set(told(after))
    missing = [text for text in dict.fromkeys([*before.missing, *told(before)]) if text not in now]
    return [text for text in missing if text.partition(" of ")[2] not in missing]

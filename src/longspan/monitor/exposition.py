"""The picture in Prometheus' text form: nodes, GPUs, ports, processes, replicas, alarms. Pure.

What is not known has no series, so that no panel draws a 0 that nobody measured. Labels are bounded by the deployment's size: no
pid and no text of a log is one.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from longspan.monitor.view import ClusterView, GpuView, LatencyView, NodeView, PortView, ReplicaView

Labels = dict[str, str]

# field of the view -> (metric's name, kind, help). Names end in their unit, as Prometheus wants them.
_GPU = {
    "memory_total_bytes": "Memory of the GPU.", "memory_used_bytes": "Memory in use, as the driver says.",
    "weights_bytes": "Memory of the rank's weights, as the engine said.", "kv_bytes": "Memory of the rank's KV cache.",
    "other_bytes": "Memory in use beside weights and KV cache.",
    "utilisation_share": "Share of time in which a kernel ran (0 to 1).", "power_watts": "Power drawn.",
    "power_limit_watts": "Power limit that is enforced.", "temperature_celsius": "Temperature of the GPU.",
    "sm_clock_mhz": "SM clock.", "ecc_uncorrected": "Uncorrectable memory errors since the driver was loaded.",
    "ecc_corrected": "Corrected memory errors since the driver was loaded.", "xid": "The last Xid error.",
    "nvlink_up": "NVLinks that are up.", "nvlink_down": "NVLinks that are down.",
    "nvlink_rx_bytes_per_second": "Received over NVLink.", "nvlink_tx_bytes_per_second": "Sent over NVLink.",
}  # fmt: skip
_PORT = {
    "rx_bytes_per_second": "Received.", "tx_bytes_per_second": "Sent.", "drops_per_second": "Dropped packets.",
    "errors_per_second": "Errors.", "up": "1 if there is a link.",
}  # fmt: skip
_NODE = {
    "age_seconds": "Age of the node's last telemetry.", "clock_skew_seconds": "Its clock minus the controller's.",
    "cpu_share": "Share of all cores that is busy (0 to 1).", "load_1min": "Load over the last minute.",
    "ram_total_bytes": "Memory.", "ram_used_bytes": "Memory in use, caches left out.",
    "shm_total_bytes": "Size of /dev/shm.", "shm_used_bytes": "In use of /dev/shm.",
}  # fmt: skip
_DISK = {"used_bytes": "In use of a file system.", "total_bytes": "Size of a file system."}
_REPLICA = {
    "age_seconds": "Age of the engine's last metrics.", "running": "Requests in the batch.",
    "waiting": "Requests that wait in the engine.", "kv_use_share": "Use of the fullest KV cache (0 to 1).",
    "kv_tokens": "Tokens that the KV cache holds.", "prompt_tokens_per_second": "Prompt tokens computed.",
    "generation_tokens_per_second": "Tokens generated.", "requests_per_second": "Requests that ended.",
    "prefix_hit_share": "Share of prompt tokens out of the prefix cache (0 to 1).",
    "preemptions_per_second": "Preemptions.",
}  # fmt: skip
_GATEWAY = {
    "overflow_share": "Share of the last minute's requests that providers served (0 to 1).",
    "failed_share": "Share of the last minute's requests that failed (0 to 1).",
    "outside_usd_per_hour": "What providers cost now.",
}  # fmt: skip
_LATENCIES = ("ttft", "tpot", "queue", "prefill")


@dataclass(slots=True)
class _Text:
    """Families in the order in which they were begun, each with its samples."""

    families: dict[str, tuple[str, list[str]]] = field(default_factory=dict)

    def add(self, name: str, text: str, labels: Labels, value: float | None) -> None:
        if value is None or not math.isfinite(value):
            return
        inner = ",".join(f'{key}="{_escape(one)}"' for key, one in labels.items())
        number = int(value) if value == int(value) else float(value)
        self.families.setdefault(name, (text, []))[1].append(f"{name}{{{inner}}} {number!r}")

    def add_all(self, prefix: str, table: dict[str, str], item: Any, labels: Labels) -> None:
        for name, text in table.items():
            self.add(f"{prefix}_{name}", text, labels, getattr(item, name))

    def lines(self) -> Iterator[str]:
        for name, (text, samples) in self.families.items():
            yield f"# HELP {name} {text}"
            yield f"# TYPE {name} gauge"
            yield from samples


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def render(view: ClusterView) -> str:
    """The text of `/metrics`."""
    out = _Text()
    out.add(
        "longspan_up",
        "1 while the deployment serves.",
        {"deployment": view.name},
        int(view.phase == "serving"),
    )
    for node in view.nodes:
        _node(out, node)
    for replica in view.replicas:
        _replica(out, replica)
    out.add_all("longspan_traffic", _GATEWAY, view.gateway, {})
    out.add("longspan_alarms", "Alarms that stand.", {}, len(view.alarms))
    for alarm in view.alarms:
        found = alarm.finding
        labels = {"cause": found.cause, "severity": found.severity, "subject": found.subject}
        out.add("longspan_alarm", "1 for each alarm that stands.", labels, 1)
    return "\n".join(out.lines()) + "\n"


def _node(out: _Text, node: NodeView) -> None:
    labels = {"node": node.name}
    out.add("longspan_node_up", "1 if its telemetry is fresh.", labels, int(node.state == "up"))
    out.add_all("longspan_node", _NODE, node, labels)
    out.add("longspan_node_cpus", "Cores.", labels, node.cpu_count)
    for disk in node.disks:
        out.add_all("longspan_node_disk", _DISK, disk, {**labels, "path": disk.path})
    for gpu in node.gpus:
        out.add_all("longspan_gpu", _GPU, gpu, {**labels, **_gpu_labels(gpu)})
    for port in node.ports:
        own = {**labels, **_port_labels(port)}
        out.add_all("longspan_port", _PORT, port, own)
        rate = port.rate_bits_per_second
        out.add(
            "longspan_port_rate_bytes_per_second",
            "Rate of the link.",
            own,
            None if rate is None else rate / 8,
        )
    agent = next((p for p in node.processes if p.name == "agent"), None)
    if agent:
        out.add("longspan_agent_cpu_share", "CPU of the node's agent, of one core.", labels, agent.cpu_share)
        out.add(
            "longspan_agent_memory_bytes", "Resident memory of the node's agent.", labels, agent.rss_bytes
        )


def _gpu_labels(gpu: GpuView) -> Labels:
    rank = "" if gpu.rank is None else str(gpu.rank)
    return {
        "gpu": str(gpu.index),
        "uuid": gpu.uuid,
        "model": gpu.name,
        "replica": gpu.replica or "",
        "rank": rank,
    }


def _port_labels(port: PortView) -> Labels:
    return {"port": port.name, "kind": port.kind}


def _replica(out: _Text, replica: ReplicaView) -> None:
    labels = {"replica": replica.name}
    out.add("longspan_replica_serving", "1 if it gets traffic.", labels, int(replica.phase == "serving"))
    out.add_all("longspan_replica", _REPLICA, replica, labels)
    for name in _LATENCIES:
        found: LatencyView | None = getattr(replica, name)
        if found is None:
            continue
        out.add(
            f"longspan_replica_{name}_mean_seconds",
            f"Mean {name.upper()} over the last minute.",
            labels,
            found.mean_seconds,
        )
        for quantile, value in _quantiles(found):
            text = (
                f"{name.upper()} {quantile} over the last minute; none where only a bucket's bound is known."
            )
            out.add(f"longspan_replica_{name}_{quantile}_seconds", text, labels, value)


def _quantiles(found: LatencyView) -> Iterable[tuple[str, float]]:
    for quantile, one in (("p50", found.p50), ("p95", found.p95), ("p99", found.p99)):
        if one is not None and one.bound == "estimate":
            yield quantile, one.seconds

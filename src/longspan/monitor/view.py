"""The picture of the whole deployment at one moment: what `top`, the dashboard, alarms and exporters read. Pure.

None means "not known" (no such device, not read, too old), never 0: every reader prints it as n/a. A value whose source went
silent stays, with its age; who shows it shows the age too. Shares run from 0 to 1, rates are per second, sizes are in bytes.
"""

from dataclasses import dataclass
from typing import Any, Literal

from longspan.finding import Finding
from longspan.monitor.record import from_json, to_json

PortKind = Literal["netdev", "rdma"]
Bound = Literal["estimate", "below", "above"]
NodeState = Literal["up", "late", "silent", "unseen"]

# A sample this old is shown as old. Agents send one a second.
LATE_SECONDS = 3.0
SILENT_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU. `memory_used_bytes` is what the driver says; weights and KV are what the engine said of its rank there,
    other is the rest of what is used.

    Attributes:
        utilisation_share: the share of time in which a kernel ran. Not how much of the GPU it filled.
        throttled_by: why the clock is held down ("power cap", "thermal", ...); empty where nothing does, None where unknown.
        ecc_corrected, ecc_uncorrected: since the driver was loaded.
        xid: the last Xid error that the driver reported, None if none was.
        nvlink_down: links that should be up and are not.
        replica, rank: who works on it.
    """

    uuid: str
    index: int
    name: str
    vendor: str = "nvidia"
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    weights_bytes: int | None = None
    kv_bytes: int | None = None
    other_bytes: int | None = None
    utilisation_share: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttled_by: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    xid: int | None = None
    nvlink_rx_bytes_per_second: float | None = None
    nvlink_tx_bytes_per_second: float | None = None
    nvlink_up: int | None = None
    nvlink_down: int | None = None
    replica: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class PortView:
    """One network interface, or one port of an RDMA device ("mlx5_0/1"). RDMA bytes pass the interface's counters by.

    Attributes:
        up: whether there is a link. rate_bits_per_second: of the link.
        netdev: the interface that belongs to an RDMA port, where known.
        drops_per_second, errors_per_second: both directions.
        virtual: loopback, bridge, veth: nothing that leaves the machine.
    """

    name: str
    kind: PortKind
    up: bool | None = None
    rate_bits_per_second: float | None = None
    rx_bytes_per_second: float | None = None
    tx_bytes_per_second: float | None = None
    drops_per_second: float | None = None
    errors_per_second: float | None = None
    drops_total: int | None = None
    errors_total: int | None = None
    netdev: str = ""
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class DiskView:
    """A file system that matters to us: of the logs, the state or the checkpoint."""

    path: str
    used_bytes: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A process of ours on a node.

    Attributes:
        name: what it is: "agent", "launcher", "ray", "rank 3", ...
        cpu_share: of one core; above 1 with several threads.
        rss_bytes: resident, shared pages counted.
        gpu_memory_bytes: what the driver says it holds, on all GPUs together.
    """

    pid: int
    name: str
    rank: int | None = None
    cpu_share: float | None = None
    rss_bytes: int | None = None
    gpu_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node.

    Attributes:
        age_seconds: of the sample by the reader's clock, None where there never was one.
        clock_skew_seconds: its clock minus the controller's, half a round trip accurate; None where unknown.
        gpu_source: what the GPUs were read with, or why there is nothing ("no NVML on this machine").
        missing: what could be read before and cannot now, in words.
    """

    name: str
    address: str
    state: NodeState = "unseen"
    age_seconds: float | None = None
    clock_skew_seconds: float | None = None
    gpus: tuple[GpuView, ...] = ()
    gpu_source: str = ""
    ports: tuple[PortView, ...] = ()
    cpu_count: int | None = None
    cpu_share: float | None = None
    load_1min: float | None = None
    ram_total_bytes: int | None = None
    ram_used_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_used_bytes: int | None = None
    disks: tuple[DiskView, ...] = ()
    processes: tuple[ProcessView, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuantileView:
    """One quantile out of a histogram: an estimate within its bucket, or only that it lies below the first bucket's bound
    or above the last one's ("< 10 ms")."""

    seconds: float
    bound: Bound = "estimate"


@dataclass(frozen=True, slots=True)
class LatencyView:
    """A latency over the last minute or so; None where nothing was measured in it. The mean is exact (sum by count)."""

    count: float
    mean_seconds: float | None = None
    p50: QuantileView | None = None
    p95: QuantileView | None = None
    p99: QuantileView | None = None


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank of a replica; `pid` and `gpu_uuids` only as far as they were read back."""

    rank: int
    node: str
    tp_rank: int = 0
    pp_rank: int = 0
    pid: int | None = None
    gpu_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One engine group.

    Attributes:
        phase: "waiting", "loading", "serving", "suspected", "stopping", "failed", ...
        reason: why it gets no traffic although it runs, or why it failed; empty otherwise.
        age_seconds: of the engine's metrics; None where there never were any.
        kv_use_share: of the fullest data-parallel engine; kv_tokens: how many tokens its cache holds.
        prefix_hit_share: of the prompt tokens asked for lately; preemptions_per_second: over the last minute or so.
        missing: metrics that were there before and are not now.
    """

    name: str
    model: str = ""
    phase: str = "waiting"
    reason: str = ""
    nodes: tuple[str, ...] = ()
    ranks: tuple[RankView, ...] = ()
    age_seconds: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_use_share: float | None = None
    kv_tokens: int | None = None
    prompt_tokens_per_second: float | None = None
    generation_tokens_per_second: float | None = None
    requests_per_second: float | None = None
    ttft: LatencyView | None = None
    tpot: LatencyView | None = None
    queue: LatencyView | None = None
    prefill: LatencyView | None = None
    prefix_hit_share: float | None = None
    preemptions_total: float | None = None
    preemptions_per_second: float | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayView:
    """The front door.

    Attributes:
        age_seconds: of its figures; None where there never were any.
        waiting: requests held in it; running: requests at an upstream.
        overflow_share: of the requests that ended lately, those that a provider served; overflow_reasons since its start.
        *_usd: since its start.
    """

    address: str = ""
    age_seconds: float | None = None
    waiting: float | None = None
    running: float | None = None
    requests_per_second: float | None = None
    failed_share: float | None = None
    overflow_share: float | None = None
    overflow_reasons: tuple[str, ...] = ()
    outside_usd: float | None = None
    avoided_usd: float | None = None
    local_usd: float | None = None
    saved_usd: float | None = None
    outside_usd_per_hour: float | None = None
    ttft: LatencyView | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AlarmView:
    """A rule that fires: what it found, and since when by the controller's clock.

    Attributes:
        key: the rule and its subject, stable while the alarm stands.
    """

    key: str
    since_unix_seconds: float
    finding: Finding


@dataclass(frozen=True, slots=True)
class EventView:
    """Something that happened: an alarm came or went, a phase changed, a node fell silent.

    Attributes:
        number: counts up; a reader that comes back asks for those after the last it knows.
    """

    number: int
    at_unix_seconds: float
    kind: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Everything at one moment.

    Attributes:
        taken_at_unix_seconds: by the controller's clock.
        phase: of the deployment. unknown: what the picture no longer knows, in sentences for people.
    """

    name: str
    taken_at_unix_seconds: float
    phase: str = ""
    model: str = ""
    device: str = ""
    nodes: tuple[NodeView, ...] = ()
    replicas: tuple[ReplicaView, ...] = ()
    gateway: GatewayView = GatewayView()
    alarms: tuple[AlarmView, ...] = ()
    events: tuple[EventView, ...] = ()
    unknown: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The document that `/v1/view` gives; `from_json` reads it back."""
        document = to_json(self)
        assert isinstance(document, dict)
        return document

    @classmethod
    def from_json(cls, document: Any) -> "ClusterView":
        """The inverse of `to_json`.

        Raises:
            RecordError: it is not such a document.
        """
        return from_json(cls, document)


def node_state(age_seconds: float | None) -> NodeState:
    """What the age of its last sample says of a node."""
    if age_seconds is None:
        return "unseen"
    if age_seconds <= LATE_SECONDS:
        return "up"
    return "late" if age_seconds <= SILENT_SECONDS else "silent"

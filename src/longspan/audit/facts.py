"""What the audit looks at, as plain values. Whoever gathers them says what could not be seen, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field


def is_loopback(host: str) -> bool:
    """Whether what listens there is reached from its own machine only."""
    return host.startswith("127.") or host in ("::1", "localhost")


@dataclass(frozen=True, slots=True)
class Listener:
    """A TCP port that a process of the deployment has open.

    Attributes:
        address: what it is bound to; "0.0.0.0" and "::" are every address.
        answer: the HTTP status of a request without a key, from where the audit runs; 0 where it is no HTTP server;
            None where nothing answered or nobody asked.
    """

    node: str
    address: str
    port: int
    process: str
    answer: int | None = None

    @property
    def outside(self) -> bool:
        """Whether others than the node itself can reach it."""
        return not is_loopback(self.address)


@dataclass(frozen=True, slots=True)
class SecretSeen:
    """A secret where other users of the machine can read it; its value is not kept."""

    node: str
    process: str
    where: str  # "argv" or "environment"
    name: str  # of the flag or variable


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the engine counted since it started.

    Attributes:
        longest_tokens: a bound from above on prompt and answer of the longest request, out of its histograms.
        kv_peak: the share of the KV cache in use when it was looked at.
    """

    requests: int
    longest_tokens: int
    max_model_len: int
    preemptions: int
    kv_used: float


@dataclass(frozen=True, slots=True)
class Facts:
    """One deployment.

    Attributes:
        versions: node -> package -> version.
        proof: its verdict; unproved: the layers of it that were skipped -> why.
        rank_nodes: the node of each rank, in rank order.
        networks: node -> "infiniband", "roce", "ethernet", out of the cluster file; empty where it does not say.
        keyless_answer: the gateway's HTTP status for a request without a key.
        uncounted: replicas of which the gateway does not tell how many requests they hold; None where it was not asked.
        uncollected: what gives Prometheus no metrics ("nodes", "gateway", a replica) -> why; None where nobody was asked.
        licence: the model's, in its own words; None where the checkpoint does not say.
        unseen: what could not be looked at -> why. Keys are a fact's name, or "fact:node".
    """

    name: str
    phase: str
    listen: str
    tls: bool
    tp: int
    pp: int
    joined_ray: bool
    proof: str
    versions: Mapping[str, Mapping[str, str | None]]
    rank_nodes: tuple[str, ...]
    networks: Mapping[str, str]
    listeners: tuple[Listener, ...] = ()
    secrets: tuple[SecretSeen, ...] = ()
    key_file_mode: int | None = None
    keyless_answer: int | None = None
    replicas: int = 1
    providers: int = 0
    unproved: Mapping[str, str] = field(default_factory=dict)
    uncounted: tuple[str, ...] | None = None
    uncollected: Mapping[str, str] | None = None
    traffic: Traffic | None = None
    licence: str | None = None
    vllm_arguments: tuple[str, ...] = ()
    unseen: Mapping[str, str] = field(default_factory=dict)

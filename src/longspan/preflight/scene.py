"""What the checks look at: all that was seen of all nodes, and what is planned on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from longspan.preflight.facts import NodeFacts


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the cluster file or a plan says of a node.

    Attributes:
        gpus: how many it should have; 0 for a head without.
        env: variables that the user set for it.
        ssh: what one types after ssh; None for this machine.
        interface, hcas: the NIC and RDMA devices that the file names; empty where it names none.
        network_kind: infiniband, roce or ethernet, "" where the file does not say; `rate_bits_per_second` of all its
            NICs together, 0 where it does not say.
    """

    name: str
    address: str
    gpus: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    ssh: str | None = None
    python: str = "python3"
    interface: str = ""
    hcas: tuple[str, ...] = ()
    network_kind: str = ""
    rate_bits_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class PortTrial:
    """One connection between two nodes. `error` is empty where data went both ways; `stage` is where it stopped."""

    port: int
    error: str = ""
    stage: str = ""
    peer_seen: str = ""


@dataclass(frozen=True, slots=True)
class PairFacts:
    """What one node (`source`) saw when it tried another.

    Attributes:
        ports: fixed and random ones.
        mtu: the largest packet that came through uncut, 0 for none, -1 where it was not tried; `nic_mtu` the source's own.
    """

    source: str
    target: str
    ports: tuple[PortTrial, ...]
    mtu: int = -1
    nic_mtu: int = 0


@dataclass(frozen=True, slots=True)
class GroupResult:
    """A collective of several nodes.

    Attributes:
        errors: node -> what a member on it said; empty where all went well.
        wrong: node -> what was wrong with a result.
    """

    nodes: tuple[str, ...]
    backend: str
    errors: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, str] = field(default_factory=dict)
    latency_seconds: float = 0.0
    bus_bytes_per_second: float = 0.0
    hop_seconds: float = 0.0
    hop_bytes_per_second: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every member finished with right sums."""
        return not self.errors and not self.wrong


@dataclass(frozen=True, slots=True)
class RailTrial:
    """An RDMA write from one node's port into the memory of another.

    Attributes:
        source_port, target_port: device and number, "mlx5_0:1".
        rate_bits_per_second: of the slower of the two ports.
        is_crossing: whether the two are of different rails.
        bits_per_second: reached; 0 where `error` says what went wrong.
    """

    source: str
    source_port: str
    target: str
    target_port: str
    rate_bits_per_second: float
    is_crossing: bool = False
    bits_per_second: float = 0.0
    error: str = ""

    def with_error(self, error: str) -> "RailTrial":
        """The same trial, failed."""
        return replace(self, error=error)

    def with_speed(self, bits_per_second: float) -> "RailTrial":
        """The same trial, done."""
        return replace(self, bits_per_second=bits_per_second)


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable for one node: its value, why, and whose it is ("user" values are never changed)."""

    variable: str
    value: str
    why: str
    origin: str = "compiled"


@dataclass(frozen=True, slots=True)
class Reservation:
    """A placement group that Longspan made in a Ray that is joined.

    Attributes:
        deployment: whose it is, by its name.
        nodes: addresses of those where it holds GPUs.
        driver: address of the host whose launcher made it, "" where Ray does not say; driver_lives: whether that still runs.
        controlled: whether its deployment has a controller on this machine.
        release: the command that gives it back.
    """

    name: str
    deployment: str
    gpus: int
    nodes: tuple[str, ...]
    driver: str
    driver_lives: bool
    controlled: bool
    release: str


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a check may look at.

    Attributes:
        taken: node -> port -> why it could not be listened on.
        own_ray: whether Longspan starts Ray itself, on `ray_ports` (first, last) of each node; (0, 0) for none.
        model: directory or id, None where none was named; `weights_bytes` 0 where not known.
        tp: 0 where no layout is known. device: what the engine will run on; empty where that is not planned yet.
        digests_follow: whether copies of the model are compared by digests next.
        reservations: of Longspan's deployments in a Ray that is joined; None where it is not, or was not asked.
        no_pairs, no_collective, no_rails: why these were not tried; empty where they were.
    """

    wanted: tuple[Wanted, ...]
    nodes: tuple[NodeFacts, ...]
    environment: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    pairs: tuple[PairFacts, ...] = ()
    taken: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    groups: tuple[GroupResult, ...] = ()
    own_ray: bool = True
    ray_ports: tuple[int, int] = (0, 0)
    model: str | None = None
    weights_bytes: int = 0
    tp: int = 0
    vllm_arguments: tuple[str, ...] = ()
    device: str = ""
    digests_follow: bool = False
    reservations: tuple[Reservation, ...] | None = None
    no_pairs: str = ""
    no_collective: str = ""
    rails: tuple[RailTrial, ...] = ()
    no_rails: str = "the collective, which they come after, was not tried"

    @property
    def answering(self) -> tuple[NodeFacts, ...]:
        """The nodes of which anything is known."""
        return tuple(node for node in self.nodes if node.answered)

    @property
    def workers(self) -> tuple[NodeFacts, ...]:
        """Those of them that are to hold ranks: all but a head without GPU."""
        heads = {one.name for one in self.wanted if one.gpus == 0}
        return tuple(node for node in self.answering if node.name not in heads) or self.answering

    @property
    def has_gpus(self) -> bool:
        """Whether ranks will run on NVIDIA GPUs: they are planned to, or no device is planned and a driver lists some."""
        return self.device == "cuda" or (not self.device and any(node.gpus for node in self.nodes))

    def want(self, name: str) -> Wanted:
        """What is planned on a node."""
        return next(one for one in self.wanted if one.name == name)

    def peers(self, name: str) -> tuple[Wanted, ...]:
        """The other nodes."""
        return tuple(one for one in self.wanted if one.name != name)

    def value(self, node: str, variable: str) -> str:
        """What a variable will be on a node; empty where nobody sets it."""
        return next((one.value for one in self.environment.get(node, ()) if one.variable == variable), "")

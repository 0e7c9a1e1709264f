"""Deployment: what is wanted, as one frozen document that the controller keeps on disk and agents never see whole."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from longspan.cluster.container import Container

Executor = Literal["ray", "mp"]
Device = Literal["cpu", "cuda", "rocm"]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node of the deployment.

    Attributes:
        address: the IP address by which the other nodes reach it, and by which Ray knows it.
        gpus: how many GPUs it offers; on a machine without any, how many ranks it is declared to hold.
        ssh: what one would type after `ssh` to reach it; None for this machine.
        python: the interpreter that has Longspan and the engine there.
        env: variables set for everything started on this node (network interface, HCA, …).
        gpu_ids: the devices Ray may use there; empty means all.
        slurm: the allocation that a job step on it names: "42", or "42+1" in a heterogeneous job; None elsewhere.
        container: what everything of ours runs in there; None for none.
    """

    name: str
    address: str
    gpus: int
    ssh: str | None = None
    python: str = "python3"
    env: dict[str, str] = field(default_factory=dict)
    gpu_ids: tuple[int, ...] = ()
    slurm: str | None = None
    container: Container | None = None

    @property
    def is_here(self) -> bool:
        """Whether it is this machine, as far as the way to reach it tells."""
        return self.ssh is None and self.slurm is None


# Ports that each of our Ray's nodes has, as `ray start` names them.
_NODE_PORTS = (
    "node-manager-port", "object-manager-port", "runtime-env-agent-port", "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port", "metrics-export-port",
)  # fmt: skip
_JOINS_AGAIN = 8


@dataclass(frozen=True, slots=True)
class RayPorts:
    """The ports of our Ray on each host, one block that a firewall can name (docs/check.md has the table).

    Outside the kernel's usual ephemeral range (32768 to 60999), so that no outgoing connection takes one of them.
    """

    first: int = 20100
    span: int = 500

    @property
    def last(self) -> int:
        """The last of the block."""
        return self.first + self.span - 1

    @property
    def gcs(self) -> int:
        """Ray's head, where the other nodes join."""
        return self.first

    @property
    def workers(self) -> tuple[int, int]:
        """First and last port of Ray's workers."""
        return self.first + 10, self.again - 1

    @property
    def again(self) -> int:
        """The first of those for nodes that join again after they were lost."""
        return self.last + 1 - _JOINS_AGAIN * len(_NODE_PORTS)

    def flags(self, start: int = 1) -> tuple[str, ...]:
        """`ray start`'s flags for every node; the head's own two come beside them.

        Args:
            start: from 2 on of a node that was lost. Its ports are others than those of the last eight such starts: what Ray's head
                still sends to an address that died while the link was cut would be lost for up to two minutes, with the GPUs that
                it had meant to reserve (seen with Ray 2.60).
        """
        base = self.first + 2
        if start > 1:
            base = self.again + (start - 2) % _JOINS_AGAIN * len(_NODE_PORTS)
        fixed = tuple(f"--{name}={base + index}" for index, name in enumerate(_NODE_PORTS))
        low, high = self.workers
        return (*fixed, f"--min-worker-port={low}", f"--max-worker-port={high}")

    @property
    def client_server(self) -> int:
        """Ray's client server, on the head."""
        return self.first + 1

    @property
    def tried(self) -> tuple[int, ...]:
        """What a pre-flight tries between nodes: head, node manager, object manager, first worker, a node that joins again."""
        return (self.gcs, self.first + 2, self.first + 3, self.workers[0], self.again)


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """What the user wants to be true: replicas of one model on named nodes.

    Attributes:
        identity: a digest of all that `up` was asked for; `up` twice with the same one changes nothing.
        model: the checkpoint directory, or the Hugging Face id that vLLM resolves on each node.
        revision: of a Hugging Face id.
        ray_address: of a Ray that already runs, which is joined; None to start our own.
        vllm_arguments: what stood after `--`, handed on unchanged.
        listen: "host:port" of the gateway.
        full_digest: read whole files for the digests, whatever their size.
        ray_first_port: the first of Ray's fixed ports (`RayPorts`); None for free ones, where nodes share a machine.
        gateway_extra: tables that the user adds to the gateway's file, as TOML.
        ray_head: a node without ranks that runs Ray's head; None for the node of rank 0.
        replicas: how many are wanted at the start.
        autoscale_least: of them, if the queue is to decide how many there are; 0: it is not.
        autoscale_queue_seconds: how long a request may wait before another replica is started.
        standby_node: the node that runs a second gateway; empty for none. standby_listen: its address.
        placement: replica -> rank -> node's name, for as many as `scale` may start; empty for a single one.
    """

    name: str
    identity: str
    model: str
    served_name: str
    tp: int
    pp: int
    executor: Executor
    device: Device
    nodes: tuple[NodeSpec, ...]
    listen: str
    revision: str | None = None
    ray_address: str | None = None
    vllm_arguments: tuple[str, ...] = ()
    full_digest: bool = False
    ray_first_port: int | None = None
    ray_head: NodeSpec | None = None
    gateway_extra: str = ""
    replicas: int = 1
    autoscale_least: int = 0
    autoscale_queue_seconds: float = 0.0
    standby_node: str = ""
    standby_listen: str = ""
    placement: tuple[tuple[str, ...], ...] = ()

    @property
    def world_size(self) -> int:
        """How many ranks one replica has."""
        return self.tp * self.pp

    @property
    def joins_ray(self) -> bool:
        """Whether Ray is somebody else's, which we only joined."""
        return bool(self.ray_address)

    @property
    def max_replicas(self) -> int:
        """For how many the nodes were taken and checked."""
        return len(self.placement) or 1

    def rank_nodes(self) -> tuple[NodeSpec, ...]:
        """The node of each rank, replica by replica, each stage by stage (rank = PP rank x TP + TP rank).

        A single replica without a placement fills the nodes in their order.
        """
        if self.placement:
            by_name = {node.name: node for node in self.nodes}
            return tuple(by_name[name] for names in self.placement for name in names)
        slots = [node for node in self.nodes for _ in range(node.gpus)]
        return tuple(slots[: self.world_size])

    def of_replica(self, number: int) -> "DeploymentSpec":
        """What one replica sees: itself alone, on the GPUs that are its own.

        Raises:
            IndexError: there is no place for it.
        """
        if not self.placement:
            return self
        names = self.placement[number]
        own = {name: names.count(name) for name in names}
        by_name = {node.name: node for node in self.nodes}
        nodes = tuple(replace(by_name[name], gpus=count) for name, count in own.items())
        return replace(self, nodes=nodes, replicas=1, placement=(names,))

    def used_nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes that hold at least one rank."""
        return tuple({node.name: node for node in self.rank_nodes()}.values())

    def ray_nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes of our Ray, its head first."""
        return self.used_nodes() if self.ray_head is None else (self.ray_head, *self.used_nodes())

    def to_json(self) -> dict[str, Any]:
        """A plain document; `from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "DeploymentSpec":
        """The inverse of `to_json`."""
        nodes = tuple(_node(node) for node in document["nodes"])
        head = document.get("ray_head")
        placement = tuple(tuple(names) for names in document.get("placement", ()))
        whole = {"nodes": nodes, "vllm_arguments": tuple(document["vllm_arguments"]), "placement": placement}
        return cls(**{**document, **whole, "ray_head": _node(head) if head else None})


def _node(document: dict[str, Any]) -> NodeSpec:
    container = Container.from_json(document["container"]) if document.get("container") else None
    return NodeSpec(**{**document, "gpu_ids": tuple(document["gpu_ids"]), "container": container})

"""Deployment: what is wanted, as one frozen document that the controller keeps on disk and agents never see whole."""

from collections.abc import Sequence
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
        return self.first + 10, self.last

    def flags(self) -> tuple[str, ...]:
        """`ray start`'s flags for every node; the head's own two come beside them."""
        names = (
            "node-manager-port", "object-manager-port", "runtime-env-agent-port", "dashboard-agent-listen-port",
            "dashboard-agent-grpc-port", "metrics-export-port",
        )  # fmt: skip
        fixed = tuple(f"--{name}={self.first + 2 + index}" for index, name in enumerate(names))
        low, high = self.workers
        return (*fixed, f"--min-worker-port={low}", f"--max-worker-port={high}")

    @property
    def client_server(self) -> int:
        """Ray's client server, on the head."""
        return self.first + 1

    @property
    def tried(self) -> tuple[int, ...]:
        """What a pre-flight tries between nodes: head, node manager, object manager, first worker."""
        return (self.gcs, self.first + 2, self.first + 3, self.workers[0])


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
        replicas: how many are wanted at the start; max_replicas: for how many `scale` finds checked nodes.
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
    max_replicas: int = 1

    @property
    def world_size(self) -> int:
        """How many ranks one replica has."""
        return self.tp * self.pp

    @property
    def joins_ray(self) -> bool:
        """Whether Ray is somebody else's, which we only joined."""
        return bool(self.ray_address)

    def rank_nodes(self) -> tuple[NodeSpec, ...]:
        """The node of each rank, replica by replica, each stage by stage (rank = PP rank x TP + TP rank)."""
        return tuple(node for slots in self.replica_slots() for node in slots)

    def replica_slots(self) -> tuple[tuple[NodeSpec, ...], ...]:
        """The node of each rank of each replica; what the nodes have no room for is left out."""
        return replica_slots(self.nodes, self.world_size, self.max_replicas)

    def of_replica(self, number: int) -> "DeploymentSpec":
        """What one replica sees: itself alone, on the GPUs that are its own.

        Raises:
            IndexError: there is no room for it.
        """
        slots = self.replica_slots()[number]
        own = {node.name: node for node in slots}
        nodes = tuple(
            replace(node, gpus=sum(one.name == node.name for one in slots)) for node in own.values()
        )
        return replace(self, nodes=nodes, replicas=1, max_replicas=1)

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
        whole = {"nodes": nodes, "vllm_arguments": tuple(document["vllm_arguments"])}
        return cls(**{**document, **whole, "ray_head": _node(head) if head else None})


def replica_slots(
    nodes: Sequence[NodeSpec], world_size: int, replicas: int
) -> tuple[tuple[NodeSpec, ...], ...]:
    """Where the ranks of each replica go. A single one fills the nodes in their order; of several, each stays on one node
    where it can, so that no more of them than needed cross a network or fall with a host.

    Returns:
        replica -> rank -> node; as many replicas as there is room for.
    """
    free = {node.name: node.gpus for node in nodes}
    found: list[tuple[NodeSpec, ...]] = []
    for _ in range(replicas):
        whole = next((node for node in nodes if free[node.name] >= world_size), None)
        if replicas > 1 and whole is not None:
            slots = [whole] * world_size
        else:
            slots = [node for node in nodes for _ in range(free[node.name])][:world_size]
        # A single one is judged by who asked for it: fewer GPUs than ranks is an error with words of its own.
        if len(slots) < world_size and replicas > 1:
            break
        for node in slots:
            free[node.name] -= 1
        found.append(tuple(slots))
    return tuple(found)


def _node(document: dict[str, Any]) -> NodeSpec:
    container = Container.from_json(document["container"]) if document.get("container") else None
    return NodeSpec(**{**document, "gpu_ids": tuple(document["gpu_ids"]), "container": container})

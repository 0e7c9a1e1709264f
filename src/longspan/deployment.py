"""Deployment: what is wanted, as one frozen document that the controller keeps on disk and agents never see whole."""

from dataclasses import asdict, dataclass, field
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
class DeploymentSpec:
    """What the user wants to be true: one replica of one model on named nodes.

    Attributes:
        identity: a digest of all that `up` was asked for; `up` twice with the same one changes nothing.
        model: the checkpoint directory, or the Hugging Face id that vLLM resolves on each node.
        revision: of a Hugging Face id.
        ray_address: of a Ray that already runs, which is joined; None to start our own.
        vllm_arguments: what stood after `--`, handed on unchanged.
        listen: "host:port" of the gateway.
        full_digest: read whole files for the digests, whatever their size.
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

    @property
    def world_size(self) -> int:
        """How many ranks one replica has."""
        return self.tp * self.pp

    def rank_nodes(self) -> tuple[NodeSpec, ...]:
        """The node of each rank: stage by stage (rank = PP rank x TP + TP rank), nodes filled in their order."""
        slots = [node for node in self.nodes for _ in range(node.gpus)]
        return tuple(slots[: self.world_size])

    def used_nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes that hold at least one rank."""
        return tuple({node.name: node for node in self.rank_nodes()}.values())

    def to_json(self) -> dict[str, Any]:
        """A plain document; `from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "DeploymentSpec":
        """The inverse of `to_json`."""
        nodes = tuple(_node(node) for node in document["nodes"])
        return cls(**{**document, "nodes": nodes, "vllm_arguments": tuple(document["vllm_arguments"])})


def _node(document: dict[str, Any]) -> NodeSpec:
    container = Container.from_json(document["container"]) if document.get("container") else None
    return NodeSpec(**{**document, "gpu_ids": tuple(document["gpu_ids"]), "container": container})

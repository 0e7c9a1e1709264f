"""What `up` was asked for, as it was typed."""

from dataclasses import dataclass
from pathlib import Path

from longspan.deployment import Device, Executor


@dataclass(frozen=True, slots=True)
class Request:
    """The command line of `up`; None where the user left a choice to us."""

    model: str | None
    tp: int | None
    pp: int | None
    nodes: int | None
    cluster: Path | None
    executor: Executor | None
    name: str
    served_name: str | None
    listen: str
    revision: str | None
    full_digest: bool
    vllm_arguments: tuple[str, ...]
    plan: Path | None = None
    replica: str | None = None
    gpus_per_node: int | None = None
    ray: str | None = None
    ray_wait_seconds: int = 0
    device: Device | None = None
    gateway: Path | None = None
    replicas: int | None = None
    max_replicas: int | None = None
    autoscale: tuple[int, int, float] | None = None

    @property
    def slots(self) -> int:
        """For how many replicas nodes are taken."""
        return max(self.replicas or 1, self.max_replicas or 1)

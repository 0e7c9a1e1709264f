"""What `up` was asked for, as it was typed."""

import re
from dataclasses import dataclass
from pathlib import Path

from longspan.deployment import Device, Executor
from longspan.errors import InputError
from longspan.launch.autoscale import DEFAULT_QUEUE_SECONDS


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
    standby_gateway: str | None = None

    @property
    def slots(self) -> int:
        """For how many replicas nodes are taken."""
        return max(self.replicas or 1, self.max_replicas or 1)


def parse_autoscale(
    text: str | None, replicas: int | None, max_replicas: int | None
) -> tuple[int, int, float] | None:
    """What `--autoscale` says: least and most replicas, and seconds of queue.

    Raises:
        InputError: it cannot be read, makes no sense, or says the same as another option.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,4}):(\d{1,4})(?::(\d+(?:\.\d+)?)s?)?", text)
    least, most, seconds = (
        (int(match[1]), int(match[2]), float(match[3] or DEFAULT_QUEUE_SECONDS)) if match else (0, 0, 0.0)
    )
    if not 1 <= least < most or not 0 < seconds < 3600:
        raise InputError(
            f"--autoscale {text!r} is no range of replicas.",
            "Write MIN:MAX or MIN:MAX:SECONDS, such as 1:4 or 2:8:3.",
        )
    if replicas is not None or max_replicas is not None:
        raise InputError(
            "--autoscale says how many replicas there are.", "Leave --replicas and --max-replicas out."
        )
    return least, most, seconds

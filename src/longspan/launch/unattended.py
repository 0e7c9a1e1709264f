"""A model to be served where nobody types: the `longspan up` that a batch script or a pod runs. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from longspan.plan import Replica


@dataclass(frozen=True, slots=True)
class Serving:
    """What is to be served, without the names of nodes: a scheduler chooses those.

    Attributes:
        gpus: how many GPUs of each node, in the order of the ranks.
        environment: variables of every rank, the same on all nodes.
        vllm_arguments: what stands after `--`.
    """

    name: str
    model: str
    tp: int
    pp: int
    executor: str
    gpus: tuple[int, ...]
    served_name: str | None = None
    revision: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    vllm_arguments: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """(nodes, GPUs of each) of neighbours that are alike."""
        return tuple((len(list(members)), count) for count, members in groupby(self.gpus))


def of_replica(name: str, model: str, replica: Replica, vllm_arguments: Sequence[str]) -> Serving:
    """A plan's replica, its nodes forgotten but for their sizes.

    Args:
        vllm_arguments: all of them, the plan's own included.
    """
    gpus = tuple(sum(place.node == node for place in replica.places) for node in replica.nodes)
    environment = dict(replica.environment)
    if split := replica.layout.partition:
        environment["VLLM_PP_LAYER_PARTITION"] = ",".join(map(str, split))
    executor = "mp" if replica.executor == "mp" else "ray"
    return Serving(
        name, model, replica.layout.tp, replica.layout.pp, executor, gpus,
        environment=tuple(environment.items()), vllm_arguments=tuple(vllm_arguments),
    )  # fmt: skip


def up_words(serving: Serving, *, listen: str, more: Sequence[str] = ()) -> list[str]:
    """`longspan up …` in the foreground: it ends when the deployment does, and takes it down on SIGTERM."""
    words = [
        "up", serving.model, "--tp", str(serving.tp), "--pp", str(serving.pp), "--executor", serving.executor,
        "--name", serving.name, "--listen", listen, "--foreground", *more,
    ]  # fmt: skip
    for flag, value in (("--served-name", serving.served_name), ("--revision", serving.revision)):
        words += [flag, value] if value else []
    return [*words, "--", *serving.vllm_arguments] if serving.vllm_arguments else words

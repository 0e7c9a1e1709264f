"""A saved plan -> what `up` launches of it: its replicas, their vLLM arguments, nodes and GPUs."""

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from longspan.cli.request import Request
from longspan.cluster.hosts import HostsFile
from longspan.deployment import Executor, NodeSpec
from longspan.errors import CapacityError, InputError, PlanFileError
from longspan.launch.owned_flags import refuse_owned_flags
from longspan.plan import Plan, Replica
from longspan.planner.plan_file import parse_plan

LOCAL = NodeSpec("node-1", "127.0.0.2", 1, python=sys.executable)
# What `up` knows better than the plan: the launcher sets it from the address in the cluster file.
_SET_AT_LAUNCH = frozenset({"VLLM_HOST_IP"})


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """What is launched of a saved plan.

    Attributes:
        replica: the first. others: like it but for their places.
        source: the file, for errors.
    """

    plan: Plan
    replica: Replica
    source: str
    others: tuple[Replica, ...] = ()

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """All of them."""
        return (self.replica, *self.others)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that they stand on, in the order of their ranks."""
        return tuple(dict.fromkeys(name for replica in self.replicas for name in replica.nodes))

    def placement(self, nodes: Sequence[NodeSpec]) -> tuple[tuple[str, ...], ...]:
        """Replica -> rank -> node; empty for a single one, which fills its nodes in their order.

        Args:
            nodes: what its nodes are, in the order of `self.nodes`: this machine has a name of its own.
        """
        if not self.others:
            return ()
        called = {name: node.name for name, node in zip(self.nodes, nodes, strict=True)}
        return tuple(tuple(called[place.node] for place in replica.places) for replica in self.replicas)

    @property
    def executor(self) -> Executor:
        """The plan's; a single GPU needs none of its own, and gets the one that `up` uses by default."""
        return "mp" if self.replica.executor == "mp" else "ray"


def with_plan(request: Request) -> tuple[Request, PlanChoice | None]:
    """The request with what a saved plan says filled in, and the replica that was chosen; unchanged without --plan.

    Raises:
        InputError, PlanFileError, CapacityError: see `read_choice`; or options that say the same as a plan.
    """
    if request.plan is None:
        if request.replica is not None:
            raise InputError(
                "--replica picks one of a plan's replicas, and there is no plan.", "Give --plan FILE."
            )
        return request, None
    said = {
        "MODEL": request.model, "--tp": request.tp, "--pp": request.pp, "--nodes": request.nodes,
        "--executor": request.executor, "--replicas": request.replicas, "--max-replicas": request.max_replicas,
    }  # fmt: skip
    given = [name for name, value in said.items() if value is not None]
    if given:
        raise InputError(
            f"--plan says the model and the layout, and so {'does' if len(given) == 1 else 'do'} {', '.join(given)}.",
            "Leave one of the two out.",
        )
    choice = read_choice(request.plan, request.replica, several=True)
    arguments = (*vllm_arguments(choice.replica), *request.vllm_arguments)
    changed = replace(request, model=choice.plan.model, executor=choice.executor, vllm_arguments=arguments)
    return changed, choice


def read_choice(path: Path, wanted: str | None, *, several: bool = False) -> PlanChoice:
    """The replica `wanted` of the plan in a file; without a wish, its only one, or with `several` all of them.

    Raises:
        InputError: the file, or no such replica. PlanFileError: it is no plan. CapacityError: more than can be launched.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise PlanFileError(f"{path}: This is no plan file: it is not text (UTF-8).") from error
    try:
        plan = parse_plan(text)
    except PlanFileError as error:
        raise PlanFileError(f"{path}: {error.what}", error.remedy) from error
    names = [wanted]
    if several and wanted is None and len(plan.replicas) > 1:
        names = [replica.name for replica in plan.replicas]
    first, *others = (choose(plan, name, str(path)) for name in names)
    for other in others:
        if replace(other, name=first.name, places=first.places) != first:
            raise CapacityError(
                f"Replicas {first.name} and {other.name} of {path} differ in more than their places; one deployment launches"
                " replicas that are alike.",
                f"Launch each by itself, such as --replica {first.name} --name {first.name}.",
            )
    refuse_owned_flags(first.arguments)
    return PlanChoice(plan, first, str(path), tuple(others))


def choose(plan: Plan, wanted: str | None, source: str) -> Replica:
    """One replica of the plan that can be launched as it is.

    Raises:
        InputError: no replica of this name. CapacityError: several replicas and no wish, DP, or ranks that jump between nodes.
    """
    names = [replica.name for replica in plan.replicas]
    if not names:
        raise InputError(f"{source} has no replica.", "Write it again with `longspan plan --save FILE`.")
    if wanted is not None and wanted not in names:
        raise InputError(f"{source} has no replica {wanted!r}.", f"It has {', '.join(names)}.")
    if wanted is None and len(names) > 1:
        raise CapacityError(
            f"{source} has {len(names)} replicas ({', '.join(names)}); this takes one.",
            f"Pick one of them, such as --replica {names[0]}.",
        )
    replica = next(one for one in plan.replicas if wanted in (None, one.name))
    if replica.layout.dp > 1:
        raise CapacityError(
            f"Replica {replica.name} of {source} is {replica.layout}; data-parallel groups are not launched yet.",
            "Pick another one with --replica, or plan one with DP 1.",
        )
    order = [place.node for place in replica.places]
    if order != [node for node in replica.nodes for _ in range(order.count(node))]:
        raise CapacityError(
            f"The ranks of replica {replica.name} of {source} go back to a node after leaving it"
            f" ({' '.join(order)}); ranks are placed node by node.",
            "Put the places of each node next to each other.",
        )
    return replica


def vllm_arguments(replica: Replica) -> tuple[str, ...]:
    """What vLLM is told beside TP, PP and executor; a value of 0 or 1 leaves its default."""
    words: list[str] = []
    if replica.layout.dcp > 1:
        words += ["--decode-context-parallel-size", str(replica.layout.dcp)]
    if replica.layout.ep:
        words.append("--enable-expert-parallel")
    if replica.max_model_len:
        words += ["--max-model-len", str(replica.max_model_len)]
    if replica.max_num_seqs:
        words += ["--max-num-seqs", str(replica.max_num_seqs)]
    return (*words, *replica.arguments)


def needed_hosts(choice: PlanChoice, hosts: HostsFile) -> HostsFile:
    """The cluster file without the hosts that the replica does not stand on, in the order of its ranks.

    Raises:
        InputError: a node of the replica is not in the file.
    """
    by_name = {host.name: host for host in hosts.hosts}
    _refuse_missing(choice, by_name, "the cluster file")
    return replace(hosts, hosts=tuple(by_name[name] for name in choice.nodes))


def nodes_on_cluster(
    choice: PlanChoice, found: Sequence[NodeSpec], *, own_gpus: bool
) -> tuple[NodeSpec, ...]:
    """The replica's nodes in rank order, each with as many GPUs as it holds ranks.

    Args:
        found: the cluster's nodes with all their GPUs.
        own_gpus: whether we say which devices Ray may use; a Ray that already runs, or a machine without GPUs, takes no wish.

    Raises:
        InputError: a node that the cluster does not have. CapacityError: a GPU number beyond the node's GPUs.
    """
    by_name = {node.name: node for node in found}
    _refuse_missing(choice, by_name, "the cluster")
    nodes = []
    for name in choice.nodes:
        node, gpus = by_name[name], _gpus_on(choice, name)
        if gpus[-1] >= node.gpus:
            raise CapacityError(
                f"{choice.source} places a rank on GPU {gpus[-1]} of {name}, which has {node.gpus}"
                f" ({'only 0' if node.gpus == 1 else f'0 to {node.gpus - 1}'}).",
                "Plan again with this cluster file, or correct one of the two.",
            )
        env = _environment(choice, name, node.env)
        nodes.append(replace(node, gpus=len(gpus), gpu_ids=gpus if own_gpus else (), env=env))
    return tuple(nodes)


def nodes_here(choice: PlanChoice, have: Sequence[int] | None) -> tuple[NodeSpec, ...]:
    """The replica's one node, on this machine.

    Args:
        have: this machine's GPUs; None where it has none and ranks run on the CPU.

    Raises:
        InputError: the replica needs several nodes. CapacityError: a GPU that is not here.
    """
    names = choice.nodes
    if len(names) > 1:
        raise InputError(
            f"What {choice.source} places stands on {len(names)} nodes ({', '.join(names)}).",
            "Say where they are with --cluster hosts.toml.",
        )
    gpus = _gpus_on(choice, names[0])
    missing = [] if have is None else [gpu for gpu in gpus if gpu not in have]
    if have is not None and missing:
        raise CapacityError(
            f"{choice.source} places ranks on GPU {', '.join(map(str, missing))}, this machine has"
            f" {', '.join(map(str, have)) or 'none'}.",
            "Plan again for this machine, or name the machine with --cluster hosts.toml.",
        )
    env = _environment(choice, names[0], {})
    return (replace(LOCAL, gpus=len(gpus), gpu_ids=() if have is None else gpus, env=env),)


def _refuse_missing(choice: PlanChoice, have: Collection[str], where: str) -> None:
    missing = [name for name in choice.nodes if name not in have]
    if missing:
        raise InputError(
            f"{choice.source} places ranks on {', '.join(missing)}, {where} has {', '.join(have) or 'no named node'}.",
            "Use the cluster file that the plan was made with, or give its nodes the plan's names.",
        )


def _gpus_on(choice: PlanChoice, node: str) -> tuple[int, ...]:
    """The replicas' GPUs on a node, ascending: a node's devices are alike, and Ray hands them to the ranks."""
    places = [place for replica in choice.replicas for place in replica.places]
    return tuple(sorted(place.gpu for place in places if place.node == node))


def _environment(choice: PlanChoice, node: str, own: dict[str, str]) -> dict[str, str]:
    """The plan's values for the node, the cluster file's over them, and the replica's, which must be the same everywhere."""
    layout = choice.replica.layout
    planned = {
        key: value for key, value in dict(choice.plan.environment).get(node, ()) if key not in _SET_AT_LAUNCH
    }
    split = {"VLLM_PP_LAYER_PARTITION": ",".join(map(str, layout.partition))} if layout.partition else {}
    return {**planned, **own, **dict(choice.replica.environment), **split}

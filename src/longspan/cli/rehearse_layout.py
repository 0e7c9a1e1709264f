"""What is rehearsed: the layout and the nodes that `up` would take, and the smaller ones of a machine without their GPUs."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from longspan.cli import machine, placing, plan_choice, prepare
from longspan.cli.devices import device_of
from longspan.cli.joining import probe_ray
from longspan.cli.request import Request
from longspan.cluster.hosts import HostsFile
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.errors import InputError
from longspan.launch import rehearsal
from longspan.launch.rehearsal import LeftOut
from longspan.model.facts import ModelFacts
from longspan.plan import Layout
from longspan.planner.rank_weights import stage_bounds
from longspan.units import GIB

PARTITION = "VLLM_PP_LAYER_PARTITION"
# Of a rank on the CPU: Python and libraries, its cache and its part of the weights; and of the proof's one-rank engine.
RANK_BYTES = round(2.4 * GIB)
PROOF_BYTES = 4 * GIB
# Ray's sockets lie below a directory with the deployment's and the node's name, and a socket's path has 107 bytes at most.
LONGEST_NODE_NAME = 8
RANKS_PER_CORE = 2  # more only wait for each other


@dataclass(frozen=True, slots=True)
class Wanted:
    """The real thing.

    Attributes:
        spec: as `up` would have it, checked; its model is the real one.
        partition: layers of each stage where vLLM is told; empty for its own split.
        hosts: of the cluster file or Slurm; None where the nodes are only imagined.
    """

    spec: DeploymentSpec
    partition: tuple[int, ...]
    hosts: HostsFile | None

    def stages(self, facts: ModelFacts, pp: int) -> tuple[int, ...]:
        """How many layers each of `pp` stages has in the real model."""
        partition = self.partition if pp == self.spec.pp else ()
        return tuple(end - start for start, end in stage_bounds(facts, Layout(pp=pp, partition=partition)))


def find(
    request: Request,
    choice: plan_choice.PlanChoice | None,
    facts: ModelFacts,
    *,
    on_cluster: bool,
    progress: Callable[[str], None],
) -> Wanted:
    """The layout and nodes, checked as `up` checks them.

    Raises:
        InputError, CapacityError, LayoutError, SlurmError, RayError: as `up` would.
    """
    hosts, device = prepare.the_hosts(request, request.device or machine.device(), progress)
    if on_cluster and hosts is None:
        raise InputError(
            "--on-cluster needs hosts, and none are named.",
            "Give --cluster FILE, or run inside a Slurm allocation.",
        )
    if choice and hosts and hosts.hosts:
        hosts = plan_choice.needed_hosts(choice, hosts)
    in_ray = probe_ray(hosts.ray_address) if hosts and hosts.ray_address else []
    found = placing.cluster_nodes(hosts, in_ray) if hosts else None
    if on_cluster and request.device is None and not (hosts and any(host.slurm for host in hosts.hosts)):
        device = device_of(hosts, in_ray)
    if choice is not None:
        layout = choice.replica.layout
        own_gpus = on_cluster and device != "cpu" and not (hosts and hosts.ray_address)
        nodes = plan_choice.nodes_on_cluster(choice, found or _imagined(choice), own_gpus=own_gpus)
    else:
        tp, pp, nodes = _placed(request, facts, found)
        layout = Layout(tp=tp, pp=pp)
    ports = prepare.ray_ports_of(hosts) if on_cluster else None
    spec = DeploymentSpec(
        name=request.name, identity="", model=request.model or "", served_name=request.served_name or "", tp=layout.tp,
        pp=layout.pp, executor=request.executor or "ray", device=device if on_cluster else "cpu", nodes=nodes,
        listen=request.listen, ray_address=hosts.ray_address if hosts and on_cluster else None,
        vllm_arguments=request.vllm_arguments, ray_first_port=ports.first if ports else None,
        ray_head=prepare.ray_head_of(hosts) if on_cluster else None,
    )  # fmt: skip
    partition = layout.partition or _partition(spec)
    layout = replace(layout, partition=partition)
    prepare.check_layout(facts, spec, layout)
    return Wanted(spec, partition, hosts if on_cluster else None)


def _placed(request: Request, facts: ModelFacts, found: Sequence[NodeSpec] | None) -> placing.Placed:
    if found is not None:
        return placing.place_on_cluster(request, facts, found)
    if request.tp is None and request.pp is None and request.nodes is None:
        request = replace(request, pp=2, nodes=2)  # one rank alone would rehearse nothing
    return placing.place_on_cpus(request)


def _imagined(choice: plan_choice.PlanChoice) -> tuple[NodeSpec, ...]:
    """The plan's nodes where no file says where they are: nothing is reached."""
    places = choice.replica.places
    return tuple(
        NodeSpec(name, "", max(place.gpu for place in places if place.node == name) + 1)
        for name in choice.replica.nodes
    )


def _partition(spec: DeploymentSpec) -> tuple[int, ...]:
    """What the user's environment says of the split, on the first node or here.

    Raises:
        InputError: it is no list of numbers.
    """
    text = spec.nodes[0].env.get(PARTITION) or os.environ.get(PARTITION) or ""
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise InputError(
            f"{PARTITION}={text!r} is no list of numbers.", "Such as 20,21,20, one a stage."
        ) from error


def affordable_ranks() -> int:
    """How many ranks this machine's memory and cores take beside the proof's engine; at least one."""
    by_memory = (machine.available_memory_bytes() - PROOF_BYTES) // RANK_BYTES
    return max(1, min(by_memory, RANKS_PER_CORE * (os.cpu_count() or 1)))


def here(wanted: Wanted, ranks: int) -> tuple[DeploymentSpec, tuple[LeftOut, ...]]:
    """The same on this machine's processors, scaled down to `ranks`; its nodes keep their names where these are short.

    Returns:
        the deployment, without its model, and the variables that were not carried over.
    """
    real = wanted.spec
    tp, pp = rehearsal.scaled(real.tp, real.pp, ranks)
    used = real.used_nodes()
    counts = (
        tuple(sum(rank.name == node.name for rank in real.rank_nodes()) for node in used)
        if (tp, pp) == (real.tp, real.pp)
        else rehearsal.spread(tp, pp, len(used))
    )
    nodes: list[NodeSpec] = []
    left: list[LeftOut] = []
    for index, (node, count) in enumerate(zip(used, counts, strict=False)):
        env, dropped = rehearsal.carried(node.env)
        left += dropped
        address = placing.LOCAL_LOOPBACK.format(index + 2)
        name = node.name if len(node.name) <= LONGEST_NODE_NAME else f"node-{index + 1}"
        nodes.append(NodeSpec(name, address, count, python=sys.executable, env=env))
    spec = replace(real, tp=tp, pp=pp, nodes=tuple(nodes), device="cpu")
    return spec, tuple(dict.fromkeys(left))


def with_model(
    spec: DeploymentSpec, model: str, name: str, arguments: tuple[str, ...], partition: tuple[int, ...]
) -> DeploymentSpec:
    """The deployment of the shrunken model. `partition`: layers of each stage; empty for vLLM's own split."""
    text = ",".join(map(str, partition))
    nodes = []
    for node in spec.nodes:
        env = {key: value for key, value in node.env.items() if key != PARTITION}
        nodes.append(replace(node, env={**env, PARTITION: text} if text else env))
    found = replace(spec, model=model, served_name=name, vllm_arguments=arguments, nodes=tuple(nodes))
    return replace(found, identity=prepare.identity_of(found))

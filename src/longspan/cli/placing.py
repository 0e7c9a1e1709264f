"""TP, PP and the nodes' ranks where the user did not choose them. Pure: what this machine or Ray has is passed in."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from longspan.cli.request import Request
from longspan.cluster.hosts import HostEntry, HostsFile
from longspan.deployment import NodeSpec
from longspan.errors import CapacityError, InputError
from longspan.model.facts import ModelFacts
from longspan.planner import legality

LOCAL_LOOPBACK = "127.0.0.{}"  # node 1 is .2: Ray replaces 127.0.0.1 by the machine's outer address
Placed = tuple[int, int, tuple[NodeSpec, ...]]


def place_on_cluster(request: Request, facts: ModelFacts | None, nodes: Sequence[NodeSpec]) -> Placed:
    """TP, PP and the nodes of a cluster, each with the ranks it shall hold.

    The rule of the first version: PP over the nodes, TP as far as the model and the nodes' GPUs allow.

    Raises:
        CapacityError: no node has a GPU.
    """
    if not nodes:
        raise CapacityError(
            "No node of the cluster has a GPU.", "Correct gpus = … in the file, or Ray's --num-gpus."
        )
    pp = request.pp or max(1, len(nodes) // request.slots)
    have = [node.gpus for node in nodes]
    tp = request.tp or _widest_tp(facts, have, pp * request.slots)
    if request.slots > 1:
        return tp, pp, _holding(nodes, _counts(nodes, placement(nodes, tp, pp, request.slots)))
    # Whoever left PP to us gets a stage on every node; mp wants equal counts. Else the fewest nodes are the fastest.
    spread = request.pp is None or request.executor == "mp"
    return tp, pp, _holding(nodes, rank_counts(have, tp, pp, spread=spread))


def place_on_gpus(request: Request, facts: ModelFacts | None, have: Sequence[int]) -> Placed:
    """TP, PP and Ray nodes on this machine.

    Args:
        have: its GPUs.

    Raises:
        CapacityError: a node would have no GPU.
    """
    demo = request.model is None and request.plan is None
    # The demo shows a pipeline over two Ray nodes wherever that can be.
    pair = demo and len(have) > 1 and request.tp is None and (request.pp or 2) > 1 and request.slots == 1
    count = request.nodes or (2 if pair else 1)
    _refuse_many(count)
    per = len(have) // count
    if per == 0:
        raise CapacityError(f"This machine has {len(have)} GPUs, --nodes {count} would leave a node without.")
    nodes = [_local(i, per, tuple(have[i * per : (i + 1) * per])) for i in range(count)]
    if request.slots > 1:
        return place_on_cluster(request, facts, nodes)
    pp = request.pp or count
    tp = request.tp or (1 if demo and pp > 1 else _widest_tp(facts, [per] * count, pp))
    return tp, pp, _holding(nodes, rank_counts([per] * count, tp, pp, spread=True))


def place_on_cpus(request: Request) -> Placed:
    """TP, PP and Ray nodes on this machine without a GPU: as many declared GPUs as there are ranks.

    Raises:
        CapacityError: more nodes were asked for than there are ranks.
    """
    demo = request.model is None
    pp = request.pp or (1 if request.tp else request.nodes or (2 if demo else 1))
    tp = request.tp or 1
    slots = request.slots
    ranks = tp * pp * slots
    # Several replicas get a node each, so that one node's end is one replica's.
    count = request.nodes or (slots if slots > 1 else 2 if demo and pp > 1 else 1)
    _refuse_many(count)
    if ranks < count:
        raise CapacityError(
            f"TP {tp} x PP {pp} is {ranks} rank(s), too few for {count} nodes.", "Lower --nodes."
        )
    if slots >= count > 1 or slots > count:
        counts = [tp * pp * (slots // count + (i < slots % count)) for i in range(count)]
    elif slots == 1 and pp >= count:
        counts = [tp * (pp // count + (i < pp % count)) for i in range(count)]
    else:  # whoever asks for more nodes than stages wants a TP group over several
        counts = [ranks // count + (i < ranks % count) for i in range(count)]
    return tp, pp, tuple(_local(i, gpus, ()) for i, gpus in enumerate(counts))


def rank_counts(have: Sequence[int], tp: int, pp: int, *, spread: bool) -> tuple[int, ...]:
    """How many ranks each node holds, so that no TP group crosses the network where that can be avoided.

    A node takes whole stages only. Where they do not all fit so, the counts are returned as they came: the ranks fill
    the nodes in their order, and a TP group spans two of them.

    Args:
        have: each node's GPUs.
        spread: stages go to the nodes in turns; else they fill the first ones.
    """
    room = [gpus // tp for gpus in have]
    if sum(room) < pp:
        return tuple(have)
    stages = [0] * len(have)
    for _ in range(pp):
        free = [i for i, taken in enumerate(stages) if taken < room[i]]
        stages[min(free, key=lambda i: stages[i]) if spread else free[0]] += 1
    return tuple(tp * taken for taken in stages)


def placement(nodes: Sequence[NodeSpec], tp: int, pp: int, replicas: int) -> tuple[tuple[str, ...], ...]:
    """Where the ranks of several replicas go: each on one node where it can, so that no more of them than needed cross a
    network or fall with a host; else whole stages a node; else whatever is free, in the nodes' order.

    Returns:
        replica -> rank -> node's name; for as many replicas as there is room for.
    """
    free = {node.name: node.gpus for node in nodes}
    found: list[tuple[str, ...]] = []
    for _ in range(replicas):
        whole = next((name for name in free if free[name] >= tp * pp), None)
        stages = [name for name in free for _ in range(free[name] // tp)][:pp]
        if whole is not None:
            slots = [whole] * (tp * pp)
        elif len(stages) == pp:
            slots = [name for name in stages for _ in range(tp)]
        else:
            slots = [name for name in free for _ in range(free[name])][: tp * pp]
        if len(slots) < tp * pp:
            break
        for name in slots:
            free[name] -= 1
        found.append(tuple(slots))
    return tuple(found)


def _counts(nodes: Sequence[NodeSpec], placed: Iterable[Sequence[str]]) -> list[int]:
    """How many ranks each node holds; all of its GPUs where nothing could be placed, for the error to count."""
    names = [name for slots in placed for name in slots]
    return [names.count(node.name) if names else node.gpus for node in nodes]


def _holding(nodes: Iterable[NodeSpec], counts: Iterable[int]) -> tuple[NodeSpec, ...]:
    """The nodes that hold ranks, each offering as many GPUs as it shall hold."""
    return tuple(
        replace(node, gpus=count, gpu_ids=node.gpu_ids[:count])
        for node, count in zip(nodes, counts, strict=True)
        if count
    )


def _widest_tp(facts: ModelFacts | None, have: Sequence[int], pp: int) -> int:
    """The largest legal TP with which all stages fit on single nodes; if there is none, that of the smallest node."""
    legal = legality.legal_tp(facts, limit=max(have)) if facts else (1,)
    fitting = [tp for tp in legal if sum(gpus // tp for gpus in have) >= pp]
    return max(fitting, default=max((tp for tp in legal if tp <= min(have)), default=1))


def _local(index: int, gpus: int, ids: tuple[int, ...]) -> NodeSpec:
    address = LOCAL_LOOPBACK.format(index + 2)
    return NodeSpec(f"node-{index + 1}", address, gpus, python=sys.executable, gpu_ids=ids)


def _refuse_many(count: int) -> None:
    if count > 64:
        raise InputError(f"--nodes {count} makes no sense on one machine.", "Use 1 to 64.")


def cluster_nodes(hosts: HostsFile, in_ray: Sequence[Mapping[str, Any]] = ()) -> tuple[NodeSpec, ...]:
    """The file's hosts that have GPUs, completed and checked against a Ray that already runs.

    Args:
        in_ray: the live nodes of that Ray, head first (`joining.probe_ray`).

    Raises:
        InputError: how many GPUs a host has is said nowhere.
        CapacityError: a host that Ray does not know, or with fewer GPUs than the file says.
    """
    if hosts.ray_address is None:
        bare = [h.name for h in hosts.hosts if h.gpus is None]
        if bare:
            raise InputError(
                f"The cluster file does not say how many GPUs {', '.join(bare)} has.", "Add gpus = …"
            )
        return tuple(node_of(host) for host in hosts.hosts if host.gpus)
    alive = {node["address"]: node for node in in_ray}
    if not hosts.hosts:
        return tuple(
            NodeSpec(f"node-{i}", node["address"], node["gpus"], python=sys.executable)
            for i, node in enumerate(alive.values(), 1)
            if node["gpus"]
        )
    found = []
    for host in hosts.hosts:
        node = alive.get(host.address)
        if node is None:
            raise CapacityError(
                f"{host.name} ({host.address}) is not in the Ray cluster at {hosts.ray_address},"
                f" which has {', '.join(sorted(alive))}.",
                "Start Ray there, or correct the address.",
            )
        gpus = host.gpus if host.gpus is not None else node["gpus"]
        if gpus > node["gpus"]:
            raise CapacityError(
                f"{host.name} offers {node['gpus']} GPUs to Ray, the cluster file says {gpus}."
            )
        found.append(replace(node_of(host), gpus=gpus))
    return tuple(node for node in found if node.gpus)


def node_of(host: HostEntry) -> NodeSpec:
    """A host as a node; without GPUs where it is not said how many it has.

    Its Python is the file's; else the image's, or ours where the host's own is used.
    """
    python = host.python or (host.container.python if host.container else sys.executable)
    return NodeSpec(
        host.name, host.address, host.gpus or 0, host.ssh, python, host.env, slurm=host.slurm, container=host.container
    )  # fmt: skip

"""Where replicas can stand: slots for TP groups inside nodes, stages over slots, and the links that follow.

A *slot* is a TP group's set of GPUs. Inside a node it is cut from GPUs of one type; a group wider than a node takes whole
nodes. A replica takes `pp x dp` slots, of one node as far as possible, so that stages are handed on over the fewest links.
"""

from dataclasses import dataclass

from longspan.cluster.inventory import Cluster, Node
from longspan.plan import Layout, Place
from longspan.planner.engine_model import Site
from longspan.planner.links import Path, group_path


@dataclass(frozen=True, slots=True)
class Pool:
    """GPUs of one type and the nodes that have them: `free` gives the indices on each node."""

    gpu_type: str
    nodes: tuple[Node, ...]
    free: tuple[tuple[int, ...], ...]

    @property
    def gpus(self) -> int:
        """GPUs of the pool."""
        return sum(len(indices) for indices in self.free)

    @property
    def widest(self) -> int:
        """GPUs of its largest node."""
        return max((len(indices) for indices in self.free), default=0)


def pools(cluster: Cluster) -> list[Pool]:
    """The cluster's GPUs by type, the largest pool (by memory) first."""
    types = dict.fromkeys(name for node in cluster.nodes for name in node.gpu_types)
    found = []
    for name in types:
        nodes = [node for node in cluster.nodes if name in node.gpu_types]
        free = tuple(tuple(gpu.index for gpu in node.gpus if gpu.type.name == name) for node in nodes)
        found.append(Pool(name, tuple(nodes), free))
    return sorted(
        found,
        key=lambda pool: (
            -sum(g.memory_bytes for node in pool.nodes for g in node.gpus if g.type.name == pool.gpu_type)
        ),
    )


@dataclass(frozen=True, slots=True)
class Slot:
    """One TP group: its GPUs in rank order, and the nodes they stand on."""

    places: tuple[Place, ...]
    nodes: tuple[Node, ...]


def slots(pool: Pool, tp: int) -> list[Slot]:
    """All TP groups of this width that the pool holds at once."""
    found = []
    if tp <= pool.widest:
        for node, indices in zip(pool.nodes, pool.free, strict=True):
            for start in range(0, len(indices) - tp + 1, tp):
                places = tuple(Place(node.name, index) for index in indices[start : start + tp])
                found.append(Slot(places, (node,)))
        return found
    per_node = pool.widest
    if tp % per_node:
        return []
    full = [
        (node, indices)
        for node, indices in zip(pool.nodes, pool.free, strict=True)
        if len(indices) == per_node
    ]
    count = tp // per_node
    for start in range(0, len(full) - count + 1, count):
        group = full[start : start + count]
        places = tuple(Place(node.name, index) for node, indices in group for index in indices)
        found.append(Slot(places, tuple(node for node, _ in group)))
    return found


def replicas(pool: Pool, layout: Layout, limit: int | None = None) -> list[tuple[Slot, ...]]:
    """As many replicas of this layout as fit into the pool, each as its slots: groups of DP, then stages.

    Slots of one node stay together where the count allows it; a replica that would straddle a node although a later node
    could hold it whole starts there instead.
    """
    need = layout.pp * layout.dp
    all_slots = slots(pool, layout.tp)
    found: list[tuple[Slot, ...]] = []
    by_node: dict[str, list[Slot]] = {}
    for slot in all_slots:
        by_node.setdefault(slot.places[0].node, []).append(slot)
    rest: list[Slot] = []
    for members in by_node.values():
        whole = len(members) // need
        found += [tuple(members[i * need : (i + 1) * need]) for i in range(whole)]
        rest += members[whole * need :]
    found += [tuple(rest[i * need : (i + 1) * need]) for i in range(len(rest) // need)]
    return found[:limit] if limit is not None else found


def sites(layout: Layout, group: tuple[Slot, ...]) -> tuple[tuple[Site, ...], Path]:
    """The sites of the stages of one replica (its first DP group, the others are alike) and the path of its experts."""
    nodes_by_place = {(place.node, place.gpu): node for slot in group for place, node in _placed(slot)}
    found = []
    for stage in range(layout.pp):
        slot = group[stage]
        types = [
            next(gpu for gpu in nodes_by_place[place.node, place.gpu].gpus if gpu.index == place.gpu).type
            for place in slot.places
        ]
        slowest = min(types, key=lambda kind: kind.memory_bandwidth_bytes_per_second)
        hop = None
        if stage + 1 < layout.pp:
            hop = group_path([slot.nodes[-1], group[stage + 1].nodes[0]])
        found.append(Site(slowest, group_path(list(slot.nodes)), hop))
    exchange = group_path([node for slot in group[:: layout.pp] for node in slot.nodes])
    return tuple(found), exchange


def _placed(slot: Slot) -> list[tuple[Place, Node]]:
    by_name = {node.name: node for node in slot.nodes}
    return [(place, by_name[place.node]) for place in slot.places]


def places(group: tuple[Slot, ...]) -> tuple[Place, ...]:
    """The GPUs of a replica in rank order."""
    return tuple(place for slot in group for place in slot.places)


def node_counts(group: tuple[Slot, ...]) -> tuple[int, ...]:
    """GPUs that the replica uses on each of its nodes."""
    counts: dict[str, int] = {}
    for place in places(group):
        counts[place.node] = counts.get(place.node, 0) + 1
    return tuple(counts.values())


def smallest_memory_bytes(group: tuple[Slot, ...], layout: Layout) -> tuple[int, ...]:
    """The smallest GPU memory of each stage."""
    found = []
    for stage in range(layout.pp):
        members = group[stage :: layout.pp] if layout.dp > 1 else (group[stage],)
        sizes = [
            gpu.memory_bytes
            for slot in members
            for place, node in _placed(slot)
            for gpu in node.gpus
            if gpu.index == place.gpu
        ]
        found.append(min(sizes))
    return tuple(found)

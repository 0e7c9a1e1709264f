"""What collectives and hand-offs cost on the links between a replica's ranks.

Only all-reduces inside an NVLink node are calibrated (they are part of the measured step times). The other constants are
guesses with the order of magnitude that nccl-tests prints on such links, and every estimate that rests on one says so.
`Path.measured` takes what a probe of the user's own fabric found.
"""

from dataclasses import dataclass

from longspan.cluster.inventory import Link, Network, Node
from longspan.planner.steptime import StepCosts


@dataclass(frozen=True, slots=True)
class Path:
    """How a group of ranks reaches each other.

    Attributes:
        kind: nvlink, xgmi, pcie, pcie-host inside a node; rdma or tcp between nodes.
        bytes_per_second: of the narrowest part, for one rank inside a node, for one node between nodes.
        nodes: how many nodes the group spans.
        measured_latency_seconds: of a small all-reduce over two ranks, from a probe; 0 where nobody measured.
    """

    kind: str
    bytes_per_second: float
    nodes: int = 1
    measured_latency_seconds: float = 0.0

    @property
    def is_calibrated(self) -> bool:
        """Whether its costs come from measurements of vLLM or of this fabric."""
        return self.kind == "nvlink" or self.measured_latency_seconds > 0


# kind -> (latency of a small all-reduce over two ranks, more for each doubling of ranks, share of the rate reached).
# Guesses; the kernel's TCP path and host memory copies dominate pcie-host and tcp.
_LATENCY = {
    "xgmi": (15e-6, 4e-6, 0.6),
    "pcie": (20e-6, 8e-6, 0.65),
    "pcie-host": (35e-6, 15e-6, 0.5),
    "rdma": (35e-6, 10e-6, 0.75),
    "tcp": (180e-6, 60e-6, 0.7),
}
# A point-to-point hand-off between pipeline stages: latency beside the bytes. Guesses, as above.
_HOP_SECONDS = {
    "nvlink": 20e-6,
    "xgmi": 25e-6,
    "pcie": 30e-6,
    "pcie-host": 50e-6,
    "rdma": 40e-6,
    "tcp": 200e-6,
}


def node_path(link: Link) -> Path:
    """Inside one node."""
    return Path(link.kind, link.bytes_per_second)


def network_path(networks: list[Network], nodes: int) -> Path:
    """Between nodes: the slowest network of them; RDMA only if all have it. What `longspan check` measured counts more."""
    kind = "rdma" if all(network.is_rdma for network in networks) else "tcp"
    if all(network.measured_bytes_per_second for network in networks):
        # A measured rate is what was reached; the path's rate is multiplied by the share that is usually reached.
        reached = min(network.measured_bytes_per_second for network in networks)
        latency = max(network.measured_latency_seconds for network in networks)
        return Path(kind, reached / _LATENCY[kind][2], nodes, latency)
    return Path(kind, min(network.bytes_per_second for network in networks), nodes)


def group_path(nodes: list[Node]) -> Path:
    """Among ranks on these nodes (with repetitions)."""
    distinct = list({node.name: node for node in nodes}.values())
    if len(distinct) == 1:
        return node_path(distinct[0].link)
    return network_path([node.network for node in distinct], len(distinct))


def reduce_seconds(message_bytes: float, ranks: int, path: Path, cal: StepCosts) -> float:
    """One all-reduce: latency by doublings of the ranks plus the ring's traffic over the narrowest part."""
    if ranks <= 1:
        return 0.0
    doublings = (ranks - 1).bit_length() - 1
    if path.kind == "nvlink":
        base, growth, share = cal.reduce_seconds, cal.reduce_growth, cal.link_share
    else:
        base, growth, share = _LATENCY[path.kind]
        base = path.measured_latency_seconds or base
    members = path.nodes if path.nodes > 1 else ranks
    traffic = 2 * (members - 1) / members * message_bytes / (path.bytes_per_second * share)
    return base + growth * doublings + traffic


def hop_seconds(message_bytes: float, path: Path) -> float:
    """Handing activations to the next pipeline stage."""
    share = _LATENCY[path.kind][2] if path.kind in _LATENCY else 0.7
    return _HOP_SECONDS[path.kind] + message_bytes / (path.bytes_per_second * share)


def exchange_seconds(sent_bytes: float, ranks: int, path: Path, cal: StepCosts) -> float:
    """Dispatch to experts on other ranks and the combine that brings results back: two all-to-alls.

    Args:
        sent_bytes: of all tokens of one rank, in one direction.
    """
    if ranks <= 1:
        return 0.0
    share = cal.link_share if path.kind == "nvlink" else _LATENCY[path.kind][2]
    base = cal.reduce_seconds if path.kind == "nvlink" else _LATENCY[path.kind][0]
    outside = (path.nodes - 1) / path.nodes if path.nodes > 1 else (ranks - 1) / ranks
    ranks_per_node = ranks / path.nodes if path.nodes > 1 else 1
    return 2 * (base + sent_bytes * outside * ranks_per_node / (path.bytes_per_second * share))

"""The cluster as the planner and the launcher see it. Its file is read in `inventory_file`."""

from collections import Counter
from dataclasses import dataclass

from longspan.cluster.catalog import GpuType
from longspan.errors import InputError

LINK_KINDS = ("nvlink", "xgmi", "pcie", "pcie-host")
NETWORK_KINDS = ("infiniband", "roce", "ethernet")
_GIGA = 10**9
# Usable bytes per second in one direction when a file names a kind without a rate: half of PCIe 4.0 x16 with and
# without peer-to-peer. NVLink and xGMI take the type's own number.
DEFAULT_LINK_BYTES_PER_SECOND = {"pcie": 28e9, "pcie-host": 20e9}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node. `memory_bytes` is what CUDA reports, from a probe where there was one."""

    index: int
    type: GpuType
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Link:
    """What joins the GPUs of one node: `kind` is one of LINK_KINDS, the rate is per GPU and direction."""

    kind: str
    bytes_per_second: float

    @property
    def is_fabric(self) -> bool:
        """Whether it is a dedicated GPU fabric (NVLink, xGMI) rather than PCIe."""
        return self.kind in ("nvlink", "xgmi")


@dataclass(frozen=True, slots=True)
class Network:
    """What joins a node to the others.

    Attributes:
        kind: one of NETWORK_KINDS.
        rate_bits_per_second: of one NIC.
        nics: how many NICs carry GPU traffic; 8 on an HGX machine with one per GPU.
        interface: the one for sockets and rendezvous; empty when not known.
        hcas: InfiniBand or RoCE devices for NCCL_IB_HCA; empty when not known.
        measured_bytes_per_second, measured_latency_seconds: bus bandwidth and latency of a small all-reduce between this
            node and its slowest peer, by `longspan check`; 0 where nobody measured. `measured_with`: nccl or gloo.
    """

    kind: str
    rate_bits_per_second: float
    nics: int = 1
    interface: str = ""
    hcas: tuple[str, ...] = ()
    measured_bytes_per_second: float = 0.0
    measured_latency_seconds: float = 0.0
    measured_with: str = ""

    @property
    def is_rdma(self) -> bool:
        """Whether NCCL can move GPU memory without the sockets of the kernel."""
        return self.kind in ("infiniband", "roce")

    @property
    def bytes_per_second(self) -> float:
        """Of all NICs together, in one direction."""
        return self.rate_bits_per_second / 8 * self.nics


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. `address` is what the other nodes and ssh reach it by."""

    name: str
    address: str
    gpus: tuple[Gpu, ...]
    link: Link
    network: Network

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The distinct types, in index order."""
        return tuple(dict.fromkeys(gpu.type.name for gpu in self.gpus))


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes that can reach each other. Unequal nodes and mixed GPUs are normal."""

    name: str
    nodes: tuple[Node, ...]

    @property
    def gpu_count(self) -> int:
        """Of all nodes together."""
        return sum(len(node.gpus) for node in self.nodes)

    @property
    def is_uniform(self) -> bool:
        """Whether every node has the same number of GPUs of one type."""
        return len({(len(node.gpus), node.gpu_types) for node in self.nodes}) <= 1

    def node(self, name: str) -> Node:
        """The node called `name`.

        Raises:
            InputError: there is none.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise InputError(f"No node is called {name!r}.", f"Nodes of {self.name}: {known}.")

    def subset(self, names: tuple[str, ...]) -> "Cluster":
        """The same cluster with these nodes only, in the order given."""
        return Cluster(self.name, tuple(self.node(name) for name in names))


def describe(cluster: Cluster) -> str:
    """One line for people: "2 nodes, 8 GPUs: 2 x (4x A100-PCIe-80GB, pcie, ethernet 10 Gbit/s)"."""

    def one(node: Node) -> str:
        counts = Counter(gpu.type.name for gpu in node.gpus)
        gpus = " + ".join(f"{count}x {name}" for name, count in counts.items()) or "no GPU"
        rate = node.network.rate_bits_per_second / _GIGA
        nics = f"{node.network.nics} x " if node.network.nics > 1 else ""
        return f"{gpus}, {node.link.kind}, {node.network.kind} {nics}{rate:g} Gbit/s"

    groups = Counter(one(node) for node in cluster.nodes)
    parts = [
        f"{count} x ({text})" if len(groups) > 1 or count > 1 else text for text, count in groups.items()
    ]
    plural = "node" if len(cluster.nodes) == 1 else "nodes"
    gpus = "GPU" if cluster.gpu_count == 1 else "GPUs"
    return f"{len(cluster.nodes)} {plural}, {cluster.gpu_count} {gpus}: {' + '.join(parts)}"


def default_link(gpu_type: GpuType) -> Link:
    """What joins several GPUs of this type in the server they usually come in."""
    return Link(gpu_type.link, gpu_type.link_bytes_per_second)


def slower_link(gpus: tuple[Gpu, ...]) -> Link:
    """The link of a node with these GPUs when its file says nothing: the slowest any of them has."""
    if not gpus:
        return Link("pcie", DEFAULT_LINK_BYTES_PER_SECOND["pcie"])
    links = [default_link(gpu.type) for gpu in gpus]
    # GPUs of different types never share an NVLink fabric.
    if len({gpu.type.name for gpu in gpus}) > 1:
        links = [Link("pcie", min(link.bytes_per_second, 28e9)) if link.is_fabric else link for link in links]
    return min(links, key=lambda link: link.bytes_per_second)


def usual_network(link: Link) -> Network:
    """The fabric that servers with this GPU link usually have; an assumption, shown as one."""
    return Network("infiniband", 400e9, 8) if link.is_fabric else Network("ethernet", 10e9)

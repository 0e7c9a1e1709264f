"""The per-node environment compiler: which NIC, address and RDMA devices each node's ranks should use, and why.

Values that differ by node must never come from one place for all: vLLM's Ray executor hands the head's environment to
every rank. So each node gets its own, decided from what the kernel there says, and what the user set is respected.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from longspan.preflight.facts import NodeFacts, RdmaPort
from longspan.preflight.scene import Setting, Wanted

NIC_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
COMPILED = (*NIC_VARIABLES, "VLLM_HOST_IP", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_DISABLE")


def compile_environment(
    wanted: Sequence[Wanted], nodes: Sequence[NodeFacts]
) -> dict[str, tuple[Setting, ...]]:
    """Node -> its settings, in the order of COMPILED; a node that said nothing gets only its address.

    Args:
        wanted: what the cluster file says, the user's own variables among it.
        nodes: what the nodes said, in the same order or another.
    """
    said = {node.name: node for node in nodes if node.answered}
    rdma = rdma_of_all(wanted, said)
    return {one.name: _node(one, said.get(one.name), wanted, rdma) for one in wanted}


def _node(
    want: Wanted, node: NodeFacts | None, wanted: Sequence[Wanted], rdma: "Rdma"
) -> tuple[Setting, ...]:
    found: dict[str, Setting] = {}

    def put(variable: str, value: str, why: str) -> None:
        if value:
            found[variable] = Setting(variable, value, why)

    if len(wanted) > 1:
        put("VLLM_HOST_IP", want.address, "the address that the cluster file gives this node")
        if node is not None:
            nic, why = choose_nic(want, node, wanted)
            for variable in NIC_VARIABLES:
                # NCCL takes the name as a prefix without "=": eth1 would match eth10 too.
                put(variable, f"={nic}" if nic and variable.startswith("NCCL") else nic, why)
            for variable, (value, why) in rdma.settings(want.name).items():
                put(variable, value, why)
    for variable in COMPILED:
        if variable in want.env:
            found[variable] = Setting(variable, want.env[variable], "set by you for this node", "user")
        elif node is not None and node.env.get(variable) and variable != "VLLM_HOST_IP":
            found[variable] = Setting(
                variable, node.env[variable], "set in the node's own environment", "user"
            )
    return tuple(found[variable] for variable in COMPILED if variable in found)


def choose_nic(want: Wanted, node: NodeFacts, wanted: Sequence[Wanted]) -> tuple[str, str]:
    """The NIC for sockets and rendezvous and why; empty where nothing supports one.

    A NIC that the user named for one library counts for the others; then the cluster file's `interface`; then the one
    that the kernel would take to the peers.
    """
    for variable in NIC_VARIABLES:
        named = (want.env.get(variable) or node.env.get(variable) or "").split(",")[0]
        if named and not named.startswith("^"):
            return named.removeprefix("="), f"the same as your {variable}"
    if want.interface:
        return want.interface, "named by the cluster file"
    carrier = node.nic_of(want.address)
    ways = [
        node.routes[one.address] for one in wanted if one.name != want.name and one.address in node.routes
    ]
    used = Counter(way.nic for way in ways if way.nic)
    # Peers on the same machine are reached over lo, which is no way to the others.
    outward = Counter({nic: count for nic, count in used.items() if nic != "lo"})
    if carrier is not None and (not outward or carrier.name in outward):
        count = outward[carrier.name]
        peers = f"carries the route to {count} of {len(wanted) - 1} peers and" if count else "carries"
        return carrier.name, f"{carrier.name} {peers} {want.address}"
    if outward:
        nic, count = outward.most_common(1)[0]
        return nic, f"the kernel's route to {count} of {len(wanted) - 1} peers"
    return "", ""


class Rdma:
    """Whether all nodes can use RDMA with each other, with which devices, and why (not).

    Attributes:
        ports: node -> the ports to use; empty everywhere where sockets are used.
        mixed: some nodes could and others cannot, so all must be told to use sockets.
    """

    def __init__(self, ports: Mapping[str, Sequence[RdmaPort]], why: str, *, mixed: bool) -> None:
        self.ports = ports
        self.why = why
        self.mixed = mixed

    @property
    def is_used(self) -> bool:
        """Whether RDMA is used."""
        return any(self.ports.values())

    def settings(self, name: str) -> dict[str, tuple[str, str]]:
        """Variable -> (value, why) for a node."""
        if self.mixed:
            return {"NCCL_IB_DISABLE": ("1", self.why)}
        ports = self.ports.get(name, ())
        if not ports:
            return {}
        devices = [f"{port.device}:{port.number}" for port in ports]
        found = {"NCCL_IB_HCA": ("=" + ",".join(devices), self.why)}
        if all(port.link_layer == "Ethernet" for port in ports):
            index = gid_index(ports)
            if index is not None:
                found["NCCL_IB_GID_INDEX"] = (
                    str(index),
                    "the RoCE v2 entry with an IPv4 address on every port used",
                )
        return found


def gid_index(ports: Sequence[RdmaPort]) -> int | None:
    """The GID table's entry that is RoCE v2 over IPv4 on all of these ports; None where they have none in common."""
    tables = [{gid.index for gid in port.gids if "v2" in gid.type.lower() and gid.is_ipv4} for port in ports]
    common = set.intersection(*tables) if tables else set()
    return min(common, default=None)


def usable_ports(want: Wanted, node: NodeFacts) -> tuple[RdmaPort, ...]:
    """The node's active ports that carry GPU traffic: those that the file names, else the fastest of one link layer."""
    active = [port for port in node.rdma_ports if port.is_active]
    if want.hcas:
        names = {hca.split(":")[0].removeprefix("=") for hca in want.hcas}
        return tuple(port for port in active if port.device in names)
    # A slower port beside fast ones is for management or storage.
    for layer in ("InfiniBand", "Ethernet"):
        found = [port for port in active if port.link_layer == layer]
        if found:
            fastest = max(port.rate_bits_per_second for port in found)
            return tuple(port for port in found if port.rate_bits_per_second == fastest)
    return ()


def rdma_of_all(wanted: Sequence[Wanted], said: Mapping[str, NodeFacts]) -> Rdma:
    """RDMA where every node has it in the same kind, sockets elsewhere."""
    ranked = [one for one in wanted if one.gpus and one.name in said]
    if len(ranked) < 2:
        return Rdma({}, "one node only", mixed=False)
    ports = {one.name: usable_ports(one, said[one.name]) for one in ranked}
    if not any(ports.values()):
        return Rdma({}, "no node has an active RDMA port", mixed=False)
    without = [name for name, found in ports.items() if not found]
    if without:
        return Rdma({}, f"{', '.join(without)} has no active RDMA port, so all use sockets", mixed=True)
    layers = {port.link_layer for found in ports.values() for port in found}
    if len(layers) > 1:
        return Rdma({}, "some nodes have InfiniBand and others RoCE, so all use sockets", mixed=True)
    blocked = [name for name in ports if not _may_use(said[name])]
    if blocked:
        return Rdma(
            {},
            f"{', '.join(blocked)} has RDMA ports but not the library or /dev/infiniband, so all use sockets",
            mixed=True,
        )
    kind = "InfiniBand" if layers == {"InfiniBand"} else "RoCE"
    return Rdma(ports, f"active {kind} ports of the highest rate", mixed=False)


def _may_use(node: NodeFacts) -> bool:
    return bool(node.rdma_library) and any(name.startswith("uverbs") for name in node.rdma_devices)

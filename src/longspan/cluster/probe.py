"""Asks a host about its GPUs and its network. The commands are run here, their text is read in `parse`.

`COMMANDS` can also be run elsewhere, by a task in a Ray cluster, and what they printed be given back through `answered`.
"""

from collections.abc import Sequence

from longspan.cluster.catalog import GpuType, find_gpu
from longspan.cluster.inventory import Gpu, Link, Network, Node, default_link, slower_link
from longspan.cluster.parse import (
    GPU_QUERY,
    GpuLine,
    Interface,
    Port,
    Topology,
    parse_gpus,
    parse_ibstat,
    parse_interfaces,
    parse_speeds,
    parse_sysfs_ports,
    parse_topology,
)
from longspan.errors import HostError, ProbeError
from longspan.host import Completed, Host, RecordedHost

GPUS = ("nvidia-smi", f"--query-gpu={GPU_QUERY}", "--format=csv,noheader,nounits")
TOPOLOGY = ("nvidia-smi", "topo", "-m")
ADDRESSES = ("ip", "-o", "-4", "addr", "show", "up")
SPEEDS = (
    "sh", "-c", 'for i in /sys/class/net/*; do echo "${i##*/} $(cat "$i/speed" 2>/dev/null)"; done',
)  # fmt: skip
PORTS = ("ibstat",)
# Containers often come without ibstat, but with the kernel's own view.
_EACH_PORT = (
    'for p in /sys/class/infiniband/*/ports/*; do [ -r "$p/rate" ] || continue; d=${p%/ports/*};'
    ' echo "${d##*/}|${p##*/}|$(cat "$p/state")|$(cat "$p/rate")|$(cat "$p/link_layer")"; done'
)
SYSFS_PORTS = ("sh", "-c", _EACH_PORT)
COMMANDS = (GPUS, TOPOLOGY, ADDRESSES, SPEEDS, PORTS, SYSFS_PORTS)

# Bytes per second of one NVLink in one direction, for cards whose catalogue entry is PCIe (bridges): NVLink 3's 14.
_BRIDGE_BYTES_PER_SECOND = 14e9
# How far a GPU's memory may be from the catalogue's before it is taken for another size (MIG slices, modified cards).
_SAME_MEMORY = 0.03
# Virtual NICs tell no rate; the same is assumed where an inventory names no network.
_ASSUMED_BITS_PER_SECOND = 10e9


def _ask(host: Host, argv: tuple[str, ...]) -> str:
    """The command's output; "" where the program is not installed or fails."""
    try:
        done = host.run(argv)
    except HostError as error:
        if "not installed" in error.what:
            return ""
        raise
    return done.stdout if done.returncode == 0 else ""


def answered(name: str, answers: Sequence[tuple[int, str, str] | None]) -> Host:
    """A host that has already answered COMMANDS, in their order; None stands for a program that it does not have."""
    known = zip(COMMANDS, answers, strict=True)
    return RecordedHost(name, {argv: Completed(*one) for argv, one in known if one is not None})


def probe_node(host: Host, address: str = "", notes: list[str] | None = None) -> Node:
    """Everything an inventory says of a node.

    Args:
        address: how the others reach it; by default the address of the interface chosen.
        notes: takes what was assumed because the host did not say.

    Raises:
        HostError: the host cannot be reached. ProbeError: a GPU that the catalogue does not know.
    """
    listed = parse_gpus(_ask(host, GPUS))
    gpus = tuple(_gpu(line, host.name) for line in listed)
    topology = parse_topology(_ask(host, TOPOLOGY)) if len(gpus) > 1 else Topology({}, {})
    interfaces = parse_interfaces(_ask(host, ADDRESSES))
    ports = parse_ibstat(_ask(host, PORTS)) or parse_sysfs_ports(_ask(host, SYSFS_PORTS))
    chosen = _interface(interfaces, address)
    speeds = parse_speeds(_ask(host, SPEEDS))
    network = node_network(ports, speeds, chosen)
    if notes is not None and not network.is_rdma and network.interface not in speeds:
        notes.append(
            f"{host.name} does not say how fast {network.interface or 'its network'} is: 10 Gbit/s is assumed."
        )
    return Node(
        host.name,
        address or (chosen.address if chosen else host.name),
        gpus,
        node_link(gpus, topology),
        network,
    )


def _gpu(line: GpuLine, host_name: str) -> Gpu:
    kind = find_gpu(line.name) or _by_memory(line)
    if kind is None:
        raise ProbeError(
            f"{host_name} has a {line.name!r}, which the catalogue does not know.",
            "Write the inventory by hand and describe it in a [gpu_type] table.",
        )
    cuda = round(line.memory_bytes * 0.994)
    same = abs(cuda / kind.memory_bytes - 1) <= _SAME_MEMORY
    return Gpu(line.index, kind, kind.memory_bytes if same else cuda)


def _by_memory(line: GpuLine) -> GpuType | None:
    """ "NVIDIA A100-SXM4" without a size: try the name with the memory it has."""
    gib = round(line.memory_bytes / (1 << 30))
    return next(
        (kind for size in (gib, gib + 1, gib - 1) if (kind := find_gpu(f"{line.name} {size}GB"))), None
    )


def _interface(interfaces: list[Interface], address: str) -> Interface | None:
    matching = [one for one in interfaces if one.address == address]
    found = matching or interfaces
    return found[0] if found else None


def node_link(gpus: tuple[Gpu, ...], topology: Topology) -> Link:
    """What joins the GPUs: NVLink where every pair has it, else PCIe as far as the type allows peer-to-peer."""
    usual = slower_link(gpus)
    if len(gpus) < 2 or not topology.gpu_pairs:
        return usual
    if topology.nvlinks:
        fabric = default_link(gpus[0].type)
        return (
            fabric if fabric.kind == "nvlink" else Link("nvlink", topology.nvlinks * _BRIDGE_BYTES_PER_SECOND)
        )
    return usual if not usual.is_fabric else Link("pcie", 28e9)


def node_network(ports: list[Port], speeds: dict[str, float], chosen: Interface | None) -> Network:
    """The network for GPU traffic: active InfiniBand ports, else RoCE, else the interface's Ethernet."""
    name = chosen.name if chosen else ""
    active = [port for port in ports if port.is_active and port.rate_bits_per_second > 0]
    for layer, kind in (("InfiniBand", "infiniband"), ("Ethernet", "roce")):
        found = [port for port in active if port.link_layer == layer]
        if found:
            rate = min(port.rate_bits_per_second for port in found)
            hcas = tuple(dict.fromkeys(port.device for port in found))
            return Network(kind, rate, len(found), name, hcas)
    return Network("ethernet", speeds.get(name, _ASSUMED_BITS_PER_SECOND), 1, name)

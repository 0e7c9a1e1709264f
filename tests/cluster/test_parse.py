"""What the tools print is read: recorded forms of nvidia-smi, topo -m, ip and ibstat."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.cluster.inventory import Network
from longspan.cluster.parse import parse_gpus, parse_ibstat, parse_interfaces, parse_speeds, parse_topology
from longspan.cluster.probe import ADDRESSES, GPUS, PORTS, SPEEDS, TOPOLOGY, probe_node
from longspan.errors import HostError, ProbeError
from longspan.host import Completed, RecordedHost

TWO_H100 = "0, NVIDIA H100 80GB HBM3, 81559, GPU-aaaa\n1, NVIDIA H100 80GB HBM3, 81559, GPU-bbbb\n"
TOPO_NVLINK = """\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\tSYS\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tPIX\t48-95\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\tPIX\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_3
"""
TOPO_PCIE = """\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tPHB\t0-31\t0
GPU1\tPHB\t X \t0-31\t0
"""
IP_ADDR = """1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever
2: eno1    inet 10.1.0.7/24 brd 10.1.0.255 scope global eno1\\       valid_lft forever preferred_lft forever
3: docker0    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0\\       valid_lft forever
7: ib0    inet 10.2.0.7/24 brd 10.2.0.255 scope global ib0\\       valid_lft forever preferred_lft forever
"""
IBSTAT = """CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 12
\t\tLink layer: InfiniBand
CA 'mlx5_3'
\tCA type: MT4129
\tNumber of ports: 1
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tLink layer: InfiniBand
CA 'mlx5_4'
\tCA type: MT4127
\tNumber of ports: 1
\tPort 1:
\t\tState: Down
\t\tPhysical state: Disabled
\t\tRate: 40
\t\tLink layer: Ethernet
"""


def host(**answers: str) -> RecordedHost:
    """A host that knows some of the tools."""
    known = {"gpus": GPUS, "topology": TOPOLOGY, "addresses": ADDRESSES, "speeds": SPEEDS, "ports": PORTS}
    return RecordedHost("gpu-a", {known[name]: Completed(0, text, "") for name, text in answers.items()})


def test_gpus() -> None:
    """Index, name, memory and UUID are read; driver trouble is shown as it was printed."""
    assert [gpu.uuid for gpu in parse_gpus(TWO_H100)] == ["GPU-aaaa", "GPU-bbbb"]
    with pytest.raises(ProbeError, match="has failed"):
        parse_gpus("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


def test_topology() -> None:
    """Levels between GPUs, the worst pair's links, and the NIC next to each GPU, through terminal codes."""
    found = parse_topology(TOPO_NVLINK)
    assert found.nvlinks == 18
    assert found.near_nics(0) == ["mlx5_0"]
    assert found.near_nics(1) == ["mlx5_3"]
    assert parse_topology(TOPO_PCIE).nvlinks == 0
    assert parse_topology(TOPO_PCIE).gpu_pairs == ["PHB", "PHB"]


def test_interfaces_and_ports() -> None:
    """Loopback and container bridges are no candidates; ports know their state, rate and layer."""
    assert [one.name for one in parse_interfaces(IP_ADDR)] == ["eno1", "ib0"]
    assert parse_speeds("eno1 10000\nlo \nwlan0 -1\nib0 400000\n") == {"eno1": 1e10, "ib0": 4e11}
    ports = parse_ibstat(IBSTAT)
    assert [(port.device, port.is_active) for port in ports] == [
        ("mlx5_0", True),
        ("mlx5_3", True),
        ("mlx5_4", False),
    ]
    assert ports[0].rate_bits_per_second == 4e11


@given(st.text(max_size=200))
def test_parsers_survive_anything(text: str) -> None:
    """Unknown output gives nothing or a ProbeError, never a crash."""
    parse_topology(text)
    parse_interfaces(text)
    parse_speeds(text)
    parse_ibstat(text)
    with contextlib.suppress(ProbeError):
        assert all(gpu.memory_bytes >= 0 for gpu in parse_gpus(text))


def test_a_node_with_everything() -> None:
    """NVLink, InfiniBand and the catalogue's CUDA memory come together."""
    node = probe_node(
        host(gpus=TWO_H100, topology=TOPO_NVLINK, addresses=IP_ADDR, speeds="eno1 10000", ports=IBSTAT)
    )
    assert node.address == "10.1.0.7"
    assert (node.link.kind, node.link.bytes_per_second) == ("nvlink", 450e9)
    assert node.network == Network("infiniband", 4e11, 2, "eno1", ("mlx5_0", "mlx5_3"))
    assert node.gpus[0].memory_bytes == node.gpus[0].type.memory_bytes


def test_bridges_pcie_and_slices() -> None:
    """H100s without NVLink count as PCIe; a bridge on PCIe cards as a thin NVLink; a slice keeps its own memory."""
    assert probe_node(host(gpus=TWO_H100, topology=TOPO_PCIE)).link.kind == "pcie"
    cards = "0, NVIDIA GeForce RTX 3090, 24576, GPU-a\n1, NVIDIA GeForce RTX 3090, 24576, GPU-b\n"
    bridge = probe_node(
        host(gpus=cards, topology=TOPO_PCIE.replace("PHB", "NV4"), addresses=IP_ADDR, speeds="eno1 10000")
    )
    assert (bridge.link.kind, bridge.link.bytes_per_second) == ("nvlink", 56e9)
    assert bridge.network == Network("ethernet", 1e10, 1, "eno1")
    half = probe_node(host(gpus="0, NVIDIA H100 80GB HBM3, 40448, GPU-a\n"))
    assert 38 << 30 < half.gpus[0].memory_bytes < 40 << 30


def test_a_node_without_tools_has_no_gpu() -> None:
    """A CPU-only head is a node too."""
    assert probe_node(host()).gpus == ()


def test_an_unknown_gpu_is_named() -> None:
    """Nothing is guessed about a card that the catalogue does not know."""
    with pytest.raises(ProbeError, match="Quadro 9"):
        probe_node(host(gpus="0, Quadro 9, 8192, GPU-a\n"))


def test_an_unreachable_host_is_an_error() -> None:
    """A host that does not answer is not a host without GPUs."""

    class Dead(RecordedHost):
        def run(self, argv: object, **_: object) -> Completed:  # type: ignore[override]
            raise HostError("gpu-a cannot be reached: timeout")

    with pytest.raises(HostError, match="cannot be reached"):
        probe_node(Dead("gpu-a", {}))

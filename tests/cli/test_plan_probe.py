"""`plan --probe ray`: what the tasks of a Ray cluster bring back becomes an inventory."""

from collections.abc import Callable
from typing import Any

import pytest

from longspan import errors
from longspan.cli import plan_probe
from longspan.cluster.inventory_file import parse_cluster
from longspan.cluster.parse import Port, parse_sysfs_ports
from longspan.cluster.probe import ADDRESSES, COMMANDS, GPUS, SPEEDS, SYSFS_PORTS, TOPOLOGY

TWO_A100 = "0, NVIDIA A100 80GB PCIe, 81920, GPU-a\n1, NVIDIA A100 80GB PCIe, 81920, GPU-b\n"
TOPOLOGY_PCIE = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-31\nGPU1\tPHB\t X \t0-31\n"
SYSFS = "mlx5_0|1|4: ACTIVE|200 Gb/sec (4X HDR)|InfiniBand\nmlx5_1|1|1: DOWN|10 Gb/sec (1X QDR)|Ethernet\n"


def ray_node(host: str, address: str, count: int, *, head: bool = False, **texts: str) -> dict[str, Any]:
    """One node as `ray_join ask` prints it; a tool without text is one that the node does not have."""
    known = {
        "gpus": GPUS,
        "topology": TOPOLOGY,
        "addresses": ADDRESSES,
        "speeds": SPEEDS,
        "ports": SYSFS_PORTS,
    }
    by_argv = {known[name]: [0, text, ""] for name, text in texts.items()}
    return {
        "id": address, "address": address, "hostname": host, "gpus": count, "head": head,
        "answers": [by_argv.get(argv) for argv in COMMANDS],
    }  # fmt: skip


def ip(name: str, address: str) -> str:
    """A line of `ip -o -4 addr show up`."""
    return f"2: {name}    inet {address}/24 brd 10.0.0.255 scope global {name}\\       valid_lft forever\n"


def test_nodes_of_a_ray_cluster() -> None:
    """GPUs, link, network and address of each node are read; the head comes first, and two nodes of a host get names of their own."""
    notes: list[str] = []
    head, one, two = plan_probe.ray_nodes(
        [
            ray_node("gpu", "10.0.0.3", 2, gpus=TWO_A100, topology=TOPOLOGY_PCIE, addresses=ip("ib0", "10.0.0.3"), ports=SYSFS),
            ray_node("gpu", "10.0.0.2", 1, gpus=TWO_A100, addresses=ip("eno1", "10.0.0.2"), speeds="eno1 25000\n"),
            ray_node("front", "10.0.0.9", 0, head=True),
        ],
        notes,
    )  # fmt: skip
    assert (head.name, head.address, head.gpus) == ("front", "10.0.0.9", ())
    assert (one.name, two.name) == ("gpu-10.0.0.2", "gpu-10.0.0.3")
    assert (len(one.gpus), one.network.kind, one.network.rate_bits_per_second) == (1, "ethernet", 25e9)
    assert (len(two.gpus), two.link.kind, two.network.kind) == (2, "pcie", "infiniband")
    assert (two.network.interface, two.network.hcas) == ("ib0", ("mlx5_0",))
    assert "front does not say how fast its network is: 10 Gbit/s is assumed." in notes
    assert "gpu-10.0.0.2 has 2 GPUs, and Ray may hand out 1: the others are left out." in notes
    assert len(notes) == 2


def test_a_node_that_does_not_answer() -> None:
    """It is named with Ray's own reason: an inventory with a hole would plan past it."""
    lost = {
        "id": "x",
        "address": "10.0.0.2",
        "hostname": "gpu-b",
        "gpus": 8,
        "head": False,
        "error": "node died",
    }
    with pytest.raises(errors.ProbeError, match=r"gpu-b \(10.0.0.2\) .* did not answer: node died"):
        plan_probe.ray_nodes([lost], [])


def test_ports_without_ibstat() -> None:
    """The kernel's own files say the same as ibstat."""
    assert parse_sysfs_ports(SYSFS + "noise\n") == [
        Port("mlx5_0", 1, True, 200e9, "InfiniBand"),
        Port("mlx5_1", 1, False, 10e9, "Ethernet"),
    ]


def test_the_printed_inventory_joins_that_ray(
    longspan: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file names the head's address, so that `up --cluster` joins the Ray that was probed, and `plan --cluster` reads it."""
    answer = {
        "version": "2.60.0",
        "address": "10.0.0.1:6379",
        "nodes": [
            ray_node("gpu-a", "10.0.0.1", 2, head=True, gpus=TWO_A100, addresses=ip("eno1", "10.0.0.1"))
        ],
    }
    monkeypatch.setattr(plan_probe, "ask_ray", lambda verb, address, wanted: answer)
    monkeypatch.setattr(plan_probe, "find_spec", lambda name: name)
    said = longspan("plan", "--probe", "ray:10.0.0.1:6379", "--json")
    document = said.document
    cluster = parse_cluster(document["inventory"])
    assert (document["gpus"], cluster.nodes[0].name, cluster.nodes[0].gpu_types) == (
        2,
        "gpu-a",
        ("A100-PCIe-80GB",),
    )
    assert '[ray]\naddress = "10.0.0.1:6379"' in document["inventory"]


def test_without_ray(longspan: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is no part of the base package: its absence is an error with another way to probe."""
    monkeypatch.setattr(plan_probe, "find_spec", lambda name: None)
    said = longspan("plan", "--probe", "ray")
    assert said.code == errors.EngineMissingError.exit_code
    assert "--probe HOST,HOST" in said.err

"""The per-node environment compiler: each node's own NIC and devices, with reasons; what the user set stays."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.preflight.environment import COMPILED, compile_environment, gid_index
from longspan.preflight.facts import Gid, Nic, NodeFacts, Route
from longspan.preflight.scene import Setting, Wanted
from preflight.scenes import node, rdma, rdma_port


def compiled(*nodes: NodeFacts, **wanted: dict[str, Any]) -> dict[str, dict[str, Setting]]:
    """node -> variable -> setting."""
    wants = [Wanted(one.name, one.address, **{"gpus": 1, **wanted.get(one.name, {})}) for one in nodes]
    return {
        name: {one.variable: one for one in found}
        for name, found in compile_environment(wants, nodes).items()
    }


def values(*nodes: NodeFacts, **wanted: dict[str, Any]) -> dict[str, dict[str, str]]:
    """node -> variable -> value."""
    return {
        name: {key: one.value for key, one in found.items()}
        for name, found in compiled(*nodes, **wanted).items()
    }


def test_each_node_gets_its_own_nic_and_address() -> None:
    """NICs of other names on other nodes; NCCL's is exact, since it takes a bare name as a prefix."""
    found = values(node("a"), node("b"))
    assert found["a"] == {
        "NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0", "VLLM_HOST_IP": "10.0.0.1",
    }  # fmt: skip
    assert (found["b"]["GLOO_SOCKET_IFNAME"], found["b"]["VLLM_HOST_IP"]) == ("eth1", "10.0.0.2")


def test_one_node_needs_nothing() -> None:
    """Without peers there is no NIC to choose."""
    assert values(node("a")) == {"a": {}}


def test_the_route_decides_where_the_address_does_not() -> None:
    """An address that no NIC carries: the NIC of most routes, and the reason says so."""
    nics = (Nic("eth9", ("192.0.2.1",), 1500, True, True),)
    routes = {"10.0.0.2": Route("eth9", "192.0.2.1"), "10.0.0.3": Route("eth9", "192.0.2.1")}
    setting = compiled(node("a", nics=nics, routes=routes), node("b"), node("c"))["a"]["GLOO_SOCKET_IFNAME"]
    assert setting.value == "eth9"
    assert "2 of 2 peers" in setting.why


def test_a_node_that_said_nothing() -> None:
    """It gets its address and no guess."""
    lost = NodeFacts("b", "10.0.0.2", refused=("host-unreachable", "x", "y"))
    assert values(node("a"), lost)["b"] == {"VLLM_HOST_IP": "10.0.0.2"}


@given(
    st.dictionaries(
        st.sampled_from(COMPILED), st.sampled_from(["mine", "=other", "0"]), max_size=len(COMPILED)
    )
)
def test_what_the_user_set_is_never_changed(own: dict[str, str]) -> None:
    """Every variable of the user's keeps its value and is shown as the user's."""
    found = compiled(node("a"), node("b"), a={"env": own})["a"]
    for variable, value in own.items():
        assert (found[variable].value, found[variable].origin) == (value, "user")


def test_a_nic_named_for_one_library_counts_for_all() -> None:
    """The user's NIC for NCCL is taken for Gloo too, then the cluster file's interface, then the kernel's."""
    found = values(node("a"), node("b"), a={"env": {"NCCL_SOCKET_IFNAME": "=ib0"}}, b={"interface": "ens9"})
    assert found["a"]["GLOO_SOCKET_IFNAME"] == "ib0"
    assert found["a"]["NCCL_SOCKET_IFNAME"] == "=ib0"
    assert found["b"]["GLOO_SOCKET_IFNAME"] == "ens9"
    assert (
        values(node("a", env={"GLOO_SOCKET_IFNAME": "bond0"}), node("b"))["a"]["TP_SOCKET_IFNAME"] == "bond0"
    )


def test_an_exclusion_is_no_choice() -> None:
    """`^docker0` says what not to use; the others are still chosen."""
    found = values(node("a"), node("b"), a={"env": {"NCCL_SOCKET_IFNAME": "^docker0"}})["a"]
    assert (found["NCCL_SOCKET_IFNAME"], found["GLOO_SOCKET_IFNAME"]) == ("^docker0", "eth0")


def test_infiniband_on_all_nodes() -> None:
    """The fastest active ports of each node by their own names; a slow or inactive port is left out; no GID index."""
    first = rdma(
        "a", rdma_port("mlx5_0"), rdma_port("mlx5_9", rate=10e9), rdma_port("mlx5_3", is_active=False)
    )
    found = values(first, rdma("b", rdma_port("ibp1s0"), rdma_port("ibp2s0")))
    assert found["a"]["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert found["b"]["NCCL_IB_HCA"] == "=ibp1s0:1,ibp2s0:1"
    assert "NCCL_IB_GID_INDEX" not in found["a"]
    named = values(first, rdma("b", rdma_port("x")), a={"hcas": ("mlx5_9",)})
    assert named["a"]["NCCL_IB_HCA"] == "=mlx5_9:1"


def test_roce_takes_the_v2_entry_with_ipv4() -> None:
    """The GID index is each node's own."""
    other = rdma_port(
        layer="Ethernet", gids=(Gid(5, "RoCE v2", "eth1", True), Gid(4, "RoCE v2", "eth1", False))
    )
    found = values(rdma("a", rdma_port(layer="Ethernet")), rdma("b", other))
    assert (found["a"]["NCCL_IB_GID_INDEX"], found["b"]["NCCL_IB_GID_INDEX"]) == ("3", "5")


@pytest.mark.parametrize(
    "other",
    [node("b"), rdma("b", rdma_port(layer="Ethernet")), rdma("b", rdma_port(), rdma_library=""), rdma("b", rdma_port(), rdma_devices=())],
    ids=["no device", "RoCE beside InfiniBand", "no library", "no /dev/infiniband"],
)  # fmt: skip
def test_rdma_on_some_nodes_only(other: NodeFacts) -> None:
    """All use sockets, since NCCL needs one kind; the reason names the node."""
    found = compiled(rdma("a", rdma_port()), other)
    for name in "ab":
        assert found[name]["NCCL_IB_DISABLE"].value == "1"
        assert "NCCL_IB_HCA" not in found[name]
    assert "sockets" in found["a"]["NCCL_IB_DISABLE"].why


@given(st.lists(st.sets(st.integers(0, 9), max_size=5), min_size=1, max_size=4))
def test_the_gid_index_is_on_every_port(tables: list[set[int]]) -> None:
    """The lowest index that all ports have; none where they share none."""
    ports = [
        rdma_port(layer="Ethernet", gids=tuple(Gid(i, "RoCE v2", "e", True) for i in table))
        for table in tables
    ]
    common = set.intersection(*tables)
    assert gid_index(ports) == (min(common) if common else None)

"""The inventory: its TOML, its shorthand, and what a node without details is taken to have."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.cluster.catalog import catalog
from longspan.cluster.inventory import NETWORK_KINDS, Cluster, Gpu, Link, Network, Node, describe
from longspan.cluster.inventory_file import parse_cluster, parse_network, parse_shorthand, to_toml
from longspan.errors import InputError

TEXT = """
name = "lab"
[network]
kind = "ethernet"
rate_gbit_per_second = 10
interface = "eno1"
[[node]]
name = "gpu[08-10]"
address = "{name}.lab"
gpus = "4x A100-PCIe-80GB"
[[node]]
name = "mixed"
gpus = ["A100-PCIe-80GB", "RTX-4090"]
network = { kind = "infiniband", rate_gbit_per_second = 200, nics = 2, interface = "ib0", hcas = ["mlx5_0"] }
[[node]]
name = "head"
"""


def test_an_inventory_is_read() -> None:
    """Ranges expand, defaults apply, a node may have no GPU, and mixed GPUs get the slowest link."""
    cluster = parse_cluster(TEXT)
    assert [node.name for node in cluster.nodes] == ["gpu08", "gpu09", "gpu10", "mixed", "head"]
    assert cluster.node("gpu09").address == "gpu09.lab"
    assert cluster.gpu_count == 14
    assert not cluster.is_uniform
    assert cluster.node("gpu08").network.interface == "eno1"
    assert cluster.node("mixed").network.is_rdma
    assert cluster.node("mixed").network.bytes_per_second == 50e9
    assert cluster.node("mixed").link.kind == "pcie-host"
    assert cluster.node("head").gpus == ()


nodes = st.builds(
    lambda name, kinds, link, network: Node(
        name, f"{name}.example",
        tuple(Gpu(i, catalog()[k], catalog()[k].memory_bytes) for i, k in enumerate(kinds)), link, network,
    ),
    st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True),
    st.lists(st.sampled_from(list(catalog())), max_size=4),
    st.builds(Link, st.sampled_from(["nvlink", "xgmi", "pcie", "pcie-host"]), st.integers(1, 900).map(lambda g: g * 1e9)),
    st.builds(
        Network, st.sampled_from(NETWORK_KINDS), st.integers(1, 800).map(lambda g: g * 1e9), st.integers(1, 8),
        st.sampled_from(["", "eth0"]), st.sampled_from([(), ("mlx5_0", "mlx5_1")]),
    ),
)  # fmt: skip


@given(st.lists(nodes, min_size=1, max_size=4, unique_by=lambda node: node.name))
def test_written_inventories_read_back(found: list[Node]) -> None:
    """to_toml and parse_cluster are inverse for every cluster of catalogue GPUs."""
    cluster = Cluster("lab", tuple(found))
    assert parse_cluster(to_toml(cluster)) == cluster


@given(st.integers(60, 190))
def test_probed_memory_survives(gib: int) -> None:
    """Memory that a probe measured is kept, not replaced by the catalogue's."""
    gpu = Gpu(0, catalog()["H100-SXM-80GB"], gib << 30)
    cluster = Cluster("c", (Node("a", "a", (gpu,), Link("nvlink", 450e9), Network("ethernet", 10e9)),))
    assert parse_cluster(to_toml(cluster)) == cluster


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "TOML"), ("", "no node"), ("[[node]]\ngpus = '8x H100'", "name is missing"),
        ("[[node]]\nname = 'a'\ngpus = '8x H999'", "H999"), ("[[node]]\nname = 'a'\ngpu = 3", "unknown field gpu"),
        ("[[node]]\nname = 'a'\n[[node]]\nname = 'a'", "more than once"),
        ("[[node]]\nname = 'a'\nnetwork = { kind = 'token ring', rate_gbit_per_second = 1 }", "network.kind"),
        ("[[node]]\nname = 'a'\nnetwork = { kind = 'roce', rate_gbit_per_second = -1 }", "rate_gbit_per_second"),
        ("[[node]]\nname = 'a'\ngpus = '8x H100'\nlink = 'wire'", "link.kind"),
        ("[[node]]\nname = 'a[5-2]'", "range"),
    ],
)  # fmt: skip
def test_errors_name_the_field(text: str, words: str) -> None:
    """A wrong inventory is answered with the node and the field."""
    with pytest.raises(InputError, match=words):
        parse_cluster(text)


def test_shorthand() -> None:
    """Two words on the command line are a cluster."""
    cluster = parse_shorthand("2x4xA100-PCIe-80GB + 8xH100", "ib:200x2")
    assert [len(node.gpus) for node in cluster.nodes] == [4, 4, 8]
    assert {node.network for node in cluster.nodes} == {Network("infiniband", 200e9, 2)}
    assert "16 GPUs" in describe(cluster)
    assert parse_shorthand("4xL4").nodes[0].network.kind == "ethernet"
    assert parse_shorthand("8xH200").nodes[0].network.is_rdma


@pytest.mark.parametrize("text", ["", "H100", "0xH100", "2x0xH100", "ax4xH100", "8x", "0x8xH100"])
def test_bad_shorthand(text: str) -> None:
    """What cannot be read is refused with an example."""
    with pytest.raises(InputError):
        parse_shorthand(text)


@given(st.text(max_size=20))
def test_networks_never_crash(text: str) -> None:
    """Any text is a network or an InputError."""
    with contextlib.suppress(InputError):
        assert parse_network(text).rate_bits_per_second > 0

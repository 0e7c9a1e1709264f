"""Measured links in a cluster file: only they change, comments stay, and the planner reads them back."""

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.cluster.inventory import Network
from longspan.cluster.inventory_file import parse_cluster, to_toml
from longspan.cluster.link_file import MeasuredLink, write_links
from longspan.errors import InputError
from longspan.planner.links import network_path

FILE = """# our rack
name = "lab"

[network]
kind = "roce"
rate_gbit_per_second = 100

[[node]]           # the first
name = "a"
gpus = "1x H100"
env = { X = "1" }  # keep

[[node]]
name = "b"
network = { kind = "ethernet", rate_gbit_per_second = 25 }  # slow one
gpus = "1x H100"
"""
LINK = MeasuredLink(10e9, 2e-5, "nccl")


def test_only_the_links_change() -> None:
    """Comments and order stay; a node without a network of its own gets the file's with the measurement."""
    after = write_links(FILE, {"a": LINK, "b": LINK})
    for line in FILE.splitlines():
        if "network = {" not in line:
            assert line in after
    assert "# slow one" in after
    a, b = parse_cluster(after).nodes
    assert (a.network.kind, a.network.rate_bits_per_second) == ("roce", 100e9)
    assert (b.network.kind, b.network.rate_bits_per_second) == ("ethernet", 25e9)
    assert a.network.measured_bytes_per_second == b.network.measured_bytes_per_second == 10e9
    assert (a.network.measured_latency_seconds, a.network.measured_with) == (2e-5, "nccl")


def test_written_again_it_is_replaced() -> None:
    """A second measurement leaves one line."""
    once = write_links(FILE, {"a": LINK, "b": LINK})
    twice = write_links(once, {"a": MeasuredLink(5e9, 1e-5, "nccl"), "b": LINK})
    assert len(twice.splitlines()) == len(once.splitlines())
    assert parse_cluster(twice).nodes[0].network.measured_bytes_per_second == 5e9


@pytest.mark.parametrize(
    "text",
    [
        '[[node]]\nname = "a"\n[node.network]\nkind = "ethernet"\nrate_gbit_per_second = 10\n',
        'node = [{ name = "a", address = "10.0.0.1" }]\n',
        '[[node]]\nname = "n[1-2]"\n',
    ],
)
def test_a_file_that_cannot_be_changed_by_lines(text: str) -> None:
    """It is refused with what to add by hand, and never damaged."""
    with pytest.raises(InputError):
        write_links(text, {"a": LINK})


@given(
    st.lists(st.from_regex(r"[a-z]{1,4}", fullmatch=True), min_size=1, max_size=4, unique=True),
    st.floats(1e3, 1e12), st.floats(1e-7, 1.0), st.data(),
)  # fmt: skip
def test_any_measurement_reads_back(
    names: list[str], rate: float, latency: float, data: st.DataObject
) -> None:
    """To four digits, and nothing else of the document changes."""
    text = "".join(f"[[node]]\nname = {json.dumps(name)}\ngpus = 1 # one\n\n" for name in names)
    chosen = data.draw(st.sets(st.sampled_from(names), min_size=1))
    after = tomllib.loads(write_links(text, {name: MeasuredLink(rate, latency, "gloo") for name in chosen}))
    for table in after["node"]:
        network = table.pop("network", None)
        assert (network is not None) == (table["name"] in chosen)
        if network:
            assert network["measured_gbit_per_second"] == pytest.approx(rate * 8 / 1e9, rel=1e-3)
            assert network["measured_latency_us"] == pytest.approx(latency * 1e6, rel=1e-3)
    assert after == tomllib.loads(text)


def test_the_planner_believes_the_measurement() -> None:
    """Where all nodes were measured the slowest counts as it was reached; where one was not, the declared rates do."""
    fast = Network("ethernet", 100e9, measured_bytes_per_second=9e9, measured_latency_seconds=3e-5)
    slow = Network("ethernet", 100e9, measured_bytes_per_second=7e9, measured_latency_seconds=5e-5)
    path = network_path([fast, slow], 2)
    assert path.bytes_per_second * 0.7 == pytest.approx(7e9)
    assert path.measured_latency_seconds == 5e-5
    assert path.is_calibrated
    plain = network_path([fast, Network("ethernet", 100e9)], 2)
    assert (plain.bytes_per_second, plain.measured_latency_seconds) == (12.5e9, 0.0)


def test_a_cluster_with_measurements_is_written_whole() -> None:
    """`to_toml` keeps them."""
    cluster = parse_cluster(write_links(FILE, {"a": LINK}))
    assert parse_cluster(to_toml(cluster)).nodes == cluster.nodes

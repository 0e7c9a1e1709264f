"""The launcher's part of a cluster file: good files, and every kind of bad one with its place."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.cluster.container import Container
from longspan.cluster.hosts import HostEntry, HostsFile, parse_hosts
from longspan.cluster.inventory_file import parse_cluster
from longspan.errors import InputError

GOOD = """
[ray]
address = "10.0.0.1:6379"

[[node]]
name = "gpu-a"
address = "10.0.0.1"
gpus = "8x H100-SXM-80GB"
ssh = "ops@gpu-a"
python = "/opt/serve/bin/python"
env = { NCCL_SOCKET_IFNAME = "eno1", NCCL_IB_GID_INDEX = 3 }

[[node]]
name = "gpu-b"
address = "10.0.0.2"
"""


def test_a_good_file() -> None:
    """All fields are read; what is left out stays open; numbers among the variables become texts."""
    assert parse_hosts(GOOD, "c.toml") == HostsFile(
        "10.0.0.1:6379",
        (
            HostEntry(
                "gpu-a", "10.0.0.1", 8, "ops@gpu-a", "/opt/serve/bin/python",
                {"NCCL_SOCKET_IFNAME": "eno1", "NCCL_IB_GID_INDEX": "3"}, vendor="nvidia",
            ),
            HostEntry("gpu-b", "10.0.0.2", None),
        ),
    )  # fmt: skip


def test_a_ray_alone_is_enough() -> None:
    """With a Ray address no node needs to be named."""
    assert parse_hosts('[ray]\naddress = "head.lan:6379"', "c.toml") == HostsFile("head.lan:6379", ())


@pytest.mark.parametrize(
    ("value", "count"),
    [("0", 0), ("8", 8), ('"8x H100"', 8), ('"4 x  RTX-4090"', 4), ('"2xA100"', 2), ('"RTX-4090"', 1),
     ('["A", "B", "A"]', 3), ("[]", 0)],
)  # fmt: skip
def test_gpus(value: str, count: int) -> None:
    """A number, a count of a type, one type, or a list of types."""
    text = f'[[node]]\nname = "a"\naddress = "10.0.0.1"\ngpus = {value}\n'
    assert parse_hosts(text, "c.toml").hosts[0].gpus == count


def node(**changes: str) -> str:
    """One node's table, its values as TOML; None leaves one out."""
    values = {"name": '"a"', "address": '"10.0.0.1"', **changes}
    return "[[node]]\n" + "\n".join(f"{key} = {value}" for key, value in values.items() if value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[node]]\nname = gpu\n", "line 2, column 8"),
        ('[[node]\nname = "a"', "line 1"),
        ("", "names no [[node]] and no [ray] address"),
        ('[[nodes]]\nname = "a"', "names no [[node]]"),
        ("node = 3", "names no [[node]]"),
        ("node = [3]", "node 1 is not a table"),
        (node(name=""), "node 1: name is missing"),
        (node(name="7"), "node 1: name is missing"),
        (node(name='"a b"'), "'a b' cannot be a node's name"),
        (node(name='"../x"'), "cannot be a node's name"),
        (node(name='"-x"'), "cannot be a node's name"),
        (node(name='"nöde"'), "cannot be a node's name"),
        (node(name='"front"'), "'front' cannot be a node's name"),
        (node(address=""), "node 1: address is missing"),
        (node(address='"gpu-a.lan"'), "address must be an IP address, not 'gpu-a.lan'"),
        (node(address='"10.0.0.1:22"'), "address must be an IP address"),
        (node(address='"10.0.0.256"'), "address must be an IP address"),
        (node(address='"0.0.0.0"'), "0.0.0.0 is no address of a host"),
        (node(address='"224.0.0.1"'), "224.0.0.1 is no address of a host"),
        (node(gpus="true"), "gpus must be a number"),
        (node(gpus="-1"), "gpus must be a number"),
        (node(gpus="1.5"), "gpus must be a number"),
        (node(gpus='"8"'), "gpus must be a number, \"4x TYPE\" or a list of types, not '8'"),
        (node(gpus='"8x"'), "gpus must be a number"),
        (node(gpus='""'), "gpus must be a number"),
        (node(gpus="[1, 2]"), "gpus must be a number"),
        (node(ssh='"-oProxyCommand=x"'), "ssh must be what one types after `ssh`"),
        (node(ssh='""'), "ssh must be"),
        (node(ssh="3"), "ssh must be"),
        (node(python="3"), "python must be the path"),
        (node(python='""'), "python must be the path"),
        (node(env='"A=1"'), "env must be a table"),
        (node(env="{ A = true }"), "env.A must be a text, not True"),
        (node(env="{ A = [1] }"), "env.A must be a text"),
        (node(env='{ A = "x\\u0000y" }'), "env.A must be a text"),
        (node(env='{ "A B" = "x" }'), "'A B' cannot be a variable's name"),
        (node() + "\n" + node(address='"10.0.0.2"'), "the name 'a' stands twice"),
        (node() + "\n" + node(name='"b"'), "the address '10.0.0.1' stands twice"),
        (
            node(address='"fd00::2"') + "\n" + node(name='"b"', address='"fd00:0::2"'),
            "the address 'fd00::2' stands twice",
        ),
        ('ray = "10.0.0.1:6379"\n' + node(), "[ray] address must be"),
        ("[ray]\n" + node(), "[ray] address must be"),
        ('[ray]\naddress = "10.0.0.1"\n', "[ray] address must be"),
        ('[ray]\naddress = "auto"\n', "[ray] address must be"),
        ('[ray]\naddress = "ray://10.0.0.1:10001"\n', "[ray] address must be"),
        ("[ray]\naddress = 6379\n", "[ray] address must be"),
    ],
)
def test_bad_files(text: str, words: str) -> None:
    """Every mistake is refused with the file, the place and what was seen."""
    with pytest.raises(InputError) as caught:
        parse_hosts(text, "c.toml")
    assert caught.value.what.startswith("c.toml")
    assert words in caught.value.what


values: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-3, 9) | st.floats(allow_nan=False) | st.text(max_size=6)
    | st.sampled_from(["10.0.0.1", "4x H100", "fd00::1", "a", "127.0.0.2:6379"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
tables = st.dictionaries(
    st.sampled_from(["name", "address", "gpus", "ssh", "python", "env", "extra"]), values, max_size=7
)


def toml(value: Any) -> str:
    """A value as inline TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value) if abs(value) != float("inf") else "inf"
        case str():
            return json.dumps(value).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case _:
            return "{" + ", ".join(f"{toml(key)} = {toml(inner)}" for key, inner in value.items()) + "}"


@given(st.lists(tables | values, max_size=3), st.none() | tables | values)
def test_any_values(nodes: list[Any], ray: Any) -> None:
    """Whatever the values are, the file is either read into usable hosts or refused as the user's error."""
    text = f"node = {toml(nodes)}\n" + ("" if ray is None else f"ray = {toml(ray)}\n")
    try:
        found = parse_hosts(text, "c.toml")
    except InputError:
        return
    for host in found.hosts:
        assert host.name
        assert host.gpus is None or host.gpus >= 0
        assert all(isinstance(value, str) for value in host.env.values())
    assert len({host.address for host in found.hosts}) == len(found.hosts)


@given(st.text())
def test_any_text(text: str) -> None:
    """Any text at all is read or refused, never an error of ours."""
    with contextlib.suppress(InputError):
        assert parse_hosts(text, "c.toml").ray_address or "node" in text


def test_one_file_serves_planner_and_launcher() -> None:
    """The same text names hosts to the launcher and GPUs to the planner; neither stumbles over the other's fields."""
    text = """
    [ray]
    address = "10.0.0.1:6379"
    [network]
    kind = "ethernet"
    rate_gbit_per_second = 10
    [[node]]
    name = "gpu-a"
    address = "10.0.0.1"
    gpus = "8x H100-SXM-80GB"
    ssh = "ops@gpu-a"
    python = "/opt/serve/bin/python"
    env = { NCCL_SOCKET_IFNAME = "eno1" }
    """
    hosts = parse_hosts(text, "hosts.toml")
    cluster = parse_cluster(text)
    assert (hosts.hosts[0].gpus, hosts.hosts[0].ssh, hosts.ray_address) == (8, "ops@gpu-a", "10.0.0.1:6379")
    assert cluster.gpu_count == 8


CONTAINERS = """
container = "image:1"
network = { kind = "ethernet", rate_gbit_per_second = 10 }

[[node]]
name = "a"
address = "10.0.0.1"
gpus = "8x MI300X"

[[node]]
name = "b"
address = "10.0.0.2"
gpus = 8
container = { image = "image:2", engine = "podman", gpu_vendor = "none" }
network = { kind = "roce", rate_gbit_per_second = 100 }

[[node]]
name = "c"
address = "10.0.0.3"
gpus = 8
container = false
"""


def test_containers_of_all_and_of_one() -> None:
    """The file's container is every node's that has none of its own; its devices follow from GPUs and network."""
    assert [host.container for host in parse_hosts(CONTAINERS, "c.toml").hosts] == [
        Container("image:1", gpus="amd"),
        Container("image:2", engine="podman", gpus="none", rdma=True),
        None,
    ]
    assert len(parse_cluster(CONTAINERS.replace("gpus = 8\n", 'gpus = "8x H100"\n')).nodes) == 3


def test_a_wrong_container_is_named() -> None:
    """With the file, the node and the field; beside a Ray that is joined it makes no sense."""
    with pytest.raises(InputError, match=r"c\.toml: node 2: container\.engine"):
        parse_hosts(CONTAINERS.replace("podman", "lxc"), "c.toml")
    with pytest.raises(InputError, match="joined where it runs"):
        parse_hosts(CONTAINERS + '[ray]\naddress = "10.0.0.1:6379"\n', "c.toml")


@pytest.mark.parametrize(
    "text",
    [
        "node = 5", "node = [1]", '[node]\nname = "a"', "gpu_type = 5", "[gpu_type]\nx = 5", "a = " + "[" * 20_000,
        '[[node]]\nname = "a"\ngpus = "99999x H100"', '[[node]]\nname = ""\ngpus = "1x H100"',
        '[[node]]\nname = "a"\naddress = "$(x)"\ngpus = "1x H100"', '[[node]]\nname = "a b"\ngpus = "1x H100"',
        '[[node]]\nname = "a[0-4095]"\ngpus = "8x H100"',
        '[[node]]\nname = "a"\ngpus = "1x H100"\nnetwork = { kind = "roce", rate_gbit_per_second = nan }',
        '[[node]]\nname = "a"\ngpus = "1x H100"\nnetwork = { kind = "roce", rate_gbit_per_second = 1, hcas = 5 }',
        "[gpu_type.x]\nmemory_gib = nan\nmemory_bandwidth_gb_per_second = 1\nbf16_tflops = 1",
        '[gpu_type.x]\nmemory_gib = 8\nmemory_bandwidth_gb_per_second = 1\nbf16_tflops = 1\nlink = "warp"',
        '[gpu_type.x]\nmemory_gib = 8\nmemory_bandwidth_gb_per_second = 1\nbf16_tflops = 1\nfp8_tflops = "a"',
    ],
)  # fmt: skip
def test_a_damaged_inventory_is_an_answer(text: str) -> None:
    """Tables of the wrong kind, numbers that cannot be and absurd sizes end in words."""
    with pytest.raises(InputError):
        parse_cluster(text)

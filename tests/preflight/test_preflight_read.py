"""Reading what nodes say: recorded text in, values out; what cannot be read is unknown with a reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.preflight import gather_gpu, remote
from longspan.preflight.addresses import is_same_address, why_unreachable
from longspan.preflight.groups import read_group, rounds
from longspan.preflight.read import (
    read_active_mtus,
    read_facts,
    read_gpus,
    read_nics,
    read_rdma_ports,
    read_refusal,
    read_reserved,
    read_route,
)
from longspan.preflight.run import read_pairs

ADDRESSES = json.dumps(
    [
        {"ifname": "lo", "flags": ["LOOPBACK", "UP"], "mtu": 65536, "addr_info": [{"local": "127.0.0.1"}, {"local": "::1"}]},
        {"ifname": "ens1", "flags": ["BROADCAST", "UP"], "mtu": 9000, "addr_info": [{"local": "10.0.0.1"}]},
        {"ifname": "ens2", "flags": ["NO-CARRIER", "UP"], "mtu": 1500, "addr_info": []},
        {},
    ]
)  # fmt: skip
GPUS = (
    "0, NVIDIA H100 80GB HBM3, 81559, GPU-aa, 580.65.06, 9.0, 4, 0, Disabled\n"
    "1, NVIDIA GeForce RTX 4090, 24564, GPU-bb, 580.65.06, 8.9, 300, [N/A], [N/A]\n"
)


def test_nics() -> None:
    """Names, addresses, MTU, link and speed; a NIC without carrier is up but without a link."""
    lo, ens1, ens2 = read_nics(ADDRESSES, {"ens1": {"speed": "100000"}, "ens2": {"speed": "-1"}})
    assert lo.addresses == ("127.0.0.1", "::1")
    assert (ens1.mtu, ens1.speed_bits_per_second, ens1.is_up, ens1.has_carrier) == (9000, 100e9, True, True)
    assert (ens2.is_up, ens2.has_carrier, ens2.speed_bits_per_second) == (True, False, 0.0)


def test_routes() -> None:
    """The device and source of `ip route get`, or the kernel's words."""
    told = '[{"dst":"10.0.0.2","dev":"ens1","prefsrc":"10.0.0.1","flags":[]}]'
    assert (read_route(told).nic, read_route(told).source) == ("ens1", "10.0.0.1")
    assert (
        read_route("error: RTNETLINK answers: Network is unreachable").error
        == "RTNETLINK answers: Network is unreachable"
    )
    assert read_route("[{}]").error


def test_gpus() -> None:
    """A card without ECC or MIG says [N/A]; another number of fields is refused."""
    first, second = read_gpus(GPUS)
    assert (first.name, first.total_bytes, first.capability, first.ecc_errors) == (
        "NVIDIA H100 80GB HBM3",
        81559 << 20,
        "9.0",
        0,
    )
    assert (second.ecc_errors, second.is_mig, second.used_bytes) == (None, False, 300 << 20)
    with pytest.raises(ValueError, match="no GPU"):
        read_gpus("NVIDIA-SMI has failed\n")


def test_rdma() -> None:
    """sysfs's words of a port, its GIDs, and ibv_devinfo's active MTU."""
    gid = "0000:0000:0000:0000:0000:ffff:0a00:0001"
    entry = {
        "device": "mlx5_0", "port": 1, "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "Ethernet", "phys_state": "5: LinkUp",
        "gids": [{"index": 3, "gid": gid, "type": "RoCE v2", "nic": "ens1"}, {"index": 1, "gid": "fe80::1", "type": "RoCE v2", "nic": "ens1"}],
    }  # fmt: skip
    down = {**entry, "state": "1: DOWN", "rate": ""}
    port, other = read_rdma_ports([entry, down])
    assert (port.is_active, port.rate_bits_per_second, [one.is_ipv4 for one in port.gids]) == (
        True,
        400e9,
        [True, False],
    )
    assert (other.is_active, other.rate_bits_per_second) == (False, 0.0)
    text = "hca_id:\tmlx5_0\n\t\tport:\t1\n\t\t\tactive_mtu:\t\t4096 (5)\nhca_id:\tmlx5_1\n\t\t\tactive_mtu:\t\t1024 (3)\n"
    assert read_active_mtus(text) == {"mlx5_0": 4096, "mlx5_1": 1024}


def test_reserved_ports() -> None:
    """Single ports and ranges; nothing for an empty line."""
    assert read_reserved("8080,9148-9200") == ((8080, 8080), (9148, 9200))
    assert read_reserved("") == ()


@pytest.mark.parametrize(
    ("status", "errors", "cause"),
    [
        (
            255,
            ["@@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @@@", "Host key verification failed."],
            "host-key-changed",
        ),
        (255, ["No ED25519 host key is known for h2", "Host key verification failed."], "host-key-unknown"),
        (255, ["ops@h2: Permission denied (publickey)."], "ssh-key-refused"),
        (255, ["ssh: Could not resolve hostname h2: Name or service not known"], "host-name-unknown"),
        (255, ["ssh: connect to host h2 port 22: Connection refused"], "ssh-refused"),
        (255, ["ssh: connect to host h2 port 22: Connection timed out"], "host-unreachable"),
        (255, ["ssh: connect to host h2 port 22: No route to host"], "host-unreachable"),
        (255, ["something new"], "host-unreachable"),
        (127, ["bash: line 1: /opt/python: No such file or directory"], "python-missing"),
        (126, ["bash: line 1: /opt/python: Permission denied"], "python-missing"),
        (1, ["Traceback", "RuntimeError: x"], "session-failed"),
    ],
)
def test_why_a_session_did_not_begin(status: int, errors: list[str], cause: str) -> None:
    """ssh's and the shell's words become a cause with something to do."""
    found, what, remedy = read_refusal(status, errors, "ops@h2", "/opt/python")
    assert found == cause
    assert what
    assert remedy
    assert "{" not in remedy


@given(
    st.dictionaries(
        st.sampled_from(["python", "addresses", "nics", "routes", "gpus", "ephemeral", "infiniband", "torch", "listeners", "rdma", "names"]),
        st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)),
    )
)  # fmt: skip
def test_nonsense_is_unknown_and_no_crash(values: dict[str, Any]) -> None:
    """Whatever a node answers, the rest of it is still read, and what could not be read has a reason."""
    facts = read_facts(
        "a", "10.0.0.1", {"values": {**values, "limits": {"nofile": 5}}, "unknown": {"xids": "not allowed"}}
    )
    assert facts.limits == {"nofile": 5}
    assert facts.unknown["xids"] == "not allowed"
    if values.get("gpus") == "x":
        assert "gpus" in facts.unknown


def test_pairs_and_groups() -> None:
    """What nodes saw of each other; a group's figures are those of its slowest member, and a lost node is an error."""
    told = {
        "a": {
            "b": {
                "ports": {
                    "20100": {"milliseconds": 1, "peer": "10.0.0.1"},
                    "45000": {"error": "x", "stage": "connect"},
                },
                "mtu": {"mtu": 1400, "wanted": 1500},
            }
        }
    }
    (pair,) = read_pairs(told)
    assert [(trial.port, trial.error, trial.peer_seen) for trial in pair.ports] == [
        (20100, "", "10.0.0.1"),
        (45000, "x", ""),
    ]
    assert (pair.mtu, pair.nic_mtu) == (1400, 1500)
    member = {
        "wrong": "",
        "latency_seconds": 1.0,
        "bus_bytes_per_second": 8.0,
        "hop_seconds": 2.0,
        "hop_bytes_per_second": 9.0,
    }
    slow = {**member, "latency_seconds": 3.0, "bus_bytes_per_second": 4.0}
    group = read_group(("a", "b"), "gloo", {"a": [member], "b": [slow]})
    assert (group.ok, group.latency_seconds, group.bus_bytes_per_second) == (True, 3.0, 4.0)
    assert read_group(("a", "b"), "gloo", {"a": [member], "b": {"lost": "gone"}}).errors == {"b": "gone"}
    assert read_group(("a", "b"), "nccl", {"a": [member], "b": [{**member, "graph": "0 for 2"}]}).wrong == {
        "b": "0 for 2"
    }


@given(st.integers(2, 17))
def test_rounds_have_every_pair_once(count: int) -> None:
    """No node twice in a round, every pair in exactly one round, and as few rounds as there can be."""
    names = [f"n{i}" for i in range(count)]
    found = list(rounds(names))
    for pairs in found:
        members = [name for pair in pairs for name in pair]
        assert len(members) == len(set(members))
    every = [frozenset(pair) for pairs in found for pair in pairs]
    assert len(every) == len(set(every)) == count * (count - 1) // 2
    assert len(found) == count - 1 + count % 2


@pytest.mark.parametrize(
    ("address", "reachable"),
    [("127.0.1.1", False), ("169.254.3.4", False), ("172.17.0.1", False), ("0.0.0.0", False), ("::1", False), ("fe80::1", False), ("host", False),
     ("10.0.0.1", True), ("172.18.5.6", True), ("192.168.1.1", True), ("2001:db8::1", True)],
)  # fmt: skip
def test_addresses_that_others_can_reach(address: str, reachable: bool) -> None:
    """Loopback, link-local and the bridges that software makes for itself are told from addresses of a network."""
    assert (why_unreachable(address) == "") is reachable


def test_the_same_address_in_two_spellings() -> None:
    """IPv6 has many."""
    assert is_same_address("::1", "0:0:0:0:0:0:0:1")
    assert not is_same_address("10.0.0.1", "10.0.0.10")
    assert not is_same_address("h1", "h2")


def test_what_is_sent_to_a_node_stays_out_of_argv() -> None:
    """Variables, which may hold secrets, travel on standard input; the program in argv is a constant."""
    line = remote.bundle({"node": "x = 1"}, "node", {"HF_TOKEN": "hf_secret"})
    assert "hf_secret" in line
    assert "\n" not in line
    assert "hf_secret" not in remote.BOOT


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Fabric Manager version is : 550.54.15\n", "550.54.15"),
        ("Fabric Manager version is: 580.95.05.", "580.95.05"),
        ("usage: …", ""),
    ],
)
def test_the_fabric_managers_version(text: str, version: str) -> None:
    """Out of what `nv-fabricmanager --version` prints."""
    assert gather_gpu.version_in(text) == version

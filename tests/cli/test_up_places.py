"""Where ranks go and on which device: of the nodes of a cluster, not of the machine on which `up` is typed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan import errors
from longspan.cli import devices, joining, machine, placing, prepare, room
from longspan.cli.request import Request
from longspan.cluster.hosts import parse_hosts
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.host import Completed, RecordedHost


def request(**changes: Any) -> Request:
    """A request for a model with nothing chosen but `changes`."""
    plain: dict[str, Any] = {
        "model": "m", "tp": None, "pp": None, "nodes": None, "cluster": None, "executor": "ray", "name": "default",
        "served_name": None, "listen": "127.0.0.1:8000", "revision": None, "full_digest": False, "vllm_arguments": (),
    }  # fmt: skip
    return Request(**(plain | changes))


def nodes(*gpus: int) -> tuple[NodeSpec, ...]:
    """Nodes n0, n1, … with so many GPUs."""
    return tuple(NodeSpec(f"n{i}", f"10.0.0.{i + 1}", count, ssh=f"n{i}") for i, count in enumerate(gpus))


def deployed(tp: int, pp: int, on: tuple[NodeSpec, ...], **changes: Any) -> DeploymentSpec:
    """The deployment of this layout on these nodes."""
    plain: dict[str, Any] = {
        "name": "t", "identity": "i", "model": "/m", "served_name": "m", "executor": "ray", "device": "cuda",
        "listen": "127.0.0.1:0",
    }  # fmt: skip
    return DeploymentSpec(**(plain | {"tp": tp, "pp": pp, "nodes": on} | changes))


def ranks(**changes: Any) -> str:
    """The node of each rank, stage by stage, such as "00|11"."""
    have = changes.pop("have")
    tp, pp, on = placing.place_on_cluster(request(**changes), None, nodes(*have))
    names = [node.name[1:] for node in deployed(tp, pp, on).rank_nodes()]
    return "|".join("".join(names[i : i + tp]) for i in range(0, len(names), tp))


@pytest.mark.parametrize(
    ("have", "wishes", "map_of_ranks"),
    [
        ((4, 3), {"tp": 3}, "000|111"),
        ((8, 8), {"tp": 3}, "000|111"),
        (
            (8, 8),
            {"tp": 3, "pp": 2},
            "000|000",
        ),  # the user's own PP: nothing over the network that need not be
        ((4, 3), {"tp": 3, "pp": 2}, "000|111"),
        ((8, 8), {"tp": 4, "pp": 3}, "0000|0000|1111"),
        ((8, 8, 8), {"tp": 4, "pp": 3, "executor": "mp"}, "0000|1111|2222"),
        ((1, 8), {"tp": 2, "pp": 2}, "11|11"),
        ((2, 2), {"tp": 4, "pp": 1}, "0011"),  # not to be avoided
    ],
)
def test_stages_stay_on_a_node(have: tuple[int, ...], wishes: dict[str, Any], map_of_ranks: str) -> None:
    """Each stage's TP group is on one node where the GPUs allow it."""
    assert ranks(have=have, **wishes) == map_of_ranks


@given(
    have=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    tp=st.integers(1, 9),
    pp=st.none() | st.integers(1, 6),
    executor=st.sampled_from(["ray", "mp"]),
)
def test_no_group_crosses_the_network_needlessly(
    have: list[int], tp: int, pp: int | None, executor: str
) -> None:
    """Whatever the GPUs: if every stage could be on a single node, it is; no node is given more than it has."""
    found_tp, found_pp, on = placing.place_on_cluster(
        request(tp=tp, pp=pp, executor=executor), None, nodes(*have)
    )
    assert all(node.gpus <= have[int(node.name[1:])] for node in on)
    if sum(gpus // tp for gpus in have) < found_pp:
        return
    spec = deployed(found_tp, found_pp, on)
    placed = spec.rank_nodes()
    assert len(placed) == spec.world_size == sum(node.gpus for node in on)
    groups = [{node.name for node in placed[i : i + tp]} for i in range(0, len(placed), tp)]
    assert all(len(group) == 1 for group in groups)
    if pp is None:
        assert len(spec.used_nodes()) == min(found_pp, sum(gpus >= tp for gpus in have))


TYPED = '[[node]]\nname = "a"\naddress = "10.0.0.1"\ngpus = "2x {}"\nssh = "a"\n[[node]]\nname = "b"\naddress = "10.0.0.2"\ngpus = "2x {}"\nssh = "b"\n'


@pytest.mark.parametrize(
    ("gpu", "device"), [("H100-SXM-80GB", "cuda"), ("MI300X", "rocm"), ("[gpu_type]", "cuda")]
)
def test_the_device_is_the_nodes(monkeypatch: pytest.MonkeyPatch, gpu: str, device: str) -> None:
    """The types in the cluster file say it, also on a machine that has no GPU itself, and no host is asked."""
    monkeypatch.setattr(machine, "device", lambda: "cpu")
    monkeypatch.setattr(devices, "probe", lambda host: pytest.fail(f"{host} was asked"))
    custom = ""
    if gpu == "[gpu_type]":
        gpu, custom = (
            "X1",
            "[gpu_type.X1]\nmemory_gib = 10\nmemory_bandwidth_gb_per_second = 1\nbf16_tflops = 1\n",
        )
    assert devices.device_of(parse_hosts(custom + TYPED.format(gpu, gpu), "c.toml")) == device


def test_two_vendors_are_no_replica() -> None:
    """One engine is built for one vendor's GPUs."""
    with pytest.raises(errors.InputError, match="two vendors"):
        devices.device_of(parse_hosts(TYPED.format("H100-SXM-80GB", "MI300X"), "c.toml"))


def test_this_machine_lacks_what_the_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typed node without ssh is this machine, whose own GPUs can be seen."""
    monkeypatch.setattr(machine, "device", lambda: "cpu")
    file = parse_hosts('[[node]]\nname = "a"\naddress = "10.0.0.1"\ngpus = "2x H100-SXM-80GB"\n', "c.toml")
    with pytest.raises(errors.CapacityError, match=r"this machine \(a\) has no GPU"):
        devices.device_of(file)


@pytest.mark.parametrize("answer", ["cuda", "rocm", "cpu"])
def test_a_plain_number_is_asked_over_ssh(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Where the file names no type, the first host's answer counts, whatever this machine has."""
    monkeypatch.setattr(machine, "device", lambda: "cuda" if answer == "cpu" else "cpu")
    asked = []

    def over_ssh(name: str, target: str) -> RecordedHost:
        asked.append((name, target))
        return RecordedHost(name, {devices.PROBE: Completed(0, f"{answer}\n", "")})

    monkeypatch.setattr(devices, "SshHost", over_ssh)
    text = '[[node]]\nname = "a"\naddress = "10.0.0.1"\ngpus = 2\nssh = "ops@a"\n'
    assert devices.device_of(parse_hosts(text, "c.toml")) == answer
    assert asked == [("a", "ops@a")]


def test_the_probe_is_a_command_that_works() -> None:
    """The words that hosts are asked with run in a shell and print one device."""
    done = subprocess.run(devices.PROBE, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in {"cuda", "rocm", "cpu"}


@pytest.mark.parametrize(
    ("accelerator", "device"), [("H100", "cuda"), ("AMD-Instinct-MI300X-OAM", "rocm"), ("", "cpu")]
)
def test_a_running_ray_says_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Any, model: Path, accelerator: str, device: str
) -> None:
    """Ray's own name of the GPUs decides, from a head that has none; GPUs that were only declared have no name."""
    machine()
    node = {
        "id": "x",
        "address": "10.0.0.2",
        "hostname": "h",
        "gpus": 1,
        "head": True,
        "accelerator": accelerator,
    }
    out = json.dumps({"version": "2.60.0", "nodes": [node]})
    monkeypatch.setattr(
        joining.subprocess, "run", lambda argv, **_: subprocess.CompletedProcess(argv, 0, out, "")
    )
    file = tmp_path / "c.toml"
    file.write_text('[ray]\naddress = "10.0.0.2:6379"\n')
    spec = prepare.prepare(request(model=str(model), cluster=file), progress=lambda text: None)
    assert spec.device == device


def test_other_hosts_memory_is_not_ours(model: Path, machine: Any) -> None:
    """A workstation with small GPUs and little memory does not refuse a cluster of large ones."""
    with (model / "model.safetensors").open("wb") as file:
        file.truncate(300 << 30)  # sparse
    machine(gpus=1, gpu_bytes=24 << 30, memory_bytes=1 << 30)
    far = nodes(4, 4)
    room.check_room(model, deployed(4, 2, far))
    room.check_room(model, deployed(4, 2, far, device="cpu"))
    here = (NodeSpec("here", "10.0.0.9", 4), *far)
    with pytest.raises(errors.CapacityError, match="a GPU has 24"):
        room.check_room(model, deployed(4, 2, here))
    with pytest.raises(errors.CapacityError, match="4 ranks need"):
        room.check_room(model, deployed(4, 2, here, device="cpu"))

"""What `up` was asked for and the deployment that comes of it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from longspan.cli import joining, prepare
from longspan.cli.request import Request
from longspan.deployment import DeploymentSpec
from longspan.errors import InputError

pytestmark = pytest.mark.usefixtures("machine")


def asked(model: Path | None, **changes: Any) -> DeploymentSpec:
    """The deployment for `up MODEL` with these options."""
    plain: dict[str, Any] = {
        "model": str(model) if model else None, "tp": None, "pp": None, "nodes": None, "cluster": None, "executor": "ray", "name": "default",
        "served_name": None, "listen": "127.0.0.1:8000", "revision": None, "full_digest": False, "vllm_arguments": (),
    }  # fmt: skip
    return prepare.prepare(Request(**(plain | changes)), progress=lambda text: None)


@pytest.mark.parametrize(
    ("wishes", "tp", "pp", "gpus"),
    [
        ({}, 1, 1, [1]),
        ({"nodes": 2}, 1, 2, [1, 1]),
        ({"pp": 3}, 1, 3, [3]),
        ({"tp": 3}, 3, 1, [3]),
        ({"tp": 3, "nodes": 2}, 3, 1, [2, 1]),
        ({"pp": 3, "nodes": 2}, 1, 3, [2, 1]),
        ({"tp": 3, "pp": 2, "nodes": 2}, 3, 2, [3, 3]),
    ],
)
def test_ranks_on_a_machine_without_gpus(
    model: Path, wishes: dict[str, int], tp: int, pp: int, gpus: list[int]
) -> None:
    """Nodes get loopback addresses from .2 on, and as many declared GPUs as they will hold ranks."""
    spec = asked(model, **wishes)
    assert (spec.tp, spec.pp, spec.device) == (tp, pp, "cpu")
    assert [node.gpus for node in spec.nodes] == gpus
    assert [node.address for node in spec.nodes] == [f"127.0.0.{i + 2}" for i in range(len(gpus))]


@pytest.mark.parametrize(
    ("gpus", "wishes", "tp", "pp", "ids"),
    [
        (8, {}, 3, 1, [(0, 1, 2)]),
        (2, {}, 1, 1, [(0,)]),
        (9, {}, 3, 1, [(0, 1, 2)]),  # 9 divides the heads, but not the 1536 of the MLP
        (4, {"nodes": 2}, 1, 2, [(0,), (2,)]),
        (8, {"tp": 1, "pp": 4}, 1, 4, [(0, 1, 2, 3)]),
        (8, {"nodes": 2}, 3, 2, [(0, 1, 2), (4, 5, 6)]),
        (8, {"pp": 4}, 1, 4, [(0, 1, 2, 3)]),  # TP 3 would need 12
    ],
)
def test_ranks_on_gpus(
    model: Path, machine: Any, gpus: int, wishes: dict[str, int], tp: int, pp: int, ids: list[tuple[int, ...]]
) -> None:
    """TP as wide as heads and one node's GPUs allow, PP over the nodes; each node is given the devices that its ranks will use."""
    machine(gpus=gpus)
    spec = asked(model, **wishes)
    assert (spec.tp, spec.pp, spec.device) == (tp, pp, "cuda")
    assert [node.gpu_ids for node in spec.nodes] == ids


@pytest.mark.parametrize(
    ("gpus", "wishes", "tp", "pp", "held"),
    [
        (0, {}, 1, 2, [1, 1]),
        (0, {"pp": 1}, 1, 1, [1]),
        (0, {"tp": 1}, 1, 1, [1]),
        (0, {"tp": 3}, 3, 1, [3]),
        (0, {"pp": 3}, 1, 3, [2, 1]),
        (0, {"tp": 3, "pp": 2}, 3, 2, [3, 3]),
        (1, {}, 1, 1, [1]),
        (2, {}, 1, 2, [1, 1]),
        (8, {}, 1, 2, [1, 1]),
        (8, {"pp": 1}, 3, 1, [3]),
        (8, {"tp": 1}, 1, 1, [1]),
        (8, {"tp": 3, "pp": 2}, 3, 2, [6]),
        (8, {"nodes": 1}, 3, 1, [3]),
    ],
)
def test_the_demo(
    monkeypatch: pytest.MonkeyPatch, model: Path, machine: Any, gpus: int, wishes: dict[str, int], tp: int, pp: int,
    held: list[int],
) -> None:  # fmt: skip
    """Without MODEL, a pipeline over two Ray nodes wherever that can be; one size asked for is no wish for nodes."""
    from longspan.model import demo

    monkeypatch.setattr(demo, "ensure_demo_model", lambda progress: model)
    machine(gpus=gpus)
    spec = asked(None, **wishes)
    assert (spec.tp, spec.pp) == (tp, pp)
    assert [node.gpus for node in spec.nodes] == held


def test_the_identity_is_the_wish(model: Path) -> None:
    """The same wish has the same identity; any other wish another one."""
    one = asked(model)
    assert asked(model).identity == one.identity
    for other in ({"pp": 2}, {"listen": "127.0.0.1:1"}, {"vllm_arguments": ("--enforce-eager",)}, {"executor": "mp"},
                  {"full_digest": True}, {"served_name": "x"}):  # fmt: skip
        assert asked(model, **other).identity != one.identity


def test_a_running_deployment_takes_its_own_memory(model: Path, machine: Any) -> None:
    """`up` a second time is not refused for the memory and disk that the first one uses."""
    first = asked(model)
    machine(memory_bytes=0, disk_bytes=0)
    assert asked(model).identity == first.identity


def test_a_cluster_file(model: Path, tmp_path: Path) -> None:
    """Hosts with their own python, ssh and variables; one without GPUs holds no rank."""
    file = tmp_path / "c.toml"
    file.write_text(
        '[[node]]\nname = "a"\naddress = "10.0.0.1"\ngpus = 3\nssh = "ops@a"\npython = "/p"\nenv = { X = "1" }\n'
        '[[node]]\nname = "head"\naddress = "10.0.0.3"\ngpus = 0\n'
        '[[node]]\nname = "b"\naddress = "10.0.0.2"\ngpus = "4x H100-SXM-80GB"\nssh = "b"\n'
    )
    spec = asked(model, cluster=file)
    assert (spec.tp, spec.pp, spec.ray_address, spec.device) == (3, 2, None, "cuda")
    assert [(n.name, n.gpus, n.ssh, n.python, n.env) for n in spec.nodes][:1] == [
        ("a", 3, "ops@a", "/p", {"X": "1"})
    ]
    assert [n.name for n in spec.nodes] == ["a", "b"]


def test_a_running_ray(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hosts in the file Ray's own nodes are used, head first, those without GPUs left out."""
    nodes = [
        {"id": "x", "address": f"10.0.0.{i}", "hostname": "h", "gpus": gpus, "head": i == 2}
        for i, gpus in ((1, 1), (2, 1), (3, 0))
    ]
    out = json.dumps({"version": "2.60.0", "nodes": nodes})
    monkeypatch.setattr(
        joining.subprocess, "run", lambda argv, **_: subprocess.CompletedProcess(argv, 0, out, "")
    )
    file = tmp_path / "c.toml"
    file.write_text('[ray]\naddress = "10.0.0.2:6379"\n')
    spec = asked(model, cluster=file)
    assert spec.ray_address == "10.0.0.2:6379"
    assert [node.address for node in spec.nodes] == ["10.0.0.2", "10.0.0.1"]
    assert (spec.tp, spec.pp) == (1, 2)


def test_names_that_clients_use(model: Path) -> None:
    """The directory's name, or the user's."""
    assert asked(model).served_name == "model"
    assert asked(model, served_name="mine").served_name == "mine"
    assert asked(model).model == str(model)


def test_an_id_is_served_at_one_commit(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revision is resolved once; facts and engine get the commit, and the wish stays what was typed."""
    from longspan.model import fetch

    facts, commit = fetch.load_directory(model), "b" * 40
    asked_for = []

    def load(name: str, revision: str | None) -> Any:
        asked_for.append(revision)
        return facts

    monkeypatch.setattr(fetch, "resolve_commit", lambda name, revision: commit)
    monkeypatch.setattr(fetch, "load_hub", load)
    spec = asked(Path("org/m"), revision="v1")
    assert (spec.model, spec.revision, asked_for) == ("org/m", commit, [commit])
    commit = "c" * 40
    again = asked(Path("org/m"), revision="v1")
    assert (again.revision, again.identity) == (commit, spec.identity)
    assert asked(Path("org/m"), revision="v2").identity != spec.identity


def test_the_gateways_tables_are_part_of_the_wish(model: Path, tmp_path: Path) -> None:
    """They come with the deployment, and other tables are another deployment."""
    extra = tmp_path / "extra.toml"
    extra.write_text("[overflow]\nthreshold_seconds = 5\n")
    one, plain = asked(model, gateway=extra), asked(model)
    assert one.gateway_extra == extra.read_text()
    assert plain.gateway_extra == ""
    extra.write_text("[overflow]\nthreshold_seconds = 6\n")
    assert len({one.identity, plain.identity, asked(model, gateway=extra).identity}) == 3
    assert DeploymentSpec.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_a_second_gateway(model: Path) -> None:
    """On a node of the deployment, at an address of its own."""
    spec = asked(model, nodes=2, standby_gateway="node-2=127.0.0.1:8001")
    assert (spec.standby_node, spec.standby_listen) == ("node-2", "127.0.0.1:8001")
    assert spec.identity != asked(model, nodes=2).identity


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("node-2", "is not NODE=HOST:PORT"),
        ("node-2=127.0.0.1:0", "is not NODE=HOST:PORT"),
        ("node-9=127.0.0.1:8001", "no node 'node-9'"),
        ("node-2=127.0.0.1:8000", "the first gateway's address"),
    ],
)
def test_a_second_gateway_that_cannot_be(model: Path, wanted: str, words: str) -> None:
    """With what to do."""
    with pytest.raises(InputError, match=words):
        asked(model, nodes=2, standby_gateway=wanted)

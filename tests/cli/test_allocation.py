"""Inside a Slurm allocation `up` takes its nodes; what Slurm prints is recorded, what runs is played by two scripts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longspan.cli import allocation, prepare
from longspan.cli.request import Request
from longspan.errors import InputError, SlurmError

pytestmark = pytest.mark.usefixtures("machine")
NODES = "NodeName=h1 NodeAddr={first} Gres=(null) State=MIXED\nNodeName=h2 NodeAddr=10.0.0.2 State=MIXED\n"
JOB = "JobId=42 JobState=RUNNING NodeList={nodes} {details} Power=\n"
Slurm = Callable[..., None]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Puts scontrol and srun on PATH, and this process into a job."""

    def play(*, nodes: str = "h[1-2]", gres: str = "", first: str = "10.0.0.1", status: int = 0) -> None:
        details = f"Nodes={nodes} CPU_IDs=0 Mem=0 GRES={gres}" if gres else ""
        (tmp_path / "job").write_text(JOB.format(nodes=nodes, details=details))
        (tmp_path / "nodes").write_text(NODES.format(first=first))
        refuse = f'[ {status} = 0 ] || {{ echo "scontrol: error: no controller" >&2; exit {status}; }}'
        answer = (
            f'case "$*" in *"show job 42"*) cat {tmp_path}/job;; *"show node"*) cat {tmp_path}/nodes;; esac'
        )
        for name, line in (("scontrol", f"{refuse}; {answer}"), ("srun", "exit 1")):
            (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setenv("SLURM_JOB_ID", "42")

    return play


def asked(model: Path, told: list[str] | None = None, **changes: Any) -> Any:
    """The deployment for `up MODEL` with these options."""
    plain: dict[str, Any] = {
        "model": str(model), "tp": None, "pp": None, "nodes": None, "cluster": None, "executor": "ray", "name": "default",
        "served_name": None, "listen": "127.0.0.1:8000", "revision": None, "full_digest": False, "vllm_arguments": (),
    }  # fmt: skip
    return prepare.prepare(
        Request(**{**plain, **changes}), progress=(told if told is not None else []).append
    )


def test_the_allocations_nodes_are_used(model: Path, slurm: Slurm) -> None:
    """Two nodes with three GPUs each: TP over a node's, PP over the nodes; a login node needs no GPU itself."""
    slurm(gres="gpu:h100:3(IDX:0-2)")
    told: list[str] = []
    spec = asked(model, told)
    assert [(node.name, node.address, node.gpus, node.slurm) for node in spec.nodes] == [
        ("h1", "10.0.0.1", 3, "42"), ("h2", "10.0.0.2", 3, "42"),
    ]  # fmt: skip
    assert (spec.tp, spec.pp, spec.device) == (3, 2, "cuda")
    assert "2 nodes, 6 GPUs" in told[-1]
    assert not any(node.is_here for node in spec.nodes)


def test_gpus_that_slurm_does_not_count(model: Path, slurm: Slurm, machine: Any) -> None:
    """Without GPUs each node holds one rank on its CPU; with them the user is asked, and believed."""
    slurm()
    assert [node.gpus for node in asked(model).nodes] == [1, 1]
    machine(gpus=1)
    with pytest.raises(SlurmError, match="no GPU on h1, h2"):
        asked(model)
    assert [node.gpus for node in asked(model, gpus_per_node=3).nodes] == [3, 3]


def test_this_machine_alone(model: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """--nodes stays here; an allocation of nothing but this machine needs no srun."""
    slurm()
    assert all(node.is_here for node in asked(model, nodes=1).nodes)
    slurm(nodes="h1")
    monkeypatch.setenv("SLURMD_NODENAME", "h1")
    assert all(node.is_here for node in asked(model).nodes)
    with pytest.raises(InputError, match="--gpus-per-node"):
        asked(model, gpus_per_node=2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": 1}, "no controller"),
        ({"first": "nowhere.invalid"}, "cannot be resolved"),
        ({"first": "127.0.1.1"}, "no other node reaches it"),
    ],
)
def test_what_is_wrong_with_slurm(model: Path, slurm: Slurm, changes: dict[str, Any], said: str) -> None:
    """A controller that does not answer, a node without an address, a node that calls itself 127.0.1.1."""
    slurm(**changes)
    with pytest.raises(SlurmError, match=said):
        asked(model)


def test_no_slurm_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM_JOB_ID alone (a container inside a job) is no reason to ask for Slurm's commands."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert allocation.allocated_hosts({"SLURM_JOB_ID": "42"}) is None
    assert allocation.allocated_hosts({}) is None


# ---- a Ray that comes up
def ray(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
    """Ray's answers, one probe after the other; the last one stays. Time passes by a second a look."""
    left = list(answers)
    ticks = iter(range(1000))

    def probe(address: str) -> list[dict[str, Any]]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return [{"address": f"10.0.0.{i}", "gpus": gpus, "head": not i} for i, gpus in enumerate(answer)]

    monkeypatch.setattr(prepare, "probe_ray", probe)
    monkeypatch.setattr(prepare.time, "monotonic", lambda: float(next(ticks)))
    monkeypatch.setattr(prepare.time, "sleep", lambda seconds: None)


def test_up_waits_for_gpus(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--ray --ray-wait` waits until the GPUs that are asked for are there, whatever nodes come first; a head without
    GPUs holds no rank."""
    told: list[str] = []
    ray(monkeypatch, prepare.RayError("not yet"), [0], [0, 0, 1], [0, 1, 1])
    spec = asked(model, told, ray="10.0.0.9:6379", ray_wait_seconds=60, tp=1, pp=2, device="cuda")
    assert spec.ray_address == "10.0.0.9:6379"
    assert spec.device == "cuda"
    assert [node.address for node in spec.nodes] == ["10.0.0.1", "10.0.0.2"]
    assert [line for line in told if "Waiting" in line] == [
        "not yet Waiting …",
        "The Ray cluster at 10.0.0.9:6379 offers 0 of 2 GPUs. Waiting …",
        "The Ray cluster at 10.0.0.9:6379 offers 1 of 2 GPUs. Waiting …",
    ]


def test_up_does_not_wait_for_ever(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time is over, what is missing is the error."""
    ray(monkeypatch, [0, 1])
    with pytest.raises(prepare.CapacityError, match="1 of 2 GPUs"):
        asked(model, ray="10.0.0.9:6379", ray_wait_seconds=3, tp=1, pp=2)
    ray(monkeypatch, prepare.RayError("nobody there"))
    with pytest.raises(prepare.RayError, match="nobody there"):
        asked(model, ray="10.0.0.9:6379", ray_wait_seconds=3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ray": "nowhere"}, "host:port"),
        ({"ray": "a:1", "nodes": 2}, "--ray names the nodes"),
        ({"ray": "a:1", "cluster": Path("c.toml")}, "both name a cluster"),
        ({"ray_wait_seconds": 5}, "--ray-wait"),
    ],
)
def test_options_that_contradict(model: Path, changes: dict[str, Any], said: str) -> None:
    """Each is refused with its name."""
    with pytest.raises(InputError, match=said):
        asked(model, **changes)

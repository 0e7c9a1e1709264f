"""`up --plan`: a saved plan and the deployment that comes of it; nothing is started here."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longspan import errors
from longspan.cli import joining, prepare
from longspan.cli.plan_choice import vllm_arguments
from longspan.cli.request import Request
from longspan.deployment import DeploymentSpec
from longspan.launch.commands import engine_arguments, ray_start
from longspan.plan import Layout, Place, Plan, Replica
from longspan.planner.plan_file import parse_plan, to_toml

pytestmark = pytest.mark.usefixtures("nothing_starts", "machine")

HOSTS = (
    '[[node]]\nname = "b"\naddress = "10.0.0.2"\ngpus = 4\nssh = "ops@b"\nenv = { NCCL_SOCKET_IFNAME = "eth9" }\n'
    '[[node]]\nname = "spare"\naddress = "10.0.0.3"\n'
    '[[node]]\nname = "a"\naddress = "10.0.0.1"\ngpus = 4\n'
)
TWO = Replica(
    "r0", Layout(pp=2, partition=(16, 14)), (Place("a", 2), Place("b", 3)), "ray", 4096, 8, ("--kv-cache-dtype", "fp8"),
    (("VLLM_PP_LAYER_PARTITION", "16,14"),),
)  # fmt: skip
ONE = Replica("r1", Layout(tp=3), (Place("a", 3), Place("a", 0), Place("a", 1)), "mp")


class Files:
    """A plan file and a cluster file of this test."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.plan, self.cluster, self.model = folder / "plan.toml", folder / "hosts.toml", model
        self.cluster.write_text(HOSTS)
        self.save(TWO)

    def save(self, *replicas: Replica) -> None:
        """Writes a plan of these replicas."""
        node_env = tuple(
            (name, (("VLLM_HOST_IP", "192.0.2.1"), ("NCCL_SOCKET_IFNAME", "eno1"))) for name in ("a", "b")
        )
        self.plan.write_text(
            to_toml(Plan(str(self.model), replicas, "0.32.0", node_env, ())), encoding="utf-8"
        )

    def deployment(self, **changes: Any) -> DeploymentSpec:
        """What `up --plan plan.toml --cluster hosts.toml` wants to be true."""
        plain: dict[str, Any] = {
            "model": None, "tp": None, "pp": None, "nodes": None, "cluster": self.cluster, "executor": None, "name": "default",
            "served_name": None, "listen": "127.0.0.1:8000", "revision": None, "full_digest": False, "vllm_arguments": (),
            "plan": self.plan, "replica": None,
        }  # fmt: skip
        return prepare.prepare(Request(**{**plain, **changes}), progress=lambda text: None)


@pytest.fixture
def files(tmp_path: Path, model: Path) -> Files:
    """Two pipeline stages on two of a cluster's three nodes."""
    return Files(tmp_path, model)


def test_two_stages_on_two_nodes(files: Files, machine: Any) -> None:
    """Sizes, executor, vLLM's arguments, node order and devices are the plan's; addresses and ssh the cluster file's."""
    machine(gpus=8)
    spec = files.deployment()
    assert (spec.model, spec.served_name, spec.tp, spec.pp, spec.executor) == (
        str(files.model), "model", 1, 2, "ray",
    )  # fmt: skip
    assert spec.vllm_arguments == (
        "--max-model-len", "4096", "--max-num-seqs", "8", "--kv-cache-dtype", "fp8",
    )  # fmt: skip
    assert [(n.name, n.address, n.ssh, n.gpus, n.gpu_ids) for n in spec.nodes] == [
        ("a", "10.0.0.1", None, 1, (2,)),
        ("b", "10.0.0.2", "ops@b", 1, (3,)),
    ]
    assert [node.env for node in spec.nodes] == [
        {"NCCL_SOCKET_IFNAME": "eno1", "VLLM_PP_LAYER_PARTITION": "16,14"},
        {"NCCL_SOCKET_IFNAME": "eth9", "VLLM_PP_LAYER_PARTITION": "16,14"},
    ]
    assert [node.name for node in spec.rank_nodes()] == ["a", "b"]


def test_the_plan_reaches_the_command_lines(files: Files, machine: Any) -> None:
    """What is run has the plan's sizes, and Ray on a node sees the plan's devices only."""
    machine(gpus=8)
    spec = files.deployment()
    words = " ".join(engine_arguments(spec, host="10.0.0.1", port=1))
    assert "--tensor-parallel-size 1 --pipeline-parallel-size 2 --distributed-executor-backend ray" in words
    assert words.endswith("--max-model-len 4096 --max-num-seqs 8 --kv-cache-dtype fp8")
    ray = ray_start(
        spec.nodes[1], head=False, head_address="10.0.0.1", port=1, own_ports=(2, 3), temp_dir="/t", token_file="/k",
    )  # fmt: skip
    assert "--num-gpus=1" in ray.argv
    assert ray.env["CUDA_VISIBLE_DEVICES"] == "3"
    assert ray.env["VLLM_PP_LAYER_PARTITION"] == "16,14"


def test_the_same_plan_on_cpus(files: Files) -> None:
    """Without GPUs the layout stays and no devices are named."""
    spec = files.deployment()
    assert (spec.device, spec.pp) == ("cpu", 2)
    assert [(node.gpus, node.gpu_ids) for node in spec.nodes] == [(1, ()), (1, ())]


def test_what_is_typed_outweighs_the_plan(files: Files) -> None:
    """vLLM takes the last of two: words after `--` stand behind the plan's. The wish has its own identity."""
    spec = files.deployment(vllm_arguments=("--max-num-seqs", "2"), served_name="mine")
    assert spec.vllm_arguments[-2:] == ("--max-num-seqs", "2")
    assert spec.served_name == "mine"
    assert spec.identity != files.deployment().identity


def test_experts_and_context_parallelism() -> None:
    """EP and DCP become vLLM's flags; sizes of 1 and counts of 0 leave its defaults."""
    dcp = replace(ONE, layout=Layout(tp=4, dcp=2, ep=True), max_num_seqs=3)
    assert vllm_arguments(dcp) == (
        "--decode-context-parallel-size", "2", "--enable-expert-parallel", "--max-num-seqs", "3",
    )  # fmt: skip
    assert vllm_arguments(ONE) == ()


def test_one_node_without_a_cluster_file(files: Files, machine: Any) -> None:
    """A plan for one node is launched on this machine, on the plan's devices; one GPU needs no executor of its own."""
    machine(gpus=4)
    files.save(ONE)
    spec = files.deployment(cluster=None)
    assert (spec.tp, spec.pp, spec.executor) == (3, 1, "mp")
    assert [(n.name, n.address, n.gpus, n.gpu_ids) for n in spec.nodes] == [
        ("node-1", "127.0.0.2", 3, (0, 1, 3))
    ]
    files.save(Replica("r0", Layout(), (Place("a", 1),), "uni"))
    spec = files.deployment(cluster=None)
    assert (spec.executor, spec.nodes[0].gpu_ids) == ("ray", (1,))


def test_one_replica_of_several(files: Files) -> None:
    """`--replica` picks one."""
    files.save(TWO, ONE)
    assert files.deployment(replica="r1").tp == 3
    assert files.deployment(replica="r0").pp == 2


def test_all_replicas_of_a_plan_that_are_alike(files: Files, machine: Any) -> None:
    """Each where the plan has it, on the devices of all of them; options that say the same as the plan are refused."""
    machine(gpus=8)
    files.save(TWO, replace(TWO, name="r1", places=(Place("b", 0), Place("a", 1))))
    spec = files.deployment()
    assert (spec.replicas, spec.max_replicas, spec.placement) == (2, 2, (("a", "b"), ("b", "a")))
    assert [(node.name, node.gpus, node.gpu_ids) for node in spec.nodes] == [
        ("a", 2, (1, 2)),
        ("b", 2, (0, 3)),
    ]
    assert [node.name for node in spec.of_replica(1).rank_nodes()] == ["b", "a"]
    assert DeploymentSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    with pytest.raises(errors.InputError, match="and so does --replicas"):
        files.deployment(replicas=2)


def test_two_replicas_of_a_plan_on_this_machine(files: Files, machine: Any) -> None:
    """Which is not called what the plan calls it."""
    machine(gpus=4)
    files.save(
        replace(ONE, name="r0", layout=Layout(), places=(Place("a", 2),)),
        replace(ONE, layout=Layout(), places=(Place("a", 0),)),
    )
    spec = files.deployment(cluster=None)
    assert spec.placement == (("node-1",), ("node-1",))
    assert [(node.name, node.gpus, node.gpu_ids) for node in spec.nodes] == [("node-1", 2, (0, 2))]
    assert [node.name for node in spec.rank_nodes()] == ["node-1", "node-1"]


def test_a_ray_that_runs(files: Files, machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray hands out its devices itself, so none are named; hosts that the plan does not use need not be there."""
    machine(gpus=8)
    nodes = [
        {"id": "x", "address": f"10.0.0.{i}", "hostname": "h", "gpus": 4, "head": i == 1} for i in (1, 2)
    ]
    out = json.dumps({"version": "2.60.0", "nodes": nodes})
    monkeypatch.setattr(
        joining.subprocess, "run", lambda argv, **_: subprocess.CompletedProcess(argv, 0, out, "")
    )
    files.cluster.write_text('[ray]\naddress = "10.0.0.1:6379"\n' + HOSTS)
    spec = files.deployment()
    assert spec.ray_address == "10.0.0.1:6379"
    assert [(node.name, node.gpus, node.gpu_ids) for node in spec.nodes] == [("a", 1, ()), ("b", 1, ())]


def test_what_the_planner_saves(longspan: Callable[..., Any], files: Files, machine: Any) -> None:
    """One cluster file serves both verbs: a replica of the plan that `plan --save` wrote is launched as planned."""
    machine(gpus=8)
    files.cluster.write_text(
        "".join(
            f'[[node]]\nname = "{name}"\naddress = "10.0.0.{i}"\ngpus = "2x H100-SXM-80GB"\nssh = "ops@{name}"\n'
            for i, name in enumerate("ab", 1)
        )
    )
    said = longspan(
        "plan",
        str(files.model),
        "--cluster",
        str(files.cluster),
        "--save",
        str(files.plan),
        "--quick",
        "--json",
    )
    assert said.code == 0, said.err
    plan = parse_plan(files.plan.read_text())
    assert plan.gpu_count == 4
    for replica in plan.replicas:
        spec = files.deployment(replica=replica.name)
        assert (spec.tp, spec.pp) == (replica.layout.tp, replica.layout.pp)
        assert [Place(n.name, gpu) for n in spec.nodes for gpu in n.gpu_ids] == list(replica.places)
        assert spec.vllm_arguments[:2] == ("--max-model-len", str(replica.max_model_len))


@pytest.mark.parametrize(
    ("replicas", "options", "error", "says"),
    [
        ((TWO, ONE), (), errors.CapacityError, ["Replicas r0 and r1 of", "differ in more than their places", "--replica r0"]),
        ((), (), errors.InputError, ["has no replica"]),
        ((TWO,), ("--replica", "r7"), errors.InputError, ["no replica 'r7'", "It has r0."]),
        ((replace(TWO, layout=Layout(dp=2)),), (), errors.CapacityError, ["DP2", "data-parallel groups are not"]),
        ((replace(TWO, places=(Place("a", 4), Place("b", 0))),), (), errors.CapacityError,
         ["GPU 4 of a, which has 4 (0 to 3)"]),
        ((replace(TWO, places=(Place("z", 0), Place("b", 0))),), (), errors.InputError,
         ["places ranks on z, the cluster file has b, spare, a"]),
        ((replace(TWO, places=(Place("spare", 0), Place("b", 0))),), (), errors.InputError,
         ["does not say how many GPUs spare has"]),
        ((replace(ONE, places=(Place("a", 0), Place("b", 0), Place("a", 1))),), (), errors.CapacityError,
         ["go back to a node after leaving it (a b a)"]),
        ((replace(TWO, arguments=("--tensor-parallel-size", "2")),), (), errors.InputError,
         ["--tensor-parallel-size decides where ranks run"]),
        ((replace(TWO, layout=Layout(pp=2, partition=(16, 16))),), (), errors.LayoutError,
         ["The partition places 32 layers, the model has 30"]),
        ((replace(ONE, layout=Layout(tp=3, ep=True)),), (), errors.LayoutError, ["The model has no experts"]),
        ((replace(ONE, layout=Layout(tp=2), places=ONE.places[:2]),), (), errors.LayoutError, ["9 attention heads"]),
    ],
)  # fmt: skip
def test_plans_that_cannot_be_launched(
    longspan: Callable[..., Any], files: Files, replicas: tuple[Replica, ...], options: tuple[str, ...],
    error: type[errors.LongspanError], says: list[str],
) -> None:  # fmt: skip
    """One paragraph, its own exit code, and nothing started."""
    files.save(*replicas)
    said = longspan("up", "--plan", str(files.plan), "--cluster", str(files.cluster), *options)
    assert said.code == error.exit_code, said.err
    assert said.out == ""
    flat = " ".join(said.err.split())
    for text in says:
        assert text in flat


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("some/model",), "MODEL"),
        (("--tp", "1"), "--tp"),
        (("--pp", "2"), "--pp"),
        (("--executor", "ray"), "--executor"),
        (("--tp", "1", "--pp", "2"), "--tp, --pp"),
    ],
)
def test_a_plan_and_its_contents(
    longspan: Callable[..., Any], files: Files, options: tuple[str, ...], named: str
) -> None:
    """What the plan says may not be said a second time, not even in agreement."""
    said = longspan("up", "--plan", str(files.plan), *options)
    assert said.code == errors.InputError.exit_code
    assert named in said.err
    assert "Leave one of the two out" in said.err


def test_options_that_need_each_other(longspan: Callable[..., Any], files: Files, machine: Any) -> None:
    """--nodes is the plan's, --replica needs a plan, two nodes need a cluster file, and this machine needs the GPUs."""
    said = longspan("up", "--plan", str(files.plan), "--nodes", "2")
    assert (said.code, "--nodes" in said.err) == (errors.InputError.exit_code, True)
    said = longspan("up", "--replica", "r0")
    assert (said.code, "Give --plan FILE" in said.err) == (errors.InputError.exit_code, True)
    said = longspan("up", "--plan", str(files.plan))
    assert (said.code, "--cluster hosts.toml" in said.err) == (errors.InputError.exit_code, True)
    machine(gpus=2)
    files.save(ONE)
    said = longspan("up", "--plan", str(files.plan))
    assert said.code == errors.CapacityError.exit_code
    assert "GPU 3, this machine has 0, 1" in " ".join(said.err.split())


def test_files_that_are_no_plan(longspan: Callable[..., Any], files: Files) -> None:
    """A file that is not there, not text, or damaged is named."""
    said = longspan("up", "--plan", "/nowhere.toml")
    assert (said.code, "/nowhere.toml cannot be read" in said.err) == (errors.InputError.exit_code, True)
    for content in (b"\xff\xfe", b"format = 1\n", b"[[node"):
        files.plan.write_bytes(content)
        said = longspan("up", "--plan", str(files.plan))
        assert said.code == errors.PlanFileError.exit_code, said.err
        assert "plan.toml" in said.err

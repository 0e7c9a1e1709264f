"""`longspan doctor` without logs: the deployment of this machine, its live ranks, and what changed since it last served."""

import asyncio
import json
import os
import re
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_verbs import document

from longspan import errors
from longspan.cli import control, doctor_live, doctor_logs, up
from longspan.cli.check_hosts import RayHost
from longspan.daemon.controller import Controller
from longspan.daemon.launch_store import LaunchLog, LaunchStore
from longspan.daemon.places import Places, write_private
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.doctor import fetch, live
from longspan.doctor.kept import keep
from longspan.doctor.launches import changes_since, plan_names, recorded, with_difference, with_ranks
from longspan.doctor.standing import rank_states, standing
from longspan.finding import Finding
from longspan.host import Completed, LocalHost, RecordedHost, SshHost
from longspan.launch.events import Tick
from longspan.launch.failure import Failure
from longspan.launch.steps import Steps

SPEC = DeploymentSpec(
    name="default", identity="i", model="/m", served_name="m", tp=1, pp=2, executor="ray", device="cuda",
    nodes=(NodeSpec("gpu-1", "10.0.0.1", 1), NodeSpec("gpu-2", "10.0.0.12", 1, ssh="ops@gpu-2")),
    listen="127.0.0.1:8000", vllm_arguments=("--max-model-len", "8192", "--hf-token", "hf_s3cret"),
)  # fmt: skip
FACTS: dict[str, Any] = {
    "gpu-1": {"python": "3.11.2", "ray": "2.60.0", "vllm": "0.32.0", "hostname": "one"},
    "gpu-2": {"python": "3.11.2", "ray": "2.60.0", "vllm": "0.32.0", "hostname": "two"},
}
FAULT = (
    "(RayWorkerProc pid=7, ip=10.0.0.12) ERROR 11-02 10:00:09 [worker.py:1] torch.OutOfMemoryError: CUDA out of memory. "
    "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free.\n"
)


def status(places: Places, phase: str = "engine") -> dict[str, Any]:
    """As the controller tells it: rank 0 announced itself 400 s ago, rank 1 did not."""
    return {
        "phase": phase, "age_seconds": 500.0, "layout": {"executor": "ray"}, "failure": None,
        "nodes": [{"name": n.name, "agent": "joined", "facts": FACTS[n.name]} for n in SPEC.nodes],
        "ranks": [
            {"rank": 0, "planned_node": "gpu-1", "bundle_address": "10.0.0.1", "pid": os.getpid()},
            {"rank": 1, "planned_node": "gpu-2", "bundle_address": "10.0.0.12", "pid": None},
        ],
        "phases": [{"phase": "engine", "seconds": 400.0}], "engine_phases": {"starting": 100.0},
        "state_dir": str(places.root), "logs": str(places.logs),
    }  # fmt: skip


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What lies on gpu-2: log -> text. With nothing there, it does not answer either."""
    there: dict[str, str] = {}

    def run(host: SshHost, argv: Any, **_: Any) -> Completed:
        if not there:
            raise errors.HostError(f"{host.name} cannot be reached: no route.")
        assert "cd ~/.local/state/longspan/default/logs/gpu-2 " in argv[-1]
        return Completed(0, "".join(f"\n{fetch._MARK} ./{name}\n{text}" for name, text in there.items()), "")

    monkeypatch.setattr(SshHost, "run", run)
    return there


@pytest.fixture
def places() -> Places:
    """A deployment that ran here and left a log."""
    found = Places.of("default")
    write_private(found.spec, json.dumps({"spec": SPEC.to_json(), "controller_host": "10.0.0.1"}))
    (found.logs / "gpu-1").mkdir(parents=True)
    (found.logs / "gpu-1" / "launcher.log").write_text(FAULT)
    return found


def test_what_a_launch_is_made_of() -> None:
    """Each node's versions and address and the request, in the keys that explain causes; a token stays out."""
    found = recorded(SPEC, FACTS)
    assert found["gpu-2/vllm"] == "0.32.0"
    assert found["gpu-2/address"] == "10.0.0.12"
    assert found["deployment/model"] == "/m"
    assert found["deployment/arguments"] == "--max-model-len 8192 --hf-token ***"
    assert "s3cret" not in json.dumps(recorded(replace(SPEC, vllm_arguments=("--api-key=s3cret",)), {}))


def test_what_changed() -> None:
    """The same launch changed nothing, nor does one whose nodes have not answered; another version is named alone."""
    good = recorded(SPEC, FACTS)
    assert changes_since(good, SPEC, FACTS) == []
    assert changes_since(good, SPEC, {}) == []
    assert changes_since({}, SPEC, FACTS) == []
    facts = {**FACTS, "gpu-2": {**FACTS["gpu-2"], "vllm": "0.33.0"}}
    other = replace(SPEC, identity="other")
    assert changes_since(good, other, facts) == [("gpu-2/vllm", "0.32.0", "0.33.0")]
    assert changes_since(good, other, FACTS) == [("deployment/identity", "i", "other")]


@pytest.mark.parametrize(
    ("what", "cause"),
    [("driver", "driver-too-old"), ("nccl", "nccl-env-mismatch"), ("torch", "gpu-arch-unsupported"),
     ("checkpoint", "weights-corrupt")],
)  # fmt: skip
def test_what_changed_on_one_node(what: str, cause: str) -> None:
    """Driver, NCCL, torch and the node's copy of the checkpoint are compared too, and stand with the cause that they explain."""
    full = {
        name: {**facts, "driver": "570.1", "nccl": "2.28.9", "torch": "2.13.0", "checkpoint": "a1"}
        for name, facts in FACTS.items()
    }
    good = recorded(SPEC, full)
    facts = {**full, "gpu-2": {**full["gpu-2"], what: "other"}}
    changes = changes_since(good, SPEC, facts)
    assert [change[0] for change in changes] == [f"gpu-2/{what}"]
    explained, other = with_difference(
        [Finding("x", "error", cause, "It broke."), Finding("x", "error", "port-in-use", "It broke.")],
        changes,
    )
    assert f"gpu-2/{what} " in explained.summary
    assert other.summary == "It broke."


def test_the_controller_remembers_a_launch_that_serves(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it serves, and only then, readable by its owner only; a place that cannot be written does not end it."""
    write_private(places.api_key, "lsp_x")

    def arrive(machine: Steps, event: Any, now: float) -> list[Any]:
        machine.phase = "verified" if machine.phase == "agents" else "serving"
        return []

    monkeypatch.setattr(Steps, "handle", arrive)

    async def life() -> None:
        controller = Controller(places, SPEC, "127.0.0.1")
        controller.machine.begin(0.0)
        controller.machine.facts = FACTS
        await controller.feed(Tick())
        await controller.noted()
        assert LaunchStore(places.launches).last_good() == {}
        await controller.feed(Tick())
        await controller.noted()
        assert LaunchStore(places.launches).last_good() == recorded(SPEC, FACTS)
        assert places.launches.stat().st_mode & 0o777 == 0o600
        places.launches.unlink()
        places.launches.mkdir()
        controller.machine.phase = "verified"
        await controller.feed(Tick())
        assert controller.machine.phase == "serving"
        assert controller.machine.failure is None
        controller.history.close()

    asyncio.run(life())


def test_names_of_the_plan() -> None:
    """By address and host name, whole words only; a host name that two nodes share names neither."""
    names = plan_names(SPEC, FACTS)
    assert names == {"10.0.0.1": "gpu-1", "10.0.0.12": "gpu-2", "one": "gpu-1", "two": "gpu-2"}
    named = with_ranks([Finding("10.0.0.12 Worker_PP1", "error", "disk-full", "x")], names)
    assert named[0].subject == "gpu-2 (10.0.0.12) Worker_PP1"
    shared = {name: {"hostname": "same"} for name in FACTS}
    assert "same" not in plan_names(SPEC, shared)


@pytest.mark.parametrize(
    ("phase", "shown", "hosts"), [("agents", "agents", ("b",)), ("engine", "engine (starting)", ("a", "b"))]
)
def test_the_controllers_own_status_is_understood(phase: str, shown: str, hosts: tuple[str, ...]) -> None:
    """The document as the controller makes it, of a launch whose second agent is missing and of one without ranks yet."""
    made = document(phase)
    where = standing(made, rank_states(made))
    assert (where.phase, where.hosts) == (shown, hosts)


def test_hosts_and_their_ranks(places: Places) -> None:
    """This machine's nodes in one target, the others by ssh; a rank without a pid is found by its process's title."""
    local, remote = doctor_live.reachable(SPEC, status(places), "one")
    assert local == (frozenset({"gpu-1"}), LocalHost("gpu-1"))
    assert remote == (frozenset({"gpu-2"}), SshHost("gpu-2", "ops@gpu-2"))
    table = "  1 /sbin/init\n 900 VLLM::Worker_PP1\n 901 VLLM::Worker_PP0\n"
    host = RecordedHost("gpu-2", {("ps", "-eww", "-o", "pid=,args="): Completed(0, table, "")})
    found = doctor_live.targets(SPEC, status(places), [(frozenset({"gpu-2"}), host)])
    assert found[0].pids == {1: 900}
    twice = RecordedHost(
        "x", {("ps", "-eww", "-o", "pid=,args="): Completed(0, table + "902 VLLM::Worker_PP1\n", "")}
    )
    assert doctor_live.worker_pids(twice, 1) == {0: 901}
    assert doctor_live.worker_pids(RecordedHost("bare", {}), 1) == {}


def test_a_node_of_a_joined_ray_may_be_anywhere(places: Places) -> None:
    """Without ssh it is examined only where it is this machine: another machine's pids are not looked up here."""
    joined = replace(SPEC, ray_address="10.0.0.9:6379", nodes=tuple(replace(n, ssh=None) for n in SPEC.nodes))
    assert [sorted(nodes) for nodes, _ in doctor_live.reachable(joined, status(places), "two")] == [["gpu-2"]]
    assert doctor_live.reachable(joined, status(places), "elsewhere") == []


def served(places: Places, made_of: dict[str, str]) -> None:
    """A launch that was good."""
    store = LaunchStore(places.launches)
    store.update(store.begin(made_of), made_of, outcome="good", phase="serving")


def test_after_a_failed_launch(longspan: Callable[..., Any], places: Places) -> None:
    """The logs' verdict in the shape of every diagnosis, with the difference from the last good launch."""
    write_private(places.last_status, json.dumps(status(places, "gone")))
    good = recorded(replace(SPEC, vllm_arguments=("--max-model-len", "4096")), FACTS)
    served(places, good)
    said = longspan("doctor", "--name", "default", "--json")
    assert said.code == 0
    assert next(iter(said.document)) == "findings"
    assert said.document["findings"][0]["cause"].startswith("oom-")
    assert [c["what"] for c in said.document["changes"]] == ["deployment/arguments"]
    assert said.document["live"] is None
    assert said.document["logs_elsewhere"] == ["gpu-2"]
    text = longspan("doctor", "--name", "default").out
    assert "Changed since the last good launch:" in text
    assert "--max-model-len 4096 -> --max-model-len 8192" in text


def test_a_bundle_carries_no_name_of_the_plan(
    longspan: Callable[..., Any], places: Places, tmp_path: Path
) -> None:
    """Planted in logs, status and plan: node names, host names, ssh's user, addresses; none is in the archive."""
    (places.logs / "gpu-1" / "launcher.log").write_text(
        FAULT + "INFO ops logged in to gpu-2, also called hostzwei\n"
    )
    facts = {**FACTS["gpu-2"], "hostname": "hostzwei"}
    told = status(places, "gone")
    told["nodes"][1]["facts"] = facts
    write_private(places.last_status, json.dumps(told))
    served(places, {**recorded(SPEC, FACTS), "gpu-2/vllm": "0.31.0"})
    out = tmp_path / "b.tar.gz"
    assert longspan("doctor", "--name", "default", "--json", "--bundle", str(out)).code == 0
    with tarfile.open(out) as archive:
        text = "".join(archive.extractfile(m).read().decode() for m in archive.getmembers())  # type: ignore[union-attr]
    assert "out of memory" in text
    for name in ("gpu-1", "gpu-2", "hostzwei", "10.0.0.12", "s3cret"):
        assert name not in text
    assert re.search(r"\bops\b", text) is None


def test_while_it_starts(
    longspan: Callable[..., Any], places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hosts are examined, and the phase, rank and host that it waits for are named with the probe."""
    (places.logs / "gpu-1" / "launcher.log").write_text("INFO nothing yet\n")
    monkeypatch.setattr(Places, "running", lambda self: {"pid": 1})
    monkeypatch.setattr(control, "request", lambda record, path: status(places))
    examined: list[Any] = []
    monkeypatch.setattr(doctor_live, "worker_pids", lambda host, tp: {1: 900})
    monkeypatch.setattr(live, "collect", lambda targets: examined.extend(targets) or [])
    answer = longspan("doctor", "--name", "default", "--json").document
    assert [dict(t.pids) for t in examined] == [{0: os.getpid()}, {1: 900}]
    assert answer["live"]["phase"] == "engine (starting)"
    assert (answer["live"]["ranks"], answer["live"]["hosts"]) == ([1], ["gpu-2"])
    assert answer["findings"][0]["cause"] == "insufficient-evidence"
    text = longspan("doctor", "--name", "default").out
    assert "it waits for rank 1 on gpu-2" in text
    assert "look at: raylet.out" in text


def test_a_controller_that_does_not_answer(
    longspan: Callable[..., Any], places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs are read all the same, and it is said that only they were."""

    def silence(*_: Any) -> None:
        raise errors.ControlPlaneError("The controller (pid 1) does not answer.")

    monkeypatch.setattr(Places, "running", lambda self: {"pid": 1})
    monkeypatch.setattr(control, "request", silence)
    said = longspan("doctor", "--name", "default", "--json")
    assert said.document["findings"]
    assert "Only the logs are read." in said.err


def test_what_is_not_there(longspan: Callable[..., Any], places: Places, tmp_path: Path) -> None:
    """A deployment that never ran, or logs and a deployment at once: an error with the way out."""
    assert longspan("doctor", "--name", "other").code == errors.NoDeploymentError.exit_code
    both = longspan("doctor", "--name", "default", str(places.logs))
    assert both.code == errors.InputError.exit_code


@pytest.mark.parametrize("ran", [True, False])
def test_without_anything_piped(
    longspan: Callable[..., Any], places: Places, monkeypatch: pytest.MonkeyPatch, ran: bool
) -> None:
    """With nothing on standard input the deployment is looked at; where there is none, an empty log is healthy as before."""
    if not ran:
        places.spec.unlink()
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        answer = longspan("doctor", "--json").document
    assert ("deployment" in answer) == ran
    assert bool(answer["findings"]) == ran


def test_a_failed_up_says_what_changed(places: Places) -> None:
    """Its last words hold the doctor's verdict and the difference from the last good launch."""
    good = recorded(replace(SPEC, vllm_arguments=()), FACTS)
    served(places, good)
    failed = {**status(places, "gone"), "failure": Failure("launch", "engine", "It broke.").to_json()}
    remedy = up.failure_of(failed).remedy
    assert "doctor: " in remedy
    assert "oom-" in remedy
    assert "Changed since the last good launch:" in remedy
    assert "deployment/arguments: none -> --max-model-len 8192 --hf-token ***" in remedy


def test_the_logs_of_other_machines_are_read(
    longspan: Callable[..., Any], places: Places, far: dict[str, str]
) -> None:
    """After a failed launch the far node's logs are fetched and judged with its plan's name, by `doctor` and by `up` itself;
    a path that leads outside is dropped, and what was fetched once is not read again when the node no longer answers."""
    (places.logs / "gpu-1" / "launcher.log").write_text(
        "(EngineCore pid=7) ERROR 11-02 10:00:10 [core.py:1] EngineCore failed to start.\n"
    )
    far["ray/raylet.out"] = (
        "[2026-11-02 10:00:09,1 E 7 9] (raylet) OSError: [Errno 28] No space left on device: '/tmp/ray'\n"
    )
    far["../../escape"] = "x"
    failed = {**status(places, "gone"), "failure": Failure("launch", "engine", "It broke.").to_json()}
    write_private(places.last_status, json.dumps(failed))
    answer = longspan("doctor", "--name", "default", "--json").document
    assert answer["findings"][0]["cause"] == "disk-full"
    assert answer["findings"][0]["evidence"][0]["file"].endswith("fetched/gpu-2/ray/raylet.out")
    assert "gpu-2" in answer["findings"][0]["subject"]
    assert answer["logs_elsewhere"] == []
    assert "disk-full" in up.failure_of(failed).remedy
    far.clear()
    answer = longspan("doctor", "--name", "default", "--json").document
    assert answer["findings"][0]["cause"] == "insufficient-evidence"
    assert answer["logs_elsewhere"] == ["gpu-2"]
    assert (
        "gpu-2, which lie there: gpu-2 cannot be reached: no route."
        in longspan("doctor", "--name", "default").out
    )


STACK = 'Thread 7 (active): "MainThread"\n    ncclCommInitRank (pynccl.py:311)\n    main (x.py:1)\n'


def test_what_was_collected_explains_a_silence(
    longspan: Callable[..., Any], places: Places, tmp_path: Path
) -> None:
    """The stacks that were taken before the ranks were ended name the hang where no log does; where a log names the cause
    they are hints; a kernel message counts as a log; all of it stands redacted in the bundle."""
    failed = {**status(places, "gone"), "failure": Failure("launch", "engine", "No sign.").to_json()}
    write_private(places.last_status, json.dumps(failed))
    for node in ("gpu-1", "gpu-2"):
        (places.logs / node).mkdir(exist_ok=True)
    (places.logs / "gpu-1" / "launcher.log").write_text("INFO nothing\n")
    keep(places.logs / "gpu-2", {"stack-rank-1": STACK, "sockets": "ESTAB 0 0 10.0.0.12:22 10.9.9.9:5000\n"})
    answer = longspan("doctor", "--name", "default", "--json").document
    assert answer["findings"][0]["cause"] == "nccl-init-hang"
    assert answer["logs_elsewhere"] == ["gpu-2"]
    assert "nccl-init-hang" in up.failure_of(failed).remedy
    out = tmp_path / "b.tar.gz"
    assert longspan("doctor", "--name", "default", "--bundle", str(out)).code == 0
    with tarfile.open(out) as archive:
        texts = {m.name: archive.extractfile(m).read().decode() for m in archive.getmembers()}  # type: ignore[union-attr]
    assert "ncclCommInitRank" in texts["hosts/000/stack-rank-1.txt"]
    assert "10.9.9.9" not in texts["hosts/000/sockets.txt"]
    keep(
        places.logs / "gpu-2",
        {"kernel": "[ 5.0] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"},
    )
    findings = longspan("doctor", "--name", "default", "--json").document["findings"]
    assert findings[0]["cause"] == "gpu-hardware-fault"
    assert [f["severity"] for f in findings if f["cause"] == "nccl-init-hang"] == ["info"]


def test_patience_comes_from_own_launches(
    longspan: Callable[..., Any], places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A phase that takes long in each launch of this model is not late; another model's launches say nothing."""
    monkeypatch.setattr(Places, "running", lambda self: {"pid": 1})
    monkeypatch.setattr(control, "request", lambda record, path: status(places))
    monkeypatch.setattr(live, "collect", lambda targets: [])
    late = longspan("doctor", "--name", "default", "--json").document["live"]["over_seconds"]
    assert late > 0
    for model, over in (("/other", late), ("/m", -500.0)):
        made_of = recorded(replace(SPEC, model=model), {})
        LaunchLog(LaunchStore(places.launches)).note("serving", made_of, "", {"engine (starting)": 300.0})
        assert longspan("doctor", "--name", "default", "--json").document["live"]["over_seconds"] == over


def test_where_logs_lie(places: Places) -> None:
    """Behind ssh and in containers below the home there, in a job step or a joined Ray where the agent was told; a node of this
    machine that has written nothing has none elsewhere."""
    ssh, here = SPEC.nodes[1], SPEC.nodes[0]
    home = "~/.local/state/longspan/default/logs/"
    assert doctor_logs._where(here, places, SPEC) is None
    assert doctor_logs._where(ssh, places, SPEC) == (SshHost("gpu-2", "ops@gpu-2"), f"{home}gpu-2")
    step = doctor_logs._where(replace(here, slurm="42"), places, SPEC)
    assert step is not None
    assert (step[0].name, step[1]) == ("gpu-1", str(places.logs / "gpu-1"))
    joined = doctor_logs._where(here, places, replace(SPEC, ray_address="10.0.0.9:6379"))
    assert joined == (RayHost("gpu-1", "10.0.0.1", "10.0.0.9:6379"), str(places.logs / "gpu-1"))


def test_a_host_behind_ray_runs_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a task of that Ray; where there is no such Ray the reason is told."""
    asked: list[Any] = []

    def run(host: LocalHost, argv: Any, **more: Any) -> Completed:
        asked.append((argv[2:], json.loads(more["stdin"])))
        return (
            Completed(0, "text", "")
            if len(asked) == 1
            else Completed(1, "", "Traceback\nConnectionError: no Ray\n")
        )

    monkeypatch.setattr(LocalHost, "run", run)
    host = RayHost("n", "10.0.0.1", "10.0.0.9:6379")
    assert host.run(["cat", "x"]).stdout == "text"
    assert asked[0][0] == ["longspan.launch.ray_join", "run", "10.0.0.9:6379"]
    assert asked[0][1] == {"address": "10.0.0.1", "argv": ["cat", "x"], "env": {}, "stdin": ""}
    with pytest.raises(errors.HostError, match="not reached through Ray: ConnectionError: no Ray"):
        host.run(["true"])

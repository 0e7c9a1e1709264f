"""The controller as a real process with real agents, and a script in place of Ray and vLLM: every failure leaves nothing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from real import environment, executable, processes_with, running, wait_for

from longspan.cli.doctor import command as doctor_verb
from longspan.cli.down import command as down_verb
from longspan.cli.status import command as status_verb
from longspan.cli.up import failure_of
from longspan.daemon.places import Places, write_private
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.errors import ControlPlaneError

HOLD = "exec sleep 1000"
# Stands in for a node's Python: what Ray and the launcher would do, by the module that is asked for.
STUB = [
    'case "$2" in',
    "longspan.launch.ray_main) {ray} ;;",
    f"longspan.daemon.versions) exec {sys.executable} -m longspan.daemon.versions ;;",
    "longspan.launch.ray_driver) {launcher} ;;",
    "esac",
]
RAY = f'echo "Ray runtime started."; {HOLD}'


@dataclass(slots=True)
class Deployed:
    """A controller's directory, process and environment."""

    home: Path
    env: dict[str, str]
    places: Places
    child: subprocess.Popen[str] | None = None
    record: dict[str, Any] = field(default_factory=dict)

    def start(self, *, ray: str = RAY, launcher: str = HOLD, settings: str = "", **changes: Any) -> None:
        """Starts the controller of two nodes on this machine; `settings` is Python that it runs before."""
        stub = executable(self.home / "python", [line.format(ray=ray, launcher=launcher) for line in STUB])
        model = self.home / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text("{}")
        plain: dict[str, Any] = {
            "name": "t", "identity": "i", "model": str(model), "served_name": "m", "tp": 1, "pp": 2, "executor": "ray",
            "device": "cpu", "listen": "127.0.0.1:0",
            "nodes": tuple(NodeSpec(f"n{i}", f"127.0.0.{i + 1}", 1, python=str(stub)) for i in (1, 2)),
        }  # fmt: skip
        spec = DeploymentSpec(**{**plain, **changes})
        write_private(self.places.spec, json.dumps({"spec": spec.to_json(), "controller_host": "127.0.0.1"}))
        self.child = self.spawn(settings)
        self.record = wait_for(lambda: self.places.running() or {})

    def spawn(self, settings: str = "") -> subprocess.Popen[str]:
        """One more controller of the same directory."""
        code = f"{settings}\nfrom longspan.daemon import controller\ncontroller.main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, str(self.places.root)],
            env=self.env, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def request(self, path: str, *, key: str | None = None, body: bytes | None = None) -> tuple[int, Any]:
        """Status and answer of one request; a body makes it a POST."""
        wanted = urllib.request.Request(
            self.record["url"] + path,
            data=body,
            headers={"Authorization": f"Bearer {key or self.record['key']}"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(wanted, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def reach(self, phase: str) -> dict[str, Any]:
        """Waits for a phase."""

        def seen() -> dict[str, Any]:
            _, status = self.request("/v1/status")
            assert status["failure"] is None, status["failure"]
            return status if status["phase"] == phase else {}

        found: dict[str, Any] = wait_for(seen)
        return found

    def gone(self) -> dict[str, Any]:
        """The last status, once the controller has ended; nothing else may be left."""
        assert self.child is not None
        _, errors = self.child.communicate(timeout=120)
        assert self.child.returncode == 0, errors
        assert processes_with(f"LONGSPAN_MARK={self.record['mark']}") == []
        wait_for(lambda: not processes_with(f"XDG_STATE_HOME={self.home}"))
        assert not Path(self.record["run_dir"]).exists()
        for path in (self.places.controller, self.places.gateway_config, self.places.engine_key):
            assert not path.exists()
        status: dict[str, Any] = json.loads(self.places.last_status.read_text())
        assert status["phase"] == "gone"
        assert status["findings"] == []
        return status


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    """A place for a deployment called "t", whose agents believe in a Ray and a vLLM; whatever it left is ended."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    packages = tmp_path / "packages"
    for name in ("ray", "vllm"):
        info = packages / f"{name}-9.9.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    env = environment(tmp_path)
    env["PYTHONPATH"] = f"{packages}{os.pathsep}{env['PYTHONPATH']}"
    places = Places.of("t")
    write_private(places.api_key, "lsp_test")
    found = Deployed(tmp_path, env, places)
    yield found
    if found.child is not None and found.child.poll() is None:
        found.child.send_signal(signal.SIGTERM)
        found.child.communicate(timeout=120)


def launcher_says(home: Path, *events: dict[str, Any]) -> str:
    """Shell words that print the launcher's events and go on holding the reservation."""
    path = home / "events"
    path.write_text("".join(f"longspan-event {json.dumps(event)}\n" for event in events))
    return f'cat "{path}"; {HOLD}'


def test_ray_that_does_not_start(deployed: Deployed) -> None:
    """Ray's own error reaches the status with its node and status code; agents, gateway and files are gone."""
    deployed.start(ray="echo 'RuntimeError: port 6379 is in use'; exit 3")
    failure = deployed.gone()["failure"]
    assert (failure["kind"], failure["phase"]) == ("ray", "ray")
    assert (
        "ray on n1 ended with status 3 in phase ray. Its log says: RuntimeError: port 6379 is in use"
        in failure["what"]
    )
    kinds = [json.loads(line)["event"] for line in deployed.places.history.read_text().splitlines()]
    assert kinds.count("AgentJoined") == 3
    assert "Exited" in kinds
    assert "Tick" not in kinds
    log = deployed.places.logs / "n1" / "ray.log"
    assert "port 6379" in log.read_text()


def test_a_python_that_does_not_exist(deployed: Deployed) -> None:
    """A wrong interpreter in the cluster file is named."""
    nodes = tuple(NodeSpec(f"n{i}", f"127.0.0.{i + 1}", 1, python="/nowhere/python") for i in (1, 2))
    deployed.start(nodes=nodes)
    assert "/nowhere/python" in deployed.gone()["failure"]["what"]


def test_gpus_that_do_not_join(deployed: Deployed) -> None:
    """The launcher's event arrives as a failure of capacity; the processes that wait are ended."""
    event = {
        "event": "error",
        "kind": "gpus",
        "have": 1,
        "want": 2,
        "missing": ["127.0.0.3"],
        "alive": ["127.0.0.2"],
    }
    deployed.start(launcher=launcher_says(deployed.home, event))
    failure = deployed.gone()["failure"]
    assert failure["kind"] == "capacity"
    assert "127.0.0.3 did not join" in failure["what"]


def test_a_host_that_ssh_cannot_reach(deployed: Deployed) -> None:
    """ssh's reason and the node are named, and what started elsewhere is stopped."""
    bin_dir = deployed.home / "bin"
    bin_dir.mkdir()
    executable(bin_dir / "ssh", ["echo 'ssh: connect to host far: Connection refused' >&2", "exit 255"])
    deployed.env["PATH"] = f"{bin_dir}{os.pathsep}{deployed.env['PATH']}"
    near = NodeSpec("near", "127.0.0.2", 1, python=str(deployed.home / "python"))
    deployed.start(nodes=(near, NodeSpec("far", "127.0.0.3", 1, ssh="far")))
    failure = deployed.gone()["failure"]
    assert failure["kind"] == "host"
    assert "The agent on far could not be started" in failure["what"]
    assert "Connection refused" in failure["what"]


def test_what_lies_on_a_host_behind_ssh_explains_the_failure(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The far node's agent keeps its logs at its own home; `doctor`, and the last words of `up`, read them there, and what the
    agent collected before it ended everything has come here."""
    far_home, bin_dir = deployed.home / "far", deployed.home / "bin"
    for folder in (far_home, bin_dir):
        folder.mkdir()
    # The far side's shell, with another home.
    executable(bin_dir / "ssh", ["for last; do :; done", f'HOME="{far_home}" exec sh -c "$last"'])
    for set_env in (deployed.env.__setitem__, monkeypatch.setenv):
        set_env("PATH", f"{bin_dir}{os.pathsep}{os.environ['PATH']}")
    agent = f'longspan.daemon.agent) exec "{sys.executable}" "$@" ;;'
    full = "echo \"OSError: [Errno 28] No space left on device: '/tmp/ray'\"; sleep 1; exit 3"
    stub = [line.format(ray=full, launcher=HOLD) for line in STUB]
    far_python = executable(deployed.home / "far-python", [stub[0], agent, *stub[1:]])
    near = NodeSpec("near", "127.0.0.2", 1, python=str(deployed.home / "python"))
    deployed.start(nodes=(near, NodeSpec("far", "127.0.0.3", 1, ssh="far", python=str(far_python))))
    status = deployed.gone()
    assert "ray on far ended with status 3" in status["failure"]["what"]
    assert (far_home / ".local/state/longspan/t/logs/far/ray.log").exists()
    assert not (deployed.places.logs / "far" / "ray.log").exists()
    said = json.loads(CliRunner().invoke(doctor_verb, ["--name", "t", "--json"]).stdout)
    assert said["logs_elsewhere"] == []
    best = said["findings"][0]
    assert (best["cause"], best["evidence"][0]["file"]) == (
        "disk-full",
        str(deployed.places.fetched / "far" / "ray.log"),
    )
    assert best["subject"] == "far"
    assert "(disk-full, " in failure_of(status).remedy
    assert (deployed.places.logs / "far" / "collected" / "nic-counters.txt").exists()


def test_a_checkpoint_that_is_not_there(deployed: Deployed) -> None:
    """A directory without a model is found by the agents, before Ray starts."""
    deployed.start(model=str(deployed.home / "empty"))
    failure = deployed.gone()["failure"]
    assert failure["phase"] == "checkpoint"
    assert "empty holds no checkpoint" in failure["what"]


@pytest.mark.parametrize("how", ["down", "SIGTERM"])
def test_stopping_while_it_starts(deployed: Deployed, how: str) -> None:
    """A launch that waits for Ray is taken down without a trace, and that is no failure."""
    deployed.start(ray=HOLD)
    status = deployed.reach("ray")
    assert status["phases"][2]["state"] == "running"
    wait_for(lambda: processes_with(f"LONGSPAN_MARK={deployed.record['mark']}"))
    if how == "down":
        assert deployed.request("/v1/down", body=b"")[0] == 200
    else:
        assert deployed.child is not None
        deployed.child.send_signal(signal.SIGTERM)
    status = deployed.gone()
    assert status["failure"] is None
    assert status["phases"][2]["state"] == "stopped"
    assert status["phases"][3]["state"] == "waiting"


def test_killed_agents_leave_nothing(deployed: Deployed) -> None:
    """Agents that die without a word cannot end what they started: `down` has their nodes swept."""
    deployed.start(ray=HOLD, settings="from longspan.launch import stopping\nstopping.SILENT_SECONDS = 4")
    deployed.reach("ray")
    mark = deployed.record["mark"]
    wait_for(lambda: processes_with(f"LONGSPAN_MARK={mark}"))
    # Three once every child that was just forked off one has become what it shall be.
    for pid in wait_for(lambda: found if len(found := carrying(f"LONGSPAN_AGENT_OF={mark}")) == 3 else []):
        os.kill(pid, signal.SIGKILL)
    assert processes_with(f"LONGSPAN_MARK={mark}") != []
    assert deployed.request("/v1/down", body=b"")[0] == 200
    deployed.gone()


def carrying(entry: str) -> list[int]:
    """The pids of all processes that were started with this `KEY=value`."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and entry.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def test_a_full_disk_keeps_nothing_running(deployed: Deployed) -> None:
    """Where the history cannot be written, the deployment still starts, and still ends."""
    deployed.places.history.symlink_to("/dev/full")
    deployed.start(ray=HOLD)
    deployed.reach("ray")
    assert deployed.request("/v1/down", body=b"")[0] == 200
    deployed.gone()


def test_stopping_at_once(deployed: Deployed) -> None:
    """Down before any agent has joined leaves no agent that would have joined later."""
    deployed.start()
    deployed.request("/v1/down", body=b"")
    deployed.gone()


def test_the_gateway_and_the_ranks_so_far(deployed: Deployed) -> None:
    """Status shows reservation, engine phases and ranks as they come, holds no secret, and ends with the launcher; what
    a rank that survived it was doing is written down before it is ended."""
    events = launcher_says(
        deployed.home,
        {"event": "gpus", "have": 2, "want": 2, "nodes": []},
        {"event": "reserved", "placement_group": "abc", "bundles": ["127.0.0.2", "127.0.0.3"]},
    )
    lines = "; ".join(
        f'echo "(RayWorkerProc pid=1{rank}, ip=127.0.0.{rank + 2}) rank {rank} in world size 2 is assigned as DP rank 0"'
        for rank in (0, 1)
    )
    lines += "; bash -c 'exec -a VLLM::Worker_PP1 sleep 1000' &"
    wait = f'while [ ! -e "{deployed.home}/end" ]; do sleep 0.1; done; echo "ValueError: the end"; exit 5'
    deployed.start(launcher=events.replace(HOLD, f"{lines} {wait}"))

    def joined() -> dict[str, Any]:
        _, status = deployed.request("/v1/status")
        both = status["endpoint"] and status["engine_phases"].get("joined") is not None
        return status if both else {}

    status = wait_for(joined)
    assert status["phase"] == "engine"
    assert status["placement_group"] == "abc"
    assert [(r["rank"], r["address"], r["pid"]) for r in status["ranks"]] == [
        (0, "127.0.0.2", 10),
        (1, "127.0.0.3", 11),
    ]
    text = json.dumps(status) + "".join(processes_with(f"LONGSPAN_MARK={deployed.record['mark']}"))
    for secret in (deployed.record["key"], deployed.places.engine_key.read_text(), "lsp_test"):
        assert secret not in text
    gateway = urllib.request.Request(f"{status['endpoint']}/models")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(gateway, timeout=60)
    with caught.value:
        assert caught.value.code == 401
    # The gateway tells its figures to who has the operator's key; the request without a key is none.
    assert status["traffic"]["requests"] == {"local": 0, "outside": 0}
    assert deployed.request("/v1/status?after=0")[1]["traffic"] is None
    assert deployed.request("/v1/isolate", body=b'{"subject": "n1"}') == (200, {"held": {"n1": "isolate"}})
    assert deployed.request("/v1/status")[1]["held"] == {"n1": "isolate"}
    assert deployed.request("/v1/restore", body=b'{"subject": "n1"}') == (200, {"held": {}})
    assert deployed.request("/v1/drain", body=b'{"subject": "x"}') == (
        422,
        "there is no 'x' here, only r0, n1, n2\n",
    )
    assert deployed.request("/v1/drain", body=b"[]")[0] == 400
    (deployed.home / "end").touch()
    assert (
        "launcher on n1 ended with status 5 in phase engine. Its log says: ValueError: the end"
        in (deployed.gone()["failure"]["what"])
    )
    stack = deployed.places.logs / "n1" / "collected" / "stack-rank-1.txt"
    assert "State:" in stack.read_text()
    answers = [json.loads(line) for line in deployed.places.history.read_text().splitlines()]
    kept = [found["value"] for found in answers if found.get("call") == "collect:n1"]
    assert kept
    assert "stack-rank-1.txt" in kept[0]


def test_who_may_speak_to_it(deployed: Deployed) -> None:
    """Every request needs its key; unknown agents and messages that are none are refused; nothing stops it."""
    deployed.start(ray=HOLD)
    deployed.reach("ray")
    for path, body in (("/v1/status", None), ("/v1/down", b""), ("/v1/drain", b'{"subject": "r0"}'), ("/v1/agents/n1/events", b"{}"),
                       ("/v1/agents/n1/commands", None)):  # fmt: skip
        assert deployed.request(path, key="wrong", body=body)[0] == 401
    # The operator's key is not an agent's.
    assert deployed.request("/v1/agents/n1/events", body=b"{}")[0] == 401
    assert deployed.request("/v1/status?after=x")[0] == 400
    assert deployed.request("/v1/nothing")[0] == 404
    assert deployed.request("/v1/status")[1]["phase"] == "ray"
    for path in (deployed.places.controller, deployed.places.engine_key, deployed.places.api_key):
        assert path.stat().st_mode & 0o777 == 0o600
    assert deployed.places.root.stat().st_mode & 0o777 == 0o700
    second = deployed.spawn()
    _, errors = second.communicate(timeout=120)
    assert second.returncode == 1
    assert "another controller holds" in errors
    assert deployed.places.running() == deployed.record


def test_a_controller_that_was_killed(deployed: Deployed, tmp_path: Path) -> None:
    """Its record shows who died; `down` ends on this machine what it left."""
    deployed.start(ray=HOLD)
    deployed.reach("ray")
    assert deployed.child is not None
    deployed.child.kill()
    deployed.child.communicate(timeout=60)
    told = CliRunner().invoke(status_verb, ["--name", "t"])
    assert isinstance(told.exception, ControlPlaneError)
    assert "died" in told.exception.what
    done = CliRunner().invoke(down_verb, ["--name", "t", "--json"], standalone_mode=False)
    assert json.loads(done.stdout)["left"] == []
    assert processes_with(f"LONGSPAN_MARK={deployed.record['mark']}") == []
    assert not deployed.places.controller.exists()
    again = CliRunner().invoke(down_verb, ["--name", "t", "--json"], standalone_mode=False)
    assert json.loads(again.stdout)["result"] == "nothing was running"
    # The agents find no controller and end with their lease; here they need not be waited for.
    for pid in agents(tmp_path):
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda pid=pid: not running(pid))


def agents(home: Path) -> list[int]:
    """The agents of this test, by their environment."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                ours = f"XDG_STATE_HOME={home}".encode() in (process / "environ").read_bytes()
                if ours and b"longspan.daemon.agent" in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
    return found


def test_the_doctor_examines_a_launch_that_waits(deployed: Deployed) -> None:
    """The live deployment's phase and hosts, taken from outside while it stands; it is not disturbed."""
    deployed.start()
    deployed.reach("ray")
    said = CliRunner().invoke(doctor_verb, ["--name", "t", "--json"])
    assert said.exit_code == 0, said.output
    document = json.loads(said.stdout)
    assert document["live"]["phase"] == "ray"
    assert (document["live"]["ranks"], document["live"]["hosts"]) == ([0, 1], ["n1", "n2"])
    assert [f for f in document["findings"] if f["severity"] == "error"] == []
    assert document["changes"] == []
    deployed.reach("ray")
    assert CliRunner().invoke(down_verb, ["--name", "t"]).exit_code == 0
    deployed.gone()

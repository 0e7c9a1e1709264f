"""`status`, `down` and the parts of `up` around a controller: keys, records, exit codes, one document on standard output."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import longspan as longspan_package
from longspan import errors
from longspan.cli import control, keys, up
from longspan.daemon.places import Places, write_private
from longspan.daemon.processes import identity
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.launch.events import AgentJoined, DownAsked
from longspan.launch.failure import Failure as LaunchFailure

SPEC = DeploymentSpec(
    name="default", identity="wanted", model="/m", served_name="m", tp=1, pp=2, executor="ray", device="cpu",
    nodes=(NodeSpec("a", "127.0.0.2", 1), NodeSpec("b", "127.0.0.3", 1)), listen="127.0.0.1:8000",
)  # fmt: skip


def document(phase: str = "serving") -> dict[str, Any]:
    """A status as the controller makes it, of a deployment that has come so far."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "launch"))
    try:
        from driving import Drive, make_steps
    finally:
        sys.path.pop(0)
    from longspan.daemon import status

    drive = Drive(make_steps(SPEC))
    stages = drive.stages()
    for stage in stages[: {"agents": 0, "engine": 4}.get(phase, len(stages))]:
        stage()
    if phase == "agents":
        drive.begin()
        drive.do(AgentJoined("a"))
    if phase == "gone":
        drive.do(DownAsked())
        drive.stop_answers()
    found = status.document(
        drive.machine, state_dir="/s", api_key_file="/s/api-key", logs="/s/logs", now=drive.now
    )
    return {**found, "version": 1}


class Controller(ThreadingHTTPServer):
    """Answers the command line with one status, and dies on `down`: its record names a process that the test ends."""

    daemon_threads = True
    status: dict[str, Any]
    asked: list[str]
    process: subprocess.Popen[bytes]


class Answers(BaseHTTPRequestHandler):
    """One request."""

    server: Controller

    def do_GET(self) -> None:
        """The status, for the right key only."""
        self.server.asked.append(self.path)
        right = self.headers["Authorization"] == "Bearer operator"
        body = json.dumps(self.server.status if right else {}).encode()
        self.send_response(200 if right else 401)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """Down, or what the operator wishes."""
        self.server.asked.append(self.path)
        if self.path != "/v1/down":
            subject = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["subject"]
            self.send_response(200)
            self.end_headers()
            held = {} if self.path == "/v1/restore" else {subject: self.path.rpartition("/")[2]}
            self.wfile.write(json.dumps({"held": held}).encode())
            return
        self.server.process.kill()
        self.server.process.wait()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        """Silence."""


@pytest.fixture
def places() -> Places:
    """The default deployment's."""
    return Places.of("default")


@pytest.fixture
def controller(places: Places) -> Iterator[Controller]:
    """A deployment that serves."""
    server = Controller(("127.0.0.1", 0), Answers)
    server.status, server.asked = document(), []
    server.process = subprocess.Popen(["sleep", "1000"])
    found = identity(server.process.pid)
    assert found is not None
    record = {
        "pid": found.pid, "start_ticks": found.start_ticks, "key": "operator", "identity": "wanted", "mark": "mark-none",
        "run_dir": str(places.root / "run"),
        "url": f"http://127.0.0.1:{server.server_address[1]}",
    }  # fmt: skip
    write_private(places.controller, json.dumps(record))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
    server.process.kill()
    server.process.wait()


def test_nothing_runs(longspan: Callable[..., Any]) -> None:
    """`status` says so with its exit code and the way to start; `down` is content."""
    said = longspan("status")
    assert said.code == errors.NoDeploymentError.exit_code
    assert "No deployment called 'default' runs on this machine." in said.err
    assert "`longspan up` starts one." in said.err
    assert longspan("status", "--json").document["error"]["kind"] == "NoDeploymentError"
    said = longspan("down")
    assert (said.code, said.out) == (0, "default: nothing was running.\n")
    assert longspan("down", "--json").document == {
        "name": "default",
        "result": "nothing was running",
        "left": [],
    }


def test_the_last_failure_is_remembered(longspan: Callable[..., Any], places: Places) -> None:
    """After a launch that failed, `status` says why it did."""
    failure = LaunchFailure("ray", "ray", "Ray ended with status 1.").to_json()
    write_private(places.last_status, json.dumps({"failure": failure}))
    assert "The last one failed: Ray ended with status 1." in longspan("status").err


def test_status(longspan: Callable[..., Any], controller: Controller) -> None:
    """For people: phases, each rank's node as read back, the proof's layers, endpoint and key file; for programs: all of it."""
    said = longspan("status")
    assert said.code == 0
    for text in ("default: m, TP 1 x PP 2 on 2 nodes (ray executor, cpu)", "✓ verified", "127.0.0.3", "n/a (CPU)",
                 "http://127.0.0.1:8000/v1", "in /s/api-key", "cannot see"):  # fmt: skip
        assert text in said.out
    assert "\x1b" not in said.out
    assert longspan("status", "--json").document == controller.status


@pytest.mark.parametrize("phase", ["agents", "engine", "gone"])
def test_status_of_what_is_not_there_yet(
    longspan: Callable[..., Any], controller: Controller, phase: str
) -> None:
    """Every phase can be shown, with what is not known yet left open."""
    controller.status = document(phase)
    said = longspan("status")
    assert said.code == 0
    assert ("not yet" in said.out) == (phase != "gone")


def test_a_controller_that_does_not_answer(
    longspan: Callable[..., Any], controller: Controller, places: Places
) -> None:
    """It lives but nobody listens, or the key is wrong: its pid and the way out are named."""
    record = json.loads(places.controller.read_text())
    for change in ({"url": "http://127.0.0.1:9"}, {"key": "wrong"}):
        write_private(places.controller, json.dumps({**record, **change}))
        said = longspan("status")
        assert said.code == errors.ControlPlaneError.exit_code
        assert f"(pid {controller.process.pid}) does not answer" in said.err
        assert "longspan down --force" in said.err


def test_down(longspan: Callable[..., Any], controller: Controller) -> None:
    """Asks the controller and waits until its process has ended."""
    said = longspan("down", "--json")
    assert said.document == {"name": "default", "result": "stopped", "left": []}
    assert controller.asked == ["/v1/down"]
    assert controller.process.poll() is not None


def test_down_says_what_is_left(longspan: Callable[..., Any], controller: Controller, places: Places) -> None:
    """A process that could not be ended is shown and is an error."""
    findings = [
        {"cause": "process-left", "summary": "pid 9 does not end"},
        {"cause": "other", "summary": "x"},
    ]
    write_private(places.last_status, json.dumps({"findings": findings}))
    said = longspan("down")
    assert said.code == errors.ControlPlaneError.exit_code
    assert said.out == "default: stopped.\n  left: pid 9 does not end\n"


def test_down_by_force(longspan: Callable[..., Any], controller: Controller, places: Places) -> None:
    """Without asking: the controller is ended by pid, its run directory and record are removed."""
    run_dir = places.root / "run"
    run_dir.mkdir()
    said = longspan("down", "--force")
    assert (said.code, said.out) == (0, "default: ended by force.\n")
    assert controller.asked == []
    assert controller.process.poll() is not None
    assert not run_dir.exists()
    assert not places.controller.exists()


def test_a_controller_that_died(longspan: Callable[..., Any], controller: Controller) -> None:
    """`status` tells a dead controller from none, and `down` clears away what it left."""
    controller.process.kill()
    controller.process.wait()
    said = longspan("status")
    assert said.code == errors.ControlPlaneError.exit_code
    assert "The controller of 'default' died." in said.err
    assert "its controller had died" in longspan("down").out
    assert longspan("down").out == "default: nothing was running.\n"


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """`up` wants SPEC, without a look at this machine."""
    monkeypatch.setattr(up, "prepare", lambda request, progress: SPEC)


@pytest.mark.usefixtures("wanted")
def test_up_twice_changes_nothing(
    longspan: Callable[..., Any], controller: Controller, places: Places
) -> None:
    """The same wish again: what runs is shown, without its key, and nothing is asked but the status."""
    write_private(places.api_key, "lsp_secret")
    said = longspan("up")
    assert said.code == 0
    assert "Already serving; nothing changed." in said.err
    assert "lsp_secret" not in said.out + said.err
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in said.out
    assert longspan("up", "--json").document == controller.status
    assert set(controller.asked) == {"/v1/status"}


@pytest.mark.usefixtures("wanted")
def test_up_with_another_wish(longspan: Callable[..., Any], controller: Controller, places: Places) -> None:
    """A deployment of that name with other settings is left alone."""
    record = json.loads(places.controller.read_text())
    write_private(places.controller, json.dumps({**record, "identity": "another"}))
    said = longspan("up")
    assert said.code == errors.DeploymentExistsError.exit_code
    assert "runs already (m, phase serving), with other settings" in said.err


@pytest.mark.usefixtures("wanted", "machine")
@pytest.mark.parametrize(
    ("kind", "error"),
    [("host", errors.HostError), ("ray", errors.RayError), ("capacity", errors.CapacityError),
     ("launch", errors.LaunchError), ("proof", errors.ProofError), ("port", errors.PortError)],
)  # fmt: skip
def test_a_launch_that_failed(
    longspan: Callable[..., Any],
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    error: type[errors.LongspanError],
) -> None:
    """Each kind of failure has its exit code; what, remedy and logs are one paragraph; the phases went to standard error."""
    status = document("gone")
    status["failure"] = LaunchFailure(kind, "ray", "It broke.", "Mend it.").to_json()
    status["phases"][2]["state"] = "failed"
    monkeypatch.setattr(control, "start_controller", lambda *_: {"pid": 1})
    monkeypatch.setattr(control, "follow", lambda record, places: iter([document("engine"), status]))
    said = longspan("up", "--listen", "127.0.0.1:0")
    assert said.code == error.exit_code
    assert said.out == ""
    for text in ("error: It broke.", "Mend it.", "Logs: /s/logs.", "✗ ray"):
        assert text in said.err


@pytest.mark.usefixtures("wanted", "machine")
def test_up_that_ends_well(
    longspan: Callable[..., Any], places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is shown once, and what is to be pasted stands in one line each."""
    monkeypatch.setattr(control, "start_controller", lambda *_: {"pid": 1})
    monkeypatch.setattr(control, "follow", lambda record, places: iter([document()]))
    said = longspan("up", "--listen", "127.0.0.1:0")
    key = places.api_key.read_text()
    assert said.code == 0
    assert f"key       {key}   (shown once; kept in /s/api-key)" in said.out
    assert sum(line.startswith(("curl ", "python -c ")) for line in said.out.splitlines()) == 2
    assert key not in longspan("up", "--listen", "127.0.0.1:0").out
    assert longspan("up", "--listen", "127.0.0.1:0", "--json").document["phase"] == "serving"


def test_the_doctor_does_not_hide_the_failure(
    longspan: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An explanation that fails is not shown in place of what it should explain."""
    from longspan.doctor import collect

    monkeypatch.setattr(collect, "diagnose", lambda logs: 1 / 0)
    status = {"failure": LaunchFailure("ray", "ray", "It broke.").to_json(), "logs": "/s/logs"}
    assert up.failure_of(status).what == "It broke."


def test_keys(places: Places) -> None:
    """The key is made once, kept with mode 0600 under a directory of ours alone, and new ones differ."""
    key, new = keys.ensure_api_key(places)
    assert (new, key[:4], keys.ensure_api_key(places)) == (True, "lsp_", (key, False))
    assert places.api_key.stat().st_mode & 0o777 == 0o600
    assert places.root.stat().st_mode & 0o777 == 0o700
    assert keys.ensure_api_key(Places.of("other"))[0] != key


START = """
import json, sys
from longspan.cli import control
from longspan.daemon.places import Places
from longspan.deployment import DeploymentSpec
from longspan.errors import DeploymentExistsError
try:
    print(control.start_controller(Places.of("default"), DeploymentSpec.from_json(json.load(sys.stdin)), "127.0.0.1")["pid"])
except DeploymentExistsError:
    print("exists")
"""


def test_two_at_once(places: Places) -> None:
    """Of two `up` of one name at the same time one starts a controller, the other says so."""
    keys.ensure_api_key(places)
    source = str(Path(longspan_package.__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((source, os.environ.get("PYTHONPATH", "")))}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", START], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in both:
        assert process.stdin is not None
        process.stdin.write(json.dumps(SPEC.to_json()))
        process.stdin.close()
        process.stdin = None
    found = [process.communicate(timeout=120)[0].strip() for process in both]
    record = places.running()
    assert record is not None
    control.request(record, "/v1/down", post=True)
    assert control.wait_until_gone(record, 120)
    assert sorted(found) == sorted([str(record["pid"]), "exists"])


def test_a_controller_that_does_not_start(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last line and its log are named."""
    keys.ensure_api_key(places)
    monkeypatch.setattr(control, "write_private", lambda path, text: path.write_text("{}"))
    with pytest.raises(errors.ControlPlaneError, match="The controller did not start: KeyError") as caught:
        control.start_controller(places, SPEC, "127.0.0.1")
    assert "controller.log" in caught.value.remedy


def test_the_address_for_agents() -> None:
    """Loopback while all nodes are here; otherwise the address by which this machine reaches the first node."""
    assert up._controller_host(SPEC) == "127.0.0.1"
    far = replace(SPEC, nodes=(NodeSpec("a", "255.255.255.255", 1),))
    with pytest.raises(errors.HostError, match=r"no route to 255\.255"):
        up._controller_host(far)


@pytest.mark.parametrize(
    ("verb", "said"), [("drain", "a (drain)"), ("isolate", "a (isolate)"), ("restore", "nothing")]
)
def test_traffic_by_hand(longspan: Callable[..., Any], controller: Controller, verb: str, said: str) -> None:
    """Each verb asks the controller for a replica or node that exists, and says what is out of traffic then."""
    done = longspan(verb, "a")
    assert done.code == 0
    assert controller.asked[-1] == f"/v1/{verb}"
    assert done.out.strip().endswith(f"Out of traffic by hand: {said}.")
    assert json.loads(longspan(verb, "a", "--json").out).keys() == {"held"}
    wrong = longspan(verb, "c")
    assert wrong.code == errors.InputError.exit_code
    assert "There are r0, a, b." in wrong.err


def test_traffic_by_hand_needs_a_deployment(longspan: Callable[..., Any]) -> None:
    """Nothing runs: its exit code."""
    assert longspan("drain", "r0").code == errors.NoDeploymentError.exit_code


def test_status_tells_traffic_and_what_is_held(longspan: Callable[..., Any], controller: Controller) -> None:
    """Requests, the share that went outside with its money, and what the operator keeps out."""
    controller.status["held"] = {"a": "drain"}
    controller.status["traffic"] = {
        "running": 2, "waiting": 1, "requests": {"local": 3, "outside": 1}, "outside_share": 0.25,
        "money": {"outside_usd": 1.5, "avoided_usd": 4.0, "local_usd": 0.0, "saved_usd": 4.0},
    }  # fmt: skip
    out = longspan("status").out
    assert "drain: a" in out
    assert "4 requests, 2 running, 1 waiting, 25% outside; 1.50 USD there, 4.00 USD avoided" in out


def test_a_drill_is_not_made_by_mistake(longspan: Callable[..., Any], controller: Controller) -> None:
    """Without --yes, with an unknown fault, an impossible rate, or where something is wrong already: nothing is struck."""
    asked = longspan("drill", "kill-rank")
    assert asked.code == errors.InputError.exit_code
    assert "Say --yes" in asked.err
    for wrong in (("burn",), ("kill-rank", "--rank", "7"), ("kill-rank", "--rate", "0")):
        assert longspan("drill", *wrong, "--yes").code == errors.InputError.exit_code
    controller.status["suspicions"] = {"a": "a has not answered for 3 s"}
    assert longspan("drill", "kill-rank", "--yes").code == errors.ControlPlaneError.exit_code
    assert not [path for path in controller.asked if "strike" in path]
    assert (
        longspan("drill", "kill-rank", "--yes", "--name", "other").code == errors.NoDeploymentError.exit_code
    )

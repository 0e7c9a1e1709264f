"""`longspan up --rolling` against the real state machine in a simulated cluster."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longspan import errors
from longspan.cli import change, control, up
from longspan.cli import status as status_verb
from longspan.daemon import status
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.launch.changeable import merged, unchangeable
from longspan.launch.events import Changed
from longspan.launch.rolling import not_now

sys.path.insert(0, str(Path(__file__).parent.parent / "launch"))
try:
    from driving import make_spec, make_steps
    from world import World
finally:
    sys.path.pop(0)

NODES = tuple(NodeSpec(f"n{i}", f"10.0.0.{i + 1}", 1, ssh=f"n{i}") for i in range(2))
START = make_spec(nodes=NODES, pp=1, replicas=2, placement=(("n0",), ("n1",)))
WANTED = replace(START, identity="new", vllm_arguments=("--seed", "7"))


class Cluster:
    """A deployment that serves, what `up` is asked for next, and how the controller answers."""

    def __init__(self, start: DeploymentSpec) -> None:
        self.world = World(make_steps(start))
        self.world.begin()
        self.world.run(60)
        self.wanted = WANTED

    def request(self, _: Any, path: str, *, body: dict[str, Any] | None = None, **__: Any) -> dict[str, Any]:
        """As the controller does; every look at the status lets ten seconds pass."""
        machine = self.world.machine
        if path == "/v1/change":
            assert body is not None
            asked = DeploymentSpec.from_json(json.loads(json.dumps(body["spec"])))
            never = unchangeable(machine.spec, asked)
            refused = never or not_now(
                machine.replicas, machine.ground, machine.rolling, outage=body["outage"]
            )
            if refused:
                return {"refused": {"what": refused[0], "remedy": refused[1], "wish": never is not None}}
            self.world.tell(
                Changed(merged(machine.spec, asked).to_json(), body["watch_seconds"], body["outage"])
            )
            return {}
        self.world.run(10)
        return {**self.document(), "version": self.world.events}

    def document(self) -> dict[str, Any]:
        """The status."""
        found = status.document(
            self.world.machine, state_dir="/s", api_key_file="/k", logs="/l", now=self.world.now
        )
        return {**found, "alarms": []}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Two replicas."""
    made = Cluster(START)
    monkeypatch.setattr(control, "running", lambda name: {"url": "http://x"})
    monkeypatch.setattr(control, "request", made.request)
    monkeypatch.setattr(up, "prepare", lambda request, progress: made.wanted)
    return made


def test_it_tells_each_step(longspan: Callable[..., Any], cluster: Cluster) -> None:
    """And ends when all have it; the same again is nothing."""
    found = longspan("up", "--rolling", "--watch", "20")
    assert (found.code, found.out.strip()) == (0, "Changed: r0, r1. arguments: none -> --seed 7.")
    assert "watching r1, the canary" in found.err
    assert "now r0; r1 changed (engine)" in found.err
    found = longspan("up", "--rolling")
    assert found.code == errors.InputError.exit_code
    assert "Nothing is other than what runs." in found.err
    assert change.line(cluster.document()["change"]).startswith("changed: arguments: none -> --seed 7; ")


def test_what_goes_back_is_an_error(longspan: Callable[..., Any], cluster: Cluster) -> None:
    """With the reason."""
    cluster.world.wrong.add("new")
    found = longspan("up", "--rolling", "--json")
    assert found.code == errors.LaunchError.exit_code
    assert "was taken back, and all replicas are as they were: r1: " in found.err
    assert json.loads(found.out)["error"]["kind"] == "LaunchError"


def test_what_does_not_fit_is_not_begun(longspan: Callable[..., Any], cluster: Cluster) -> None:
    """Another Ray in the new environment."""
    cluster.world.machine.facts["n1"] = {**cluster.world.machine.facts["n1"], "ray": "2.59.0"}
    found = longspan("up", "--rolling")
    assert found.code == errors.CheckError.exit_code
    assert "The change was not begun: n1 runs Ray 2.59.0" in found.err


def test_what_cannot_change_is_refused(longspan: Callable[..., Any], cluster: Cluster) -> None:
    """A wish that never can be, and one that needs a word."""
    cluster.wanted = replace(WANTED, served_name="x")
    found = longspan("up", "--rolling")
    assert found.code == errors.InputError.exit_code
    assert "The name that clients use cannot change from m to x while the deployment serves." in found.err
    cluster.world = Cluster(replace(START, replicas=1, placement=(("n0",),))).world
    cluster.wanted = replace(WANTED, replicas=1, placement=(("n0",),))
    found = longspan("up", "--rolling")
    assert found.code == errors.ControlPlaneError.exit_code
    assert "nobody would serve" in found.err
    assert longspan("up", "--rolling", "--outage").code == 0


def test_status_tells_it(capsys: pytest.CaptureFixture[str], cluster: Cluster) -> None:
    """Which replica, and since when."""
    cluster.world.tell(Changed(merged(START, WANTED).to_json(), 60.0, False))
    cluster.world.run(45)
    status_verb._show(cluster.document())
    out = capsys.readouterr().out
    assert "change    changing: arguments: none -> --seed 7; watching r1, the canary; 45 s" in out


def test_nothing_runs(longspan: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to change."""
    monkeypatch.setattr(up, "prepare", lambda request, progress: WANTED)
    assert longspan("up", "--rolling").code == errors.NoDeploymentError.exit_code


def test_what_drains_for_it_says_so(cluster: Cluster) -> None:
    """No operator has drained it, and there is nothing to restore."""
    cluster.world.streams["r1"] = cluster.world.now + 100
    cluster.world.tell(Changed(merged(START, WANTED).to_json(), 60.0, False))
    cluster.world.run(10)
    found = cluster.document()
    assert [(one["phase"], one["reason"]) for one in found["replicas"]] == [
        ("serving", ""), ("draining", "it is being changed"),
    ]  # fmt: skip
    assert found["held"] == {}


@pytest.mark.parametrize("options", [("--outage",), ("--watch", "5")])
def test_what_is_for_it_alone_means_nothing_without_it(
    longspan: Callable[..., Any], options: tuple[str, ...]
) -> None:
    """A launch that ignored it would not be what was asked for."""
    found = longspan("up", *options)
    assert found.code == errors.InputError.exit_code
    assert f"{options[0]} is for --rolling." in found.err

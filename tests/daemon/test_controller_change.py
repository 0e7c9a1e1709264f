"""A rolling change through the controller: what it refuses, what it feeds and keeps, and who goes on with it."""

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_controller_events import controller, until, watched

from longspan.daemon.controller import Controller
from longspan.daemon.places import write_private
from longspan.daemon.resume import StartIdentity
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.launch.events import Compared, Event, Tick

sys.path.insert(0, str(Path(__file__).parent.parent / "launch"))
try:
    from driving import make_spec
    from world import World
finally:
    sys.path.pop(0)

NODES = tuple(NodeSpec(f"n{i}", f"127.0.0.{i + 2}", 1) for i in range(2))
SPEC = make_spec(nodes=NODES, pp=1, replicas=2, placement=(("n0",), ("n1",)))
WANTED = replace(SPEC, identity="new", vllm_arguments=("--max-num-seqs", "8"))


class Recorded(World):
    """A world of a controller's machine, whose events go into that one's record."""

    owner: Controller

    def tell(self, event: Event) -> None:
        """The machine takes it, and the record."""
        last = self.machine.history[-1] if self.machine.history else None
        super().tell(event)
        if self.machine.history and self.machine.history[-1] is not last:
            self.owner._record(self.machine.history[-1][1], self.now, None)


def world_of(found: Controller, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Its machine in a cluster where all serve; that is where its actions go, and its time comes from."""
    made = Recorded(found.machine)
    made.owner = found
    write_private(found.places.spec, json.dumps({"spec": SPEC.to_json(), "controller_host": "127.0.0.1"}))
    replace(found.start, begun=0.0).save(found.places.resume)
    monkeypatch.setattr(found, "perform", made._do)
    monkeypatch.setattr(
        "longspan.daemon.controller.time", SimpleNamespace(monotonic=lambda: made.now, time=time.time)
    )
    made.begin()
    made.run(60)
    assert found.machine.phase == "serving"
    return made


def follows(found: Controller) -> None:
    """Another controller that begins with the first specification and the record stands where this one does."""
    start = StartIdentity.load(found.places.resume)
    begun = DeploymentSpec.from_json(
        json.loads(found.places.spec.read_text()).get("begun_with", SPEC.to_json())
    )
    second = Controller(found.places, begun, "127.0.0.1", start)
    second._recover()
    assert begun == SPEC
    assert second.machine.rolling is not None
    assert found.machine.rolling is not None
    assert second.machine.rolling.standing == found.machine.rolling.standing
    assert second.spec == second.machine.spec == found.machine.spec
    assert second.machine.replicas.phases == found.machine.replicas.phases
    second.history.close()


def test_from_the_wish_to_what_stands_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals have words; what is done stands in the files that others read; a controller that follows in the middle, or after it,
    goes on from there."""

    async def test() -> None:
        async with controller(tmp_path, SPEC) as (found, client):
            made = world_of(found, monkeypatch)
            headers = {"Authorization": f"Bearer {found.operator_key}"}

            async def wish(spec: DeploymentSpec) -> Any:
                body = {"spec": spec.to_json(), "watch_seconds": 20, "outage": False}
                return await (await client.post("/v1/change", json=body, headers=headers)).json()

            assert (await client.post("/v1/change", json={"spec": 1}, headers=headers)).status == 400
            refused = (await wish(replace(WANTED, served_name="x")))["refused"]
            assert refused["wish"]
            assert "The name that clients use" in refused["what"]
            assert await wish(WANTED) == {}
            assert not (await wish(WANTED))["refused"]["wish"]
            made.run(40)
            assert found.machine.rolling is not None
            assert found.machine.rolling.watches()
            assert (found._max_running("r0"), found._max_running("r1")) == (None, 8)
            follows(found)
            made.run(120)
            await found.feed(Tick())
            assert found.machine.rolling.stage == "changed"
            written = json.loads(found.places.spec.read_text())
            assert DeploymentSpec.from_json(written["spec"]) == found.spec == WANTED
            assert json.loads(found.places.controller.read_text())["identity"] == "new"
            follows(found)

    asyncio.run(test())


def test_the_gateways_figures_count_while_somebody_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only then; what is no status is none."""
    row = {
        "name": "r1",
        "state": "ready",
        "inflight": 0,
        "capacity": 4,
        "requests": 3,
        "failures": 0,
        "ttft_seconds": None,
    }
    told: dict[str, Any] = {"status": 200, "queue_seconds": {}, "replicas": [row]}

    async def test() -> None:
        async with (
            controller(tmp_path, SPEC) as (found, _),
            watched(found, told, monkeypatch) as taken,
        ):
            await asyncio.sleep(0.1)
            assert taken == []
            found.machine.rolling = SimpleNamespace(watches=lambda: True)  # type: ignore[assignment]
            await until(lambda: taken)
            assert taken[0] == Compared({"r1": {"requests": 3, "failures": 0, "ttft_seconds": None}})

    asyncio.run(test())

"""What the controller makes of agents' messages, in this process: each event once, bad ones refused, our own errors fatal."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from longspan.daemon import controller as controller_module
from longspan.daemon.controller import CLOCK_SECONDS, AgentLink, Controller, silences
from longspan.daemon.places import Places, write_private
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.launch.events import AgentSilent, DownAsked, Drained, Lines, Scaled
from longspan.launch.steps import Steps

SPEC = DeploymentSpec(
    name="t", identity="i", model="/m", served_name="m", tp=1, pp=1, executor="ray", device="cpu",
    nodes=(NodeSpec("n1", "127.0.0.2", 1),), listen="127.0.0.1:0",
)  # fmt: skip


@contextlib.asynccontextmanager
async def controller(
    home: Path, spec: DeploymentSpec = SPEC
) -> AsyncIterator[tuple[Controller, TestClient[Any, Any]]]:
    """A controller whose agents are not started, and a client of it."""
    places = Places(home / "t")
    write_private(places.api_key, "lsp_test")
    found = Controller(places, spec, "127.0.0.1")
    found.machine.begin(0.0)
    app = web.Application()
    app.router.add_post("/v1/agents/{name}/events", found.post_events)
    app.router.add_get("/v1/agents/{name}/commands", found.get_commands)
    app.router.add_post("/v1/strike", found.post_strike)
    app.router.add_post("/v1/change", found.post_change)
    app.router.add_post("/v1/standby", found.post_standby)
    async with TestClient(TestServer(app)) as client:
        client.session.headers["Authorization"] = f"Bearer {found.agent_key}"
        yield found, client
    found.history.close()


@contextlib.asynccontextmanager
async def watched(
    found: Controller, told: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[object]]:
    """The controller looks at a gateway that says what `told` holds, with the operator's key; yields the events it makes of it."""
    monkeypatch.setattr(controller_module, "GATEWAY_SECONDS", 0.01)
    taken: list[object] = []

    async def feed(event: object) -> None:
        taken.append(event)

    async def status(request: web.Request) -> web.Response:
        right = request.headers["Authorization"] == f"Bearer {found.operator_key}"
        return web.json_response(told if right else {}, status=told["status"] if right else 401)

    monkeypatch.setattr(found, "feed", feed)
    app = web.Application()
    app.router.add_get("/admin/status", status)
    async with TestServer(app) as server:
        found.machine.gateway_admin = f"127.0.0.1:{server.port}"
        looking = asyncio.create_task(found._watch_gateway())
        try:
            yield taken
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)


async def until(seen: Callable[[], object]) -> None:
    """Waits for something true."""
    async with asyncio.timeout(20):
        while not seen():  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.01)


def test_what_is_drained_is_released_once_the_gateway_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while it has requests left, nor before the gateway knows that it is to send nothing new, nor of an answer that is none."""

    async def test() -> None:
        async with controller(tmp_path) as (found, _):
            row = {"name": "r0", "state": "ready", "inflight": 0, "capacity": 4}
            told = {"status": 200, "replicas": [row], "queue_seconds": {}}
            found.machine.replicas.by_name["r0"].draining_since = 1.0
            async with watched(found, told, monkeypatch) as taken:
                await asyncio.sleep(0.1)
                row.update(state="draining", inflight=1)
                await asyncio.sleep(0.1)
                told["replicas"] = ["?"]
                await asyncio.sleep(0.1)
                assert taken == []
                row.update(inflight=0)
                told["replicas"] = [row]
                await until(lambda: taken)
                assert taken[0] == Drained("r0")

    asyncio.run(test())


def test_a_long_queue_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it shall, and only once the deployment has served; status tells why."""
    monkeypatch.setattr("longspan.launch.autoscale.UP_SECONDS", 0.05)
    spec = replace(SPEC, placement=(("n1",), ("n1",)), autoscale_least=1, autoscale_queue_seconds=2.0)
    told = {
        "status": 200, "queue_seconds": {"m": 9.0},
        "replicas": [{"name": "r0", "state": "ready", "inflight": 8, "capacity": 4}],
    }  # fmt: skip

    async def test() -> None:
        async with controller(tmp_path, spec) as (found, _):
            async with watched(found, told, monkeypatch) as taken:
                found.machine.replicas.by_name["r0"].phase = "serving"
                await asyncio.sleep(0.2)
                assert taken == []
                found.machine.replicas.served = True
                await until(lambda: taken)
                assert taken[0] == Scaled(2)
            scaling = found.status()["autoscale"]
            assert (scaling["least"], scaling["most"], scaling["last"]["replicas"]) == (1, 2, 2)
            assert "9.0 s of queue, more than 2 s" in scaling["last"]["reason"]

    asyncio.run(test())


@pytest.mark.parametrize("supervised", [True, False])
def test_a_drill_of_the_controller_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supervised: bool
) -> None:
    """It kills itself after it has answered, but only where somebody starts another one."""
    killed: list[tuple[int, int]] = []

    async def test() -> None:
        async with controller(tmp_path) as (found, client):
            monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
            found.supervisor = 1 if supervised else 0
            key = {"Authorization": f"Bearer {found.operator_key}"}
            answer = await client.post("/v1/strike", json={"fault": "kill-controller"}, headers=key)
            assert answer.status == (200 if supervised else 409)
            if supervised:
                await until(lambda: killed)
            await asyncio.sleep(0.3)

    asyncio.run(test())
    assert killed == ([(os.getpid(), signal.SIGKILL)] if supervised else [])


def lines(text: str) -> dict[str, Any]:
    """An event."""
    return {"kind": "lines", "process": "ray", "lines": [text]}


def heard(found: Controller) -> list[str]:
    """The texts of all lines that reached the state machine."""
    return [line for _, event in found.machine.history if isinstance(event, Lines) for line in event.lines]


def test_a_batch_that_was_sent_twice(tmp_path: Path) -> None:
    """An agent whose answer was lost sends its events again, perhaps with more: each is taken once."""

    async def test() -> None:
        async with controller(tmp_path) as (found, client):
            for first, texts in ((0, ["a", "b"]), (0, ["a", "b", "c"]), (3, []), (3, ["d"]), (2, ["c", "d"])):
                body = {"instance": "x", "first": first, "events": [lines(text) for text in texts]}
                assert (await client.post("/v1/agents/n1/events", json=body)).status == 200
            assert heard(found) == ["a", "b", "c", "d"]

    asyncio.run(test())


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"3", b'{"instance": "x", "first": 0}', b'{"instance": "x", "first": -1, "events": []}',
     b'{"instance": "x", "first": 0, "events": [{"kind": "shout"}]}'],
)  # fmt: skip
def test_messages_that_are_none(tmp_path: Path, body: bytes) -> None:
    """They are refused with 400 as a whole, and the sender has not joined by them."""

    async def test() -> None:
        async with controller(tmp_path) as (found, client):
            answer = await client.post("/v1/agents/n1/events", data=body)
            assert answer.status == 400
            assert found.machine.ground.joined == set()

    asyncio.run(test())


def test_a_second_agent_of_the_same_name(tmp_path: Path) -> None:
    """It is told to go; the first one stays; a name that is not of this deployment does not exist."""

    async def test() -> None:
        async with controller(tmp_path) as (_, client):
            for instance, name, status in (
                ("x", "n1", 200),
                ("y", "n1", 410),
                ("x", "n1", 200),
                ("x", "n2", 404),
            ):
                body = {"instance": instance, "first": 0, "events": []}
                assert (await client.post(f"/v1/agents/{name}/events", json=body)).status == status

    asyncio.run(test())


def test_commands_are_numbered(tmp_path: Path) -> None:
    """An agent gets what it has not had, and again what it has not confirmed by asking for more."""

    async def test() -> None:
        async with controller(tmp_path) as (_, client):
            for name in ("front", "n1"):
                await client.post(
                    f"/v1/agents/{name}/events", json={"instance": name, "first": 0, "events": []}
                )
            for after, numbers in ((0, [1, 2, 3, 4]), (0, [1, 2, 3, 4]), (3, [4])):
                answer = await client.get("/v1/agents/n1/commands", params={"after": after})
                assert [command["seq"] for command in (await answer.json())["commands"]] == numbers
            assert (await client.get("/v1/agents/n1/commands?after=x")).status == 400

    asyncio.run(test())


def test_an_error_of_ours_ends_the_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state machine that raises takes everything down and says so, instead of leaving engines behind."""

    async def test() -> None:
        async with controller(tmp_path) as (found, _):
            monkeypatch.setattr(Steps, "_lines", lambda *_: 1 / 0)
            await found.feed(Lines("n1", "ray", ("x",)))
            assert found.machine.phase == "stopping"
            assert found.machine.failure is not None
            assert "ZeroDivisionError" in found.machine.failure.what

    asyncio.run(test())


def test_the_history_can_be_read_back(tmp_path: Path) -> None:
    """Every event that counted stands in the file, one document a line."""

    async def test() -> None:
        async with controller(tmp_path) as (found, client):
            body = {"instance": "x", "first": 0, "events": [lines("words")]}
            await client.post("/v1/agents/n1/events", json=body)
            await found.feed(DownAsked())
        events = [json.loads(line) for line in (tmp_path / "t" / "events.jsonl").read_text().splitlines()]
        assert [event["event"] for event in events] == ["AgentJoined", "Lines", "DownAsked"]
        assert events[1]["lines"] == ["words"]

    asyncio.run(test())


def test_the_controllers_own_stall_is_not_the_agents_silence() -> None:
    """A controller that stood still for 50 s finds nobody silent; one that ran all the time does."""
    links = {"a": AgentLink("x", last_beat=100.0), "b": AgentLink("y", last_beat=100.2), "late": AgentLink()}
    assert silences(links, now=150.0, stalled_seconds=50 - CLOCK_SECONDS) == []
    assert silences(links, now=150.5, stalled_seconds=0.0) == []
    links["b"].last_beat = 153.0
    (silent,) = silences(links, now=154.0, stalled_seconds=0.1)
    assert silent == AgentSilent("a", pytest.approx(4.5))

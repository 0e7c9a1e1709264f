"""What the controller makes of agents' messages, in this process: each event once, bad ones refused, our own errors fatal."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from longspan.daemon.controller import CLOCK_SECONDS, AgentLink, Controller, silences
from longspan.daemon.places import Places, write_private
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.launch.events import AgentSilent, DownAsked, Lines
from longspan.launch.steps import Steps

SPEC = DeploymentSpec(
    name="t", identity="i", model="/m", served_name="m", tp=1, pp=1, executor="ray", device="cpu",
    nodes=(NodeSpec("n1", "127.0.0.2", 1),), listen="127.0.0.1:0",
)  # fmt: skip


@contextlib.asynccontextmanager
async def controller(home: Path) -> AsyncIterator[tuple[Controller, TestClient[Any, Any]]]:
    """A controller whose agents are not started, and a client of it."""
    places = Places(home / "t")
    write_private(places.api_key, "lsp_test")
    found = Controller(places, SPEC, "127.0.0.1")
    found.machine.begin(0.0)
    app = web.Application()
    app.router.add_post("/v1/agents/{name}/events", found.post_events)
    app.router.add_get("/v1/agents/{name}/commands", found.get_commands)
    async with TestClient(TestServer(app)) as client:
        client.session.headers["Authorization"] = f"Bearer {found.agent_key}"
        yield found, client
    found.history.close()


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

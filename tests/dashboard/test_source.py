"""What the dashboard makes of a controller: a good one, an old one, a strange one, and none."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from dashboard.simulated import deployment
from longspan.dashboard.source import Away, ControllerSource, Door

VIEW = deployment(2, 1_700_000_000.0)
Handler = Callable[[web.Request], Awaitable[web.Response]]


def asked(routes: list[web.RouteDef], question: Callable[[ControllerSource], Awaitable[Any]]) -> Any:
    """What a source answers over a controller with these routes."""

    async def run() -> Any:
        app = web.Application()
        app.add_routes(routes)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        source = ControllerSource(lambda: Door(f"http://127.0.0.1:{runner.addresses[0][1]}", "operator"))
        try:
            return await question(source)
        finally:
            await source.close()
            await runner.cleanup()

    return asyncio.run(run())


def answers(**given: Any) -> Handler:
    """A handler that shows its key was asked for and answers so."""

    async def handler(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer operator"
        return web.Response(**given) if "body" in given or "text" in given else web.json_response(**given)

    return handler


def test_the_picture_is_read_and_passed_on_as_it_came() -> None:
    """The typed picture for the history, the text for the pages."""
    picture = asked([web.get("/v1/view", answers(data=VIEW.to_json()))], ControllerSource.picture)
    assert picture.view == VIEW
    assert '"gpu-01"' in picture.text


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"text": "no", "status": 401}, "401"),
        ({"text": "<html>"}, "cannot be read"),
        ({"text": "{}"}, "cannot be read"),
        ({"body": b"\xff\xfe"}, "cannot be read"),
        ({"text": "[" * 100_000}, "cannot be read"),
        ({"text": "", "status": 302, "headers": {"Location": "http://127.0.0.1:9/"}}, "302"),
    ],
)
def test_a_strange_answer_is_no_picture(answer: dict[str, Any], words: str) -> None:
    """Whatever comes, it is a sentence for the page and no traceback."""
    with pytest.raises(Away, match=words):
        asked([web.get("/v1/view", answers(**answer))], ControllerSource.picture)


def test_a_controller_without_pictures_is_named() -> None:
    """One of an older version answers 404."""
    with pytest.raises(Away, match="version"):
        asked([], ControllerSource.picture)


def test_no_controller_is_said() -> None:
    """Neither one that is not recorded nor one that does not listen any more is an exception of the system's."""

    async def run(door: Door | None) -> None:
        source = ControllerSource(lambda: door)
        try:
            await source.picture()
        finally:
            await source.close()

    with pytest.raises(Away, match="No controller"):
        asyncio.run(run(None))
    with pytest.raises(Away, match="does not answer"):
        asyncio.run(run(Door("http://127.0.0.1:9", "x")))


def test_verbs_are_those_that_the_controller_has() -> None:
    """A path for POST only counts, without anything being posted to it."""
    found = asked([web.post("/v1/drain", answers(data={}))], ControllerSource.verbs)
    assert found == {"drain": True, "isolate": False, "restore": False}


def test_an_action_is_posted_and_its_refusal_read() -> None:
    """JSON with the subject goes out; plain text, our error document and an unknown verb are all told in words."""
    got: list[Any] = []

    async def drain(request: web.Request) -> web.Response:
        got.append(await request.json())
        return web.json_response({})

    routes = [
        web.post("/v1/drain", drain),
        web.post("/v1/isolate", answers(data={"error": {"what": "r0 is the last."}}, status=409)),
    ]
    assert asked(routes, lambda source: source.act("drain", "r0")).status == 200
    assert got == [{"subject": "r0"}]
    assert asked(routes, lambda source: source.act("isolate", "r0")) == (409, "r0 is the last.")
    assert asked(routes, lambda source: source.act("restore", "r0")).status == 404


def test_a_controller_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes the question and never answers is away after a while, in words, and does not hold the page up for ever."""
    monkeypatch.setattr("longspan.dashboard.source.TIMEOUT_SECONDS", 0.2)

    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    with pytest.raises(Away, match="has not answered"):
        asked([web.get("/v1/view", hang)], ControllerSource.picture)

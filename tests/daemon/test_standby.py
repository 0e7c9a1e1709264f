"""The second gateway: a real one, kept running with what the controller has for it, whether that is there or not."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port
from test_controller_events import SPEC, controller

from longspan.daemon import asking, standby
from longspan.daemon.gateway_config import Upstream, render
from longspan.daemon.standby import Settings, Standby
from longspan.gateway.configfile import parse_config

KEY = "agents-key"


def config(port: int, key_file: Path, state: str = "ready") -> str:
    """What the controller would have for it."""
    key_file.write_text("engines-key")
    key_file.chmod(0o600)
    return render(
        listen=f"127.0.0.1:{port}", key_sha256="0" * 64, admin_sha256=hashlib.sha256(KEY.encode()).hexdigest(), ledger="ledger.sqlite3",
        model="m", replicas=[Upstream("r0", "http://127.0.0.1:9", state)], upstream_key_file=str(key_file),
    )  # fmt: skip


async def until(seen: Callable[[], object]) -> None:
    """Waits for something true; a gateway takes a second or two to start."""
    async with asyncio.timeout(60):
        while not seen():  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def running(told: dict[str, Any], folder: Path) -> AsyncIterator[tuple[Standby, TestServer]]:
    """It beats against a controller that answers with `told["config"]` and keeps what it is told in `told["beat"]`."""

    async def beat(request: web.Request) -> web.Response:
        if request.headers["Authorization"] != f"Bearer {KEY}":
            raise web.HTTPUnauthorized
        told["beat"] = await request.json()
        return web.json_response({"config": told["config"]})

    app = web.Application()
    app.router.add_post("/v1/standby", beat)
    stop = asyncio.Event()
    async with TestServer(app) as server:
        settings = Settings(f"http://127.0.0.1:{server.port}", str(folder / "standby.toml"), KEY)
        made = Standby(settings)
        life = asyncio.create_task(made.run(stop))
        try:
            yield made, server
        finally:
            stop.set()
            await life
    assert made.child is None or made.child.poll() is not None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rounds."""
    monkeypatch.setattr(standby, "ROUND_SECONDS", 0.1)
    monkeypatch.setattr(standby, "PAUSE_SECONDS", 0.2)


def test_it_is_kept_running_and_told_the_replicas(tmp_path: Path) -> None:
    """Its status reaches the controller, a new state reaches it, its end is not for long, and without the controller it serves on."""
    port = unused_port()
    key_file = tmp_path / "engine-key"
    told: dict[str, Any] = {"config": config(port, key_file)}

    def row() -> dict[str, Any]:
        found: dict[str, Any] = ((told.get("beat") or {}).get("status") or {"replicas": [{}]})["replicas"][0]
        return found

    async def test() -> None:
        async with running(told, tmp_path) as (made, server):
            await until(lambda: row().get("state") == "ready")
            assert told["beat"]["address"] == f"127.0.0.1:{port}"
            assert stat.S_IMODE((tmp_path / "standby.toml").stat().st_mode) == 0o600
            told["config"] = config(port, key_file, "draining")
            await until(lambda: row().get("state") == "draining")
            first = made.child
            assert first is not None
            os.kill(first.pid, signal.SIGKILL)
            await until(lambda: made.child is not first and made.listening)
            await server.close()
            await asyncio.sleep(0.3)
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{port}/v1/models") as answer,
            ):
                assert answer.status == 401  # it is there, and asks for the clients' key

    asyncio.run(test())


def test_what_two_tell_is_one_deployments() -> None:
    """A replica has requests as long as either gateway has some, and is to get some as long as either sends some."""
    row = {
        "name": "r0",
        "state": "draining",
        "inflight": 0,
        "requests": 4,
        "failures": 1,
        "ttft_seconds": None,
        "capacity": 8,
    }
    first = {"replicas": [row, {**row, "name": "r1"}], "queue_seconds": {"m": 1.0}}
    second = {"replicas": [{**row, "inflight": 2, "ttft_seconds": 0.5}], "queue_seconds": {"m": 3.0}}
    found = asking.combined(first, second)
    assert asking.undisturbed(found) == {"r1"}
    assert found["replicas"][0] == {**row, "inflight": 2, "requests": 8, "failures": 2, "ttft_seconds": 0.5}
    assert found["queue_seconds"] == {"m": 3.0}
    second["replicas"][0].update(inflight=0, state="ready")
    assert asking.undisturbed(asking.combined(first, second)) == {"r1"}
    second["replicas"][0].update(state="out")
    assert asking.undisturbed(asking.combined(first, second)) == {"r0", "r1"}


def test_the_controller_has_its_file(tmp_path: Path) -> None:
    """For who has the agents' key: its own address, key file and ledger; the beat stands in the status until it is old."""
    wanted = replace(SPEC, standby_node="n1", standby_listen="127.0.0.1:8001")

    async def test() -> None:
        async with controller(tmp_path, wanted) as (found, client):
            found._has_url(8123)
            settings = Settings(**json.loads(found.machine.secrets[found.paths.standby]))
            assert (settings.url, settings.key) == ("http://127.0.0.1:8123", found.agent_key)
            assert found.status()["standby"]["endpoint"] is None
            refused = await client.post("/v1/standby", json={}, headers={"Authorization": "Bearer no"})
            assert refused.status == 401
            beat = {"address": "127.0.0.1:8001", "status": {"replicas": []}}
            answer = await (await client.post("/v1/standby", json=beat)).json()
            parsed = parse_config(answer["config"])
            assert (parsed.listen, parsed.ledger) == ("127.0.0.1:8001", found.paths.standby_ledger)
            assert found.status()["standby"]["endpoint"] == "http://127.0.0.1:8001/v1"
            assert found._standby_status() == {"replicas": []}
            found.standby = (found.standby[0] - 60, found.standby[1]) if found.standby else None
            assert found._standby_status() is None

    asyncio.run(test())

"""The dashboard over a real controller and its real agents: the page shows them, Prometheus' way works, and their end is said."""

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from real import wait_for
from test_controller import Deployed, deployed
from test_controller_view import nodes_up

from dashboard.browser import connect, program, run_browser
from dashboard.serving import KEY
from longspan.daemon.places import Places
from longspan.dashboard import app
from longspan.dashboard.hub import Hub
from longspan.dashboard.sessions import digest
from longspan.dashboard.source import ControllerSource, Door
from longspan.monitor.history import History

__all__ = ["deployed"]  # a fixture


def door() -> Door | None:
    """The controller as the verb finds it."""
    record = Places.of("t").running()
    return Door(record["url"], record["key"]) if record else None


async def watch(deployment: Deployed, address: str, directory: Path) -> dict[str, Any]:
    """What the page shows while the deployment is there and after it is gone, and what Prometheus is given."""
    hub = Hub(ControllerSource(door), History(directory / "history.sqlite3"))
    page = app.Dashboard("t", hub, digest(KEY), lambda _: None, https=False)
    runner, port = await app.start(page, "127.0.0.1", 0)
    looking = asyncio.create_task(hub.run())
    url = f"http://127.0.0.1:{port}"
    found: dict[str, Any] = {}
    try:
        async with connect(address) as browser, aiohttp.ClientSession() as http:
            seen = await browser.page(url)
            await seen.until("document.activeElement?.id === 'key'")
            await seen.type(KEY)
            await seen.press("Enter")
            await seen.until("document.querySelectorAll('.node-fold').length === 2")
            await seen.until("document.querySelector('#connection').className === 'good'")
            found["nodes"] = await seen.value("document.querySelector('#nodes').innerText")
            found["processes"] = await seen.until(
                "[...document.querySelectorAll('.node-fold tbody th')].map((one) => one.textContent)"
            )
            if where := os.environ.get("LONGSPAN_SCREENSHOTS"):
                await seen.shoot(Path(where) / "controller.png")
            key = (Places.of("t").root / "metrics-key").read_text().strip()
            headers = {"Authorization": f"Bearer {key}"}
            async with http.get(f"{url}/v1/sd", headers=headers) as answer:
                found["targets"] = await answer.json()
            async with http.get(f"{url}/metrics", headers=headers) as answer:
                found["metrics"] = await answer.text()
            async with http.get(f"{url}/metrics") as answer:
                found["without a key"] = answer.status
            await asyncio.to_thread(deployment.request, "/v1/down", body=b"")
            await seen.until(
                "!document.querySelector('#banner').hidden && document.querySelector('#banner').className.includes('bad')"
            )
            found["banner"] = await seen.value("document.querySelector('#banner').textContent")
            found["troubles"] = seen.troubles
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await runner.cleanup()
        await hub.close()
    return {**found, "url": url}


def test_the_page_of_a_real_controller(deployed: Deployed, tmp_path: Path) -> None:
    """Nodes and their processes stand on the page, discovery leads back to it, metrics ask for their key, and the end is said."""
    with run_browser(tmp_path) as address:
        deployed.start()
        wait_for(lambda: nodes_up(deployed))
        found = asyncio.run(watch(deployed, address, tmp_path))
    assert "n1" in found["nodes"]
    assert "n2" in found["nodes"]
    assert "agent" in found["processes"]
    groups = found["targets"]
    assert groups[0]["labels"]["part"] == "nodes"
    assert {target for group in groups for target in group["targets"]} == {
        found["url"].removeprefix("http://")
    }
    assert 'longspan_node_up{node="n1"} 1' in found["metrics"]
    assert found["without a key"] == 401
    assert "No new picture since" in found["banner"]
    assert found["troubles"] == []
    deployed.gone()


@pytest.fixture(autouse=True)
def chromium() -> None:
    """Skips before anything is started where there is no browser."""
    program()

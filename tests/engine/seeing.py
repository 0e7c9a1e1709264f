"""A real Prometheus and a real browser in front of a real deployment, through `longspan dashboard`."""

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from dashboard.browser import connect, run_browser
from dashboard.test_prometheus import panels, prometheus
from engine.running import RUN, Longspan

# What this deployment cannot have, by reason; everything else must answer.
NOT_HERE = {
    "no GPU on this host": (
        "longspan:gpu_memory_share", "nodes: GPU memory 0", "nodes: What fills it, by rank 0", "nodes: What fills it, by rank 1",
        "nodes: What fills it, by rank 2", "nodes: GPUs busy 0", "nodes: Ranks off their replica's median 0", "nodes: GPU power 0",
        "nodes: GPU heat 0", "nodes: SM clock 0", "nodes: ECC errors and NVLinks down 0", "nodes: ECC errors and NVLinks down 1",
    ),
    "loopback has no rate": ("longspan:port_load_share", "nodes: Port load 0"),
    "no outside provider and no price": (
        "longspan:gateway_overflow_share:rate5m", "overview: Overflow 0", "overview: Overflow by reason 0", "overview: Cost 0",
        "overview: Cost 2",
    ),
    "nothing has failed": ("overview: Failed attempts 0",),
}  # fmt: skip


@contextlib.contextmanager
def dashboard(longspan: Longspan) -> Iterator[tuple[str, str]]:
    """`longspan dashboard` as a user starts it: (url, key)."""
    with subprocess.Popen(
        [*RUN, "dashboard", "--listen", "127.0.0.1:0", "--json"],
        env=longspan.environment(), stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
    ) as started:  # fmt: skip
        try:
            assert started.stdout is not None
            told = json.loads(started.stdout.readline())
            yield told["url"], Path(told["key_file"]).read_text().strip()
        finally:
            started.terminate()


@contextlib.asynccontextmanager
async def asking(endpoint: str, model: str, key: str) -> AsyncIterator[None]:
    """A request after the other, so that there are rates to see."""
    body = {"model": model, "prompt": "The capital of France is", "max_tokens": 4, "stream": True}

    async def ask() -> None:
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            while True:
                async with http.post(f"{endpoint}/completions", json=body) as answer:
                    await answer.read()

    job = asyncio.create_task(ask())
    try:
        yield
    finally:
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)


async def every_query_answers(
    status: dict[str, Any], directory: Path, url: str, keys: tuple[str, str]
) -> None:
    """Each panel's and recording rule's query gives a number, and no alert is broken. keys: the clients' and Prometheus'."""
    name = status["name"]
    key, metrics_key = keys
    address = url.removeprefix("http://").rstrip("/")
    async with (
        asking(status["endpoint"], status["served_name"], key),
        prometheus(directory, [address], metrics_key) as found,
    ):
        await found.all_answer({"it scrapes": f'min(up{{deployment="{name}"}}) == 1'})
        recording = await found.rules("recording")
        wanted = {one: f'{one}{{deployment="{name}"}}' for one in recording} | dict(panels(name))
        missing = {title for titles in NOT_HERE.values() for title in titles}
        assert missing <= wanted.keys()  # what is not there any more must not stay excused
        there = {title: query for title, query in wanted.items() if title not in missing}
        assert len(there) > 50
        await found.all_answer(there)
        groups = (await found.get("/api/v1/rules"))["groups"]
        assert [rule for group in groups for rule in group["rules"] if rule.get("lastError")] == []


async def click(browser: str, url: str, key: str, action: str) -> None:
    """Logs in and does what a person does to isolate or restore r0, the dialogue included."""
    async with connect(browser) as chromium:
        page = await chromium.page(url)
        await page.until("document.activeElement?.id === 'key'")
        await page.type(key)
        await page.press("Enter")
        button = f"document.querySelector('[aria-label=\"{action} replica r0\"]')"
        await page.until(f"{button} && {button}.getAttribute('aria-disabled') === null")
        await page.value(f"{button}.click()")
        await page.until("document.querySelector('#confirm').open")
        await page.value("document.querySelector('#confirm-yes').click()")
        await page.until("!document.querySelector('#confirm').open")


def browser(directory: Path) -> contextlib.AbstractContextManager[str]:
    """A headless Chromium; skips where there is none."""
    return run_browser(directory)

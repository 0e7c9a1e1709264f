"""Watches an engine that serves: asks for its counters once a second, and for one token while it is idle."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp

from longspan.launch import prover
from longspan.launch.health import CANARY_SECONDS, Health, Sample, sample_of

SAMPLE_SECONDS = 1.0
TIMEOUT_SECONDS = 2.0


async def watch(
    engine: prover.Endpoint,
    health: Health,
    tell: Callable[[str], Awaitable[None]],
    canary_seconds: float = CANARY_SECONDS,
) -> None:
    """For ever; `tell` is told each time the opinion of it changes: the reason to distrust it, or nothing."""
    told = ""
    canary: asyncio.Task[str] | None = None
    async with engine.session() as session:
        try:
            while True:
                began = time.monotonic()
                health.observe(await _sample(session, engine.base_url), time.monotonic())
                if canary is not None and canary.done():
                    health.canary(canary.result(), time.monotonic())
                    canary = None
                if canary is None and health.wants_canary:
                    canary = asyncio.create_task(_canary(session, engine, canary_seconds))
                # The number of seconds in it goes on; only another opinion is news.
                if bool(health.reason) != bool(told):
                    told = health.reason
                    await tell(told)
                await asyncio.sleep(max(0.0, began + SAMPLE_SECONDS - time.monotonic()))
        finally:
            if canary is not None:
                canary.cancel()


async def _sample(session: aiohttp.ClientSession, base_url: str) -> Sample | None:
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS), session.get(f"{base_url}/metrics") as response:
            return sample_of(await response.text()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError):
        return None


async def _canary(session: aiohttp.ClientSession, engine: prover.Endpoint, seconds: float) -> str:
    """Why no token came; empty if one did."""
    body = {"model": engine.model, "prompt": "1", "max_tokens": 1, "temperature": 0}
    try:
        async with (
            asyncio.timeout(seconds),
            session.post(f"{engine.base_url}/v1/completions", json=body) as response,
        ):
            text = await response.text()
            return "" if response.status == 200 else f"HTTP {response.status}: {text[:200]}"
    except TimeoutError:
        return f"nothing within {seconds:.0f} s"
    except aiohttp.ClientError as error:
        return f"{type(error).__name__}: {error}"

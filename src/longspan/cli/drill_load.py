"""The steady load of a drill: short streams at a fixed rate through the endpoint, each with its outcome."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from longspan.launch.drill import Outcome, Request

HUNG_SECONDS = 60.0  # longer than the slowest honest answer of a loaded CPU engine to so few tokens


@dataclass(slots=True)
class Load:
    """Asks until it is stopped. `zero` is the time of the fault; requests are kept relative to it once it is known."""

    url: str
    model: str
    key: str = field(repr=False)
    rate_per_second: float
    max_tokens: int = 4
    done: list[tuple[float, float, Outcome]] = field(default_factory=list)
    running: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, stop: asyncio.Event) -> None:
        """Starts one request after the other, never waiting for an answer; ends with the last of them."""
        timeout = aiohttp.ClientTimeout(total=HUNG_SECONDS)
        # A connection each: what is measured must not depend on whether an old one is reused.
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        headers = {"Authorization": f"Bearer {self.key}"}
        async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
            due = time.monotonic()
            while not stop.is_set():
                task = asyncio.create_task(self._one(session))
                self.running.add(task)
                task.add_done_callback(self.running.discard)
                due += 1 / self.rate_per_second
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            await asyncio.gather(*self.running)

    async def _one(self, session: aiohttp.ClientSession) -> None:
        begun = time.monotonic()
        outcome = await self._ask(session)
        self.done.append((begun, time.monotonic(), outcome))

    async def _ask(self, session: aiohttp.ClientSession) -> Outcome:
        body = {
            "model": self.model,
            "prompt": "1 2 3",
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
        }
        try:
            async with session.post(f"{self.url}/completions", json=body) as response:
                if response.status != 200:
                    return "refused"
                async for raw in response.content:
                    line = raw.strip()
                    if line == b"data: [DONE]":
                        return "answered"
                    if line.startswith(b"data:") and "error" in json.loads(line[5:]):
                        return "refused"
        except TimeoutError:
            return "hung"
        except (aiohttp.ClientError, ValueError):
            return "cut"
        return "cut"

    def requests(self, zero: float) -> list[Request]:
        """All that have ended, relative to the fault."""
        return [Request(begun - zero, ended - zero, outcome) for begun, ended, outcome in self.done]


async def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True

"""Looks after the replicas: health probes, metrics at most once a second, canaries on stalled ones."""

import asyncio
import json
from collections.abc import Callable

from longspan.gateway.config import GatewayConfig
from longspan.gateway.enginemetrics import parse_engine_metrics
from longspan.gateway.fetch import Fetch
from longspan.gateway.routing import Dispatcher
from longspan.gateway.ticket import Action
from longspan.gateway.upstream import Pool
from longspan.gateway.wire import Header

SCRAPE_SECONDS = 1.0
# A dead replica is knocked at more often, since requests wait for it.
DEAD_PROBE_SECONDS = 0.5
CANARY_SECONDS = 2.0

Perform = Callable[[list[Action]], None]


class Watch:
    """One loop a replica; `follow` starts and ends loops as the configuration changes."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        pools: dict[str, Pool],
        headers: Callable[[str], list[Header]],
        perform: Perform,
    ) -> None:
        self._dispatcher, self._pools, self._headers, self._perform = dispatcher, pools, headers, perform
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._loop = asyncio.get_running_loop()

    def follow(self, config: GatewayConfig) -> None:
        """Watches exactly the replicas of this configuration."""
        wanted = {replica.name for replica in config.replicas}
        for name in [name for name in self._tasks if name not in wanted]:
            for task in self._tasks.pop(name):
                task.cancel()
        for name in wanted - set(self._tasks):
            loops = (self._probe(name), self._scrape(name), self._clear(name))
            self._tasks[name] = [self._loop.create_task(loop) for loop in loops]

    async def stop(self) -> None:
        """Ends all loops."""
        tasks = [task for group in self._tasks.values() for task in group]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _get(
        self, name: str, method: bytes, path: bytes, body: bytes, seconds: float
    ) -> tuple[int, bytes]:
        pool = self._pools[name]
        headers = self._headers(name)
        if body:
            headers = [*headers, (b"content-type", b"application/json")]
        return await Fetch(pool, method, pool.base_path + path, headers, body).result(seconds)

    async def _probe(self, name: str) -> None:
        """GET /health: 200 proves only that somebody listens, anything else proves that nobody should be sent."""
        while True:
            health = self._dispatcher.config.health
            ok = refused = False
            try:
                status, _ = await self._get(name, b"GET", b"/health", b"", health.timeout_seconds)
                ok = status < 500
            except ConnectionRefusedError:
                refused = True
            except (OSError, TimeoutError):
                pass
            trouble = self._pools[name].trouble
            self._perform(self._dispatcher.probed(name, ok, refused, self._loop.time(), trouble))
            standing = self._dispatcher.fleet.standings.get(name)
            dead = standing is not None and standing.alive is False
            await asyncio.sleep(
                min(DEAD_PROBE_SECONDS, health.interval_seconds) if dead else health.interval_seconds
            )

    async def _scrape(self, name: str) -> None:
        """GET /metrics, at most once a second however long the answer takes."""
        while True:
            began = self._loop.time()
            try:
                status, body = await self._get(name, b"GET", b"/metrics", b"", 2.0)
                load = parse_engine_metrics(body.decode("utf-8", "replace")) if status == 200 else None
                if load is not None:
                    self._perform(self._dispatcher.scraped(name, load, self._loop.time()))
            except (OSError, TimeoutError):
                pass
            await asyncio.sleep(max(0.05, SCRAPE_SECONDS + 0.05 - (self._loop.time() - began)))

    async def _clear(self, name: str) -> None:
        """While a replica is stalled: one token of our own; an answer is the only proof that it works again."""
        while True:
            await asyncio.sleep(CANARY_SECONDS)
            standing = self._dispatcher.fleet.standings.get(name)
            if standing is None or not standing.stalled:
                continue
            model = standing.replica.upstream_model or standing.replica.model
            body = json.dumps({"model": model, "prompt": ".", "max_tokens": 1}).encode()
            ok = False
            try:
                status, _ = await self._get(name, b"POST", b"/v1/completions", body, 10.0)
                ok = status < 500
            except (OSError, TimeoutError):
                pass
            self._perform(self._dispatcher.canary(name, ok, self._loop.time()))

"""The watcher against an engine that a test plays: it hangs, and comes back."""

import asyncio
import time
from typing import Any

from aiohttp import web
from fake_controller import until

from longspan.daemon import watching
from longspan.launch import prover
from longspan.launch.health import Health


class Engine:
    """Counters and completions; until `moves` no completion comes back, and `/metrics` goes on as ever."""

    def __init__(self) -> None:
        self.moves = asyncio.Event()
        self.moves.set()
        self.tokens = 0
        self.keys: set[str] = set()

    async def metrics(self, request: web.Request) -> web.Response:
        """What vLLM prints of an engine whose requests no step has seen."""
        text = f"vllm:num_requests_running 0.0\nvllm:generation_tokens_total {self.tokens}.0\n"
        return web.Response(text=text)

    async def completions(self, request: web.Request) -> web.Response:
        """One token."""
        self.keys.add(request.headers["Authorization"])
        await self.moves.wait()
        self.tokens += 1
        return web.json_response({"choices": [{"text": "."}]})


def test_an_idle_engine_that_hangs_is_told_once_and_its_return_too() -> None:
    """`/metrics` says 200 all the time; only the canary tells."""
    engine = Engine()
    told: list[str] = []

    async def tell(reason: str) -> None:
        told.append(reason)

    async def test() -> None:
        app = web.Application()
        app.router.add_get("/metrics", engine.metrics)
        app.router.add_post("/v1/completions", engine.completions)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address: Any = runner.addresses[0]
        endpoint = prover.Endpoint(f"http://127.0.0.1:{address[1]}", "m", "the-key")
        watcher = asyncio.create_task(
            watching.watch(endpoint, Health(time.monotonic()), tell, canary_seconds=0.3)
        )
        try:
            await until(lambda: engine.tokens)
            assert told == []
            engine.moves.clear()
            await until(lambda: told)
            assert "nothing within" in told[0]
            engine.moves.set()
            await until(lambda: len(told) == 2)
            assert told[1] == ""
            assert engine.keys == {"Bearer the-key"}
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            await runner.cleanup()

    asyncio.run(test())

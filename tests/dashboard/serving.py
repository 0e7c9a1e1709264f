"""A dashboard in this process, on a free port of loopback, over a source that a test changes."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from dashboard.simulated import SimulatedSource, deployment
from longspan.dashboard import app
from longspan.dashboard.hub import Hub
from longspan.dashboard.series import series
from longspan.dashboard.sessions import digest
from longspan.monitor.history import History

KEY = "lsp_a-key-that-only-tests-know"


@dataclass(slots=True)
class Served:
    """What a test needs: where it is, what it shows, what it logged."""

    url: str
    hub: Hub
    source: SimulatedSource
    page: app.Dashboard
    log: list[str]


@contextlib.asynccontextmanager
async def serve(
    source: SimulatedSource, history: Path | None = None, *, running: bool = True
) -> AsyncIterator[Served]:
    """The dashboard, asking its source once a second unless `running` is false."""
    log: list[str] = []
    hub = Hub(source, History(history) if history else None, "" if history else "no file was given")
    page = app.Dashboard("default", hub, digest(KEY), log.append, https=False)
    runner, port = await app.start(page, "127.0.0.1", 0)
    await hub.look()
    looking = asyncio.create_task(hub.run()) if running else None
    try:
        yield Served(f"http://127.0.0.1:{port}", hub, source, page, log)
    finally:
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        await runner.cleanup()
        await hub.close()


def remember_a_day(path: Path, nodes: int, *, hours: float = 24.0, period_seconds: float = 30.0) -> None:
    """Fills a history with simulated hours up to now, with a gap of half an hour in it."""
    history = History(path)
    now = time.time()
    at = now - hours * 3600
    while at < now:
        if not 6.0 * 3600 < now - at < 6.5 * 3600:
            history.add(at, series(deployment(nodes, at)))
            while history.waiting > 8:
                time.sleep(0.01)
        at += period_seconds if now - at > 3600 else min(10.0, period_seconds)
    history.close()

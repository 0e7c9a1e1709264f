"""The agent's telemetry: reads its node once a second in a thread of its own and posts it, with the new lines of its own log.

Nothing here may disturb the agent: a driver that hangs holds up this thread alone, a controller that does not answer loses
samples, and only the newest is ever sent.
"""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp

from longspan.monitor.node import NodeSampler, open_gpus
from longspan.monitor.record import to_json

EVERY_SECONDS = 1.0
POST_SECONDS = 3.0
OWN_LOG_BYTES = 64 << 10  # of the agent's own log in one message


def disks_of(*paths: str) -> tuple[str, ...]:
    """One path for each file system among these, the root's first."""
    found: dict[int, str] = {}
    for path in ("/", *paths):
        try:
            found.setdefault(os.stat(path).st_dev, path)  # noqa: PTH116 - the number of the device alone
        except OSError:
            continue
    return tuple(found.values())


class OwnLog:
    """The agent's own log, from where it was read last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> list[str]:
        """Whole lines that came since then, bounded; a log that was emptied is read from its beginning."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                data = file.read(OWN_LOG_BYTES)
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        self._offset += whole or (len(data) if len(data) == OWN_LOG_BYTES else 0)
        return data[:whole].decode(errors="replace").splitlines()


async def report(
    session: aiohttp.ClientSession, url: str, log_dir: str, run_dir: str, others: Callable[[], set[int]]
) -> None:
    """A sample a second to the controller, for ever; or until it says that it has no node of this name (the gateway's agent).

    Args:
        url: where it goes. others: pids of ours that are not our descendants.
    """
    own_log = OwnLog(Path(log_dir) / "agent.log")
    pool = ThreadPoolExecutor(1, thread_name_prefix="telemetry")
    loop = asyncio.get_running_loop()
    try:
        gpus, source = await loop.run_in_executor(pool, open_gpus)
    except Exception as error:  # noqa: BLE001 - whatever a driver's library does, the rest of the node can be read
        gpus, source = None, f"the GPU library failed: {type(error).__name__}: {error}"[:200]
    sampler = NodeSampler(
        "", "", disks_of(log_dir, run_dir), gpus=gpus, gpu_source=source, others=others
    )  # the controller knows its name and address
    round_trip_seconds: float | None = None
    unsent: list[str] = []

    def take() -> dict[str, Any]:
        return {"node": to_json(sampler.sample()), "log": own_log.new_lines()}

    while True:
        began = loop.time()
        try:
            document = await loop.run_in_executor(pool, take)
            unsent = (unsent + document["log"])[-1000:]
            document |= {"at": time.time(), "round_trip_seconds": round_trip_seconds, "log": unsent}
            sent = loop.time()
            async with asyncio.timeout(POST_SECONDS), session.post(url, json=document) as response:
                await response.read()
                if response.status == 404:
                    return
                if response.status == 200:
                    unsent = []
            round_trip_seconds = loop.time() - sent
        except (aiohttp.ClientError, TimeoutError):
            round_trip_seconds = None
        except Exception as error:  # noqa: BLE001 - telemetry must never be what ends an agent
            print(f"telemetry: {type(error).__name__}: {error}", flush=True)
            await asyncio.sleep(10 * EVERY_SECONDS)
        await asyncio.sleep(max(0.1, began + EVERY_SECONDS - loop.time()))

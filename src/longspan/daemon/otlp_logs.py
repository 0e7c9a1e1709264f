"""Sends what engines and agents write to an OpenTelemetry collector, where the operator asks for it.

The address stands in the file `otlp-logs-url` of the deployment's directory (`http://collector:4318/v1/logs`), under the same rules as
the webhook's. A collector that does not answer costs log records, never anything else.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from longspan.daemon.webhook import read_address
from longspan.monitor.otlp import LogRecord, document

EVERY_SECONDS = 1.0
MAX_TOGETHER = 2000  # records in one message
MAX_WAITING = 20_000
TIMEOUT_SECONDS = 5.0
LOOK_SECONDS = 5.0  # how often the file is looked at


class OtlpLogs:
    """Queues lines and sends them as long as `run` runs.

    Attributes:
        lost: records that found the queue full, or a collector that refused or did not answer.
    """

    def __init__(self, deployment: str, file: Path) -> None:
        self._deployment = deployment
        self._file = file
        self._address = ""
        self._waiting: deque[LogRecord] = deque()
        self.lost = 0

    def add(self, node: str, process: str, lines: Sequence[str]) -> None:
        """Queues them, if a collector is asked for."""
        if not self._address:
            return
        room = MAX_WAITING - len(self._waiting)
        now = time.time()
        self._waiting.extend(LogRecord(node, process, line, now) for line in lines[:room])
        self.lost += max(0, len(lines) - room)

    async def run(self) -> None:
        """For ever."""
        look_at = 0.0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)) as session:
            while True:
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + LOOK_SECONDS
                    self._address = read_address(self._file)
                while self._waiting and self._address:
                    count = min(MAX_TOGETHER, len(self._waiting))
                    batch = [self._waiting.popleft() for _ in range(count)]
                    if not await self._send(session, batch):
                        self.lost += count
                        break
                await asyncio.sleep(EVERY_SECONDS)

    async def _send(self, session: aiohttp.ClientSession, batch: list[LogRecord]) -> bool:
        body = document(self._deployment, batch)
        try:
            async with session.post(self._address, json=body, allow_redirects=False) as response:
                return response.status < 300
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return False

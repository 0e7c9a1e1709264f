"""Tells a webhook about alarms, in the form that Slack, Mattermost and others take: {"text": ...}.

The address is a secret (whoever has it can write to the channel): it stands in a file that only its owner may read, is read anew
for each message, and appears in no log.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import aiohttp

from longspan.monitor.alarms import Change

MAX_WAITING = 200  # alarms; the oldest are dropped
MAX_TOGETHER = 20  # alarms in one message
TRIES = 6
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0
TIMEOUT_SECONDS = 10.0


def message(deployment: str, changes: Iterable[Change]) -> str:
    """What people read. Slack's three control characters are escaped, so that no name or reason can mention a channel."""
    lines = []
    for change in changes:
        finding = change.alarm.finding
        sign = {"error": ":red_circle:", "warning": ":warning:", "info": ":information_source:"}[
            finding.severity
        ]
        text = f"{sign} {finding.summary}" if change.raised else f":white_check_mark: over: {finding.summary}"
        lines.append(f"{text}\n    {finding.remedy}" if change.raised and finding.remedy else text)
    text = f"[{deployment}] " + "\n".join(lines)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def read_address(path: Path) -> str:
    """The address in the file; empty where there is none, or another user could read it."""
    try:
        if path.stat().st_mode & 0o077:
            return ""
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return text if text.startswith(("https://", "http://")) and "\n" not in text else ""


class Webhook:
    """Sends what it is given, in order, as long as `run` runs.

    Attributes:
        lost: alarms that could not be told.
    """

    def __init__(self, deployment: str, file: Path) -> None:
        self._deployment = deployment
        self._file = file
        self._waiting: deque[Change] = deque(maxlen=MAX_WAITING)
        self._wake = asyncio.Event()
        self.lost = 0

    def add(self, changes: Iterable[Change]) -> None:
        """Queues them, if there is an address at all."""
        changes = list(changes)
        if changes and read_address(self._file):
            self.lost += max(0, len(self._waiting) + len(changes) - MAX_WAITING)
            self._waiting.extend(changes)
            self._wake.set()

    async def run(self) -> None:
        """For ever."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    batch = [self._waiting.popleft() for _ in range(min(MAX_TOGETHER, len(self._waiting)))]
                    if not await self._deliver(session, message(self._deployment, batch)):
                        self.lost += len(batch)

    async def _deliver(self, session: aiohttp.ClientSession, text: str) -> bool:
        """Tries with growing pauses; a refusal that will not change (4xx other than 408 and 429) is not tried again."""
        pause = FIRST_PAUSE_SECONDS
        for number in range(TRIES):
            address = read_address(self._file)
            if not address:
                return False
            try:
                async with session.post(address, json={"text": text}, allow_redirects=False) as response:
                    status = response.status
                    if status < 300:
                        return True
                    why = f"HTTP {status}"
                    if 300 <= status < 500 and status not in {408, 429}:
                        print(f"webhook: {why}: not tried again", flush=True)
                        return False
                    if asked := response.headers.get("Retry-After", ""):
                        pause = float(asked) if asked.isdecimal() else pause
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                why = type(error).__name__  # its text may hold the address
            print(f"webhook: {why} (try {number + 1} of {TRIES})", flush=True)
            await asyncio.sleep(min(pause, MAX_PAUSE_SECONDS))
            pause *= 2
        return False

"""A second gateway in front of one deployment, on one of its nodes.

`python -m longspan.daemon.standby FILE` asks the controller once a second for the configuration that it has for this gateway, keeps the
gateway running with it, and tells how that goes. While the controller is away, the last configuration holds.
"""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from longspan.daemon import asking, processes
from longspan.daemon.places import write_private

ROUND_SECONDS = 1.0
# One that ends at once, on a port that is taken, is tried again but not in a circle.
PAUSE_SECONDS = 5.0
END_SECONDS = 35.0  # longer than a gateway finishes its streams for


@dataclass(frozen=True, slots=True)
class Settings:
    """What the controller has written for it. key: the agents'; config: where the gateway's file lies here."""

    url: str
    config: str
    key: str = field(repr=False)


@dataclass(slots=True)
class Standby:
    """Its life. `listening`: what the gateway said of its addresses; `started`: when it was started last."""

    settings: Settings
    child: "subprocess.Popen[str] | None" = None
    listening: dict[str, Any] = field(default_factory=dict)
    started: float = -PAUSE_SECONDS
    readers: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, stop: asyncio.Event) -> None:
        """Until it is told to stop."""
        headers = {"Authorization": f"Bearer {self.settings.key}"}
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            while not stop.is_set():
                await self.round(session)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ROUND_SECONDS):
                        await stop.wait()
        await asyncio.to_thread(self.end)
        for reader in list(self.readers):
            reader.cancel()

    async def round(self, session: aiohttp.ClientSession) -> None:
        """One look at the gateway and at the controller."""
        alive = self.child is not None and self.child.poll() is None
        if not alive:
            self.listening = {}
        status = None
        if admin := self.listening.get("admin"):
            status = await asking.gateway_status(str(admin), self.settings.key)
        told = {"address": self.listening.get("address"), "status": status}
        try:
            async with session.post(f"{self.settings.url}/v1/standby", json=told) as response:
                response.raise_for_status()
                self._take(str((await response.json())["config"]))
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
            print(f"controller unreachable: {error}", flush=True)
        if not alive and self._may_start():
            self._start()

    def _may_start(self) -> bool:
        return Path(self.settings.config).exists() and time.monotonic() - self.started >= PAUSE_SECONDS

    def _take(self, text: str) -> None:
        path = Path(self.settings.config)
        if not path.exists() or path.read_text() != text:
            write_private(path, text)

    def _start(self) -> None:
        if self.child is not None:
            print(f"the gateway ended with status {self.child.returncode}; it is started again", flush=True)
        self.started = time.monotonic()
        self.child = subprocess.Popen(
            [sys.executable, "-m", "longspan.gateway", "--config", self.settings.config],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            preexec_fn=processes.die_with_parent,  # noqa: PLW1509 - else one that lost us would keep the port
        )  # fmt: skip
        reader = asyncio.create_task(self._read(self.child))
        self.readers.add(reader)
        reader.add_done_callback(self.readers.discard)

    async def _read(self, child: "subprocess.Popen[str]") -> None:
        """Its words go into our log; its addresses are remembered."""
        assert child.stdout is not None
        while line := await asyncio.to_thread(child.stdout.readline):
            print(line, end="", flush=True)
            with contextlib.suppress(ValueError, AttributeError):
                found = json.loads(line)
                if found.get("event") == "listening" and child is self.child:
                    self.listening = found
        child.stdout.close()

    def end(self) -> None:
        """The gateway may finish its streams."""
        if self.child is None or self.child.poll() is not None:
            return
        self.child.terminate()
        try:
            self.child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


async def life(settings: Settings) -> None:
    """From start to the signal that ends it."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Standby(settings).run(stop)


if __name__ == "__main__":
    asyncio.run(life(Settings(**json.loads(Path(sys.argv[1]).read_text()))))

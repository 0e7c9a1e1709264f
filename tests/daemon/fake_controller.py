"""A controller that only remembers what an agent says and hands out the commands that a test wants."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from real import TIMEOUT_SECONDS, environment

# A long lease, so that a slow machine does not end it; SIGUSR1 makes it short once a test has got so far.
# SIGUSR2 has something to tell in the very turn in which the end comes.
AGENT = """
import asyncio, json, signal, sys
from longspan.daemon import agent
agent.LEASE_SECONDS = float(sys.argv[1])
signal.signal(signal.SIGUSR1, lambda *_: setattr(agent, "LEASE_SECONDS", 0.5))
async def main():
    one = agent.Agent(agent.AgentConfig(**json.load(sys.stdin)))
    def end_with_news():
        one._tell({"kind": "lines", "process": "p", "lines": ["news"]})
        one.done.set()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, end_with_news)
    await agent.life(one)
asyncio.run(main())
"""


@dataclass(slots=True)
class FakeController:
    """Listens on loopback.

    Attributes:
        answers: statuses for the next messages; 200 once they are used up.
        nonsense: bodies that are handed out instead of commands, each once.
        messages: what came, also what was answered with another status.
    """

    url: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    taken: list[dict[str, Any]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    nonsense: list[str] = field(default_factory=list)
    commands: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    runner: web.AppRunner | None = None

    async def events(self, request: web.Request) -> web.Response:
        """A beat."""
        self.keys.add(request.headers["Authorization"])
        document = await request.json()
        self.messages.append(document)
        status = self.answers.pop(0) if self.answers else 200
        if status == 200:
            self.taken += document["events"]
        return web.json_response({}, status=status)

    async def hand_out(self, request: web.Request) -> web.Response:
        """Commands, without a long wait."""
        await asyncio.sleep(0.05)
        if self.nonsense:
            return web.Response(text=self.nonsense.pop(), content_type="application/json")
        return web.json_response({"commands": self.commands[int(request.query["after"]) :]})

    def command(self, **document: Any) -> None:
        """One more command for the agent."""
        self.commands.append({"seq": len(self.commands) + 1, **document})

    def start(self, name: str, *argv: str) -> None:
        """A process for the agent to start."""
        self.command(kind="start", process={"name": name, "argv": list(argv), "env": {}, "stdin": ""})

    def lines(self, name: str) -> list[str]:
        """What a process has written so far."""
        return [
            line for e in self.taken if e["kind"] == "lines" and e["process"] == name for line in e["lines"]
        ]

    def exit_code(self, name: str) -> int | None:
        """How a process ended."""
        return next((e["code"] for e in self.taken if e["kind"] == "exited" and e["process"] == name), None)

    def answer(self, call: str) -> dict[str, Any] | None:
        """The answer to a call."""
        return next((e for e in self.taken if e["kind"] == "answered" and e["call"] == call), None)

    async def close(self) -> None:
        """Goes away."""
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None


@contextlib.asynccontextmanager
async def fake_controller(host: str = "127.0.0.1") -> AsyncIterator[FakeController]:
    """A controller for the agent "a"."""
    found = FakeController()
    app = web.Application(client_max_size=16 << 20)
    app.router.add_post("/v1/agents/a/events", found.events)
    app.router.add_get("/v1/agents/a/commands", found.hand_out)
    found.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await found.runner.setup()
    await web.TCPSite(found.runner, host, 0).start()
    found.url = f"http://{host}:{found.runner.addresses[0][1]}"
    try:
        yield found
    finally:
        await found.close()


@contextlib.asynccontextmanager
async def agent(
    controller: FakeController, home: Path, lease_seconds: float = 600
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The agent "a" in the foreground; killed at the end if it still runs."""
    config = {
        "name": "a", "controller_url": controller.url, "key": "the-key", "mark": "mark-a", "run_dir": str(home / "run"),
        "log_dir": str(home / "logs"), "joined": False,
    }  # fmt: skip
    (home / "run").mkdir(exist_ok=True)
    (home / "logs").mkdir(exist_ok=True)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, str(lease_seconds), env=environment(home), stdin=asyncio.subprocess.PIPE
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(config).encode())
    child.stdin.close()
    try:
        yield child
    finally:
        if child.returncode is None:  # killed, it would leave what it started
            child.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await child.wait()
        if child.returncode is None:
            child.kill()
        await child.wait()


async def until(what: Callable[[], Any]) -> Any:
    """The first true value of `what`."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not (found := what()):  # noqa: ASYNC110 - what is waited for is another process's doing
            await asyncio.sleep(0.02)
    return found


async def ended(child: asyncio.subprocess.Process) -> int:
    """The exit status."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return await child.wait()

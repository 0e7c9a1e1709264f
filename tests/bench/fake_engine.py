"""A fake engine whose truth is known: an asyncio HTTP server in a thread, told what to stream and when."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
# What a stream is made of: bytes are sent as one chunk, a number is slept, None cuts the connection.
Step = bytes | float | None


def event(value: Any) -> bytes:
    """One event."""
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> bytes:
    """One chunk of a chat."""
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def usage(prompt: int, output: int) -> bytes:
    """The usage chunk."""
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}})


DONE = event(b"[DONE]")


@dataclass
class FakeEngine:
    """Answers chats with what `script` says for a request's body and number.

    Attributes:
        slots: requests that run at once.
        refuse: status for a request's number; 200 goes on, 0 closes, below 0 answers without a stream.
        arrivals: of the requests with a stream, by the monotonic clock.
    """

    script: Callable[[dict[str, Any], int], list[Step]]
    slots: int = 10_000
    refuse: Callable[[int], int] = lambda number: 200
    key: str = ""
    models: tuple[str, ...] = ("fake",)
    has_usage: bool = True
    version: str = ""
    metrics: Callable[[], str] = lambda: ""
    arrivals: list[float] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0
    limit: asyncio.Semaphore | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length:")[2].split("\r\n")[0] or 0)
                data = await reader.readexactly(length)
                await self.answer(head, data, writer)

    async def answer(self, head: str, data: bytes, writer: asyncio.StreamWriter) -> None:
        """One request."""
        path = head.split(" ")[1]
        if path == "/metrics":
            self.plain(writer, 200, self.metrics().encode())
        elif self.key and f"authorization: bearer {self.key}".lower() not in head:
            self.plain(writer, 401, b'{"error": {"message": "no"}}')
        elif path == "/version":
            self.plain(writer, 200 if self.version else 404, json.dumps({"version": self.version}).encode())
        elif path == "/v1/models":
            self.plain(writer, 200, json.dumps({"data": [{"id": name} for name in self.models]}).encode())
        else:
            await self.generate(json.loads(data), writer)

    def plain(self, writer: asyncio.StreamWriter, status: int, data: bytes) -> None:
        """An answer that is no stream."""
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            % (status, len(data))
            + data
        )

    async def generate(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """A completion."""
        words = len(str(body.get("messages")).split())
        if not body.get("stream"):
            found: dict[str, Any] = {"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}
            if self.has_usage:
                found["usage"] = {"prompt_tokens": words, "completion_tokens": 1}
            self.plain(writer, 200, json.dumps(found).encode())
            return
        number = len(self.arrivals)
        self.arrivals.append(time.monotonic())
        self.bodies.append(body)
        if (status := self.refuse(number)) != 200:
            if status == 0:
                writer.close()
            elif status < 0:
                self.plain(writer, 200, b'{"choices": []}')
            else:
                self.plain(writer, status, b'{"error": {"message": "full"}}')
            return
        assert self.limit is not None
        async with self.limit:
            writer.write(HEAD)
            for step in self.script(body, number):
                if step is None:
                    writer.close()
                    return
                if isinstance(step, bytes):
                    writer.write(b"%x\r\n%b\r\n" % (len(step), step))
                else:
                    await asyncio.sleep(step)
            writer.write(b"0\r\n\r\n")

    async def _run(self, ready: threading.Event, end: asyncio.Event) -> None:
        self.limit = asyncio.Semaphore(self.slots)
        server = await asyncio.start_server(self.serve, "127.0.0.1", self.port, limit=1 << 24)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await end.wait()
        server.close()

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Serves in a thread; gives the address."""
        ready, loop, end = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

        def run() -> None:
            loop.run_until_complete(self._run(ready, end))
            rest = asyncio.all_tasks(loop)
            for task in rest:
                task.cancel()
            if rest:
                loop.run_until_complete(asyncio.wait(rest))
            loop.run_until_complete(asyncio.sleep(0.05))  # closed transports say good-bye
            loop.close()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert ready.wait(10)
            yield f"http://127.0.0.1:{self.port}"
        finally:
            loop.call_soon_threadsafe(end.set)
            thread.join()


def stream(tokens: int, first: float = 0.0, gap: float = 0.0, per_chunk: int = 1) -> list[Step]:
    """A role, then `tokens` in chunks, then usage and the end."""
    steps: list[Step] = [delta(role="assistant", content=""), first]
    for at in range(0, tokens, per_chunk):
        if at:
            steps.append(gap)
        last = at + per_chunk >= tokens
        steps.append(delta("length" if last else None, content="word " * per_chunk))
    return [*steps, usage(9, tokens), DONE]

"""The null server: answers at once and in even gaps, and writes into each chunk when it sent it.

`python -m longspan.bench.null_server` prints its port and lives until its standard input ends. What a client sees beyond those stamps is
the client's own doing, the kernel's and the loopback's.
"""

import asyncio
import json
import os
import time
from typing import cast

import uvloop

CHUNKS = 20
GAP_SECONDS = 0.02
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(value: object) -> bytes:
    data = (value if isinstance(value, str) else json.dumps(value)).encode()
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


def _chunk(content: str, finish: str | None = None) -> bytes:
    return _event({"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]})


class NullServer(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._data = b""
        self._sent = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance

    def data_received(self, data: bytes) -> None:
        """Begins to answer when the request is whole."""
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(rest) < length:
            return
        self._data, self._sent = rest[length:], 0
        assert self._transport is not None
        self._transport.write(_HEAD)
        self._next()

    def _next(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._sent < CHUNKS:
            self._sent += 1
            last = self._sent == CHUNKS
            transport.write(_chunk(f"{time.monotonic_ns():020d}", "length" if last else None))
            asyncio.get_running_loop().call_later(0.0 if last else GAP_SECONDS, self._next)
            return
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": CHUNKS}}
        transport.write(_event(usage) + _event("[DONE]") + b"0\r\n\r\n")


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(NullServer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()

    def read() -> None:
        if not os.read(0, 1024):
            ended.set()

    loop.add_reader(0, read)
    await ended.wait()


def main() -> None:
    """Serves until standard input ends."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())


if __name__ == "__main__":
    main()

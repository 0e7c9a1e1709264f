"""One HTTP/1.1 connection of the load generator: it stamps and keeps bytes, and parses nothing but the end of an answer."""

import asyncio
import ssl
import time
from typing import cast

from longspan.bench import framing
from longspan.bench.job import Target


class Connection(asyncio.Protocol):
    """Carries one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.blocks: list[bytes] = []
        self.ends: list[int] = []
        self.stamps: list[float] = []
        self.closed = False
        self.error: Exception | None = None
        self._total = 0
        self._head: framing.Head | None = None
        self._done: asyncio.Future[None] | None = None

    @property
    def reusable(self) -> bool:
        """Whether the next request may go here."""
        return not self.closed and self._head is not None and self._head.keep

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance

    def data_received(self, data: bytes) -> None:
        """Stamps first, then looks whether this is the end."""
        self.stamps.append(time.monotonic())
        self.blocks.append(data)
        self._total += len(data)
        self.ends.append(self._total)
        try:
            if self._ended(data):
                self._finish()
        except ValueError:  # no HTTP: the scan says what it was
            self.close()

    def _ended(self, data: bytes) -> bool:
        head = self._head
        if head is None:
            head = self._head = framing.read_head(b"".join(self.blocks))
            if head is None:
                return False
        if head.length >= 0:
            return self._total >= head.begin + head.length
        if head.length == -2:
            return False
        tail = data if len(data) >= 64 else b"".join(self.blocks[-64:])[-64:]
        if not framing.may_end(tail):
            return False
        return tail.endswith(framing.SURE_END) or framing.chunked_end(b"".join(self.blocks), head.begin) >= 0

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop; the end of an answer without a length is this."""
        self.closed = True
        self.error = exc
        self._finish()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def close(self) -> None:
        """Cuts it, whatever it carries."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()
        self._finish()

    async def exchange(self, request: bytes) -> None:
        """Sends a request and returns at the end of its answer or of the connection."""
        assert self.transport is not None
        self.blocks, self.ends, self.stamps, self._total, self._head = [], [], [], 0, None
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        if not self.closed:
            await self._done


async def connect(target: Target, tls: ssl.SSLContext | None) -> Connection:
    """A new connection.

    Raises:
        OSError: nobody takes it.
    """
    loop = asyncio.get_running_loop()
    name = target.host if tls else None
    _, connection = await loop.create_connection(
        Connection, target.host, target.port, ssl=tls, server_hostname=name
    )
    return connection

"""Connections to engines and providers: one protocol a connection, a pool a target.

Engines close idle connections after 5 s (uvicorn's default), so ours are not reused after 4 s of rest; a
connection that dies under a reused request before any byte of an answer is replaced without blame.
"""

import asyncio
import contextlib
import ssl
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import httptools

from longspan.gateway.answers import AnswerBook
from longspan.gateway.config import Provider, Replica
from longspan.gateway.wire import Header, split_url

IDLE_SECONDS = 4.0
HIGH_WATER_BYTES = 64 * 1024
MAX_IDLE = 256
_BOOK = AnswerBook()
_FRAMING = (b"content-length", b"transfer-encoding", b"content-encoding")


class Receiver(Protocol):
    """What an upstream connection tells its request."""

    def upstream_ready(self, connection: "Upstream") -> None:
        """A connection is there: send."""

    def upstream_failed(self, cause: str) -> None:
        """No connection could be made."""

    def upstream_head(self, status: int, headers: list[Header]) -> None:
        """The head of the answer."""

    def upstream_data(self, data: bytes) -> None:
        """Decoded body bytes."""

    def upstream_end(self) -> None:
        """The answer is complete."""

    def upstream_lost(self, answered: bool) -> None:
        """The connection died before the answer was complete."""


class Upstream(asyncio.Protocol):
    """One connection. `receiver` is set while a request uses it."""

    __slots__ = (
        "_begun", "_blocks", "_coded", "_complete", "_framed", "_head", "_headers", "_keep", "_parser", "_pool", "_reading", "_status",
        "answered", "idle_since", "receiver", "reused", "transport",
    )  # fmt: skip

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self.transport: asyncio.Transport | None = None
        self.receiver: Receiver | None = None
        self.reused = False
        self.idle_since = 0.0
        self._parser: Any = httptools.HttpResponseParser(self)
        self._renew()

    def _renew(self) -> None:
        self._headers: list[Header] = []
        self._blocks: list[bytes] = []
        self._status = 0
        self._begun = self._head = self._complete = self.answered = self._framed = False
        self._coded: zlib._Decompress | None = None
        self._reading = True
        self._keep = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: connected."""
        self.transport = transport  # type: ignore[assignment]  # uvloop's is none of asyncio's classes

    def send(self, receiver: Receiver, data: bytes) -> None:
        """Starts a request on this connection."""
        assert self.transport is not None
        self.receiver = receiver
        self.transport.write(data)

    def abort(self) -> None:
        """Ends the connection and with it the engine's work on the request."""
        self.receiver = None
        if self.transport is not None:
            self.transport.abort()

    def pause(self) -> None:
        """The client reads slowly: stop reading, so that the engine's socket holds the bytes."""
        if self._reading and self.transport is not None:
            self._reading = False
            self.transport.pause_reading()

    def resume(self) -> None:
        """The client caught up."""
        if not self._reading and self.transport is not None:
            self._reading = True
            self.transport.resume_reading()

    # ---- asyncio

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        receiver = self.receiver
        if receiver is None:
            self.abort()  # bytes nobody asked for
            return
        if not self._begun:
            whole = _BOOK.whole(data)
            if whole is not None:
                self._take(receiver, *whole)
                return
            self._begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if not self._complete:
                self._lose()
                return
            self._keep = False  # the answer is whole; what follows it is not ours
        if self._head:
            self._head = False
            receiver.upstream_head(self._status, self._headers)
        if self._blocks and self.receiver is receiver:
            body = self._blocks[0] if len(self._blocks) == 1 else b"".join(self._blocks)
            self._blocks.clear()
            self._deliver(receiver, body)
        if self._complete and self.receiver is receiver:
            self._finish(receiver)

    def _take(self, receiver: Receiver, status: int, headers: list[Header], body: bytes) -> None:
        """A plain whole answer, which the parser need not see."""
        self.answered = self._framed = self._keep = True
        receiver.upstream_head(status, headers)
        if body and self.receiver is receiver:
            receiver.upstream_data(body)
        if self.receiver is receiver:
            self._finish(receiver)

    def _deliver(self, receiver: Receiver, body: bytes) -> None:
        if self._coded is not None:
            try:
                body = self._coded.decompress(body)
            except zlib.error:
                self._lose()
                return
        if body:
            receiver.upstream_data(body)

    def _finish(self, receiver: Receiver) -> None:
        keep = self._keep and self._framed
        self.receiver = None
        if keep and self.transport is not None and not self.transport.is_closing():
            self.resume()
            self._renew()
            self._pool.rest(self)
        elif self.transport is not None:
            self.transport.close()
        receiver.upstream_end()

    def _lose(self) -> None:
        receiver, answered = self.receiver, self.answered
        self.abort()
        if receiver is not None:
            receiver.upstream_lost(answered)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is gone. A body without length ends with its connection (RFC 9112, 6.3)."""
        receiver = self.receiver
        self.receiver = None
        self.transport = None
        self._parser = None  # it refers to us: a circle that only the garbage collector would find
        self._pool.gone(self)
        if receiver is None:
            return
        if exc is None and self.answered and not self._framed:
            receiver.upstream_end()
        else:
            receiver.upstream_lost(self.answered)

    # ---- httptools

    def on_message_begin(self) -> None:
        """httptools: an answer begins; one after ours was asked for by nobody, and ends the connection."""
        if self._complete:
            raise ValueError("bytes after the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header."""
        name = name.lower()
        if name not in _FRAMING:
            self._headers.append((name, value))
            return
        if name == b"content-length" or (name == b"transfer-encoding" and b"chunked" in value.lower()):
            self._framed = True
        elif name == b"content-encoding" and value.strip().lower() in (b"gzip", b"x-gzip", b"deflate"):
            self._coded = zlib.decompressobj(47)
            return
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """httptools: the head is complete."""
        self._status = self._parser.get_status_code()
        if self._status < 200:
            self._headers = []
            return
        if self._status in (204, 304):
            self._framed = True
        self._keep = self._parser.should_keep_alive()  # llhttp forgets it with the end of the message
        self._head = self.answered = True

    def on_body(self, body: bytes) -> None:
        """httptools: decoded body bytes."""
        self._blocks.append(body)

    def on_message_complete(self) -> None:
        """httptools: the message is complete, unless it was an interim one."""
        if self._status >= 200:
            self._complete = True


class Pool:
    """Connections to one upstream."""

    def __init__(self, url: str, connect_seconds: float, tls: ssl.SSLContext | None) -> None:
        self.url = url
        self._scheme, self.host, self.port, path = split_url(url)
        self.host_header = url.split("://", 1)[1].split("/", 1)[0].encode()
        self.base_path = path.removesuffix("/v1").encode()
        self.configure(connect_seconds, tls)
        self.trouble = ""  # why TLS failed the last time, for people
        self.open: set[Upstream] = set()
        self._idle: deque[Upstream] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def configure(self, connect_seconds: float, tls: ssl.SSLContext | None) -> None:
        """Takes what holds for connections to come."""
        self.connect_seconds = connect_seconds
        self.tls = tls if self._scheme == "https" else None

    def acquire(self, receiver: Receiver, fresh: bool = False) -> Callable[[], None]:
        """Gives the receiver a connection, at once or later. Returns a callable that cancels the wait."""
        now = self._loop.time()
        while self._idle and not fresh:
            connection = self._idle.pop()  # the youngest: the oldest are left to expire
            if connection.transport is None or connection.transport.is_closing():
                continue
            if now - connection.idle_since > IDLE_SECONDS:
                connection.abort()
                continue
            connection.reused = True
            receiver.upstream_ready(connection)
            return _nothing
        task = self._loop.create_task(self._connect(receiver))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return lambda: None if task.done() else _cancel(task)

    async def _connect(self, receiver: Receiver) -> None:
        try:
            async with asyncio.timeout(self.connect_seconds):
                _, connection = await self._loop.create_connection(
                    lambda: Upstream(self), self.host, self.port, ssl=self.tls
                )
        except (OSError, TimeoutError) as error:
            self.trouble = _tls_trouble(error)
            receiver.upstream_failed("connect")
            return
        assert connection.transport is not None
        self.trouble = ""
        connection.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self.open.add(connection)
        receiver.upstream_ready(connection)

    def rest(self, connection: Upstream) -> None:
        """Takes a connection back."""
        connection.idle_since = self._loop.time()
        if len(self._idle) >= MAX_IDLE:
            connection.abort()
        else:
            self._idle.append(connection)

    def gone(self, connection: Upstream) -> None:
        """A connection was closed."""
        self.open.discard(connection)
        if connection.idle_since and not connection.receiver:
            with contextlib.suppress(ValueError):
                self._idle.remove(connection)

    def sweep(self) -> None:
        """Closes connections that rested too long."""
        now = self._loop.time()
        while self._idle and now - self._idle[0].idle_since > IDLE_SECONDS:
            self._idle.popleft().abort()

    def close(self) -> None:
        """Closes idle connections; busy ones end with their requests."""
        while self._idle:
            self._idle.popleft().abort()


def renew_pools(
    pools: dict[str, Pool],
    upstreams: Iterable[Replica | Provider],
    connect_seconds: float,
    tls: ssl.SSLContext | None,
) -> None:
    """Gives every upstream its pool by its name; one whose address stayed keeps its connections."""
    for upstream in upstreams:
        old = pools.get(upstream.name)
        if old is not None and old.url == upstream.url:
            old.configure(connect_seconds, tls)
            continue
        if old is not None:
            old.close()
        pools[upstream.name] = Pool(upstream.url, connect_seconds, tls)


def _tls_trouble(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    return f"TLS failed: {error.reason}" if isinstance(error, ssl.SSLError) else ""


def _nothing() -> None:
    return None


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()

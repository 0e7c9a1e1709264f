"""Connections from clients: parses requests, one at a time on each connection, and writes what it is given."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Protocol

import httptools

from longspan.gateway.heads import Head, HeadBook, KnownHead, declined
from longspan.gateway.wire import LAST_CHUNK, Header, chunk, find, response_head

HIGH_WATER_BYTES = 64 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED_BYTES = 1024 * 1024
# A connection whose heads differ every time (a trace id in each) is not worth learning from.
MAX_LESSONS = 8


class Handler(Protocol):
    """One request being served."""

    def client_lost(self) -> None:
        """The client left before its answer was complete."""

    def client_full(self) -> None:
        """The client reads slowly."""

    def client_drained(self) -> None:
        """The client caught up."""


Serve = Callable[["Downstream", Head, bytes], Handler | None]


class Downstream(asyncio.Protocol):
    """One client connection.

    Args:
        serve: called with each whole request; returns its handler, or None if it was answered at once.
        max_body_bytes: larger bodies get 413.
        register: the set of live connections, for draining.
        now: the loop's clock.
        book: heads that were parsed before.
        refused: counts what is refused here, by status and reason.
    """

    __slots__ = (
        "_begun", "_body", "_body_bytes", "_book", "_chunked", "_close", "_head_bytes", "_headers", "_keep", "_known",
        "_later", "_lessons", "_max", "_now", "_parser", "_ready", "_refused", "_register", "_serve", "_serving", "_url", "handler",
        "method", "paused", "touched", "transport", "version",
    )  # fmt: skip

    def __init__(
        self, serve: Serve, max_body_bytes: int, register: set["Downstream"], now: Callable[[], float],
        book: HeadBook, refused: Counter[tuple[int, str]],
    ) -> None:  # fmt: skip
        self._book = book
        self._refused = refused
        self._known: KnownHead | None = None
        self._lessons = 0
        self._serve = serve
        self._max = max_body_bytes
        self._register = register
        self._now = now
        self.touched = now()
        self.transport: asyncio.Transport | None = None
        self.handler: Handler | None = None
        self.paused = False
        self._later = b""
        self._close = False
        self._chunked = self._serving = False
        self._body_bytes = self._head_bytes = 0
        self._parser: Any = httptools.HttpRequestParser(self)
        self._ready: deque[tuple[Head, bytes]] = deque()
        self.method = b""
        self.version = "1.1"
        self.on_message_begin()
        self._begun = False

    # ---- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client connected."""
        self.transport = transport  # type: ignore[assignment]  # uvloop's is none of asyncio's classes
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)  # type: ignore[attr-defined]
        self._register.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the client is gone."""
        self._register.discard(self)
        self.transport = None
        self._parser = None  # it refers to us: a circle that only the garbage collector would find
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.client_lost()

    def pause_writing(self) -> None:
        """asyncio: the write buffer is full."""
        self.paused = True
        if self.handler is not None:
            self.handler.client_full()

    def resume_writing(self) -> None:
        """asyncio: the write buffer has room."""
        self.paused = False
        if self.handler is not None:
            self.handler.client_drained()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came. While a request is served, what follows it waits."""
        if self.handler is not None or self._close:
            self._later += data
            if len(self._later) > MAX_PIPELINED_BYTES:
                self.abort()
            return
        between = not self._begun and not self._ready and not self._serving
        if between:
            self.touched = (
                self._now()
            )  # a request counts from its first byte: dribbling it in holds nothing open
        if between and self._known is not None:
            body = self._known.body_of(data)
            if body is not None and len(body) <= self._max:
                self._take(self._known.head, body)
                if self._ready:
                    self._next()
                return
        self._parse(data, between)

    def _parse(self, data: bytes, between: bool) -> None:
        body_bytes = self._body_bytes
        self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserUpgrade:
            self._refuse(501, "upgrade", b"This gateway does not upgrade connections.")
        except httptools.HttpParserError:
            if not self._close:  # our own refusals stop the parser too
                self._refuse(400, "malformed", b"Malformed HTTP request.")
        else:
            if self._body_bytes > body_bytes or self._ready:
                self._head_bytes = (
                    0  # what is neither head nor body is chunk sizes and trailers: bounded alike
                )
            elif self._head_bytes > MAX_HEAD_BYTES + len(data):
                self._refuse(431, "head_too_large", b"Request head too large.")
        if between and self._lessons < MAX_LESSONS and len(self._ready) == 1 and not self._close:
            self._lessons += 1
            head, body = self._ready.pop()
            self._known = self._book.learn(data[: data.find(b"\r\n\r\n") + 4], head)
            self._ready.append((self._known.head if self._known is not None else head, body))
        self._next()

    def _feed(self, data: bytes) -> None:
        """Through the parser. An offer of HTTP/2 is not taken up, as RFC 9110 (7.8) allows: the request is HTTP/1.1.

        The parser ends a request that offers an upgrade with its head, whatever length it names: read on from there, its
        body would be a request of its own. So its head goes through a new parser without `upgrade` in Connection, and the
        parser itself judges the framing.
        """
        rest = memoryview(data)
        while rest:
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as offer:
                head = self._ready[-1][0] if self._ready else None
                plain = declined(head) if head is not None and not self._close else None
                if plain is None:
                    raise
                self._ready.pop()
                rest = rest[offer.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
                self._parser.feed_data(plain)
            else:
                return

    def _take(self, head: Head, body: bytes) -> None:
        """Serves a request; nothing else is being served."""
        self.method, self.version = head.method, head.version
        self._close = not head.keep
        self._serving = True
        try:
            self.handler = self._serve(self, head, body)
        finally:
            self._serving = False

    def _next(self) -> None:
        """Serves the next whole request, if there is one and nothing else is served."""
        if self._serving:
            return  # called by an answer that is given at once; the loop below goes on
        while self._ready and not self._close and self.handler is None:
            self._take(*self._ready.popleft())

    def _refuse(self, status: int, reason: str, message: bytes) -> None:
        self._close = True
        self._refused[status, reason] += 1
        body = (
            b'{"error":{"message":"%b","type":"invalid_request_error","param":null,"code":"bad_request"}}'
            % message
        )
        self.answer(status, [(b"content-type", b"application/json")], body)

    # ---- httptools

    def on_message_begin(self) -> None:
        """httptools: a request begins."""
        self._begun = True
        self._url = b""
        self._headers: list[Header] = []
        self._body: list[bytes] = []
        self._body_bytes = self._head_bytes = 0
        self._keep = False

    def on_url(self, url: bytes) -> None:
        """httptools: a piece of the request target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """httptools: the head is complete."""
        self._keep = self._parser.should_keep_alive()  # llhttp forgets it with the end of the message
        expect = find(self._headers, b"expect")
        length = find(self._headers, b"content-length")
        if length and length.isdigit() and int(length) > self._max:
            self._refuse(413, "body_too_large", b"The body is larger than this gateway accepts.")
        elif expect and expect.lower() == b"100-continue" and self.transport is not None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._max:
            if not self._close:
                self._refuse(413, "body_too_large", b"The body is larger than this gateway accepts.")
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        """httptools: a whole request. Further ones in the same bytes wait for the answer to the first."""
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        parser = self._parser
        head = Head(parser.get_method(), self._url, self._headers, parser.get_http_version(), self._keep)
        self._ready.append((head, body))
        self._body = []
        self._begun = False
        self._body_bytes = self._head_bytes = 0

    # ---- answers

    def answer(self, status: int, headers: list[Header], body: bytes) -> None:
        """A whole answer."""
        if self.transport is None:
            return
        head = response_head(status, headers, b"content-length: %d" % len(body), self._close)
        self.transport.write(head if self.method == b"HEAD" else head + body)
        self.finished()

    def start(self, status: int, headers: list[Header], data: bytes) -> None:
        """The head of a streamed answer and its first bytes. HTTP/1.0 gets no chunks but a closed connection."""
        if self.transport is None:
            return
        self._chunked = self.version != "1.0"
        self._close = self._close or not self._chunked
        framing = b"transfer-encoding: chunked" if self._chunked else b""
        head = response_head(status, headers, framing, self._close)
        if self.method == b"HEAD":
            self._chunked, data = False, b""
        self.transport.write(head + (chunk(data) if self._chunked else data))

    def more(self, data: bytes) -> None:
        """More bytes of a streamed answer."""
        if self.transport is not None and self.method != b"HEAD":
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self, data: bytes = b"") -> None:
        """The last bytes of a streamed answer."""
        if self.transport is None:
            return
        if self._chunked:
            self.transport.write(chunk(data) + LAST_CHUNK if data else LAST_CHUNK)
        elif data and self.method != b"HEAD":
            self.transport.write(data)
        self.finished()

    def abort(self) -> None:
        """Cuts the connection: the only honest end of a streamed answer that is not an event stream."""
        if self.transport is not None:
            self.transport.abort()

    def close_after(self) -> None:
        """Closes after the request in progress, or now if there is none."""
        self._close = True
        if self.handler is None and self.transport is not None:
            self.transport.close()

    def finished(self) -> None:
        """The answer is written: the connection takes its next request."""
        self.handler = None
        self.touched = self._now()
        if self.transport is None:
            return
        if self._close:
            self.transport.close()
            return
        self._next()
        if self._later and self.handler is None:
            later, self._later = self._later, b""
            self.data_received(later)

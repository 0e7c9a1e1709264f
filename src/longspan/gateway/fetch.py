"""Small requests of the gateway's own to an upstream: health, metrics, canaries. Awaitable, with a deadline."""

import asyncio

from longspan.gateway.upstream import Pool, Upstream
from longspan.gateway.wire import Header, request_head

MAX_ANSWER_BYTES = 4 * 1024 * 1024


class Fetch:
    """One request; resolves to (status, body).

    Raises (from `result`): ConnectionRefusedError if nobody listens, ConnectionError if the answer broke off.
    """

    def __init__(
        self, pool: Pool, method: bytes, path: bytes, headers: list[Header], body: bytes = b""
    ) -> None:
        self._pool, self._method, self._path, self._headers, self._body = pool, method, path, headers, body
        self._connection: Upstream | None = None
        self._status = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    async def result(self, timeout_seconds: float) -> tuple[int, bytes]:
        """Sends it on a fresh connection and waits."""
        cancel = self._pool.acquire(self, fresh=True)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._answer
        finally:
            cancel()
            if self._connection is not None:
                self._connection.abort()

    def upstream_ready(self, connection: Upstream) -> None:
        """Sends the request."""
        self._connection = connection
        head = request_head(self._method, self._path, self._pool.host_header, self._headers, len(self._body))
        connection.send(self, head + self._body)

    def upstream_failed(self, cause: str) -> None:
        """No connection."""
        self._fail(ConnectionRefusedError(cause))

    def upstream_head(self, status: int, headers: list[Header]) -> None:
        """The head."""
        self._status = status

    def upstream_data(self, data: bytes) -> None:
        """Body bytes."""
        self._size += len(data)
        if self._size <= MAX_ANSWER_BYTES:
            self._parts.append(data)
        else:
            self._fail(ConnectionError("answer too large"))

    def upstream_end(self) -> None:
        """Complete."""
        self._connection = None
        if not self._answer.done():
            self._answer.set_result((self._status, b"".join(self._parts)))

    def upstream_lost(self, answered: bool) -> None:
        """Broken off."""
        self._connection = None
        self._fail(ConnectionError("connection lost"))

    def _fail(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)

"""One request with everything around it replaced: what happens where a part of it fails."""

import asyncio
import ssl
from dataclasses import replace
from typing import Any

from gateway.helpers import config
from gateway.test_answers import Resting, Wire
from longspan.gateway import front
from longspan.gateway.config import Replica
from longspan.gateway.heads import Head
from longspan.gateway.outgoing import Outgoing
from longspan.gateway.proxy import MAX_BUFFERED_BYTES, Exchange
from longspan.gateway.upstream import Pool, Upstream, renew_pools


class Everything:
    """Gateway, link, pool and client of one exchange; writes down what it is told."""

    host_header, base_path, paused = b"new:1", b"", False

    def __init__(self) -> None:
        self.config = config()
        self.outgoing: Any = Outgoing(self.config, {}, keyed=False)
        self.pools = {"r0": self, "r1": self}
        self.link = self
        self.told: list[Any] = []

    def now(self) -> float:
        """No time passes."""
        return 0.0

    def bug(self, error: Exception) -> None:
        """An error of our own."""
        self.told.append(("bug", str(error)))

    def over(self, exchange: Exchange, outcome: str, status: int, usage: dict[str, int]) -> None:
        """The request ended."""
        self.told.append(("over", outcome, status))

    def failed(self, request: int, cause: str) -> None:
        """An attempt failed."""
        self.told.append(("failed", cause))

    def answer(self, status: int, headers: list[Any], body: bytes) -> None:
        """The client is answered."""
        self.told.append(("answer", status))

    def exchange(self) -> Exchange:
        """A chat request that was sent to r0."""
        head = Head(b"POST", b"/v1/chat/completions", [(b"x-a", b"b")], "1.1", True)
        meaning = front.study(self.config, {}, head)
        admitted = front.admit(meaning, 1, b'{"model": "m"}')
        assert isinstance(admitted, tuple)
        made = Exchange(self, self, head, meaning, *admitted, "id")  # type: ignore[arg-type]
        made.target = "r0"
        return made


class Sent(Wire):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.aborted = False

    def write(self, data: Any) -> None:
        """Keeps it."""
        self.data += data

    def abort(self) -> None:
        """Notes it."""
        self.aborted = True


def connected() -> tuple[Upstream, Sent]:
    """A connection to nobody."""
    connection, wire = Upstream(Resting()), Sent()  # type: ignore[arg-type]
    connection.connection_made(wire)
    return connection, wire


def test_a_request_that_cannot_be_written_ends() -> None:
    """Whatever is wrong in us, its permit comes back, the client is answered and the connection is closed."""

    class Broken:
        def body(self, *arguments: object) -> bytes:
            raise RuntimeError("a bug")

    world = Everything()
    exchange = world.exchange()
    world.outgoing = Broken()
    connection, wire = connected()
    exchange.upstream_ready(connection)
    assert world.told == [("bug", "a bug"), ("over", "internal_error", 500), ("answer", 500)]
    assert wire.aborted
    assert wire.data == b""


def test_an_endless_error_answer_is_not_kept() -> None:
    """It fails like any other of its status once it is longer than errors are."""
    world = Everything()
    exchange = world.exchange()
    connection, wire = connected()
    exchange.upstream_ready(connection)
    connection.data_received(b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n")
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    for _ in range(2 * MAX_BUFFERED_BYTES // 0x10000):
        if not wire.aborted:
            connection.data_received(piece)
    assert world.told == [("failed", "status 500")]
    assert wire.aborted


def test_a_request_that_waited_through_a_reload_gets_the_new_key() -> None:
    """The head that was worked out under the old configuration, with its secret and host, is not sent any more."""
    world = Everything()
    world.outgoing = Outgoing(world.config, {"r0": b"old-secret"}, keyed=False)
    exchange = world.exchange()
    connection, wire = connected()
    exchange.upstream_ready(connection)
    assert b"old-secret" in wire.data
    world.outgoing = Outgoing(config(), {"r0": b"new-secret"}, keyed=False)
    for _ in range(2):
        connection, wire = connected()
        exchange.upstream_ready(connection)
        assert b"new-secret" in wire.data
        assert b"old-secret" not in wire.data


def test_a_pool_follows_the_configuration_and_keeps_its_connections() -> None:
    """The same address keeps its pool, which takes new settings; another address gets another pool."""

    async def follow() -> None:
        pools: dict[str, Pool] = {}
        context = ssl.create_default_context()
        plain, secure = Replica("a", "http://127.0.0.1:1", "m"), Replica("b", "https://127.0.0.1:2", "m")
        renew_pools(pools, [plain, secure], 5.0, context)
        before = dict(pools)
        newer = ssl.create_default_context()
        renew_pools(pools, [plain, secure], 1.0, newer)
        assert pools == before
        assert [(pool.connect_seconds, pool.tls) for pool in pools.values()] == [(1.0, None), (1.0, newer)]
        renew_pools(pools, [replace(plain, url="http://127.0.0.1:3"), secure], 1.0, newer)
        assert (pools["a"].port, pools["b"]) == (3, before["b"])

    asyncio.run(follow())

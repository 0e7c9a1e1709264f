"""The data plane of one process: connections, upstream pools and live requests. Decisions come from its link."""

import asyncio
import os
import random
import ssl
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from longspan.gateway import front, trace
from longspan.gateway.config import GatewayConfig, KeyRule, Provider, Replica
from longspan.gateway.dialect import OTHER, error_body
from longspan.gateway.downstream import Downstream, Handler
from longspan.gateway.heads import Head, HeadBook
from longspan.gateway.ledger import Entry
from longspan.gateway.log import Log
from longspan.gateway.outgoing import Outgoing
from longspan.gateway.proxy import JSON_HEADER, Exchange
from longspan.gateway.sse import Usage
from longspan.gateway.ticket import Action, Ask
from longspan.gateway.upstream import Pool, renew_pools

SWEEP_SECONDS = 0.1
# A client connection without a request, or that is slow to send one, is closed after this long.
CLIENT_IDLE_SECONDS = 300.0
# What cut clients have to take the rest of their answer at the end of a drain.
LAST_WORD_SECONDS = 0.5
# Request ids of workers: the worker's number stands above these bits.
ID_BITS = 40


class Link(Protocol):
    """The way to the brain, in this process or in the parent's."""

    def arrive(self, ask: Ask) -> None:
        """A request that was admitted."""

    def content(self, request: int) -> None:
        """Its first content came."""

    def own(self, request: int, state: str) -> None:
        """Its answer has this id, and its replica keeps it."""

    def failed(self, request: int, cause: str) -> None:
        """Its attempt failed before content."""

    def broken(self, request: int, cause: str) -> None:
        """Its stream was cut after content, and could be continued."""

    def slow(self, request: int) -> None:
        """Its attempt passed the first-token deadline."""

    def moved(self, seen: dict[str, float]) -> None:
        """Content bytes came from these upstreams."""

    def refused(self, counts: dict[tuple[int, str], int]) -> None:
        """Requests that were refused before they were routed, by status and reason."""

    def over(self, request: int, entry: Entry) -> None:
        """It ended."""

    def ready(self) -> bool:
        """Whether somebody can serve."""


class Gateway:
    """Everything about clients and upstreams that lives as long as the process."""

    def __init__(self, config: GatewayConfig, log: Log, link: Link | None = None, worker: int = 0) -> None:
        self.config = config
        self.log = log
        self.link: Link = link  # type: ignore[assignment]  # set by the composer before the first client
        self.now = asyncio.get_running_loop().time
        self.exchanges: dict[int, Exchange] = {}
        self.clients: set[Downstream] = set()
        self.pools: dict[str, Pool] = {}
        self.moved: dict[str, float] = {}
        self.refused: Counter[tuple[int, str]] = Counter()
        self.draining = False
        self._book = HeadBook()
        self._next_id = worker << ID_BITS
        self._id_prefix = os.urandom(5).hex()
        self._hashes: dict[str, KeyRule] = {}
        self.outgoing = Outgoing(config, {}, keyed=True)

    def configure(
        self, config: GatewayConfig, secrets: Mapping[str, bytes], tls: ssl.SSLContext | None
    ) -> None:
        """Takes a configuration that was judged good; pools whose upstream stayed keep their connections."""
        renew_pools(self.pools, upstreams(config), config.timeouts.connect_seconds, tls)
        self.config = config
        self._hashes = {key.sha256: key for key in config.keys}
        self.outgoing = Outgoing(config, secrets, keyed=bool(self._hashes))

    # ---- requests

    def guarded(self, client: Downstream, head: Head, raw: bytes) -> Handler | None:
        """`serve`, with our own bugs turned into a 500 that holds no permit."""
        try:
            return self.serve(client, head, raw)
        except Exception as error:  # noqa: BLE001 - the last line of defence of a process that must not stop
            self.bug(error)
            exchange, client.handler = client.handler, None
            if isinstance(exchange, Exchange):
                exchange.client_lost()
            body = error_body(OTHER, 500, "internal_error", "An error in the gateway itself; see its log.")
            client.answer(500, [JSON_HEADER], body)
            return None

    def bug(self, error: Exception) -> None:
        """Notes an error of our own; call where it is handled."""
        self.log.write("bug", error=f"{type(error).__name__}: {error}", trace=traceback.format_exc(limit=-5))

    def connection(self) -> Downstream:
        """A protocol for a new client."""
        limit = self.config.max_body_bytes
        return Downstream(self.guarded, limit, self.clients, self.now, self._book, self.refused)

    def act(self, action: Action) -> None:
        """Carries out a decision of the brain's."""
        exchange = self.exchanges.get(action.id)
        if exchange is not None:
            exchange.act(action)

    def serve(self, client: Downstream, head: Head, raw: bytes) -> Handler | None:
        """A whole request came."""
        meaning = head.meaning
        if meaning is None or meaning.config is not self.config:
            meaning = head.meaning = front.study(self.config, self._hashes, head)
        self._next_id += 1
        request_id = meaning.request_id or f"{self._id_prefix}-{self._next_id:x}"
        answer = meaning.answer
        if answer is None:
            if meaning.path in front.OPEN_PATHS:
                answer = self._health(meaning.path)
            else:
                admitted = front.admit(meaning, self._next_id, raw)
                if isinstance(admitted, tuple):
                    ask, body = admitted
                    exchange = Exchange(self, client, head, meaning, ask, body, request_id)
                    self.exchanges[ask.id] = exchange
                    if self.config.tracing is not None:
                        exchange.trace = self._trace(head)
                    client.handler = exchange
                    self.link.arrive(ask)
                    return client.handler
                answer = admitted
        if answer.code:
            self.refused[answer.status, answer.code] += 1
        client.answer(answer.status, [*answer.headers, (b"x-request-id", request_id.encode())], answer.body)
        return None

    def _trace(self, head: Head) -> str:
        assert self.config.tracing is not None
        begun = trace.begin(head.known.get(trace.HEADER), self.config.tracing.share, random.getrandbits)
        return trace.format_trace(begun) if begun is not None else ""

    def _health(self, path: str) -> front.Answer:
        """Answers that need no key."""
        if path == "/health":
            return front.Answer(200, b'{"status":"alive"}', (JSON_HEADER,))
        ready = not self.draining and self.link.ready()
        body = b'{"ready":true}' if ready else b'{"ready":false}'
        return front.Answer(200 if ready else 503, body, (JSON_HEADER,))

    def over(self, exchange: Exchange, outcome: str, status: int, usage: Usage) -> None:
        """A request ended, in whatever way: tells the brain once, with what is to be accounted."""
        ask = exchange.ask
        if self.exchanges.pop(ask.id, None) is None:
            return
        started = exchange.started
        seconds = self.now() - started
        entry = Entry(
            exchange.request_id, ask.key, ask.model, exchange.target, exchange.outside, outcome, status, ask.stream,
            time.time() - seconds, seconds, exchange.first_at - started if exchange.first_at and ask.stream else None,
            usage.get("prompt", 0), usage.get("completion", 0), usage.get("cached", 0),
            self.outgoing.price(exchange.target, usage) if exchange.outside else 0.0, exchange.reason, exchange.trace,
            exchange.response,
        )  # fmt: skip
        self.link.over(ask.id, entry)

    # ---- the clock

    async def run_clock(self) -> None:
        """Sweeps deadlines and idle connections."""
        next_idle = next_rest = 0.0
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = self.now()
            if self.moved:
                seen, self.moved = self.moved, {}
                self.link.moved(seen)
            if self.refused:
                self.link.refused(dict(self.refused))
                self.refused.clear()
            for exchange in list(self.exchanges.values()):
                exchange.sweep(now)
            if now > next_rest:
                next_rest = now + 0.5
                for pool in self.pools.values():
                    pool.sweep()
            if now > next_idle:
                next_idle = now + 5.0
                for client in [
                    c for c in self.clients if c.handler is None and now - c.touched > CLIENT_IDLE_SECONDS
                ]:
                    client.close_after()

    async def drain(self, seconds: float) -> None:
        """Lets running requests finish, up to `seconds`; then cuts what is left."""
        self.draining = True
        for client in list(self.clients):
            client.close_after()
        end = self.now() + seconds
        while self.exchanges and self.now() < end:  # noqa: ASYNC110 - once in a life, no event worth its price
            await asyncio.sleep(0.05)
        self.log.write("drained", cut=len(self.exchanges))
        for exchange in list(self.exchanges.values()):
            exchange.stop()
        end = self.now() + LAST_WORD_SECONDS
        while self.clients and self.now() < end:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
        for client in list(self.clients):
            client.abort()
        for pool in self.pools.values():
            pool.close()


def upstreams(config: GatewayConfig) -> list[Replica | Provider]:
    """All upstreams of a configuration."""
    return [*config.replicas, *config.providers]

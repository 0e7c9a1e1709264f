"""The one truth of a gateway: dispatcher, watch over replicas, ledger and figures. One process holds it, whatever
the number of workers; workers send it events and get actions.
"""

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable
from pathlib import Path

from longspan.gateway.config import GatewayConfig, KeyRule
from longspan.gateway.figures import Figures
from longspan.gateway.fleet import MAX_OWNERS
from longspan.gateway.ledger import Entry, Row, Try
from longspan.gateway.log import Log
from longspan.gateway.outside import price_usd
from longspan.gateway.routing import Dispatcher
from longspan.gateway.store import Store, load_keys, load_responses
from longspan.gateway.ticket import Action, Ask, Ticket
from longspan.gateway.tracing import Tracer
from longspan.gateway.upstream import Pool, renew_pools
from longspan.gateway.watch import Watch
from longspan.gateway.wire import Header

TICK_SECONDS = 0.1
MAX_ENDED = 1000
# How often the price of our replicas is added up.
COUNT_SECONDS = 1.0
# Outcomes that are nobody's failure at the replica.
BLAMELESS = frozenset({"client_gone", "client_error", "request_timeout"})


class Brain:
    """Takes events of requests, performs the dispatcher's actions through `deliver`."""

    def __init__(
        self, config: GatewayConfig, directory: Path, log: Log, deliver: Callable[[Action], None]
    ) -> None:
        self.config = config
        self.log = log
        self.now = asyncio.get_running_loop().time
        self._figures = Figures()
        self._settle_at = 0.0
        self._ended: list[tuple[Entry, Ticket | None, float]] = []
        self.pools: dict[str, Pool] = {}
        self.draining = False
        self.store = Store(directory / config.ledger) if config.ledger else None
        self.own_keys: tuple[KeyRule, ...] = load_keys(self.store.path) if self.store else ()
        self.dispatcher = Dispatcher(config, self.now(), random.Random().randrange)  # noqa: S311 - load spreading
        for response in load_responses(self.store.path, MAX_OWNERS) if self.store else ():
            self.dispatcher.fleet.own(
                *response
            )  # engines outlive a gateway's restart, and what they store with them
        self.watch = Watch(self.dispatcher, self.pools, self.own_headers, self.perform)
        self.secrets: dict[str, bytes] = {}
        self.tracer: Tracer | None = None
        self._deliver = deliver
        self._actions: deque[Action] = deque()
        self._busy = False

    def configure(self, config: GatewayConfig, secrets: dict[str, bytes], tracer: Tracer | None) -> None:
        """Takes a judged configuration, its keys already joined with our own, and its tracer."""
        self.config, self.secrets = config, secrets
        old, self.tracer = self.tracer, tracer
        if old is not None and old is not tracer:
            old.close()
        self.perform(self.dispatcher.configure(config, self.now()))
        self.watch.follow(config)

    def tracer_for(self, config: GatewayConfig) -> Tracer | None:
        """The tracer of a configuration: ours if it stays, None without [tracing].

        Raises:
            GatewayConfigError: OpenTelemetry is not installed.
        """
        if config.tracing is None:
            return None
        same = self.tracer is not None and self.tracer.settings == config.tracing
        return self.tracer if same else Tracer(config.tracing)

    def open_pools(self, config: GatewayConfig, tls: ssl.SSLContext | None) -> None:
        """Own pools for the watch, where workers hold those of the requests."""
        renew_pools(self.pools, config.replicas, config.timeouts.connect_seconds, tls)

    def own_headers(self, name: str) -> list[Header]:
        """Headers of the gateway's own requests to an upstream."""
        secret = self.secrets.get(name)
        return [(b"authorization", b"Bearer " + secret)] if secret is not None else []

    # ---- events of requests

    def perform(self, actions: list[Action]) -> None:
        """Carries out actions; those that arise meanwhile wait their turn, so that nothing nests."""
        if not actions:
            return
        self._actions.extend(actions)
        if self._busy:
            return
        self._busy = True
        try:
            while self._actions:
                self._deliver(self._actions.popleft())
        finally:
            self._busy = False

    def arrive(self, ask: Ask) -> None:
        """A request that was admitted."""
        self.perform(self.dispatcher.arrive(ask, self.now()))

    def content(self, request: int) -> None:
        """The first content of a request."""
        self.dispatcher.content(request, self.now())

    def own(self, request: int, state: str) -> None:
        """Its answer has an id by which later requests ask for the same replica."""
        self.dispatcher.own(request, state)

    def failed(self, request: int, cause: str) -> None:
        """An attempt failed before content."""
        self._figures.attempt_failed(cause)
        self.perform(self.dispatcher.failed(request, cause, self.now()))

    def broken(self, request: int, cause: str) -> None:
        """Its stream was cut after content, and could be continued."""
        self.perform(self.dispatcher.broken(request, cause, self.now()))

    def slow(self, request: int) -> None:
        """An attempt passed the first-token deadline."""
        self.perform(self.dispatcher.slow(request, self.now()))

    def moved(self, seen: dict[str, float]) -> None:
        """Content bytes came from these upstreams within the last moments."""
        now = self.now()
        for name in seen:
            self.dispatcher.progress(name, now)

    def refused(self, counts: dict[tuple[int, str], int]) -> None:
        """Requests that were refused before they were routed, by status and reason."""
        self._figures.refused.update(counts)

    def over(self, request: int, entry: Entry) -> None:
        """A request ended, in whatever way."""
        now = self.now()
        ticket = self.dispatcher.tickets.get(request)
        tokens = entry.prompt_tokens + entry.completion_tokens
        if entry.outcome == "ok":
            actions = self.dispatcher.finish(request, ok=True, now=now, used_tokens=tokens, usd=entry.usd)
        elif entry.outcome in BLAMELESS or ticket is None or ticket.where is None:
            actions = self.dispatcher.cancel(request, now, tokens, entry.usd)
        else:
            actions = self.dispatcher.finish(request, ok=False, now=now, used_tokens=tokens, usd=entry.usd)
        self._ended.append((entry, ticket, now))
        if now >= self._settle_at or len(self._ended) >= MAX_ENDED:  # the first of a calm is counted at once
            self.settle()
        self.perform(actions)

    def settle(self) -> None:
        """Counts and records what ended since the last time: in one go, for one by one it costs several times as much."""
        ended, self._ended = self._ended, []
        self._settle_at = self.now() + TICK_SECONDS
        for entry, ticket, now in ended:
            row = _row(entry, ticket, now)
            if not entry.outside and entry.target:
                row = row._replace(avoided_usd=self._outside_price(entry))
            if self.config.log_requests or (entry.outcome != "ok" and entry.outcome not in BLAMELESS):
                self.log.write(
                    "request", id=entry.request_id, key=entry.key, model=entry.model, outcome=entry.outcome,
                    status=entry.status, target=entry.target, seconds=round(entry.seconds, 4),
                    ttft_seconds=round(entry.ttft_seconds, 4) if entry.ttft_seconds is not None else None,
                    tried=[attempt.target for attempt in row.attempts],
                )  # fmt: skip
            self._figures.request(row)
            if self.store is not None:
                self.store.add(row)
            if self.tracer is not None and entry.trace:
                self.tracer.add(row)

    def _outside_price(self, entry: Entry) -> float:
        """What the cheapest provider of the model would have charged."""
        tokens = entry.prompt_tokens, entry.completion_tokens
        prices = (price_usd(p, *tokens) for p in self.config.providers if entry.model in p.models)
        return min(prices, default=0.0)

    @property
    def figures(self) -> Figures:
        """The figures, up to date."""
        self.settle()
        return self._figures

    def ready(self) -> bool:
        """Whether a load balancer should send traffic: not draining, and somebody can serve."""
        if self.draining:
            return False
        now = self.now()
        return bool(self.config.providers) or any(
            s.usable(now) for s in self.dispatcher.fleet.standings.values()
        )

    # ---- keys

    def add_key(self, rule: KeyRule) -> None:
        """A new key of our own, which is in the ledger already; the caller applies the configuration again."""
        self.own_keys = (*(key for key in self.own_keys if key.name != rule.name), rule)

    def drop_key(self, name: str) -> bool:
        """Takes a key of our own out of use; False if there is none of that name."""
        known = any(key.name == name for key in self.own_keys)
        self.own_keys = tuple(key for key in self.own_keys if key.name != name)
        return known

    # ---- the clock

    async def run_clock(self) -> None:
        """Lets the dispatcher look at the time while there is anything to look at: an idle gateway shall cost nothing."""
        counted = self.now()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self.dispatcher.tickets:
                self.perform(self.dispatcher.tick(self.now()))
            if self._ended:
                self.settle()
            self.log.flush()
            passed = self.now() - counted
            if passed >= COUNT_SECONDS:
                counted += passed
                for replica in self.config.replicas:
                    if replica.usd_per_hour:
                        self._figures.had(replica.name, replica.usd_per_hour * passed / 3600)

    async def close(self) -> None:
        """Ends the watch and writes the rest of the ledger."""
        await self.watch.stop()
        self.settle()
        if self.store is not None:
            await asyncio.to_thread(self.store.close)
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close)
        self.log.flush()


def _row(entry: Entry, ticket: Ticket | None, now: float) -> Row:
    if ticket is None or not ticket.attempts:
        held = now - ticket.arrived if ticket is not None else 0.0
        return Row(entry, held, 0.0)
    first = ticket.attempts[0]
    attempts = tuple(
        Try(
            a.target, a.outside, round(a.sent - ticket.arrived, 4), a.predicted_seconds,
            round(a.first - a.sent, 4) if a.first is not None else None, a.cause, a.reason, a.candidates,
            a.continues,
        )
        for a in ticket.attempts
    )  # fmt: skip
    return Row(entry, first.sent - ticket.arrived, first.predicted_seconds, attempts)

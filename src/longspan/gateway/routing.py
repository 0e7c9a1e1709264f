"""The dispatcher: events in, actions out. It alone decides where a request goes, waits, moves or ends.

Pure: the clock comes in as `now` (monotonic seconds), randomness as a callable, and what to do goes out as data.
One dispatcher holds the truth for all workers of a gateway.
"""

from collections.abc import Callable

from longspan.gateway.config import GatewayConfig
from longspan.gateway.limits import KeyLimits
from longspan.gateway.placement import Placement
from longspan.gateway.standing import EngineLoad, Standing
from longspan.gateway.ticket import Action, Ask, GiveUp, Reject, Ticket

# Failures that say nothing about the upstream's health.
BLAMELESS = ("status 429", "moved", "refused")


class Dispatcher:
    """The state of one gateway. Every public method returns the actions to carry out, in order."""

    def __init__(self, config: GatewayConfig, now: float, choose: Callable[[int], int]) -> None:
        self.config = config
        self._placement = Placement(config, now, choose)
        self.fleet = self._placement.fleet
        self.tickets: dict[int, Ticket] = {}
        self.limits: dict[str, KeyLimits] = {}
        self.configure(config, now)

    @property
    def running(self) -> int:
        """Requests at an upstream."""
        return self._placement.running

    def configure(self, config: GatewayConfig, now: float) -> list[Action]:
        """Takes a new configuration; learned state of replicas, keys and providers that stay is kept."""
        self.config = config
        self._placement.configure(config, now)
        for ticket in self.tickets.values():  # a replica may have been away from the file and come back
            standing = self.fleet.standings.get(ticket.where) if ticket.where is not None else None
            if standing is not None:
                standing.adopt(ticket)
        before, self.limits = self.limits, {}
        for rule in config.keys:
            self.limits[rule.name] = before.get(rule.name) or KeyLimits(rule)
            self.limits[rule.name].rule = rule
        for ticket in self.tickets.values():  # a key that was removed still has requests in flight
            if ticket.limited and ticket.ask.key not in self.limits:
                self.limits[ticket.ask.key] = before[ticket.ask.key]
        return self._placement.grant(now)

    # ---- events of requests

    def arrive(self, ask: Ask, now: float) -> list[Action]:
        """A request with a valid key and a known model wants to be served."""
        ticket = Ticket(ask, now)
        limits = self.limits.get(ask.key)
        if limits is not None:
            met = limits.take(ask.prompt_tokens + ask.max_tokens, now)
            if met is not None:
                text = f"Key {ask.key!r} has reached its limit of {met[0]}."
                return [Reject(ask.id, 429, "rate_limit_exceeded", text, met[1])]
            ticket.limited = True
        self.tickets[ask.id] = ticket
        if ask.state and not self.fleet.may_use(ask.state, ask.key):
            text = f"The response {ask.state[:128]!r} does not exist here."
            return [Reject(ask.id, 404, "response_not_found", text)]
        if ask.claims and not self.fleet.may_store(ask.claims, ask.key):
            text = f"There is a response {ask.claims[:128]!r} already: choose another request_id, or none."
            return [Reject(ask.id, 409, "response_exists", text)]
        self._placement.earn()
        return self._placement.place(ticket, now)

    def content(self, request: int, now: float) -> None:
        """The first content of a request reached us."""
        ticket = self.tickets.get(request)
        if ticket is None or ticket.where is None:
            return
        standing = self.fleet.standings.get(ticket.where)
        if standing is not None:
            standing.content(ticket, now)
        elif ticket.attempts:
            ticket.attempts[-1].first = now

    def own(self, request: int, state: str) -> None:
        """The answer carries an id by which later requests will ask for the same replica."""
        ticket = self.tickets.get(request)
        if ticket is not None and ticket.where is not None:
            self.fleet.own(state, ticket.where, ticket.ask.key)

    def finish(
        self, request: int, ok: bool, now: float, used_tokens: int = 0, usd: float = 0.0
    ) -> list[Action]:
        """The request is over: answered (`ok`), or failed beyond retrying.

        Args:
            used_tokens: prompt and completion tokens really used, which correct the key's estimate.
            usd: the real price at a provider.
        """
        ticket = self.tickets.pop(request, None)
        if ticket is None:
            return []
        if ticket.where is not None:
            self._placement.verdict(ticket.where, ok, now)
        self._placement.take_off(ticket, now, served=ok)
        self._release(ticket, used_tokens, usd, now)
        return self._placement.grant(now, ticket.ask.model)

    def cancel(self, request: int, now: float, used_tokens: int = 0, usd: float = 0.0) -> list[Action]:
        """The client left, or a deadline of its own ended the request; nobody is to blame."""
        ticket = self.tickets.pop(request, None)
        if ticket is None:
            return []
        if ticket.waiting:
            self.fleet.room(ticket.ask.model).remove(ticket)
        if ticket.where is not None:
            self._placement.abandon(ticket.where)
        self._placement.take_off(ticket, now, served=False)
        self._release(ticket, used_tokens, usd, now)
        return self._placement.grant(now, ticket.ask.model)

    def failed(self, request: int, cause: str, now: float) -> list[Action]:
        """The attempt failed before content. Decides what comes next.

        cause: `connect`, `reset`, `status NNN`, `early end`, `error event`, `ttft`, `stalled`.
        """
        ticket = self.tickets.get(request)
        if ticket is None or ticket.where is None:
            return []
        name = ticket.where
        standing = self.fleet.standings.get(name)
        if standing is not None:
            standing.failed_with(cause)
        self._end_attempt(ticket, name, cause, now)
        ticket.tried.add(name)
        return self._placement.again(ticket, name, cause, now) + self._placement.grant(now, ticket.ask.model)

    def slow(self, request: int, now: float, cause: str = "ttft") -> list[Action]:
        """No content within the first-token deadline: moves the request if there is anywhere else to go."""
        ticket = self.tickets.get(request)
        if (
            ticket is None
            or ticket.where is None
            or ticket.continued
            or not self._placement.may_retry(ticket)
        ):
            return []
        tried = ticket.tried | {ticket.where}
        if not self.fleet.usable(ticket.ask, tried, now) and self.fleet.provider(ticket, tried, now) is None:
            return []
        return self.failed(request, cause, now)

    def broken(self, request: int, cause: str, now: float) -> list[Action]:
        """The stream was cut after content, and its client may be served the rest by another replica: at once, or
        not at all. cause: as for `failed`; `refused` is nobody's fault.
        """
        ticket = self.tickets.get(request)
        if ticket is None or ticket.where is None:
            return []
        name = ticket.where
        tried = ticket.tried | {name}
        usable = self.fleet.usable(ticket.ask, tried, now) if name in self.fleet.standings else []
        sibling = (
            self.fleet.pick(ticket.ask, usable, now) if usable and self._placement.may_retry(ticket) else None
        )
        if sibling is None:
            return [GiveUp(request)]
        self._placement.retry_tokens -= 1
        self._end_attempt(ticket, name, cause, now)
        ticket.tried, ticket.continued = tried, True
        return [
            self._placement.send(ticket, sibling, usable, now),
            *self._placement.grant(now, ticket.ask.model),
        ]

    def progress(self, name: str, now: float) -> None:
        """Content bytes came from a replica."""
        standing = self.fleet.standings.get(name)
        if standing is not None and now > standing.moved_at:
            standing.moved_at = now

    # ---- events of replicas

    def scraped(self, name: str, load: EngineLoad, now: float) -> list[Action]:
        """A replica's metrics were read."""
        standing = self.fleet.standings.get(name)
        if standing is None:
            return []
        standing.scraped(load, now)
        return self._placement.grant(now, standing.replica.model)

    def probed(self, name: str, ok: bool, refused: bool, now: float, trouble: str = "") -> list[Action]:
        """A health probe came back. One refused connection is enough to be dead; a slow or bad answer needs two,
        and means nothing while content flows: busy is not dead.
        """
        standing = self.fleet.standings.get(name)
        if standing is None:
            return []
        standing.trouble = trouble
        if ok:
            if standing.alive is False:
                standing.joined = now
                standing.breaker.succeeded()
                self.fleet.prefixes.forget(name)
            standing.alive, standing.probe_failures = True, 0
            return self._placement.grant(now, standing.replica.model)
        if not refused and standing.flight and now - standing.moved_at < self.config.health.suspect_seconds:
            return []
        standing.probe_failures += 1
        if refused or standing.probe_failures >= 2:
            standing.alive = False
        return self._move_pending(standing, now) if standing.alive is False and not refused else []

    def canary(self, name: str, ok: bool, now: float) -> list[Action]:
        """A generation of our own on a stalled replica ended: any answer clears it."""
        standing = self.fleet.standings.get(name)
        if standing is None or not ok:
            return []
        standing.stalled = standing.suspect = False
        standing.moved_at = standing.joined = now
        standing.breaker.succeeded()
        return self._placement.grant(now, standing.replica.model)

    def tick(self, now: float) -> list[Action]:
        """Looks at the time: silence, waiting too long, overflow. Call about ten times a second."""
        actions: list[Action] = []
        for standing in self.fleet.standings.values():
            if standing.flight:
                standing.infer_capacity(now)
                before = standing.stalled
                standing.silence(now, self.config.health)
                if standing.stalled and not before:
                    actions += self._move_pending(standing, now)
        actions += self._placement.grant(now)
        for model, room in self.fleet.rooms.items():
            if room.size:
                actions += self._placement.overdue(model, now)
        for standing in self.fleet.standings.values():
            if standing.pending and self.fleet.has_providers(standing.replica.model):
                actions += self._placement.recall(standing, now)
        return actions

    # ---- inside

    def _end_attempt(self, ticket: Ticket, name: str, cause: str, now: float) -> None:
        """The live attempt failed at this upstream: blames it where it is to blame, and frees the place."""
        ticket.attempts[-1].cause = cause
        if cause in BLAMELESS:
            self._placement.abandon(name)
        else:
            self._placement.verdict(name, False, now)
        self._placement.take_off(ticket, now, served=False)

    def _move_pending(self, standing: Standing, now: float) -> list[Action]:
        """A replica is convicted: its requests without content go elsewhere, if there is an elsewhere."""
        actions: list[Action] = []
        for ticket in list(standing.pending.values()):
            actions += self.slow(ticket.ask.id, now, "stalled")
        return actions

    def _release(self, ticket: Ticket, used_tokens: int, usd: float, now: float) -> None:
        """Gives back what the request held at its end."""
        if ticket.limited and ticket.ask.key in self.limits:
            estimated = ticket.ask.prompt_tokens + ticket.ask.max_tokens
            self.limits[ticket.ask.key].give_back(estimated, used_tokens, ticket.arrived, now)
        target = ticket.attempts[-1].target if ticket.attempts else ""
        if usd and target in self.fleet.spending:
            self.fleet.spending[target].settle(0.0, usd, now)

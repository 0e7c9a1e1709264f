"""The dispatcher: events in, actions out. It alone decides where a request goes, waits, moves or ends.

Pure: the clock comes in as `now` (monotonic seconds), randomness as a callable, and what to do goes out as data.
One dispatcher holds the truth for all workers of a gateway.
"""

from collections.abc import Callable, Sequence

from longspan.gateway.config import GatewayConfig, Provider
from longspan.gateway.fleet import Fleet
from longspan.gateway.limits import KeyLimits
from longspan.gateway.standing import EngineLoad, Standing
from longspan.gateway.ticket import Action, Ask, Attempt, GiveUp, Reject, Send, Ticket

# Retries may be this share of requests, over a floor that lets a small gateway ride out a dead replica.
RETRY_SHARE = 0.2
RETRY_FLOOR = 20.0
# Attempts of one request at most: one that kills engines must not visit all of them.
MAX_ATTEMPTS = 3
# Failures that say nothing about the upstream's health.
BLAMELESS = ("status 429", "moved", "refused")


class Dispatcher:
    """The state of one gateway. Every public method returns the actions to carry out, in order."""

    def __init__(self, config: GatewayConfig, now: float, choose: Callable[[int], int]) -> None:
        self.config = config
        self.fleet = Fleet(config, now, choose)
        self.tickets: dict[int, Ticket] = {}
        self.limits: dict[str, KeyLimits] = {}
        self.retry_tokens = RETRY_FLOOR
        self.running = 0
        self.configure(config, now)

    def configure(self, config: GatewayConfig, now: float) -> list[Action]:
        """Takes a new configuration; learned state of replicas, keys and providers that stay is kept."""
        self.config = config
        self.fleet.configure(config, now)
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
        return self._grant(now)

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
        self.retry_tokens = min(RETRY_FLOOR * 5, self.retry_tokens + RETRY_SHARE)
        return self._place(ticket, now)

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
            self.fleet.own(state, ticket.where)

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
            self._verdict(ticket.where, ok, now)
        self._take_off(ticket, now, served=ok)
        self._release(ticket, used_tokens, usd, now)
        return self._grant(now, ticket.ask.model)

    def cancel(self, request: int, now: float, used_tokens: int = 0, usd: float = 0.0) -> list[Action]:
        """The client left, or a deadline of its own ended the request; nobody is to blame."""
        ticket = self.tickets.pop(request, None)
        if ticket is None:
            return []
        if ticket.waiting:
            self.fleet.room(ticket.ask.model).remove(ticket)
        if ticket.where is not None:
            self._abandon(ticket.where)
        self._take_off(ticket, now, served=False)
        self._release(ticket, used_tokens, usd, now)
        return self._grant(now, ticket.ask.model)

    def failed(self, request: int, cause: str, now: float) -> list[Action]:
        """The attempt failed before content. Decides what comes next.

        cause: `connect`, `reset`, `status NNN`, `early end`, `error event`, `ttft`, `stalled`.
        """
        ticket = self.tickets.get(request)
        if ticket is None or ticket.where is None:
            return []
        name = ticket.where
        ticket.attempts[-1].cause = cause
        standing = self.fleet.standings.get(name)
        if standing is not None:
            standing.failed_with(cause)
        if cause in BLAMELESS:
            self._abandon(name)
        else:
            self._verdict(name, False, now)
        self._take_off(ticket, now, served=False)
        ticket.tried.add(name)
        return self._again(ticket, name, cause, now) + self._grant(now, ticket.ask.model)

    def slow(self, request: int, now: float, cause: str = "ttft") -> list[Action]:
        """No content within the first-token deadline: moves the request if there is anywhere else to go."""
        ticket = self.tickets.get(request)
        if ticket is None or ticket.where is None or self.retry_tokens < 1 or ticket.continued:
            return []
        if len(ticket.attempts) >= MAX_ATTEMPTS:
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
        spent = self.retry_tokens < 1 or len(ticket.attempts) >= MAX_ATTEMPTS
        sibling = self.fleet.pick(ticket.ask, usable, now) if usable and not spent else None
        if sibling is None:
            return [GiveUp(request)]
        self.retry_tokens -= 1
        ticket.attempts[-1].cause = cause
        if cause in BLAMELESS:
            self._abandon(name)
        else:
            self._verdict(name, False, now)
        self._take_off(ticket, now, served=False)
        ticket.tried, ticket.continued = tried, True
        return [self._send(ticket, sibling, usable, now), *self._grant(now, ticket.ask.model)]

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
        return self._grant(now, standing.replica.model)

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
            return self._grant(now, standing.replica.model)
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
        return self._grant(now, standing.replica.model)

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
        actions += self._grant(now)
        for model, room in self.fleet.rooms.items():
            if room.size:
                actions += self._overdue(model, now)
        for standing in self.fleet.standings.values():
            if standing.pending and self.fleet.has_providers(standing.replica.model):
                actions += self._recall(standing, now)
        return actions

    # ---- decisions

    def _place(self, ticket: Ticket, now: float, front: bool = False) -> list[Action]:
        """Sends a ticket, lets it wait, or turns it away."""
        ask = ticket.ask
        fleet = self.fleet
        usable = fleet.usable(ask, ticket.tried, now)
        if not self._capped():
            if usable:
                reason = fleet.overflow_reason(ask, usable)
            else:
                reason = (
                    f"no_healthy_replica: {fleet.no_healthy(ask.model, now)}"
                    if fleet.replicas(ask.model)
                    else ""
                )
            if reason or not usable:
                provider = fleet.provider(ticket, ticket.tried, now)
                if provider is not None:
                    return [self._send_outside(ticket, provider, reason, now)]
            if usable and (front or not fleet.room(ask.model).size):
                best = fleet.pick(ask, usable, now)
                if best is not None:
                    return [self._send(ticket, best, usable, now)]
            if not fleet.replicas(ask.model):
                text = f"Nothing that serves {ask.model!r} is open to this request."
                return self._turn_away(ticket, 503, "no_replica", text, 5.0)
        if fleet.waiting() >= self.config.queue.max_waiting:
            if not usable and not self._capped():
                text = f"No healthy replica of {ask.model!r}: {fleet.no_healthy(ask.model, now)}."
                return self._turn_away(ticket, 503, "no_healthy_replica", text, 5.0)
            text = f"The wait room is full ({self.config.queue.max_waiting} requests)."
            return self._turn_away(ticket, 429, "queue_full", text, fleet.eta(ask.model))
        fleet.room(ask.model).push(ticket, front)
        return []

    def _send(self, ticket: Ticket, standing: Standing, usable: Sequence[Standing], now: float) -> Send:
        tokens = ticket.ask.prompt_tokens
        predicted = {s.name: round(s.predict(tokens), 3) for s in usable} if len(usable) > 1 else {}
        attempt = Attempt(
            standing.name,
            False,
            now,
            round(standing.predict(tokens), 3),
            "",
            candidates=predicted,
            continues=ticket.continued,
        )
        ticket.attempts.append(attempt)
        ticket.where = standing.name
        standing.sent(ticket, now)
        self.running += 1
        if ticket.ask.prefix:
            self.fleet.prefixes.remember(ticket.ask.prefix, standing.name)
        return Send(ticket.ask.id, standing.name, False)

    def _send_outside(self, ticket: Ticket, provider: Provider, reason: str, now: float) -> Send:
        ask, name = ticket.ask, provider.name
        if ticket.waiting:
            self.fleet.room(ask.model).remove(ticket)
        ticket.attempts.append(Attempt(name, True, now, 0.0, reason))
        ticket.where = name
        ticket.reserved_usd = self.fleet.spending[name].reserve(ask.prompt_tokens, ask.max_tokens, now)
        self.fleet.provider_breakers[name].sent()
        self.running += 1
        return Send(ask.id, name, True, reason)

    def _again(self, ticket: Ticket, name: str, cause: str, now: float) -> list[Action]:
        """After a failure: another replica, a provider, the same one once more if it is the last, or the end."""
        ask = ticket.ask
        replicas = self.fleet.replicas(ask.model)
        unsent = (
            cause == "connect"
        )  # the engine certainly executed nothing: trying again costs nobody anything
        if not unsent:
            if self.retry_tokens < 1 or len(ticket.attempts) >= MAX_ATTEMPTS:
                return [GiveUp(ask.id)]
            self.retry_tokens -= 1
        if self.fleet.usable(ask, ticket.tried, now) or self.fleet.provider(ticket, ticket.tried, now):
            return self._place(ticket, now, front=True)
        if unsent and replicas and not any(s.usable(now) for s in replicas):
            ticket.tried.clear()  # wait for one to come back
            return self._place(ticket, now, front=True)
        last = self.fleet.standings.get(name)
        if len(replicas) == 1 and last is not None and last.usable(now) and not ticket.retried_same:
            ticket.retried_same = True
            return [self._send(ticket, last, [last], now)]
        return [GiveUp(ask.id)]

    def _overdue(self, model: str, now: float) -> list[Action]:
        """Requests that wait too long here: outside if allowed, else turned away."""
        actions: list[Action] = []
        queue, threshold = self.config.queue, self.config.overflow.threshold_seconds
        busy = any(s.usable(now) for s in self.fleet.replicas(model))
        limit = queue.busy_wait_seconds if busy else queue.wait_seconds
        position = 0
        for ticket in list(self.fleet.room(model)):
            held = now - ticket.arrived
            if self.fleet.has_providers(model) and not self._capped():
                reason = _overflow_while_held(held, held + self.fleet.eta(model, position), threshold)
                provider = self.fleet.provider(ticket, ticket.tried, now) if reason else None
                if provider is not None:
                    actions.append(self._send_outside(ticket, provider, reason, now))
                    continue
            position += 1
            if held > limit:
                self.fleet.room(model).remove(ticket)
                actions += self._timed_out(ticket, held, busy, now)
        return actions

    def _recall(self, standing: Standing, now: float) -> list[Action]:
        """Moves requests that wait inside the engine beyond the threshold; the local attempt is ended first."""
        actions: list[Action] = []
        threshold = self.config.overflow.threshold_seconds
        moved = 0
        for index, ticket in enumerate(standing.queued()):
            elapsed = now - ticket.arrived
            eta = elapsed + standing.wait_seconds(index - moved)
            provider = None
            if max(eta, elapsed) > threshold:
                provider = self.fleet.provider(ticket, ticket.tried, now)
            if provider is None:
                continue
            moved += 1
            ticket.attempts[-1].cause = "moved"
            self._abandon(standing.name)
            self._take_off(ticket, now, served=False)
            actions.append(self._send_outside(ticket, provider, f"queue_eta={eta:.1f}s>{threshold:g}s", now))
        return actions

    def _move_pending(self, standing: Standing, now: float) -> list[Action]:
        """A replica is convicted: its requests without content go elsewhere, if there is an elsewhere."""
        actions: list[Action] = []
        for ticket in list(standing.pending.values()):
            actions += self.slow(ticket.ask.id, now, "stalled")
        return actions

    def _timed_out(self, ticket: Ticket, held: float, busy: bool, now: float) -> list[Action]:
        model = ticket.ask.model
        if busy:
            text = f"The request waited {held:.0f} s for a free place."
            return self._turn_away(ticket, 429, "queue_timeout", text, self.fleet.eta(model))
        text = f"No healthy replica of {model!r}: {self.fleet.no_healthy(model, now)}."
        return self._turn_away(ticket, 503, "no_healthy_replica", text, 5.0)

    def _turn_away(
        self, ticket: Ticket, status: int, code: str, text: str, after_seconds: float
    ) -> list[Action]:
        """Rejects; the ticket stays until its `finish` or `cancel`, so that permits have one way out."""
        return [Reject(ticket.ask.id, status, code, text, max(1.0, after_seconds))]

    def _grant(self, now: float, model: str | None = None) -> list[Action]:
        """Gives free places to those who wait, in their order."""
        actions: list[Action] = []
        for name in (model,) if model is not None else tuple(self.fleet.rooms):
            room = self.fleet.rooms.get(name)
            skipped: list[Ticket] = []
            while room is not None and room.size and not self._capped():
                if not any(s.free() and s.usable(now) for s in self.fleet.replicas(name)):
                    break
                ticket = room.pop()
                assert ticket is not None
                usable = self.fleet.usable(ticket.ask, ticket.tried, now) or self.fleet.usable(
                    ticket.ask, set(), now
                )
                best = self.fleet.pick(ticket.ask, usable, now) if usable else None
                if best is None:
                    skipped.append(
                        ticket
                    )  # tied to a replica that is full or away; others need not wait for it
                    continue
                actions.append(self._send(ticket, best, usable, now))
            for ticket in reversed(skipped):
                assert room is not None
                room.push(ticket, front=True)
        if model is not None and len(self.fleet.rooms) > 1 and self.config.queue.max_concurrent is not None:
            actions += self._grant(now)  # a freed place under the common cap may serve another model
        return actions

    def _capped(self) -> bool:
        cap = self.config.queue.max_concurrent
        return cap is not None and self.running >= cap

    # ---- bookkeeping

    def _verdict(self, name: str, ok: bool, now: float) -> None:
        """What an upstream's answer says about its health."""
        standing = self.fleet.standings.get(name)
        breaker = standing.breaker if standing is not None else self.fleet.provider_breakers.get(name)
        if standing is not None and ok:
            standing.alive, standing.probe_failures = True, 0
        if standing is not None and not ok:
            standing.failures += 1
        if breaker is not None:
            if ok:
                breaker.succeeded()
            else:
                breaker.failed(now)

    def _abandon(self, name: str) -> None:
        standing = self.fleet.standings.get(name)
        breaker = standing.breaker if standing is not None else self.fleet.provider_breakers.get(name)
        if breaker is not None:
            breaker.abandoned()

    def _take_off(self, ticket: Ticket, now: float, served: bool) -> None:
        """Ends the live attempt: frees its place."""
        if ticket.where is None:
            return
        standing = self.fleet.standings.get(ticket.where)
        if standing is not None:
            standing.left(ticket, now, served)
        elif ticket.where in self.fleet.spending:
            self.fleet.spending[ticket.where].settle(ticket.reserved_usd, 0.0, now)
            ticket.reserved_usd = 0.0
        ticket.where = None
        self.running -= 1

    def _release(self, ticket: Ticket, used_tokens: int, usd: float, now: float) -> None:
        """Gives back what the request held at its end."""
        if ticket.limited and ticket.ask.key in self.limits:
            estimated = ticket.ask.prompt_tokens + ticket.ask.max_tokens
            self.limits[ticket.ask.key].give_back(estimated, used_tokens, now)
        target = ticket.attempts[-1].target if ticket.attempts else ""
        if usd and target in self.fleet.spending:
            self.fleet.spending[target].settle(0.0, usd, now)


def _overflow_while_held(held: float, eta: float, threshold: float) -> str:
    if held >= threshold:
        return f"held={held:.1f}s>={threshold:g}s"
    return f"queue_eta={eta:.1f}s>{threshold:g}s" if eta > threshold else ""

"""Where a ticket goes now: to a replica, to a provider, into the wait room, or away. Pure.

`routing.py` turns events into calls of this; here are the rules of placing, retrying, overflowing and letting in.
"""

from collections.abc import Callable, Sequence

from longspan.gateway.config import GatewayConfig, Provider
from longspan.gateway.fleet import Fleet
from longspan.gateway.standing import Standing
from longspan.gateway.ticket import Action, Attempt, GiveUp, Reject, Send, Ticket

# Retries may be this share of requests, over a floor that lets a small gateway ride out a dead replica.
RETRY_SHARE = 0.2
RETRY_FLOOR = 20.0
# Attempts of one request at most: one that kills engines must not visit all of them.
MAX_ATTEMPTS = 3


class Placement:
    """The fleet with its wait rooms, how many requests run, and the budget of retries."""

    def __init__(self, config: GatewayConfig, now: float, choose: Callable[[int], int]) -> None:
        self.config = config
        self.fleet = Fleet(config, now, choose)
        self.retry_tokens = RETRY_FLOOR
        self.running = 0

    def configure(self, config: GatewayConfig, now: float) -> None:
        """Takes a new configuration."""
        self.config = config
        self.fleet.configure(config, now)

    def earn(self) -> None:
        """A new request adds to the budget of retries."""
        self.retry_tokens = min(RETRY_FLOOR * 5, self.retry_tokens + RETRY_SHARE)

    # ---- decisions

    def may_retry(self, ticket: Ticket) -> bool:
        """Whether the budget and the request's own count allow one more attempt."""
        return self.retry_tokens >= 1 and len(ticket.attempts) < MAX_ATTEMPTS

    def place(self, ticket: Ticket, now: float, front: bool = False) -> list[Action]:
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
                    return [self.send(ticket, best, usable, now)]
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

    def send(self, ticket: Ticket, standing: Standing, usable: Sequence[Standing], now: float) -> Send:
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

    def again(self, ticket: Ticket, name: str, cause: str, now: float) -> list[Action]:
        """After a failure: another replica, a provider, the same one once more if it is the last, or the end."""
        ask = ticket.ask
        replicas = self.fleet.replicas(ask.model)
        unsent = (
            cause == "connect"
        )  # the engine certainly executed nothing: trying again costs nobody anything
        if not unsent:
            if not self.may_retry(ticket):
                return [GiveUp(ask.id)]
            self.retry_tokens -= 1
        if self.fleet.usable(ask, ticket.tried, now) or self.fleet.provider(ticket, ticket.tried, now):
            return self.place(ticket, now, front=True)
        if unsent and replicas and not any(s.usable(now) for s in replicas):
            ticket.tried.clear()  # wait for one to come back
            return self.place(ticket, now, front=True)
        last = self.fleet.standings.get(name)
        if len(replicas) == 1 and last is not None and last.usable(now) and not ticket.retried_same:
            ticket.retried_same = True
            return [self.send(ticket, last, [last], now)]
        return [GiveUp(ask.id)]

    def overdue(self, model: str, now: float) -> list[Action]:
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

    def recall(self, standing: Standing, now: float) -> list[Action]:
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
            self.abandon(standing.name)
            self.take_off(ticket, now, served=False)
            actions.append(self._send_outside(ticket, provider, f"queue_eta={eta:.1f}s>{threshold:g}s", now))
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

    def grant(self, now: float, model: str | None = None) -> list[Action]:
        """Gives free places to those who wait, in their order."""
        if model is not None and self.config.queue.max_concurrent is None:
            room = self.fleet.rooms.get(model)
            if room is None or not room.size:
                return []
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
                actions.append(self.send(ticket, best, usable, now))
            for ticket in reversed(skipped):
                assert room is not None
                room.push(ticket, front=True)
        if model is not None and len(self.fleet.rooms) > 1 and self.config.queue.max_concurrent is not None:
            actions += self.grant(now)  # a freed place under the common cap may serve another model
        return actions

    def _capped(self) -> bool:
        cap = self.config.queue.max_concurrent
        return cap is not None and self.running >= cap

    # ---- bookkeeping

    def verdict(self, name: str, ok: bool, now: float) -> None:
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

    def abandon(self, name: str) -> None:
        standing = self.fleet.standings.get(name)
        breaker = standing.breaker if standing is not None else self.fleet.provider_breakers.get(name)
        if breaker is not None:
            breaker.abandoned()

    def take_off(self, ticket: Ticket, now: float, served: bool) -> None:
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


def _overflow_while_held(held: float, eta: float, threshold: float) -> str:
    if held >= threshold:
        return f"held={held:.1f}s>={threshold:g}s"
    return f"queue_eta={eta:.1f}s>{threshold:g}s" if eta > threshold else ""

"""The dispatcher: events in, actions out. It alone decides where a request goes, waits, moves or ends.

Pure: the clock comes in as `now` (monotonic seconds), randomness as a callable, and what to do goes out as data.
One dispatcher holds the truth for all workers of a gateway.
"""

from collections.abc import Callable, Sequence

from longspan.gateway import affinity
from longspan.gateway.config import GatewayConfig, Provider
from longspan.gateway.limits import KeyLimits
from longspan.gateway.outside import Spending
from longspan.gateway.standing import EngineLoad, Standing
from longspan.gateway.ticket import Action, Ask, Attempt, GiveUp, Reject, Send, Ticket
from longspan.gateway.waitroom import WaitRoom

# Up to this many candidates are compared all; among more, two random ones are (power of two choices).
COMPARE_ALL = 8
RETRY_SHARE = 0.2
RETRY_FLOOR = 20.0
# Causes after which the engine certainly executed nothing, so that trying again costs nobody anything.
UNSENT = ("connect",)
# Failures that say nothing about the replica's health.
BLAMELESS = ("status 429", "moved")


class Dispatcher:
    """The state of one gateway. Every public method returns the actions to carry out, in order."""

    def __init__(self, config: GatewayConfig, now: float, choose: Callable[[int], int]) -> None:
        self._choose = choose
        self.config = config
        self.tickets: dict[int, Ticket] = {}
        self.standings: dict[str, Standing] = {}
        self.spending: dict[str, Spending] = {}
        self.rooms: dict[str, WaitRoom] = {}
        self.limits: dict[str, KeyLimits] = {}
        self.prefixes = affinity.PrefixMemory()
        self.retry_tokens = RETRY_FLOOR
        self.running = 0
        self.overflowing: set[str] = set()
        self._by_model: dict[str, list[Standing]] = {}
        self._providers: dict[str, list[Provider]] = {}
        self.configure(config, now)

    # ---- configuration

    def configure(self, config: GatewayConfig, now: float) -> list[Action]:
        """Takes a new configuration; learned state of replicas, keys and providers that stay is kept."""
        self.config = config
        old = self.standings
        self.standings = {}
        for replica in config.replicas:
            known = old.get(replica.name)
            if known is None or known.replica.url != replica.url:
                known = Standing(replica, config.breaker, now)
                self.prefixes.forget(replica.name)
            elif known.replica.state != "ready" and replica.state == "ready":
                known.joined = now
            if replica.max_running and known.replica.max_running != replica.max_running:
                known.capacity = float(replica.max_running)
            known.replica = replica
            self.standings[replica.name] = known
        spending = self.spending
        self.spending = {p.name: spending.get(p.name) or Spending(p) for p in config.providers}
        for provider in config.providers:
            self.spending[provider.name].provider = provider
        limits = self.limits
        self.limits = {}
        for rule in config.keys:
            self.limits[rule.name] = limits.get(rule.name) or KeyLimits(rule)
            self.limits[rule.name].rule = rule
        for ticket in self.tickets.values():  # a key that was removed still has requests in flight
            if ticket.limited and ticket.ask.key not in self.limits:
                self.limits[ticket.ask.key] = limits[ticket.ask.key]
        self._by_model = {}
        for standing in self.standings.values():
            self._by_model.setdefault(standing.replica.model, []).append(standing)
        self._providers = {}
        for provider in config.providers:
            for model in provider.models:
                self._providers.setdefault(model, []).append(provider)
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
        standing = self.standings.get(ticket.where)
        if standing is not None:
            standing.content(ticket, now)
        elif ticket.attempts:
            ticket.attempts[-1].first = now

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
        standing = self.standings.get(ticket.where) if ticket.where else None
        if standing is not None:
            if ok:
                standing.breaker.succeeded()
            else:
                standing.failures += 1
                standing.breaker.failed(now)
        self._take_off(ticket, now, served=ok)
        self._release(ticket, used_tokens, usd, now)
        return self._grant(now, ticket.ask.model)

    def cancel(self, request: int, now: float, used_tokens: int = 0, usd: float = 0.0) -> list[Action]:
        """The client left, or a deadline of its own ended the request; nobody is to blame."""
        ticket = self.tickets.pop(request, None)
        if ticket is None:
            return []
        if ticket.waiting:
            self._room(ticket.ask.model).remove(ticket)
        standing = self.standings.get(ticket.where) if ticket.where else None
        if standing is not None:
            standing.breaker.abandoned()
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
        standing = self.standings.get(name)
        if ticket.attempts:
            ticket.attempts[-1].cause = cause
        if standing is not None:
            standing.failures += 1
            if cause == "connect":
                standing.alive = False
            if cause not in BLAMELESS:
                standing.breaker.failed(now)
            else:
                standing.breaker.abandoned()
            if cause == "reset" and standing.capacity is None and len(standing.flight) > 8:
                standing.capacity = float(
                    len(standing.flight) // 2
                )  # connections reset under load: it has too much
        self._take_off(ticket, now, served=False)
        ticket.tried.add(name)
        actions = self._again(ticket, name, cause, now)
        return actions + self._grant(now, ticket.ask.model)

    def slow(self, request: int, now: float) -> list[Action]:
        """No content within the first-token deadline: moves the request if there is anywhere else to go."""
        ticket = self.tickets.get(request)
        if ticket is None or ticket.where is None or self.retry_tokens < 1:
            return []
        tried = ticket.tried | {ticket.where}
        others = any(s.usable(now) and s.name not in tried for s in self._by_model.get(ticket.ask.model, ()))
        if not others and self._provider(ticket, exclude=tried) is None:
            return []
        return self.failed(request, "ttft", now)

    def progress(self, name: str, now: float) -> None:
        """Content bytes came from a replica."""
        standing = self.standings.get(name)
        if standing is not None and now > standing.moved_at:
            standing.moved_at = now

    # ---- events of replicas

    def scraped(self, name: str, load: EngineLoad, now: float) -> list[Action]:
        """A replica's metrics were read."""
        standing = self.standings.get(name)
        if standing is None:
            return []
        standing.scraped(load, now)
        return self._grant(now, standing.replica.model)

    def probed(self, name: str, ok: bool, refused: bool, now: float) -> list[Action]:
        """A health probe came back. One refused connection is enough to be dead, a slow answer needs two."""
        standing = self.standings.get(name)
        if standing is None:
            return []
        if ok:
            standing.probe_failures = 0
            if standing.alive is False:
                standing.joined = now
                standing.breaker.succeeded()
                self.prefixes.forget(name)
            standing.alive = True
            return self._grant(now, standing.replica.model)
        standing.probe_failures += 1
        if refused or standing.probe_failures >= 2:
            standing.alive = False
        return self._move_pending(standing, now) if standing.alive is False and not refused else []

    def canary(self, name: str, ok: bool, now: float) -> list[Action]:
        """A generation of our own on a stalled replica ended: any answer clears it."""
        standing = self.standings.get(name)
        if standing is None or not ok:
            return []
        standing.stalled = standing.suspect = False
        standing.moved_at = standing.joined = now
        standing.breaker.succeeded()
        return self._grant(now, standing.replica.model)

    def tick(self, now: float) -> list[Action]:
        """Looks at the time: silence, waiting too long, overflow. Call about ten times a second."""
        actions: list[Action] = []
        for standing in self.standings.values():
            if standing.flight:
                standing.infer_capacity(now)
                before = standing.stalled
                standing.silence(now, self.config.health)
                if standing.stalled and not before:
                    actions += self._move_pending(standing, now)
        actions += self._grant(now)
        actions += self._overdue(now)
        return actions

    # ---- decisions

    def _place(self, ticket: Ticket, now: float, front: bool = False) -> list[Action]:
        """Sends a ticket, lets it wait, or turns it away."""
        ask = ticket.ask
        cap = self.config.queue.max_concurrent
        capped = cap is not None and self.running >= cap
        locals_ = self._by_model.get(ask.model)
        if not locals_:
            provider = None if capped else self._provider(ticket, exclude=ticket.tried)
            if provider is not None:
                return [self._send_outside(ticket, provider, "", now)]
            if not self._providers.get(ask.model):
                return self._turn_away(
                    ticket, 503, "no_replica", f"No replica serves {ask.model!r}.", 5.0, now
                )
            if not capped:
                text = f"Model {ask.model!r} is served outside only, which is not open to this request."
                return self._turn_away(ticket, 503, "provider_unavailable", text, 5.0, now)
        if not capped and locals_:
            usable = [s for s in locals_ if s.usable(now) and s.name not in ticket.tried]
            if not usable:
                provider = self._provider(ticket, exclude=ticket.tried)
                if provider is not None:
                    return [self._send_outside(ticket, provider, self._no_healthy(locals_, now), now)]
            else:
                reason = self._overflow_reason(ticket, usable, now)
                provider = self._provider(ticket, exclude=ticket.tried) if reason else None
                if reason and provider is not None:
                    return [self._send_outside(ticket, provider, reason, now)]
                best = None if self._room(ask.model).size and not front else self._pick(ticket, usable, now)
                if best is not None:
                    return [self._send(ticket, best, usable, now)]
        room = self._room(ask.model)
        if sum(r.size for r in self.rooms.values()) >= self.config.queue.max_waiting:
            text = f"The wait room is full ({self.config.queue.max_waiting} requests)."
            return self._turn_away(ticket, 429, "queue_full", text, self._eta(ask.model), now)
        room.push(ticket, front)
        return []

    def _pick(self, ticket: Ticket, usable: Sequence[Standing], now: float) -> Standing | None:
        """The best replica that has a permit free: session, then prefix, then load."""
        ask = ticket.ask
        free = [s for s in usable if s.free()]
        if not free:
            return None
        if len(usable) == 1:
            return free[0]
        mode = self.config.routing.affinity
        bound = affinity.load_bound([len(s.flight) for s in usable]) if ask.session or ask.prefix else 0
        if ask.session is not None and mode in ("auto", "session"):
            by_name = {s.name: s for s in free if s.breaker.closed or len(free) == 1}
            for name in affinity.rank(ask.session, list(by_name)):
                if len(by_name[name].flight) < bound and not by_name[name].suspect:
                    return by_name[name]
        elif ask.prefix and mode in ("auto", "prefix"):
            known = self.prefixes.find(ask.prefix)
            home = next((s for s in free if known and s.name == known[0]), None)
            if home is not None and len(home.flight) < bound and not home.suspect:
                return home
        if len(free) > COMPARE_ALL:
            first = self._choose(len(free))
            second = (first + 1 + self._choose(len(free) - 1)) % len(free)
            free = [free[first], free[second]]
        ramp = self.config.routing.ramp_seconds
        scores = [(s.score(ask.prompt_tokens, now, ramp), s) for s in free]
        best = min(score for score, _ in scores)
        ties = [s for score, s in scores if score == best]
        return ties[self._choose(len(ties))] if len(ties) > 1 else ties[0]

    def _send(self, ticket: Ticket, standing: Standing, usable: Sequence[Standing], now: float) -> Send:
        ask = ticket.ask
        predicted = (
            {s.name: round(s.predict(ask.prompt_tokens), 3) for s in usable} if len(usable) > 1 else {}
        )
        eta = standing.predict(ask.prompt_tokens)
        ticket.attempts.append(Attempt(standing.name, False, now, round(eta, 3), "", candidates=predicted))
        ticket.where = standing.name
        ticket.overflowed = ""
        standing.sent(ticket, now)
        self.running += 1
        if ask.prefix and self.config.routing.affinity != "none":
            self.prefixes.remember(ask.prefix, standing.name)
        return Send(ask.id, standing.name, False)

    def _send_outside(self, ticket: Ticket, provider: Provider, reason: str, now: float) -> Send:
        if ticket.waiting:
            self._room(ticket.ask.model).remove(ticket)
        ticket.attempts.append(Attempt(provider.name, True, now, 0.0, reason))
        ticket.where = provider.name
        ticket.overflowed = reason
        ticket.reserved_usd = self.spending[provider.name].reserve(
            ticket.ask.prompt_tokens, ticket.ask.max_tokens, now
        )
        self.running += 1
        return Send(ticket.ask.id, provider.name, True, reason)

    def _again(self, ticket: Ticket, name: str, cause: str, now: float) -> list[Action]:
        """After a failure: another replica, a provider, the same one once more if it is the last, or the end."""
        ask = ticket.ask
        locals_ = self._by_model.get(ask.model, [])
        unsent = cause in UNSENT
        if not unsent:
            if self.retry_tokens < 1:
                return [GiveUp(ask.id)]
            self.retry_tokens -= 1
        fresh = [s for s in locals_ if s.usable(now) and s.name not in ticket.tried]
        if fresh or self._provider(ticket, exclude=ticket.tried) is not None:
            return self._place(ticket, now, front=True)
        if all(s.alive is False for s in locals_) and locals_ and cause == "connect":
            ticket.tried.clear()  # nobody executed anything: wait for one to come back
            return self._place(ticket, now, front=True)
        waiting = [s for s in locals_ if s.name not in ticket.tried and s.replica.state == "ready"]
        last = self.standings.get(name)
        if not waiting and last is not None and not ticket.retried_same and cause != "error event":
            ticket.retried_same = True
            if last.usable(now) and len(locals_) == 1:
                return [self._send(ticket, last, [last], now)]
        if unsent and waiting:
            return self._place(ticket, now, front=True)
        return [GiveUp(ask.id)]

    def _overflow_reason(self, ticket: Ticket, usable: Sequence[Standing], now: float) -> str:
        """Why a request should leave now, or nothing. With hysteresis, so that the border does not flap."""
        model = ticket.ask.model
        if model not in self._providers:
            return ""
        rule = self.config.overflow
        eta = min(s.queue_only() for s in usable)
        ahead = self._room(model).size
        if ahead:
            eta = self._eta(model)
        limit = rule.threshold_seconds * (rule.hysteresis if model in self.overflowing else 1.0)
        if eta > limit:
            self.overflowing.add(model)
            return f"queue_eta={eta:.1f}s>{limit:g}s"
        self.overflowing.discard(model)
        return ""

    def _eta(self, model: str, position: int | None = None) -> float:
        """Seconds until a request at `position` of the wait room (its end by default) would be sent."""
        rate = 0.0
        for s in self._by_model.get(model, ()):
            if s.alive is not False and not s.stalled and s.service_seconds:
                rate += (s.capacity or max(1, len(s.flight))) / s.service_seconds
        ahead = self._room(model).size if position is None else position
        return (ahead + 1) / rate if rate else 0.0

    def _overdue(self, now: float) -> list[Action]:
        """Requests that waited too long, here or inside an engine: outside if allowed, else turned away."""
        actions: list[Action] = []
        wait, threshold = self.config.queue.wait_seconds, self.config.overflow.threshold_seconds
        for model, room in self.rooms.items():
            may_leave = model in self._providers
            for position, ticket in enumerate(list(room)):
                held = now - ticket.arrived
                if may_leave and not self._capped():
                    eta = held + self._eta(model, position)
                    reason = ""
                    if held >= threshold:
                        reason = f"held={held:.1f}s>={threshold:g}s"
                    elif eta > threshold:
                        reason = f"queue_eta={eta:.1f}s>{threshold:g}s"
                    provider = self._provider(ticket, exclude=ticket.tried) if reason else None
                    if provider is not None:
                        actions.append(self._send_outside(ticket, provider, reason, now))
                        continue
                if held > wait:
                    room.remove(ticket)
                    actions += self._timed_out(ticket, held, now)
        for model in self._providers:
            for standing in self._by_model.get(model, ()):
                actions += self._recall(standing, threshold, now)
        return actions

    def _recall(self, standing: Standing, threshold: float, now: float) -> list[Action]:
        """Moves requests that wait inside the engine beyond the threshold; the local attempt is ended first."""
        actions: list[Action] = []
        moved = 0
        for index, ticket in enumerate(standing.queued()):
            elapsed = now - ticket.arrived
            eta = elapsed + standing.wait_seconds(index - moved)
            provider = self._provider(ticket, exclude=ticket.tried) if max(eta, elapsed) > threshold else None
            if provider is None:
                continue
            moved += 1
            ticket.attempts[-1].cause = "moved"
            standing.breaker.abandoned()
            self._take_off(ticket, now, served=False)
            actions.append(self._send_outside(ticket, provider, f"queue_eta={eta:.1f}s>{threshold:g}s", now))
        return actions

    def _move_pending(self, standing: Standing, now: float) -> list[Action]:
        """A replica is convicted: its requests without content go elsewhere, if there is an elsewhere."""
        actions: list[Action] = []
        for ticket in list(standing.pending.values()):
            actions += self.slow(ticket.ask.id, now)
        return actions

    def _timed_out(self, ticket: Ticket, held: float, now: float) -> list[Action]:
        locals_ = self._by_model.get(ticket.ask.model, [])
        if any(s.usable(now) for s in locals_):
            text = f"The request waited {held:.0f} s for a free place."
            return self._turn_away(ticket, 429, "queue_timeout", text, self._eta(ticket.ask.model), now)
        text = f"No healthy replica of {ticket.ask.model!r}: {self._no_healthy(locals_, now)}."
        return self._turn_away(ticket, 503, "no_healthy_replica", text, 5.0, now)

    def _no_healthy(self, locals_: Sequence[Standing], now: float) -> str:
        return "no_healthy_replica: " + "; ".join(s.why_not(now) for s in locals_)

    def _turn_away(
        self, ticket: Ticket, status: int, code: str, text: str, after: float, now: float
    ) -> list[Action]:
        self.tickets.pop(ticket.ask.id, None)
        self._release(ticket, 0, 0.0, now)
        return [Reject(ticket.ask.id, status, code, text, max(1.0, after))]

    def _grant(self, now: float, model: str | None = None) -> list[Action]:
        """Gives free places to those who wait, in their order."""
        actions: list[Action] = []
        for name in [model] if model is not None else list(self.rooms):
            room = self.rooms.get(name)
            while room is not None and room.size and not self._capped():
                usable = [s for s in self._by_model.get(name, ()) if s.usable(now)]
                if not any(s.free() for s in usable):
                    break
                ticket = room.pop()
                assert ticket is not None
                own = [s for s in usable if s.name not in ticket.tried] or usable
                best = self._pick(ticket, own, now)
                if best is None:
                    room.push(ticket, front=True)
                    break
                actions.append(self._send(ticket, best, own, now))
        return actions

    def _capped(self) -> bool:
        cap = self.config.queue.max_concurrent
        return cap is not None and self.running >= cap

    def _provider(self, ticket: Ticket, exclude: set[str]) -> Provider | None:
        """The first provider that may take this request, or None."""
        if ticket.ask.local_only:
            return None
        for provider in self._providers.get(ticket.ask.model, ()):
            if provider.name not in exclude and self.spending[provider.name].allows(
                ticket.ask.prompt_tokens, ticket.ask.max_tokens
            ):
                return provider
        return None

    def _room(self, model: str) -> WaitRoom:
        room = self.rooms.get(model)
        if room is None:
            room = self.rooms[model] = WaitRoom()
        return room

    def _take_off(self, ticket: Ticket, now: float, served: bool) -> None:
        """Ends the live attempt: frees its place."""
        if ticket.where is None:
            return
        standing = self.standings.get(ticket.where)
        if standing is not None:
            standing.left(ticket, now, served)
        elif ticket.where in self.spending:
            self.spending[ticket.where].settle(ticket.reserved_usd, 0.0, now)
            ticket.reserved_usd = 0.0
        ticket.where = None
        self.running -= 1

    def _release(self, ticket: Ticket, used_tokens: int, usd: float, now: float) -> None:
        """Gives back what the request held at its end."""
        if ticket.limited and ticket.ask.key in self.limits:
            ask = ticket.ask
            self.limits[ask.key].give_back(ask.prompt_tokens + ask.max_tokens, used_tokens, now)
        if usd and ticket.attempts and ticket.attempts[-1].target in self.spending:
            self.spending[ticket.attempts[-1].target].settle(0.0, usd, now)

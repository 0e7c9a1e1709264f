"""All upstreams of a gateway and the choice among them: replicas by session, prefix and load; providers by breaker
and money; seconds of queue. Pure: reads and remembers, sends nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from longspan.gateway import affinity
from longspan.gateway.breaker import Breaker
from longspan.gateway.config import GatewayConfig, Provider
from longspan.gateway.outside import Spending
from longspan.gateway.standing import Standing
from longspan.gateway.ticket import Ask, Ticket
from longspan.gateway.waitroom import WaitRoom

# Up to this many candidates are compared all; among more, two random ones are (power of two choices,
# Mitzenmacher 2001). With one truth about load, comparing all has no herd to fear.
COMPARE_ALL = 8
# About 300 bytes each. vLLM keeps what it stores in memory as well, and much more of it.
MAX_OWNERS = 100_000


class Fleet:
    """Replicas and providers with what is known of them, and the wait rooms before them."""

    def __init__(self, config: GatewayConfig, now: float, choose: Callable[[int], int]) -> None:
        self._choose = choose
        self.config = config
        self.standings: dict[str, Standing] = {}
        self.spending: dict[str, Spending] = {}
        self.provider_breakers: dict[str, Breaker] = {}
        self.rooms: dict[str, WaitRoom] = {}
        self.prefixes = affinity.PrefixMemory()
        self.overflowing: set[str] = set()
        self._owners: OrderedDict[str, tuple[str, str]] = OrderedDict()  # response -> replica, key
        self._by_model: dict[str, list[Standing]] = {}
        self._providers: dict[str, list[Provider]] = {}
        self.configure(config, now)

    def configure(self, config: GatewayConfig, now: float) -> None:
        """Takes a new configuration; what was learned of upstreams that stay is kept."""
        self.config = config
        old = self.standings
        self.standings = {}
        self._by_model = {}
        for replica in config.replicas:
            known = old.get(replica.name)
            if known is None or known.replica.url != replica.url:
                known = Standing(replica, config.breaker, now)
                self.prefixes.forget(replica.name)
            known.take(replica, now)
            self.standings[replica.name] = known
            self._by_model.setdefault(replica.model, []).append(known)
        self.spending = {p.name: self.spending.get(p.name) or Spending(p) for p in config.providers}
        self._providers = {}
        for provider in config.providers:
            self.spending[provider.name].provider = provider
            rule = config.breaker
            self.provider_breakers.setdefault(provider.name, Breaker(rule.failures, rule.open_seconds))
            for model in provider.models:
                self._providers.setdefault(model, []).append(provider)

    # ---- who there is

    def replicas(self, model: str) -> Sequence[Standing]:
        """All replicas of a model, usable or not."""
        return self._by_model.get(model, ())

    def usable(self, ask: Ask, tried: set[str], now: float) -> list[Standing]:
        """Replicas that may get this request. State that lives in one replica ties the request to it."""
        owner = self.standings.get(self._owners.get(ask.state, ("", ""))[0]) if ask.state else None
        if owner is not None:
            return [owner] if owner.usable(now) and owner.name not in tried else []
        return [s for s in self._by_model.get(ask.model, ()) if s.usable(now) and s.name not in tried]

    def own(self, state: str, name: str, key: str) -> None:
        """Notes which replica holds a stored response, and for whom. It never becomes another key's: clients may
        choose the id of a response.
        """
        if not self.may_store(state, key):
            return
        self._owners[state] = name, key
        self._owners.move_to_end(state)
        if len(self._owners) > MAX_OWNERS:
            self._owners.popitem(last=False)

    def may_use(self, state: str, key: str) -> bool:
        """Whether a stored response was made by this key. Of one that is not known here, nobody knows that: only
        a gateway without keys, whose clients are all the same, lets an engine say what it has.
        """
        owner = self._owners.get(state)
        return owner[1] == key if owner is not None else not self.config.keys

    def may_store(self, state: str, key: str) -> bool:
        """Whether a response may get this id: it is new, or the key's own."""
        owner = self._owners.get(state)
        return owner is None or owner[1] == key

    def has_providers(self, model: str) -> bool:
        """Whether anybody outside serves the model."""
        return model in self._providers

    def provider(self, ticket: Ticket, tried: set[str], now: float) -> Provider | None:
        """The first provider that may take this request: allowed to leave, healthy, under its cap."""
        ask = ticket.ask
        if ask.state or ticket.continued:
            return None
        for provider in self._providers.get(ask.model, ()):
            if ask.local_only and not provider.own:
                continue
            name = provider.name
            affordable = self.spending[name].allows(ask.prompt_tokens, ask.max_tokens, now)
            if name not in tried and affordable and self.provider_breakers[name].allows(now):
                return provider
        return None

    # ---- the choice

    def pick(self, ask: Ask, usable: Sequence[Standing], now: float) -> Standing | None:
        """The best replica that has a permit free: session, then prefix, then load."""
        free = [s for s in usable if s.free()]
        if len(usable) == 1 or not free:
            return free[0] if free else None
        mode = self.config.routing.affinity
        home = None
        if ask.session is not None and mode in ("auto", "session"):
            home = self._session_home(ask.session, usable)
        elif ask.prefix and mode in ("auto", "prefix"):
            home = self._prefix_home(ask.prefix, usable)
        return home or self._least_loaded(ask, free, now)

    def _session_home(self, session: int, usable: Sequence[Standing]) -> Standing | None:
        bound = affinity.load_bound([len(s.flight) for s in usable])
        by_name = {s.name: s for s in usable if s.breaker.closed}
        for name in affinity.rank(session, list(by_name)):
            home = by_name[name]
            if home.free() and len(home.flight) < bound and not home.suspect:
                return home
        return None

    def _prefix_home(self, prefix: Sequence[int], usable: Sequence[Standing]) -> Standing | None:
        known = self.prefixes.find(prefix)
        home = next((s for s in usable if s.name == known[0]), None) if known else None
        if home is None or home.suspect or not home.free() or not home.breaker.closed:
            return None
        return home if len(home.flight) < affinity.load_bound([len(s.flight) for s in usable]) else None

    def _least_loaded(self, ask: Ask, free: list[Standing], now: float) -> Standing:
        if len(free) > COMPARE_ALL:
            first = self._choose(len(free))
            second = (first + 1 + self._choose(len(free) - 1)) % len(free)
            free = [free[first], free[second]]
        ramp = self.config.routing.ramp_seconds
        scores = [(s.score(ask.prompt_tokens, now, ramp), s) for s in free]
        best = min(score for score, _ in scores)
        ties = [s for score, s in scores if score == best]
        return ties[self._choose(len(ties))] if len(ties) > 1 else ties[0]

    # ---- seconds of queue

    def room(self, model: str) -> WaitRoom:
        """The model's wait room."""
        room = self.rooms.get(model)
        if room is None:
            room = self.rooms[model] = WaitRoom()
        return room

    def waiting(self) -> int:
        """Requests in all wait rooms."""
        return sum(room.size for room in self.rooms.values())

    def eta(self, model: str, position: int | None = None) -> float:
        """Seconds until a request at `position` of the wait room (its end by default) would be sent; 0 if unknown."""
        rate = 0.0
        ahead: float = self.room(model).size if position is None else position
        for s in self._by_model.get(model, ()):
            if s.alive is not False and not s.stalled and s.service_seconds:
                runs = s.capacity or max(1, len(s.flight))
                rate += runs / s.service_seconds
                ahead += max(0.0, len(s.flight) + s.foreign - runs)
        return (ahead + 1) / rate if rate else 0.0

    def queue_seconds(self, model: str, usable: Sequence[Standing]) -> float:
        """Predicted seconds of queue for the next request of a model; 0 where it would be run at once."""
        return (
            self.eta(model) if self.room(model).size else min((s.queue_only() for s in usable), default=0.0)
        )

    def overflow_reason(self, ask: Ask, usable: Sequence[Standing]) -> str:
        """Why a request should leave now, or nothing. With hysteresis, so that the border does not flap."""
        model = ask.model
        if model not in self._providers:
            return ""
        rule = self.config.overflow
        eta = self.queue_seconds(model, usable)
        limit = rule.threshold_seconds * (rule.hysteresis if model in self.overflowing else 1.0)
        if eta > limit:
            self.overflowing.add(model)
            return f"queue_eta={eta:.1f}s>{limit:g}s"
        self.overflowing.discard(model)
        return ""

    def no_healthy(self, model: str, now: float) -> str:
        """Why no replica of the model is usable."""
        return "; ".join(s.why_not(now) for s in self._by_model.get(model, ()))

"""What the gateway believes about one replica: load from its own ledger, corrected by scrapes; health from what it
sees; and the time to first token that follows."""

from dataclasses import dataclass

from longspan.gateway.breaker import Breaker
from longspan.gateway.config import BreakerRule, Health, Replica
from longspan.gateway.ticket import Ticket

SMOOTHING = (
    0.3  # weight of the newest sample in every moving average; a guess, the last few requests dominate
)
SCRAPE_FRESH_SECONDS = 4.0
# From this share of its cache on, an engine that lets requests wait does so for want of cache. A guess.
KV_FULL = 0.9
# Without metrics only our own streams show progress, and a lone long prefill shows none: convict later. A guess.
BLIND_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One reading of an engine's metrics, summed over its data-parallel engines.

    progress: a fingerprint of its counters; if it changes, the engine works.
    """

    running: float
    waiting: float
    kv_used: float
    progress: tuple[float, ...] = ()


class Standing:
    """One replica's state. Only `routing.py` changes it."""

    def __init__(self, replica: Replica, breaker: BreakerRule, now: float) -> None:
        self.replica = replica
        self.breaker = Breaker(breaker.failures, breaker.open_seconds)
        self.flight: dict[int, Ticket] = {}
        self.pending: dict[int, Ticket] = {}  # sent, no content yet, in the order of sending
        self.pending_tokens = 0  # prompt tokens of those
        self.alive: bool | None = None
        self.probe_failures = 0
        self.trouble = ""
        self.stalled = False
        self.suspect = False
        self.moved_at = now  # last byte of content, change of a counter, or moment when work began
        self.joined = now
        self.load: EngineLoad | None = None
        self.load_at = -1e9
        self.load_trusted = False
        self.foreign = 0.0
        self.capacity: float | None = None
        self.service_seconds: float | None = None
        self.ttft_seconds: float | None = None
        self.prefill_rate: float | None = None
        self.requests = 0
        self.failures = 0

    def take(self, replica: Replica, now: float) -> None:
        """A new configuration of the same replica."""
        if self.replica.state != "ready" and replica.state == "ready":
            self.joined = now
        if replica.max_running:
            self.capacity = float(replica.max_running)
        elif self.replica.max_running:
            self.capacity = None
        self.replica = replica

    @property
    def name(self) -> str:
        """The replica's name."""
        return self.replica.name

    def usable(self, now: float) -> bool:
        """Whether a request may be sent at all."""
        return (
            self.replica.state == "ready"
            and self.replica.weight > 0
            and self.alive is not False
            and not self.stalled
            and self.breaker.allows(now)
        )

    def why_not(self, now: float) -> str:
        """The reason for not being usable, for people."""
        replica = self.replica
        if replica.state != "ready":
            return f"{replica.name} is {replica.state}" + (f" ({replica.reason})" if replica.reason else "")
        if self.alive is False:
            return f"{replica.name} does not answer" + (f" ({self.trouble})" if self.trouble else "")
        if self.stalled:
            return f"{replica.name} is stalled: work outstanding, no token for {now - self.moved_at:.0f} s"
        if not self.breaker.closed:
            return f"{replica.name} failed {self.breaker.row} times in a row"
        return f"{replica.name} is usable" if replica.weight > 0 else f"{replica.name} has weight 0"

    @property
    def permits(self) -> float:
        """How many requests it may hold: what it runs at once and a little more, so that batches stay full."""
        if self.capacity is None:
            return float("inf")
        return self.capacity + max(1.0, self.capacity // 8) - self.foreign

    def free(self) -> bool:
        """Whether it may get one more."""
        return len(self.flight) < max(1.0, self.permits)

    def queued(self) -> list[Ticket]:
        """Those of our requests that wait inside the engine, first come first: sent and above what it runs."""
        if self.capacity is None or not self.pending:
            return []
        slots = max(0.0, self.capacity - self.foreign) - (len(self.flight) - len(self.pending))
        return list(self.pending.values())[max(0, int(slots)) :]

    def wait_seconds(self, ahead: float) -> float:
        """Seconds until the engine starts a request with `ahead` others waiting before it. 0 while unknown."""
        if self.capacity is None or ahead < 0 or self.service_seconds is None:
            return 0.0
        return (ahead + 1) * self.service_seconds / max(1.0, self.capacity)

    def predict(self, prompt_tokens: int) -> float:
        """Predicted seconds to first token of a request sent now."""
        ahead = (
            len(self.flight) + self.foreign - (self.capacity if self.capacity is not None else float("inf"))
        )
        wait = self.wait_seconds(ahead) if ahead >= 0 else 0.0
        tokens = prompt_tokens + self.pending_tokens
        prefill = tokens / self.prefill_rate if self.prefill_rate else (self.ttft_seconds or 0.0)
        return wait + prefill

    def score(self, prompt_tokens: int, now: float, ramp_seconds: float) -> tuple[float, float, float]:
        """Smaller is better: suspicion first, then predicted seconds, then load per weight."""
        weight = self.replica.weight
        if ramp_seconds > 0 and now - self.joined < ramp_seconds:
            weight *= max(0.1, (now - self.joined) / ramp_seconds)
        load = (len(self.flight) + self.foreign + 1) / weight
        busy = self.load.kv_used > 0.97 if self.load and self.foreign else False
        return (float(self.suspect), round(self.queue_only() + float(busy), 1), load)

    def queue_only(self) -> float:
        """Predicted seconds of queue for the next request, without its own prefill."""
        if self.capacity is None:
            return 0.0
        ahead = len(self.flight) + self.foreign - self.capacity
        return self.wait_seconds(ahead) if ahead >= 0 else 0.0

    def sent(self, ticket: Ticket, now: float) -> None:
        """A request goes out to it."""
        if not self.flight:
            self.moved_at = now
        room = self.capacity is None or len(self.flight) + self.foreign < self.capacity
        ticket.attempts[-1].began = now if room else None
        self.flight[ticket.ask.id] = ticket
        self.pending[ticket.ask.id] = ticket
        self.pending_tokens += ticket.ask.prompt_tokens
        self.requests += 1
        self.breaker.sent()

    def adopt(self, ticket: Ticket) -> None:
        """A request that was sent to a replica of this name before this state began."""
        if ticket.ask.id not in self.flight:
            self.flight[ticket.ask.id] = ticket
            if ticket.attempts[-1].first is None:
                self.pending[ticket.ask.id] = ticket
                self.pending_tokens += ticket.ask.prompt_tokens

    def content(self, ticket: Ticket, now: float) -> None:
        """The first content of a request came."""
        self.moved_at = max(self.moved_at, now)
        if self.pending.pop(ticket.ask.id, None) is None:
            return
        self.pending_tokens -= ticket.ask.prompt_tokens
        if not ticket.attempts:
            return
        attempt = ticket.attempts[-1]
        attempt.first = now
        flowing = len(self.flight) - len(self.pending)
        if self.capacity is not None and not self.replica.max_running and flowing > self.capacity:
            self.capacity = float(flowing)
        if attempt.began is None:
            return  # it waited in the engine, nobody knows how long
        took = now - attempt.began
        self.ttft_seconds = _blend(self.ttft_seconds, took)
        if ticket.ask.prompt_tokens >= 256 and took > 0:
            self.prefill_rate = _blend(self.prefill_rate, ticket.ask.prompt_tokens / took)

    def left(self, ticket: Ticket, now: float, served: bool) -> None:
        """A request is off its hands. `served`: it came to its end, so its time teaches the service time."""
        next_up = self.queued()
        self.flight.pop(ticket.ask.id, None)
        if self.pending.pop(ticket.ask.id, None) is not None:
            self.pending_tokens -= ticket.ask.prompt_tokens
        for waiting in next_up:  # the engine starts the first of its queue now
            if waiting is not ticket and waiting.attempts[-1].began is None:
                waiting.attempts[-1].began = now
                break
        if not served or not ticket.attempts:
            return
        self.moved_at = max(self.moved_at, now)
        attempt = ticket.attempts[-1]
        began = attempt.first or attempt.began or attempt.sent
        self.service_seconds = _blend(self.service_seconds, max(0.001, now - began))

    def scraped(self, load: EngineLoad, now: float) -> None:
        """A reading of the engine's metrics: corrects the ledger, learns capacity, notes progress."""
        moved = self.load is None or load.progress != self.load.progress
        if moved and load.progress:
            self.moved_at = max(self.moved_at, now)
        self.load, self.load_at = load, now
        told = load.running + load.waiting
        self.foreign = max(0.0, told - len(self.flight))
        # Gauges lag 3 to 18 s (vllm#49538); ones that know fewer than half of our requests are not believed.
        self.load_trusted = told * 2 >= len(self.flight)
        if not self.load_trusted:
            return
        told_seqs = self.replica.max_running
        # A told limit is lowered only where the engine waits for cache: it may also wait for its next step.
        if load.waiting > 0 and (not told_seqs or load.kv_used > KV_FULL):
            self._set_capacity(max(1.0, min(load.running, told_seqs or load.running)))
        elif self.capacity is not None and load.running + 1 >= self.capacity:
            grown = max(self.capacity, load.running) * 1.5 + 1
            self.capacity = min(grown, float(told_seqs)) if told_seqs else grown

    def _set_capacity(self, capacity: float) -> None:
        unknown, self.capacity = self.capacity is None, capacity
        if unknown:
            for ticket in self.queued():
                ticket.attempts[-1].began = None  # they wait, as it turns out

    def failed_with(self, cause: str) -> None:
        """An attempt failed: dead at once if nobody listens; given too much if connections break under load."""
        if cause == "connect":
            self.alive = False
        if cause == "reset" and self.capacity is None and len(self.flight) > 8:
            self.capacity = float(len(self.flight) // 2)

    def infer_capacity(self, now: float) -> None:
        """Without fresh metrics: streams that flow while others wait far beyond the usual show what runs at once."""
        fresh = self.load_trusted and now - self.load_at < SCRAPE_FRESH_SECONDS
        if self.replica.max_running or fresh or not self.pending:
            return
        flowing = sum(ticket.ask.stream for ticket in self.flight.values()) - len(self.pending)
        oldest = next(iter(self.pending.values()))
        usual = self.ttft_seconds or 0.0
        if self.prefill_rate:
            usual = max(usual, self.pending_tokens / self.prefill_rate)
        if flowing > 0 and now - oldest.attempts[-1].sent > max(1.0, 4 * usual):
            self._set_capacity(float(flowing))

    def silence(self, now: float, health: Health) -> None:
        """Suspicion moves traffic, conviction moves requests: work outstanding and nothing moves."""
        waited = now - self.moved_at if self.flight else 0.0
        if self.load is not None:
            limit = health.stall_seconds
        elif any(ticket.ask.stream for ticket in self.flight.values()):
            limit = health.stall_seconds * BLIND_FACTOR
        else:
            return
        self.suspect = waited >= health.suspect_seconds * limit / health.stall_seconds
        self.stalled = self.stalled or waited >= limit


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTHING * (new - old)

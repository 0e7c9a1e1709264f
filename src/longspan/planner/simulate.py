"""Event simulation of one engine: continuous batching with chunked prefill, prefix hits and admission by KV space.

It follows vLLM's V1 scheduler: every step gives each running request one token, then spends what is left of
`max_num_batched_tokens` on prompts, first come first served, in chunks; a request that no longer fits in the cache is
preempted, newest first, and recomputed. Between two events nothing changes but the length of the contexts, so runs of
equal decode steps are taken in one stride: the cost grows with the number of requests, not of tokens.

Arrivals and lengths are given, so the result is a pure function.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# The longest stride of decode steps priced as one: contexts grow by this many tokens at most between two prices. Answers of
# more than 64 such strides are cut into 64, so that a million tokens cost no more than sixteen thousand.
_STRIDE_STEPS = 256
_STRIDES = 64


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `cached_tokens` of the prompt are found in the prefix cache. Arrival is ignored in a closed loop."""

    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """What one step works on, summed over the batch.

    Attributes:
        prefill_tokens: prompt tokens computed. prefill_pairs: query-key pairs of them (each token sees its context).
        prefill_requests: prompts that took part.
        decode_requests: requests that get one token. context_tokens: the cache tokens they read.
        steps: how many steps of this load are taken in one stride; the price is that of one.
    """

    prefill_tokens: float = 0
    prefill_pairs: float = 0
    prefill_requests: float = 0
    decode_requests: float = 0
    context_tokens: float = 0
    steps: int = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """The engine's limits: `max_num_batched_tokens`, `max_num_seqs` and the cache in tokens."""

    batched_tokens: int
    sequences: int
    kv_tokens: float


@dataclass(frozen=True, slots=True)
class Served:
    """What one request saw, in seconds. `tpot_seconds` is the mean after the first token, 0 for a single token."""

    arrival_seconds: float
    ttft_seconds: float
    tpot_seconds: float
    end_seconds: float
    output_tokens: int

    @property
    def e2e_seconds(self) -> float:
        """From arrival to the last token."""
        return self.end_seconds - self.arrival_seconds


@dataclass(slots=True)
class _Running:
    """A request inside the engine; lengths change when it is preempted and recomputed."""

    number: int
    arrival: float
    prompt: int
    left: int
    done: int = 0
    first_token: float = -1.0
    epoch: int = 0
    ends_at: int = 0


class _Engine:
    """The state between two steps."""

    def __init__(self, limits: Limits, longest_output: int = 0) -> None:
        self.limits = limits
        self.stride_steps = max(_STRIDE_STEPS, longest_output // _STRIDES)
        self.now = 0.0
        self.step = 0
        self.context = 0.0
        self.waiting: deque[_Running] = deque()
        self.prefilling: deque[_Running] = deque()
        self.decoding: dict[int, _Running] = {}
        self.ends: list[tuple[int, int, int]] = []

    def enter(self, number: int, request: Request, arrival: float) -> None:
        """A request joins the queue; what the prefix cache holds of it is done already."""
        cached = min(request.cached_tokens, request.prompt_tokens - 1)
        left = max(request.output_tokens, 1)
        self.waiting.append(_Running(number, arrival, request.prompt_tokens, left, done=cached))

    def admit(self) -> None:
        """Moves waiting requests to prefill while there are places and cache."""
        held = self.context + sum(request.prompt for request in self.prefilling)
        while self.waiting:
            request = self.waiting[0]
            places = self.limits.sequences - len(self.decoding) - len(self.prefilling)
            empty = not self.decoding and not self.prefilling
            if places <= 0 or (held + request.prompt > self.limits.kv_tokens and not empty):
                return
            held += request.prompt
            self.prefilling.append(self.waiting.popleft())

    def plan(self) -> tuple[Load, list[tuple[_Running, int]]]:
        """The next step's load and how many tokens of which prompt it computes."""
        budget = max(self.limits.batched_tokens - len(self.decoding), 0)
        chunks: list[tuple[_Running, int]] = []
        tokens = 0
        pairs = 0.0
        for request in self.prefilling:
            take = min(request.prompt - request.done, budget - tokens)
            if take <= 0 and request.done < request.prompt:
                break
            take = max(take, 1)  # a prompt found whole in the cache still computes its last token
            chunks.append((request, take))
            tokens += take
            pairs += take * (request.done + take / 2)
        load = Load(tokens, pairs, len(chunks), len(self.decoding), self.context)
        return load, chunks

    def start(self, request: _Running) -> None:
        """A prompt is done: its first token is out, the others follow one a step."""
        if request.first_token < 0:
            request.first_token = self.now
        request.left -= 1
        request.ends_at = self.step + request.left
        self.decoding[request.number] = request
        self.context += request.prompt
        heapq.heappush(self.ends, (request.ends_at, request.number, request.epoch))

    def finished(self) -> list[_Running]:
        """Takes out the requests whose last token came with this step."""
        found = []
        while self.ends and self.ends[0][0] <= self.step:
            _, number, epoch = heapq.heappop(self.ends)
            request = self.decoding.get(number)
            if request is not None and request.epoch == epoch:
                del self.decoding[number]
                self.context -= request.prompt + request.left
                found.append(request)
        return found

    def preempt(self) -> None:
        """While the next tokens find no room, the newest request gives its cache back and waits first in line."""
        while len(self.decoding) > 1 and self.context + len(self.decoding) > self.limits.kv_tokens:
            _, request = self.decoding.popitem()
            generated = request.left - (request.ends_at - self.step)
            self.context -= request.prompt + generated
            request.prompt += generated
            request.left -= generated
            request.done = 0
            request.epoch += 1
            self.waiting.appendleft(request)

    def steps_until_full(self) -> int:
        """Decode steps that surely fit in the cache."""
        room = self.limits.kv_tokens - self.context
        return max(int(room // max(len(self.decoding), 1)), 1)


def simulate(
    requests: Sequence[Request],
    limits: Limits,
    step_seconds: Callable[[Load], float],
    *,
    concurrency: int | None = None,
) -> list[Served]:
    """Serves all requests and says what each saw, in order of completion.

    Args:
        requests: in order of arrival.
        step_seconds: the price of a step.
        concurrency: None for an open loop, where each request comes at its arrival time; a number for a closed loop,
            where that many clients each send their next request when the last one ends. It reaches the engine while
            the following step already runs, as with a real client.
    """
    engine = _Engine(limits, max((request.output_tokens for request in requests), default=0))
    source = _Source(requests, concurrency)
    served: list[Served] = []
    while True:
        source.release(engine)
        engine.admit()
        if engine.prefilling:
            _mixed_step(engine, step_seconds)
        elif engine.decoding:
            _stride(engine, step_seconds, until=source.next_seconds, sees_at=source.next_step)
        elif not source.skip_to_next(engine):
            return served
        for request in engine.finished():
            after_first = requests[request.number].output_tokens - 1
            tpot = (engine.now - request.first_token) / after_first if after_first > 0 else 0.0
            ttft = request.first_token - request.arrival
            served.append(Served(request.arrival, ttft, tpot, engine.now, max(after_first, 0) + 1))
            source.answered(engine)
        engine.preempt()


class _Source:
    """Where requests come from: their arrival times, or clients that wait for answers."""

    def __init__(self, requests: Sequence[Request], concurrency: int | None) -> None:
        self.coming = deque(enumerate(requests))
        self.closed = concurrency is not None
        # the step from which on the scheduler sees a client's next request, and when it was sent
        self.clients: deque[tuple[int, float]] = deque((0, 0.0) for _ in range(concurrency or 0))

    @property
    def next_seconds(self) -> float | None:
        return None if self.closed or not self.coming else self.coming[0][1].arrival_seconds

    @property
    def next_step(self) -> int | None:
        return self.clients[0][0] if self.closed and self.clients and self.coming else None

    def release(self, engine: _Engine) -> None:
        """Hands over what has arrived by now."""
        if self.closed:
            while self.coming and self.clients and self.clients[0][0] <= engine.step:
                engine.enter(*self.coming.popleft(), self.clients.popleft()[1])
        else:
            while self.coming and self.coming[0][1].arrival_seconds <= engine.now:
                number, request = self.coming.popleft()
                engine.enter(number, request, request.arrival_seconds)

    def skip_to_next(self, engine: _Engine) -> bool:
        """With nothing to do, time passes until the next arrival; False when there is none."""
        if self.next_seconds is not None:
            engine.now = max(engine.now, self.next_seconds)
        elif self.next_step is not None:
            engine.step = self.next_step
        else:
            return False
        return True

    def answered(self, engine: _Engine) -> None:
        """A client has its answer and sends the next request, which the step now running no longer takes in."""
        self.clients.append((engine.step + 1, engine.now))


def _mixed_step(engine: _Engine, step_seconds: Callable[[Load], float]) -> None:
    """One step with prompts in it."""
    load, chunks = engine.plan()
    engine.now += step_seconds(load)
    engine.step += 1
    engine.context += len(engine.decoding)
    for request, take in chunks:
        request.done += take
    while engine.prefilling and engine.prefilling[0].done >= engine.prefilling[0].prompt:
        engine.start(engine.prefilling.popleft())


def _stride(
    engine: _Engine,
    step_seconds: Callable[[Load], float],
    *,
    until: float | None = None,
    sees_at: int | None = None,
) -> None:
    """Takes decode steps until the next request ends or comes (at time `until` or step `sees_at`), or the cache fills."""
    count = len(engine.decoding)
    while engine.ends[0][2] != getattr(engine.decoding.get(engine.ends[0][1]), "epoch", -1):
        heapq.heappop(engine.ends)
    steps = min(engine.ends[0][0] - engine.step, engine.stride_steps, engine.steps_until_full())
    if sees_at is not None:
        steps = min(steps, sees_at - engine.step)
    steps = max(steps, 1)
    price = step_seconds(Load(0, 0, 0, count, engine.context + count * (steps - 1) / 2, steps))
    if until is not None and engine.now + price * steps > until:
        steps = max(min(int((until - engine.now) / price) + 1, steps), 1)
        price = step_seconds(Load(0, 0, 0, count, engine.context + count * (steps - 1) / 2, steps))
    engine.now += price * steps
    engine.step += steps
    engine.context += count * steps

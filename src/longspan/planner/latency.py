"""What users will see: TTFT, TPOT and throughput of a replica under a workload, with intervals.

The simulator serves the requests step by step on an `EngineModel`; percentiles are read off what each request saw. The
intervals are the held-out errors of the calibration, and wider where a part of the model is a guess.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from longspan.plan import Estimate
from longspan.planner.engine_model import EngineModel
from longspan.planner.simulate import Limits, Load, Request, Served, simulate
from longspan.planner.step_costs import UNCALIBRATED_FACTOR, spread, together
from longspan.workload import Objective, Workload

# Requests simulated at least for an estimate, and the share of them left out while the batch fills.
REQUESTS = 400
_WARM_UP_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a benchmark measures: what its numbers hold beside the engine's own time.

    Attributes:
        rounds: requests per client in a closed loop. skip_rounds: left out at the start (warm measurement).
        low, high: lengths are uniform between these shares of the nominal ones.
        arrival_seconds: from the client's clock to the engine, once per request. token_seconds: more per prompt token
            (tokenising, transfer).
        engine_factor: on the engine's own TTFT; above 1 where the clients of a measurement saw more than the model explains.
    """

    rounds: int
    skip_rounds: int
    low: float
    high: float
    arrival_seconds: float
    token_seconds: float
    engine_factor: float = 1.0

    def requests(
        self, count: int, prompt_tokens: int, output_tokens: int, prefix_hit_share: float = 0.0
    ) -> list[Request]:
        """Requests of a closed loop, with lengths evenly spread over the protocol's range."""
        width = self.high - self.low
        found = []
        for first, second in zip(_spaced(count, 2), _spaced(count, 3), strict=True):
            prompt = max(1, round(prompt_tokens * (self.low + width * first)))
            output = max(1, round(output_tokens * (self.low + width * second)))
            found.append(Request(0.0, prompt, output, int(prompt * prefix_hit_share)))
        return found


# The serving benchmark of vLLM as most published points use it: all clients start at once and that first burst counts,
# lengths are drawn from 80 to 100 % of the nominal ones, ten requests a client.
BURST = Protocol(10, 0, 0.8, 1.0, 1.55e-3, 4.41e-6)
# A warm measurement that leaves out the first burst (the vLLM 0.12 points of the calibration were taken so).
WARM = Protocol(10, 2, 0.8, 1.2, 7.13e-3, 4.41e-6, 2.08)
# What a user's request pays between its arrival at the server and the engine.
SERVED = Protocol(10, 2, 1.0, 1.0, 1.55e-3, 4.41e-6)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """One quantity over all requests, in seconds."""

    mean: float
    values: tuple[float, ...]

    def at(self, percentile: float) -> float:
        """The percentile, by linear interpolation."""
        place = (len(self.values) - 1) * percentile / 100
        low = int(place)
        high = min(low + 1, len(self.values) - 1)
        return self.values[low] + (self.values[high] - self.values[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a replica did with a workload. `completed_share` below 1 means the queue grew without end."""

    ttft: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    output_tokens_per_second: float
    requests_per_second: float
    completed_share: float = 1.0

    def quantity(self, name: str) -> Percentiles:
        """ttft, tpot or e2el."""
        return {"ttft": self.ttft, "tpot": self.tpot, "e2el": self.e2e}[name]

    def meets(self, objective: Objective) -> bool:
        """Whether an objective holds in the median estimate."""
        return self.quantity(objective.quantity).at(objective.percentile) <= objective.seconds


def _percentiles(values: list[float]) -> Percentiles:
    values.sort()
    return Percentiles(sum(values) / len(values), tuple(values))


def statistics(served: Sequence[Served], skip: int, protocol: Protocol, prompt_tokens: float) -> Statistics:
    """Sums up what requests saw, without the first `skip` to end; client time is added to TTFT."""
    kept = list(served[skip:]) or list(served)
    client = protocol.arrival_seconds + protocol.token_seconds * prompt_tokens
    begin = served[skip - 1].end_seconds if 0 < skip < len(served) else min(s.arrival_seconds for s in kept)
    span = max(kept[-1].end_seconds - begin, 1e-9)
    return Statistics(
        ttft=_percentiles([one.ttft_seconds * protocol.engine_factor + client for one in kept]),
        tpot=_percentiles([one.tpot_seconds for one in kept if one.output_tokens > 1] or [0.0]),
        e2e=_percentiles([one.e2e_seconds + client for one in kept]),
        output_tokens_per_second=sum(one.output_tokens for one in kept) / span,
        requests_per_second=len(kept) / span,
    )


def _spaced(count: int, base: int) -> list[float]:
    """Van der Corput's sequence: evenly spread in [0, 1) however many are taken."""
    found = []
    for index in range(1, count + 1):
        value, part, left = 0.0, 1.0 / base, index
        while left:
            value += part * (left % base)
            left //= base
            part /= base
        found.append(value)
    return found


def closed_loop(
    engine: EngineModel,
    limits: Limits,
    prompt_tokens: int,
    output_tokens: int,
    concurrency: int,
    protocol: Protocol = BURST,
    prefix_hit_share: float = 0.0,
    max_requests: int | None = None,
) -> Statistics:
    """Statistics of `concurrency` clients that each send their next request when the last one ends."""
    count = max(protocol.rounds * concurrency, 8)
    if max_requests is not None:
        count = max(min(count, max_requests), 2 * concurrency)
    skip = min(protocol.skip_rounds * concurrency, count // 2)
    requests = protocol.requests(count, prompt_tokens, output_tokens, prefix_hit_share)
    served = simulate(requests, limits, engine.step_seconds, concurrency=concurrency)
    return statistics(served, skip, protocol, prompt_tokens)


def open_loop(
    engine: EngineModel, limits: Limits, workload: Workload, count: int | None = None, share: float = 1.0
) -> Statistics:
    """Statistics of arrivals that do not wait for answers.

    Args:
        count: requests simulated; by default enough that a request's life is short beside the whole.
        share: this replica's part of the arrivals (1 / replicas under even routing).
    """
    mine = (
        workload if share == 1.0 or workload.trace else workload.at_rate(workload.requests_per_second * share)
    )
    arrivals = mine.arrivals(count or _enough(mine))
    if workload.trace and share < 1.0:
        arrivals = arrivals[:: max(round(1 / share), 1)]
    requests = [
        Request(
            one.seconds,
            one.prompt_tokens,
            one.output_tokens,
            int(one.prompt_tokens * workload.prefix_hit_share),
        )
        for one in arrivals
    ]
    served = simulate(requests, limits, engine.step_seconds)
    found = statistics(served, int(len(served) * _WARM_UP_SHARE), SERVED, workload.prompt_tokens)
    # A queue that grows shows in the second half: fewer requests end than come.
    end = arrivals[-1].seconds
    middle = (arrivals[0].seconds + end) / 2
    came = sum(one.seconds > middle for one in arrivals)
    ended = sum(middle < one.end_seconds <= end for one in served)
    offered = len(arrivals) / max(end - arrivals[0].seconds, 1e-9)
    rate = min(found.requests_per_second, offered)
    return replace(
        found,
        # The last answers come after the last arrival, so the span is longer than the load lasted.
        output_tokens_per_second=found.output_tokens_per_second * rate / found.requests_per_second,
        requests_per_second=rate,
        completed_share=min(ended / came, 1.0) if came else 1.0,
    )


def _enough(workload: Workload) -> int:
    """Requests to simulate: several lives of a request at 30 ms a token, within bounds."""
    if workload.trace:
        return REQUESTS * 4
    return int(
        min(max(REQUESTS, 4 * workload.requests_per_second * workload.output_tokens * 0.03), 4 * REQUESTS)
    )


def serve(engine: EngineModel, limits: Limits, workload: Workload, replicas: int = 1) -> Statistics:
    """Statistics of one replica out of `replicas` that share the workload evenly."""
    if workload.is_open:
        return open_loop(engine, limits, workload, share=1 / replicas)
    clients = max(-(-max(workload.concurrency, 1) // replicas), 1)
    protocol = Protocol(
        4, 1, 1 - workload.spread, 1 + workload.spread, SERVED.arrival_seconds, SERVED.token_seconds
    )
    return closed_loop(
        engine, limits, workload.prompt_tokens, workload.output_tokens, clients, protocol, workload.prefix_hit_share,
        max_requests=max(3 * clients, 200),
    )  # fmt: skip


def highest_rate(
    engine: EngineModel, limits: Limits, workload: Workload, ceiling: float, floor: float = 0.0
) -> float:
    """The highest rate in requests per second at which one replica still meets all objectives; 0 if none does.

    Args:
        ceiling: a rate that is surely too high, such as the saturated throughput. floor: one that is known to hold.
    """

    def holds(rate: float) -> bool:
        found = open_loop(engine, limits, workload.at_rate(rate))
        return found.completed_share > 0.8 and all(found.meets(one) for one in workload.objectives)

    low, high = floor, ceiling
    if ceiling <= floor or holds(ceiling):
        return ceiling
    for _ in range(5 if floor else 7):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class Steady:
    """The steady state of one replica: requests per second, seconds per output token, requests in the batch."""

    requests_per_second: float
    tpot_seconds: float
    batch: float


def steady(engine: EngineModel, limits: Limits, workload: Workload, clients: float) -> Steady:
    """The steady mix of prompts and decodes with `clients` requests in the system, in closed form.

    Each request passes once as a prompt and stays `output_tokens` steps; the batch is as large as the clients, the cache and
    `max_num_seqs` allow. Good enough to rank layouts; the simulation has the last word.
    """
    prompt = max(workload.prompt_tokens * (1 - workload.prefix_hit_share), 1.0)
    held = workload.prompt_tokens + workload.output_tokens / 2
    batch = max(min(limits.sequences, limits.kv_tokens / held, clients), 1.0)
    # Prompts per step that keep the batch full, as far as the token budget goes.
    prompts = min(batch / workload.output_tokens, max(limits.batched_tokens - batch, 1.0) / prompt)
    batch = max(min(batch, prompts * workload.output_tokens), 1.0)
    mixed_share = min(1.0, prompts)
    each = prompts / mixed_share
    decode = engine.step_seconds(Load(0, 0, 0, batch, batch * held))
    pairs = each * prompt * (workload.prompt_tokens - prompt / 2)
    both = engine.step_seconds(Load(each * prompt, pairs, each, batch, batch * held))
    seconds = (1 - mixed_share) * decode + mixed_share * both
    return Steady(prompts / seconds, seconds, batch)


def capacity(engine: EngineModel, limits: Limits, workload: Workload) -> Steady:
    """The steady state at the highest rate one replica bears within the objectives on time per token, in closed form."""
    bounds = [one.seconds for one in workload.objectives if one.quantity == "tpot"]
    found = steady(engine, limits, workload, 1)
    clients = 2
    while clients <= 2 * limits.sequences:
        tried = steady(engine, limits, workload, min(clients, limits.sequences))
        if any(tried.tpot_seconds > bound for bound in bounds):
            break
        found = tried
        clients *= 2
    return found


def with_interval(
    value: float, quantity: str, engine: EngineModel, unit: str, factor: float = 1.0
) -> Estimate:
    """A number with the interval of its quantity.

    Args:
        quantity: `ttft`, `tpot`, `throughput`, `e2el` or `user_speed`. factor: wider than what was measured, on a logarithmic scale.
    """
    source = engine.stages[0].costs.source
    if not engine.is_calibrated:
        factor = together(factor, UNCALIBRATED_FACTOR)
        if not source.startswith("guess"):
            source = f"{source}; links or stages are guesses"
    seen = spread(engine.stages[0].site.gpu, quantity).widened(factor)
    return Estimate(value, value * seen.p10, value * seen.p90, unit, source)

"""Alarms about engines: stalled, flat, unequal, slow, preempting, caching nothing. Pure."""

import statistics
from collections.abc import Iterable

from longspan.finding import Evidence
from longspan.monitor.alarms import Hit, Rule, Scene, fresh, level, seen
from longspan.monitor.view import LatencyView, QuantileView, ReplicaView
from longspan.units import format_seconds

# Beyond the window of the rates (10 s). A CPU takes 8 s for one batch, so it gets the patience that the controller has with it.
QUIET_SECONDS = 8.0
CPU_QUIET_SECONDS = 30.0
# Fewer requests than that say nothing about a 99th percentile; it is the largest of them.
P99_COUNT = 20


def stalled(scene: Scene) -> Iterable[Hit]:
    """The controller keeps traffic from a replica that runs."""
    for replica in scene.view.replicas:
        if replica.phase == "suspected":
            yield Hit(
                replica.name, f"{replica.name} gets no traffic: {replica.reason}.",
                (seen("controller", replica.reason),),
                "`longspan doctor` reads the live ranks. If it does not recover, `longspan down` and `up` restart it.",
            )  # fmt: skip


def failed(scene: Scene) -> Iterable[Hit]:
    """A replica that failed."""
    for replica in scene.view.replicas:
        if replica.phase == "failed":
            yield Hit(
                replica.name, f"{replica.name} failed: {replica.reason}", (seen("controller", replica.reason),),
                "`longspan doctor` says why.",
            )  # fmt: skip


def flat(scene: Scene) -> Iterable[Hit]:
    """Requests run or wait, and neither a token nor the KV cache moves: /health says 200 all the while."""
    patience = CPU_QUIET_SECONDS if scene.view.device == "cpu" else QUIET_SECONDS
    for replica in scene.serving:
        quiet = scene.quiet_seconds.get(replica.name, 0.0)
        if quiet >= patience:
            yield Hit(
                replica.name,
                f"{replica.name} has {_count(replica)} and has given no token for {quiet:.0f} s.",
                (seen("num_requests_running", f"{replica.running or 0:.0f}"), seen("generation_tokens", "flat")),
                "Likely a rank is dead or waits in a collective: `longspan doctor` compares where the ranks stand.",
                about=replica.name,
            )  # fmt: skip


def _count(replica: ReplicaView) -> str:
    return f"{replica.running or 0:.0f} requests running and {replica.waiting or 0:.0f} waiting"


def unequal(scene: Scene) -> Iterable[Hit]:
    """One replica has several times the work of the others."""
    load = {r.name: (r.running or 0) + (r.waiting or 0) for r in scene.serving if r.running is not None}
    if len(load) < 2:
        return
    for name, most in load.items():
        middle = statistics.median(value for other, value in load.items() if other != name)
        over = level(most, max(8.0, 3 * middle + 4), max(6.0, 2 * middle + 2))
        if over is not None:
            yield Hit(
                name, f"{name} has {most:.0f} requests, the others {middle:.0f} in the middle.",
                tuple(seen(f"requests of {other}", f"{value:.0f}") for other, value in sorted(load.items())[:8]),
                "Look at the gateway's affinity: one session or shared prefix that all use binds them to one replica.",
                over, name,
            )  # fmt: skip


def preempting(scene: Scene) -> Iterable[Hit]:
    """The KV cache is too small for what runs at once: work is thrown away and done again."""
    for replica in scene.serving:
        over = level(replica.preemptions_per_second, 0.5, 0.1)
        if over is not None:
            yield Hit(
                replica.name,
                f"{replica.name} preempts {replica.preemptions_per_second:.1f} requests a second: their work is done twice.",
                (seen("num_preemptions", f"{replica.preemptions_per_second:.2f}/s"), _kv(replica)),
                "Lower --max-num-seqs, or make room: a higher --gpu-memory-utilization, --kv-cache-dtype fp8, another replica.",
                over, replica.name,
            )  # fmt: skip


def _kv(replica: ReplicaView) -> Evidence:
    use = replica.kv_use_share
    return seen("kv_cache_usage_perc", "n/a" if use is None else f"{use:.0%}")


def cache_useless(scene: Scene) -> Iterable[Hit]:
    """Prompts come in numbers and hardly a token of them was cached."""
    for replica in scene.serving:
        busy = (replica.prompt_tokens_per_second or 0) >= 200
        low = level(replica.prefix_hit_share, 0.01, 0.03) if busy else None
        if low is not None:
            yield Hit(
                replica.name,
                f"{replica.prefix_hit_share:.1%} of {replica.name}'s prompt tokens come out of the prefix cache.",
                (seen("prefix_cache_hits", f"{replica.prefix_hit_share:.2%} of the queried tokens"),),
                "Put what prompts share at their beginning, keep sessions on one replica (gateway affinity), or accept it: "
                "traffic without shared prefixes gains nothing from it.",
                low, replica.name,
            )  # fmt: skip


def slow_first_token(scene: Scene) -> Iterable[Hit]:
    """The 99th percentile of the time to the first token is over its objective: in an engine, or as clients see it."""
    limit = scene.objectives.ttft_p99_seconds
    for replica in scene.serving:
        yield from _over(replica.name, replica.ttft, limit, "TTFT")
    if fresh(scene.view.gateway.age_seconds):
        yield from _over("gateway", scene.view.gateway.ttft, limit, "TTFT")


def slow_tokens(scene: Scene) -> Iterable[Hit]:
    """The 99th percentile of the time per output token is over its objective."""
    limit = scene.objectives.tpot_p99_seconds
    for replica in scene.serving:
        yield from _over(replica.name, replica.tpot, limit, "TPOT")


def certain_p99(found: LatencyView | None) -> QuantileView | None:
    """A 99th percentile that an objective can be held against; None where it says too little. "Below 10 ms" is not over an
    objective of 5 ms for all that is known."""
    if found is None or found.p99 is None or found.count < P99_COUNT or found.p99.bound == "below":
        return None
    return found.p99


def _over(name: str, found: LatencyView | None, limit: float | None, what: str) -> Iterable[Hit]:
    p99 = certain_p99(found)
    if limit is None or found is None or p99 is None:
        return
    over = level(p99.seconds, limit, 0.9 * limit)
    if over is not None:
        more = "more than " if p99.bound == "above" else ""
        yield Hit(
            name,
            f"{'the gateway' if name == 'gateway' else name}'s {what} p99 is {more}{format_seconds(p99.seconds)}, the objective {format_seconds(limit)}.",
            (seen(f"{what} p99", f"{p99.seconds:.3f} s of {found.count:.0f}"),),
            "The alarm `slow` beside it says what it is bound by.",
            over, name,
        )  # fmt: skip


RULES = (
    Rule("replica-failed", "error", "A replica failed.", failed, 0, 0),
    Rule("replica-stalled", "error", "The controller keeps traffic from a replica that runs.", stalled, 0, 10),
    Rule(
        "flat-tokens", "error", "Requests run, and neither a token nor the KV cache moves.", flat, 0, 5,
        "https://github.com/vllm-project/vllm/issues/16259",
    ),
    Rule("replica-imbalance", "warning", "One replica has several times the work of the others.", unequal, 30, 60),
    Rule("preemption-storm", "warning", "More than one preemption in two seconds.", preempting, 20, 60),
    Rule("prefix-cache-useless", "info", "Less than 1 % of a busy replica's prompt tokens were cached.", cache_useless, 300, 300),
    Rule("ttft-over-objective", "warning", "TTFT p99 over its objective, in an engine or at the gateway.", slow_first_token, 30, 60),
    Rule("tpot-over-objective", "warning", "TPOT p99 over its objective.", slow_tokens, 30, 60),
)  # fmt: skip

"""The diagnosis behind "slow": what a replica is bound by, from its live metrics, with what to change. Pure.

A replica is slow when it misses an objective, or, where none is set, when requests wait in it or before it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from longspan.finding import Evidence
from longspan.monitor.alarms import Hit, Rule, Scene, fresh, seen
from longspan.monitor.rates import share
from longspan.monitor.rules_gpu import gpus_of
from longspan.monitor.rules_network import BUSY_BYTES_PER_SECOND, traffic
from longspan.monitor.rules_replica import certain_p99
from longspan.monitor.view import GatewayView, LatencyView, ReplicaView
from longspan.units import format_seconds

KV_FULL_SHARE = 0.9
PORT_FULL_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What binds a replica: a short name, a sentence, what to change, the figures it follows from."""

    bound_by: str
    text: str
    remedy: str
    evidence: tuple[Evidence, ...]


def diagnose(scene: Scene, replica: ReplicaView) -> Diagnosis:
    """What the replica is bound by. The causes are tried in the order in which one hides the next."""
    for check in (_kv_full, _before_the_engine, _seats, _network, _prefill, _compute):
        if found := check(scene, replica):
            return found
    waiting = "n/a" if replica.waiting is None else f"{replica.waiting:.0f}"
    return Diagnosis(
        "unknown", "nothing measured here explains it",
        "Measure with `longspan bench`, and look at the client and the way to it.",
        (seen("num_requests_waiting", waiting), seen("kv_cache_usage_perc", _share(replica.kv_use_share))),
    )  # fmt: skip


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0%}"


def _mean(found: LatencyView | None) -> float | None:
    return found.mean_seconds if found else None


def _kv_full(scene: Scene, replica: ReplicaView) -> Diagnosis | None:
    pressed = (replica.waiting or 0) > 0 or (replica.preemptions_per_second or 0) > 0
    if (replica.kv_use_share or 0) < KV_FULL_SHARE or not pressed:
        return None
    tokens = f" of {replica.kv_tokens:,} tokens" if replica.kv_tokens else ""
    return Diagnosis(
        "KV space", f"the KV cache{tokens} is {replica.kv_use_share:.0%} full and {replica.waiting or 0:.0f} requests wait for room",
        "Make room: --kv-cache-dtype fp8, a higher --gpu-memory-utilization, more GPUs a replica; or another replica.",
        (seen("kv_cache_usage_perc", _share(replica.kv_use_share)), seen("num_requests_waiting", f"{replica.waiting or 0:.0f}"),
         seen("num_preemptions", f"{replica.preemptions_per_second or 0:.2f}/s")),
    )  # fmt: skip


def _before_the_engine(scene: Scene, replica: ReplicaView) -> Diagnosis | None:
    """The gateway holds requests, or its time to first token is far above the engine's."""
    gateway = scene.view.gateway
    if not fresh(gateway.age_seconds):
        return None
    door, engine = _mean(gateway.ttft), _mean(replica.ttft)
    lone = len(scene.view.replicas) == 1  # with several, the gateway's figure is not this one's
    far = lone and door is not None and engine is not None and door > 2 * engine + 0.1
    if not (gateway.waiting and not replica.waiting) and not far:
        return None
    times = f", first tokens take {format_seconds(door)} there and {format_seconds(engine)} in the engine" if far and door and engine else ""  # fmt: skip
    return Diagnosis(
        "queue before the engine", f"{gateway.waiting or 0:.0f} requests wait in the gateway{times}",
        "Raise `max_running` of the replica (and the engine's --max-num-seqs) if its KV cache has room; else add a replica.",
        (seen("longspan_gateway_waiting", f"{gateway.waiting or 0:.0f}"), seen("num_requests_waiting", f"{replica.waiting or 0:.0f}"),
         seen("kv_cache_usage_perc", _share(replica.kv_use_share))),
    )  # fmt: skip


def _seats(scene: Scene, replica: ReplicaView) -> Diagnosis | None:
    """Requests wait in the engine for most of the time to their first token though there is KV space."""
    queue, ttft = _mean(replica.queue), _mean(replica.ttft)
    roomy = replica.kv_use_share is not None and replica.kv_use_share < 0.7
    if not replica.waiting or not roomy or queue is None or not ttft or queue < 0.5 * ttft:
        return None
    return Diagnosis(
        "places in the batch", f"requests wait {format_seconds(queue)} of {format_seconds(ttft)} to their first token while the KV cache is {replica.kv_use_share:.0%} full",
        "Raise --max-num-seqs (and --max-num-batched-tokens), if the time per token allows it.",
        (seen("request_queue_time_seconds", f"mean {queue:.3f} s"), seen("time_to_first_token_seconds", f"mean {ttft:.3f} s"),
         seen("num_requests_running", f"{replica.running or 0:.0f}")),
    )  # fmt: skip


def _network(scene: Scene, replica: ReplicaView) -> Diagnosis | None:
    """A port of one of its nodes is nearly full, or its GPUs are all busy at little power: they spin in collectives."""
    nodes = scene.fresh_nodes_of(replica)
    for node in nodes if len(nodes) > 1 else ():
        for port in node.ports:
            most = max(port.rx_bytes_per_second or 0.0, port.tx_bytes_per_second or 0.0) * 8
            if (
                port.rate_bits_per_second
                and not port.virtual
                and most > PORT_FULL_SHARE * port.rate_bits_per_second
            ):
                return Diagnosis(
                    "network", f"{port.name} of {node.name} carries {most / 1e9:.1f} of {port.rate_bits_per_second / 1e9:.0f} Gbit/s",
                    "Keep TP within a node and use PP over nodes; use all NICs (NCCL_IB_HCA); look at the alarm collectives-on-tcp.",
                    (seen(f"{node.name}/{port.name}", f"{most / 1e9:.2f} Gbit/s"),),
                )  # fmt: skip
    shares = [
        (gpu.utilisation_share, share(gpu.power_watts, gpu.power_limit_watts))
        for gpu in gpus_of(scene, replica)
    ]
    known = [(use, power) for use, power in shares if use is not None and power is not None]
    moved = sum(traffic(n, "rdma") or 0.0 for n in nodes) + sum(traffic(n, "netdev") or 0.0 for n in nodes)
    if (
        len(nodes) > 1
        and known
        and moved > BUSY_BYTES_PER_SECOND
        and min(u for u, _ in known) > 0.9
        and max(p for _, p in known) < 0.45
    ):
        return Diagnosis(
            "network", "its GPUs are busy all the time at less than 45 % of their power: they wait for one another in collectives",
            "Keep TP within a node; check that collectives use RDMA and GPUDirect (`longspan check`).",
            (seen("GPU power", f"at most {max(p for _, p in known):.0%} of the limit"), seen("network", f"{moved / 1e6:.0f} MB/s")),
        )  # fmt: skip
    return None


def _prefill(scene: Scene, replica: ReplicaView) -> Diagnosis | None:
    """Most of the time to the first token is spent on the prompt, and prompts are most of the work."""
    prefill, ttft = _mean(replica.prefill), _mean(replica.ttft)
    prompt, out = replica.prompt_tokens_per_second or 0.0, replica.generation_tokens_per_second or 0.0
    if prefill is None or not ttft or prefill < 0.5 * ttft or prompt < 8 * max(out, 1.0):
        return None
    return Diagnosis(
        "prefill", f"prompts take {format_seconds(prefill)} of {format_seconds(ttft)} to the first token, {prompt:.0f} prompt tokens a second against {out:.0f} generated",
        "Let prompts share prefixes and keep sessions on one replica; raise --max-num-batched-tokens for TTFT, lower it for TPOT; "
        "more TP, or another replica.",
        (seen("request_prefill_time_seconds", f"mean {prefill:.3f} s"), seen("prompt_tokens", f"{prompt:.0f}/s"),
         seen("generation_tokens", f"{out:.0f}/s"), seen("prefix_cache_hits", _share(replica.prefix_hit_share))),
    )  # fmt: skip


def _compute(scene: Scene, replica: ReplicaView) -> Diagnosis | None:
    gpus = gpus_of(scene, replica)
    use = [g.utilisation_share for g in gpus if g.utilisation_share is not None]
    shares = (share(g.power_watts, g.power_limit_watts) for g in gpus)
    power = [known for known in shares if known is not None]
    if use and min(use) > 0.9 and (not power or max(power) >= 0.45):
        what = (
            seen("GPU utilisation", f"at least {min(use):.0%}"),
            *(seen("GPU power", f"at most {p:.0%} of the limit") for p in [max(power, default=0.0)] if power),
        )
        return Diagnosis(
            "compute", f"all of its {len(use)} GPUs work all the time with {replica.running or 0:.0f} requests in the batch",
            "Add a replica, use a quantised checkpoint (FP8), or let fewer requests run at once if TPOT matters more.", what,
        )  # fmt: skip
    cpus = [node.cpu_share for node in scene.nodes_of(replica) if node.cpu_share is not None]
    if scene.view.device == "cpu" and cpus and max(cpus) > 0.9:
        return Diagnosis(
            "compute", f"its nodes' CPUs are {max(cpus):.0%} busy, and the model runs on them",
            "Use GPUs, or more cores.", (seen("CPU", f"{max(cpus):.0%} busy"),),
        )  # fmt: skip
    return None


def _misses(found: LatencyView | None, limit: float | None) -> bool:
    """Whether a 99th percentile is over its limit for sure."""
    p99 = certain_p99(found)
    return limit is not None and p99 is not None and p99.seconds >= limit


def slow(scene: Scene) -> Iterable[Hit]:
    """Every replica that is slow, with what it is bound by."""
    objectives, gateway = scene.objectives, scene.view.gateway
    door = gateway if fresh(gateway.age_seconds) else GatewayView()
    for replica in scene.serving:
        if replica.name in scene.quiet_seconds:
            continue  # it does not move at all: that is another alarm
        missed = [what for what, found, limit in (
            ("TTFT", replica.ttft, objectives.ttft_p99_seconds), ("TPOT", replica.tpot, objectives.tpot_p99_seconds),
            ("TTFT at the gateway", door.ttft, objectives.ttft_p99_seconds),
        ) if _misses(found, limit)]  # fmt: skip
        none_set = objectives.ttft_p99_seconds is None and objectives.tpot_p99_seconds is None
        queued = bool(replica.waiting or door.waiting)
        if not missed and not (none_set and queued):
            continue
        found = diagnose(scene, replica)
        sign = f"misses its {' and '.join(missed)} objective" if missed else "lets requests wait"
        yield Hit(
            replica.name, f"{replica.name} {sign}. Bound by {found.bound_by}: {found.text}.", found.evidence, found.remedy,
            about=replica.name,
        )  # fmt: skip


RULE = Rule("slow", "info", "A replica misses an objective or lets requests wait: what it is bound by.", slow, 20, 30)  # fmt: skip

"""The question behind the question: is distribution needed, and is it memory or speed that lacks?"""

from longspan.plan import Layout
from longspan.planner.layout import pools, replicas
from longspan.planner.options import Answer, Option, Refused
from longspan.planner.search import evaluate
from longspan.planner.simulate import Load
from longspan.units import GIB


def verdicts(answer: Answer) -> list[str]:
    """Sentences for people, most important first."""
    found = [distribution(answer)]
    best = answer.best
    if best is None:
        found.append(nothing_fits(answer))
        return found
    found.append(bottleneck(answer, best))
    if answer.question.workload.objectives:
        found.append(objectives(answer, best))
    return found


def distribution(answer: Answer) -> str:
    """Whether one GPU would do."""
    question = answer.question
    for pool in pools(question.cluster):
        groups = replicas(pool, Layout())
        if not groups:
            continue
        one = evaluate(question, pool, Layout(), groups)
        if isinstance(one, Option):
            return (
                f"The model fits one {pool.gpu_type} with a cache of {one.receipt.kv_tokens:,} tokens: several GPUs buy "
                "speed and users, not memory."
            )
    smallest = min((option.layout.gpus for option in answer.options), default=0)
    weights = _weights_gib(answer)
    need = f", and the smallest split that works has {smallest} GPUs" if smallest else ""
    return f"The model does not fit one GPU (its weights are {weights:.0f} GiB){need}: distribution is needed for memory."


def _weights_gib(answer: Answer) -> float:
    known: list[Option | Refused] = [*answer.options, *answer.refused]
    for found in known:
        receipt = found.receipt
        if receipt is not None and found.layout.pp == 1 and found.layout.dp == 1:
            return receipt.ranks[0].weights_bytes * found.layout.tp / GIB
    return 0.0


def bottleneck(answer: Answer, best: Option) -> str:
    """Which resource ends the throughput of the best option."""
    question = answer.question
    ways = best.copies * best.layout.dp
    held = question.workload.prompt_tokens + question.workload.output_tokens / 2
    by_cache = best.limits.kv_tokens / held
    wanted = question.clients / ways
    if question.workload.is_open:
        if best.statistics is None:
            return "The load was not simulated."
        # Little's law: requests in the system.
        wanted = best.statistics.requests_per_second * best.statistics.e2e.mean
    if by_cache < 0.9 * min(wanted, best.limits.sequences):
        return (
            f"Memory lacks: the cache of each engine holds {by_cache:.0f} requests of this size and {wanted:.0f} are there, "
            "so requests wait. FP8 cache, quantised weights or more GPUs help."
        )
    return (
        f"Speed decides, not memory: the cache of each engine would hold {by_cache:.0f} requests of this size and "
        f"{wanted:.0f} are there."
    )


def objectives(answer: Answer, best: Option) -> str:
    """Whether the objectives hold."""
    wanted = ", ".join(str(one) for one in answer.question.workload.objectives)
    if best.held_requests_per_second is not None:
        if best.held_requests_per_second <= 0:
            return f"No option keeps {wanted}, not even for one request after the other."
        return f"{wanted} holds up to {best.held_requests_per_second:.2f} requests/s over all replicas."
    seen = best.statistics
    if seen is None:
        return f"{wanted} was not simulated."
    kept = all(seen.meets(one) for one in answer.question.workload.objectives) and seen.completed_share > 0.8
    values = ", ".join(
        f"{one.quantity.upper()} p{one.percentile:g} {seen.quantity(one.quantity).at(one.percentile) * 1000:.0f} ms"
        for one in answer.question.workload.objectives
    )
    if kept:
        return f"{wanted} holds at {answer.question.workload.requests_per_second:g} requests/s on {best.gpus} GPUs ({values})."
    return f"{wanted} does NOT hold at this load with any option; the nearest has {values}."


def nothing_fits(answer: Answer) -> str:
    """The layout that came nearest, and by how much it failed."""
    nearest: Refused | None = None
    least = float("inf")
    for found in answer.refused:
        if found.receipt is None:
            continue
        short = -found.receipt.ranks[found.receipt.binding].kv_pool_bytes
        if short < least:
            nearest, least = found, short
    if nearest is None:
        return f"Nothing works: {answer.refused[0].why}" if answer.refused else "The cluster has no GPU."
    return f"Nothing works. Nearest is {nearest.layout} on {nearest.pool}: {nearest.why}"


def obvious_layout(answer: Answer) -> tuple[str, Layout]:
    """The pool and layout that everyone tries first: tensor parallelism over everything there is."""
    pool = pools(answer.question.cluster)[0]
    return pool.gpu_type, Layout(pool.gpus)


def why_obvious_lost(answer: Answer) -> str:
    """Why the first idea is not the plan; empty where it is the plan."""
    pool, layout = obvious_layout(answer)
    best = answer.best
    if layout.tp == 1 or (best is not None and best.layout == layout and best.pool == pool):
        return ""
    for refused in answer.refused:
        if refused.pool == pool and refused.layout == layout:
            return f"{layout} (all GPUs in one tensor-parallel group) does not work: {refused.why}"
    for option in answer.options:
        if option.pool == pool and option.layout == layout and best is not None:
            return f"{layout} (all GPUs in one tensor-parallel group): {why_lost(option, best)}"
    pool_gpus = pools(answer.question.cluster)[0]
    return (
        f"{layout} (all {pool_gpus.gpus} GPUs in one tensor-parallel group) cannot be placed: a group inside a node has at "
        f"most {pool_gpus.widest} GPUs here, and one over several nodes takes whole, equal nodes."
    )


def why_lost(option: Option, best: Option) -> str:
    """What the option pays compared with the best one."""
    parts = [f"{option.output_tokens_per_second:,.0f} tokens/s against {best.output_tokens_per_second:,.0f}"]
    if option.held_requests_per_second is not None and best.held_requests_per_second is not None:
        held, against = option.held_requests_per_second, best.held_requests_per_second
        parts.insert(0, f"{held:.2f} requests/s within the objectives against {against:.2f}")
    parts.append(f"{option.tpot_seconds * 1000:.0f} ms per token against {best.tpot_seconds * 1000:.0f}")
    if option.gpus < best.gpus:
        parts.append(f"uses {option.gpus} of the GPUs")
    batch = option.steady.batch
    links = option.engine.communication_seconds(Load(0, 0, 0, batch, batch))
    group = option.engine.stages[0].site.group
    if option.layout.tp > 1 and links > 0.15 * option.steady.tpot_seconds:
        count = sum(stage.work.reductions for stage in option.engine.stages)
        parts.append(f"{links * 1000:.1f} ms of every step are {count} all-reduces over {group.kind}")
    return ", ".join(parts)

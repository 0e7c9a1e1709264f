"""The question behind the question: is distribution needed, and is it memory or speed that lacks?"""

from longspan.plan import Layout
from longspan.planner.latency import with_interval
from longspan.planner.layout import pools, replicas
from longspan.planner.legality import check
from longspan.planner.options import Answer, Option, Question, Refused
from longspan.planner.ranking import meets
from longspan.planner.search import MAX_TP_NODES, evaluate
from longspan.planner.simulate import Load
from longspan.planner.versions import format_version
from longspan.planner.whatifs import gpus_words
from longspan.units import GIB, format_seconds


def verdicts(answer: Answer) -> list[str]:
    """Sentences for people, most important first."""
    found = [distribution(answer)]
    best = answer.best
    if best is None:
        found.append(nothing_fits(answer))
        return found
    found.append(bottleneck(answer, best))
    found += crossing(answer, best)
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
    # The narrowest first: what TP copies to every rank would be counted as often.
    for found in sorted(known, key=lambda one: one.layout.tp):
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
    """Whether the objectives hold, and up to which rate."""
    workload = answer.question.workload
    wanted = ", ".join(str(one) for one in workload.objectives)
    held, seen = best.held_requests_per_second, best.statistics
    if held is not None and not workload.is_open:
        if held <= 0:
            return f"No option keeps {wanted}, not even for one request after the other."
        return f"{wanted} holds up to {held:.2f} requests/s over all replicas."
    if seen is None:
        return f"{wanted} was not simulated."
    found = {str(one): seen.quantity(one.quantity).at(one.percentile) for one in workload.objectives}
    values = ", ".join(
        f"{one.quantity.upper()} p{one.percentile:g} {format_seconds(found[str(one)])}"
        for one in workload.objectives
    )
    if not meets(answer.question, best):
        return f"{wanted} does NOT hold at this load with any option; the nearest has {values}."
    text = f"{wanted} holds at {workload.open_rate:.3g} requests/s on {gpus_words(best.gpus)} ({values})"
    text += f", and up to {held:.3g} requests/s." if held is not None else "."
    edge = [
        str(one)
        for one in workload.objectives
        if with_interval(found[str(one)], one.quantity, best.engine, "s").p90 > one.seconds
    ]
    return f"{text} At the upper end of the estimate {' and '.join(edge)} would not." if edge else text


def crossing(answer: Answer, best: Option) -> list[str]:
    """What a tensor-parallel group over several nodes costs, if the best option has one."""
    group = best.engine.stages[0].site.group
    if group.nodes <= 1 or best.layout.tp == 1:
        return []
    batch = best.steady.batch
    links = best.engine.communication_seconds(Load(0, 0, 0, batch, batch))
    text = (
        f"Its tensor-parallel group spans {group.nodes} nodes: {links * 1000:.1f} ms of every token at a batch of {batch:.0f} are "
        f"all-reduces over {group.kind}, which this network is expected to carry. Stages (PP) between nodes need it less."
    )
    return [text]


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


def why_obvious_lost(answer: Answer) -> str:
    """Why what everyone tries first, tensor parallelism over everything there is, is not the plan; empty where it is the plan."""
    question, best = answer.question, answer.best
    found = pools(question.cluster)
    if not found or question.cluster.gpu_count <= 1:
        return ""
    layout = Layout(question.cluster.gpu_count)
    words = f"{layout} (all GPUs in one tensor-parallel group)"
    if len(found) > 1:
        return f"{words} {_why_not_mixed(answer, layout, [pool.gpu_type for pool in found])}"
    pool = found[0]
    if best is not None and best.layout == layout:
        return ""
    for refused in answer.refused:
        if refused.layout == layout:
            return f"{words} does not work: {refused.why}"
    for option in answer.options:
        if option.layout == layout and best is not None:
            return f"{words}: {why_lost(option, best, question)}"
    return (
        f"{words} cannot be placed: a group inside a node has at most {pool.widest} GPUs here, and one over several nodes takes "
        f"whole, equal nodes and at most {MAX_TP_NODES} of them."
    )


def _why_not_mixed(answer: Answer, layout: Layout, types: list[str]) -> str:
    """A tensor-parallel group of different GPUs: what vLLM says, or what it wastes."""
    question = answer.question
    version = format_version(question.settings.version)
    rejection = check(question.facts, layout, (), question.executor, version)
    if rejection is not None:
        return f"does not work: {rejection}"
    smallest = min(
        (gpu for node in question.cluster.nodes for gpu in node.gpus), key=lambda gpu: gpu.memory_bytes
    )
    return (
        f"is never built of {' and '.join(types)}: vLLM gives every rank an equal share, so each GPU would hold no more than "
        f"a {smallest.type.name} can, and every layer would wait for the slowest card and link."
    )


def why_lost(option: Option, best: Option, question: Question) -> str:
    """What the option pays compared with the best one."""
    parts = []
    # Under a load of its own each serves the same tokens; then GPUs and the time per token tell them apart.
    if not question.workload.is_open:
        parts.append(
            f"{option.output_tokens_per_second:,.0f} tokens/s against {best.output_tokens_per_second:,.0f}"
        )
    if option.gpus > best.gpus:
        parts.append(f"takes {option.gpus} GPUs against {best.gpus}")
    if option.statistics is not None and question.workload.objectives and not meets(question, option):
        parts.append("does not keep the objectives")
    if (
        not question.workload.is_open
        and option.held_requests_per_second is not None
        and best.held_requests_per_second is not None
    ):
        held, against = option.held_requests_per_second, best.held_requests_per_second
        parts.insert(0, f"{held:.2f} requests/s within the objectives against {against:.2f}")
    parts.append(f"{option.tpot_seconds * 1000:.0f} ms per token against {best.tpot_seconds * 1000:.0f}")
    if best.engine.is_calibrated and not option.engine.is_calibrated:
        parts.append("a guess, which counts less than what was measured")
    if option.gpus < best.gpus:
        parts.append(f"leaves {best.gpus - option.gpus} of the GPUs idle")
    batch = option.steady.batch
    links = option.engine.communication_seconds(Load(0, 0, 0, batch, batch))
    group = option.engine.stages[0].site.group
    if option.layout.tp > 1 and links > 0.15 * option.steady.tpot_seconds:
        count = sum(stage.work.reductions for stage in option.engine.stages)
        what = f"{count} all-reduces over {group.kind}"
        if option.layout.dp > 1:
            what = f"{count} all-reduces and the exchange between experts"
        parts.append(f"{links * 1000:.1f} ms of every step are {what}")
    return ", ".join(parts)

"""The search: every legal layout on the cluster's pools, its receipt, its steady rate, and the simulation of the best.

A candidate is a layout, repeated as often as the pool holds it. Illegal ones keep vLLM's message, those without room for the
cache keep the arithmetic, and the rest are ranked by closed form; only the best few are simulated.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from longspan.model.facts import ModelFacts
from longspan.plan import Layout, Receipt, Rejection
from longspan.planner.engine import EngineSettings, GpuMemory, resolve
from longspan.planner.engine_model import Site, engine_model
from longspan.planner.latency import capacity, steady
from longspan.planner.layout import Pool, Slot, node_counts, pools, replicas, sites, smallest_memory_bytes
from longspan.planner.legality import check
from longspan.planner.memory import receipt
from longspan.planner.options import Answer, Option, Question, Refused
from longspan.planner.partition import best_partition
from longspan.planner.profile import Identity
from longspan.planner.ranking import distinct, examine, rank, with_highest_rate
from longspan.planner.simulate import Limits
from longspan.planner.versions import format_version
from longspan.units import GIB

# How many candidates are simulated.
SIMULATED = 6
_MAX_PP = 16
MAX_TP_NODES = 4
# Expert groups larger than this fail too often as one: a lost rank stops them all.
_MAX_GROUP = 64


def _tp_sizes(pool: Pool) -> list[int]:
    sizes = list(range(1, pool.widest + 1))
    full = sum(len(indices) == pool.widest for indices in pool.free)
    return sizes + [pool.widest * count for count in range(2, min(full, MAX_TP_NODES) + 1)]


def layouts(facts: ModelFacts, pool: Pool) -> Iterator[Layout]:
    """Every layout worth a look on a pool; legality is for others to say.

    Pipeline stages stop at 16, data-parallel groups come with expert parallelism and without stages, and context parallelism
    where KV heads would otherwise be repeated.
    """
    moe, kv_heads = facts.experts is not None, max(facts.kv_heads, 1)
    for tp in _tp_sizes(pool):
        for pp in range(1, min(pool.gpus // tp, len(facts.layers), _MAX_PP) + 1):
            yield Layout(tp, pp)
            if moe and tp > 1:
                yield Layout(tp, pp, ep=True)
        if moe:
            for dp in range(2, min(pool.gpus, _MAX_GROUP) // tp + 1):
                if dp & (dp - 1) == 0 or dp * tp == pool.gpus:
                    yield Layout(tp, 1, dp, ep=True)
        repeated = tp // kv_heads
        if tp <= pool.widest and repeated > 1 and tp % kv_heads == 0:
            yield Layout(tp, 1, dcp=repeated)


def evaluate(
    question: Question, pool: Pool, layout: Layout, groups: list[tuple[Slot, ...]]
) -> Option | Refused:
    """Legality, receipt and steady state of one layout whose replicas stand on `groups`."""
    facts, settings = question.facts, replace(question.settings, max_model_len=question.context_tokens)
    group = groups[0]
    rejection = check(facts, layout, node_counts(group), question.executor, format_version(settings.version))
    if rejection is not None:
        return Refused(pool.gpu_type, layout, rejection.rule, str(rejection), rejection)
    where, exchange = sites(layout, group)
    memory = _stage_memory(layout, group, where)
    found = _receipt(Identity(facts), layout, memory, settings)
    if found.max_concurrency < 1:
        return Refused(pool.gpu_type, layout, "memory", memory_words(found, question), receipt=found)
    resolved = resolve(settings, facts, min(memory, key=lambda gpu: gpu.total_bytes))
    limits = Limits(
        resolved.max_num_batched_tokens * layout.pp, resolved.max_num_seqs, max(float(found.kv_tokens), 1.0)
    )
    kv_bytes = 1.0 if resolved.kv_dtype.startswith("fp8") else None
    engine = engine_model(facts, layout, where, exchange, kv_bytes)
    if question.workload.is_open:
        load = capacity(engine, limits, question.workload)
    else:
        load = steady(
            engine, limits, question.workload, max(question.clients / (len(groups) * layout.dp), 1.0)
        )
    return Option(pool.gpu_type, layout, tuple(groups), found, engine, limits, load)


def _stage_memory(layout: Layout, group: tuple[Slot, ...], where: tuple[Site, ...]) -> tuple[GpuMemory, ...]:
    """What the receipt must know of the GPUs of each stage of a replica. `where`: the stages' `sites`."""
    return tuple(
        GpuMemory(site.gpu.name, size, site.group.kind in {"nvlink", "xgmi"})
        for site, size in zip(where, smallest_memory_bytes(group, layout), strict=True)
    )


def receipt_at(question: Question, option: Option, max_model_len: int) -> Receipt:
    """An option's receipt with another `max_model_len`: work areas and requests at once depend on it."""
    settings = replace(question.settings, max_model_len=max_model_len)
    where, _ = sites(option.layout, option.groups[0])
    memory = _stage_memory(option.layout, option.groups[0], where)
    return _receipt(Identity(question.facts), option.layout, memory, settings)


@lru_cache(maxsize=8192)
def _receipt(
    held: Identity, layout: Layout, memory: tuple[GpuMemory, ...], settings: EngineSettings
) -> Receipt:
    """What-ifs ask for the same receipts again and again."""
    return receipt(held.facts, layout, memory, settings)


def memory_words(found: Receipt, question: Question) -> str:
    """Why the receipt leaves too little, in numbers."""
    rank = found.ranks[found.binding]
    stage = f" on stage {found.binding}" if len(found.ranks) > 1 else ""
    text = (
        f"weights {rank.weights_bytes / GIB:.1f} GiB + activations {rank.activation_bytes / GIB:.1f} + other "
        f"{rank.non_torch_bytes / GIB:.1f} of {rank.requested_bytes / GIB:.1f} GiB usable on each GPU{stage}"
    )
    if not rank.fits:
        return f"{text}: {-rank.kv_pool_bytes / GIB:.1f} GiB too much before any cache."
    return (
        f"{text} leave {rank.kv_pool_bytes / GIB:.1f} GiB of cache, {found.kv_tokens} tokens: less than one request of "
        f"{question.context_tokens} (largest: {found.largest_max_model_len})."
    )


def _is_common(layout: Layout, pool: Pool) -> bool:
    """Sizes that people use: what-ifs look at these only. Three or five nodes are used whole, too."""
    whole = layout.dp * layout.tp == pool.gpus and layout.tp & (layout.tp - 1) == 0
    powers = all(size & (size - 1) == 0 for size in (layout.tp, layout.pp, layout.dp))
    return (powers or whole) and layout.dcp == 1


def search(question: Question, simulated: int = SIMULATED, brief: Layout | None = None) -> Answer:
    """Answers the question.

    Args:
        simulated: how many of the best are simulated; 0 ranks by closed form alone.
        brief: look at common sizes and at this layout only, for what-ifs.
    """
    options: list[Option] = []
    refused: list[Refused] = []
    all_pools = pools(question.cluster)
    for pool in all_pools:
        illegal_tp: dict[int, Rejection | None] = {}
        for layout in layouts(question.facts, pool):
            if brief is not None and layout != brief and not _is_common(layout, pool):
                continue
            if layout.tp not in illegal_tp:
                version = format_version(question.settings.version)
                illegal_tp[layout.tp] = check(
                    question.facts, Layout(layout.tp), (), question.executor, version
                )
            first = illegal_tp[layout.tp]
            if first is not None and layout.pp == 1 and layout.dp == 1 and not layout.ep and layout.dcp == 1:
                refused.append(Refused(pool.gpu_type, layout, first.rule, str(first), first))
            if first is not None and not layout.ep:
                continue
            groups = replicas(pool, layout)
            if not groups:
                continue
            found = evaluate(question, pool, layout, groups)
            if isinstance(found, Option):
                options.append(found)
            else:
                refused.append(found)
    if len(all_pools) > 1:
        across = across_pools(question, all_pools)
        if across is not None:
            (options if isinstance(across, Option) else refused).append(across)  # type: ignore[arg-type]
    ranked = rank(question, options)
    best = [examine(question, option) for option in distinct(ranked)[:simulated]]
    known = {(option.pool, option.layout) for option in best}
    rest = [option for option in ranked if (option.pool, option.layout) not in known]
    ordered = rank(question, best) + rest
    if ordered and brief is None:
        ordered[0] = with_highest_rate(question, ordered[0])
    return Answer(question, tuple(ordered), tuple(refused))


def across_pools(question: Question, all_pools: list[Pool]) -> Option | Refused | None:
    """One replica whose stages stand on different types of GPU, its layers split so that the smallest stage has most cache."""
    sizes = [len(indices) for pool in all_pools for indices in pool.free]
    for tp in sorted({size for size in sizes if size} | {1}, reverse=True):
        if check(question.facts, Layout(tp), (), question.executor) is not None:
            continue
        group = tuple(slot for pool in all_pools for slots_ in replicas(pool, Layout(tp)) for slot in slots_)
        if not 2 <= len(group) <= min(_MAX_PP, len(question.facts.layers)):
            continue
        plain = Layout(tp, len(group))
        where, _ = sites(plain, group)
        memory = _stage_memory(plain, group, where)
        settings = replace(question.settings, max_model_len=question.context_tokens)
        split = best_partition(question.facts, plain, memory, settings)
        mixed = Pool("+".join(pool.gpu_type for pool in all_pools), (), ())
        return evaluate(question, mixed, replace(plain, partition=split), [group])
    return None

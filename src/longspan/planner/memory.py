"""The memory receipt: what lies on every rank's GPU, which rank binds, and what the engine will log."""

from dataclasses import replace

from longspan.model.facts import ModelFacts
from longspan.model.weights import layer_kinds
from longspan.plan import Estimate, Layout, MemoryBudget, Receipt
from longspan.planner.calibration import DEFAULT, Calibration
from longspan.planner.engine import EngineSettings, GpuMemory, Resolved, resolve
from longspan.planner.kv_cache import IN_FLIGHT_BATCHES, TOKENS_BY_CONCURRENCY, CacheLayout, cache_layout
from longspan.planner.overheads import GRAPHS_SUBTRACTED, activation_bytes, cuda_graph_bytes, non_torch_bytes
from longspan.planner.rank_weights import rank_weights, stage_bounds
from longspan.planner.versions import Version, format_version
from longspan.units import GIB


def receipt(
    facts: ModelFacts,
    layout: Layout,
    gpu: GpuMemory | tuple[GpuMemory, ...],
    settings: EngineSettings | None = None,
    calibration: Calibration = DEFAULT,
) -> Receipt:
    """The memory of one replica.

    Args:
        facts: the model. layout: a legal split; legality is not checked here.
        gpu: the GPU of every rank, or one per pipeline stage (the smallest of the stage).
        settings: vLLM's settings, defaults where None.
        calibration: corrections measured on this version and GPU.

    Returns:
        One budget per stage; TP ranks of a stage are equal. A model that does not fit has a negative pool and no tokens.
    """
    settings = settings or EngineSettings()
    gpus = gpu if isinstance(gpu, tuple) else (gpu,) * layout.pp
    resolved = resolve(settings, facts, min(gpus, key=lambda g: g.total_bytes))
    cache = cache_layout(
        facts, layout.tp, resolved.kv_dtype, layout.dcp, resolved.block_size, resolved.version
    )
    kinds = _layer_numbers(facts)
    known: dict[tuple[object, ...], MemoryBudget] = {}
    budgets = []
    for stage, (start, end) in enumerate(stage_bounds(facts, layout)):
        # Stages in the middle are mostly alike: the same kinds of layers on the same GPU.
        alike = (tuple(kinds[start:end]), stage == 0, stage == layout.pp - 1, gpus[stage])
        if alike not in known:
            known[alike] = _budget(facts, layout, stage, gpus[stage], resolved, settings, cache, calibration)
        budgets.append(replace(known[alike], pp_rank=stage))
    return _capacity(facts, layout, tuple(budgets), cache, resolved, calibration)


def _layer_numbers(facts: ModelFacts) -> tuple[int, ...]:
    """A number for every layer, equal where weights and cache are. Computed once a model."""
    found: tuple[int, ...] | None = facts.__dict__.get("_layer_numbers")
    if found is None:
        order: dict[object, int] = {}
        _, stored = layer_kinds(facts)
        pairs = zip(facts.layers, stored, strict=True)
        found = tuple(order.setdefault(pair, len(order)) for pair in pairs)
        # A frozen value keeps what was derived from it, as functools.cached_property does.
        facts.__dict__["_layer_numbers"] = found
    return found


def _budget(
    facts: ModelFacts,
    layout: Layout,
    stage: int,
    gpu: GpuMemory,
    resolved: Resolved,
    settings: EngineSettings,
    cache: CacheLayout,
    calibration: Calibration,
) -> MemoryBudget:
    parts = rank_weights(
        facts, layout, stage, resolved.version, settings.redundant_experts, settings.encoder_data_parallel
    )
    correction = calibration.correction(resolved.version, gpu.name)
    weights = sum(p.size_bytes for p in parts) * correction.weights_factor
    activation = activation_bytes(facts, layout, stage, resolved) + correction.activation_add_gib * GIB
    non_torch = non_torch_bytes(layout, resolved, gpu) + correction.non_torch_add_gib * GIB
    graphs = cuda_graph_bytes(facts, layout, stage, resolved) * correction.cuda_graph_factor
    subtracted = resolved.version >= GRAPHS_SUBTRACTED
    requested = int(gpu.total_bytes * resolved.utilisation)
    pool = requested - weights - activation - non_torch - (graphs if subtracted else 0.0)
    start, end = stage_bounds(facts, layout)[stage]
    return MemoryBudget(
        pp_rank=stage,
        tp_rank=0,
        total_bytes=gpu.total_bytes,
        requested_bytes=requested,
        weights_bytes=weights,
        weights_parts=parts,
        activation_bytes=activation,
        non_torch_bytes=non_torch,
        cuda_graph_bytes=graphs,
        cuda_graph_subtracted=subtracted,
        kv_pool_bytes=pool,
        kv_bytes_per_token=cache.token_bytes(start, end),
    )


def in_flight_tokens(layout: Layout, resolved: Resolved) -> int:
    """Tokens scheduled but not settled, which window layers reserve for (vLLM `max_in_flight_tokens`)."""
    batches = 1
    if resolved.version >= IN_FLIGHT_BATCHES:
        batches = 2 if layout.pp == 1 else layout.pp
    return batches * resolved.max_num_batched_tokens


def _capacity(
    facts: ModelFacts,
    layout: Layout,
    budgets: tuple[MemoryBudget, ...],
    cache: CacheLayout,
    resolved: Resolved,
    calibration: Calibration,
) -> Receipt:
    bounds = stage_bounds(facts, layout)
    per_stage = [
        int(b.kv_pool_bytes // cache.block_bytes(*bounds[b.pp_rank]))
        if cache.block_bytes(*bounds[b.pp_rank])
        else 0
        for b in budgets
    ]
    blocks = max(0, min(per_stage))
    binding = per_stage.index(min(per_stage))
    in_flight = in_flight_tokens(layout, resolved)
    per_request = max(1, cache.blocks_per_request(resolved.max_model_len, in_flight))
    concurrency = blocks / per_request
    tokens = (
        int(concurrency * resolved.max_model_len)
        if resolved.version >= TOKENS_BY_CONCURRENCY
        else blocks // max(1, len(cache.groups)) * cache.block_size * layout.dcp
    )
    result = Receipt(
        ranks=budgets,
        binding=binding,
        kv_tokens=tokens,
        blocks=blocks,
        block_size=cache.block_size,
        max_concurrency=concurrency,
        largest_max_model_len=largest_model_len(facts, cache, blocks, in_flight),
        vllm_version=format_version(resolved.version),
        groups=max(1, len(cache.groups)),
        max_model_len=resolved.max_model_len,
    )
    return replace(result, estimates=estimates(result, calibration, resolved.version))


def largest_model_len(facts: ModelFacts, cache: CacheLayout, blocks: int, in_flight: int) -> int:
    """The longest context of one request that the usable blocks hold, at most the model's own limit.

    vLLM keeps one null block back, and searches as it does in `estimate_max_model_len`.
    """
    usable = blocks - 1
    low, high = 0, facts.max_position
    while low < high:
        middle = (low + high + 1) // 2
        if cache.blocks_per_request(middle, in_flight) <= usable:
            low = middle
        else:
            high = middle - 1
    return low


def stage_estimates(rank: MemoryBudget, calibration: Calibration, version: Version) -> dict[str, Estimate]:
    """One rank's numbers with their intervals, in GiB.

    The intervals of weights, activation, non-torch memory and graphs are the residuals of models the fit did not see; the pool's
    adds them in quadrature.
    """
    spread = calibration.spread(version)
    named = {
        "weights_gib_per_gpu": (rank.weights_bytes / GIB, spread.weights),
        "activation_gib_per_gpu": (rank.activation_bytes / GIB, spread.activation),
        "non_torch_gib_per_gpu": (rank.non_torch_bytes / GIB, spread.non_torch),
        "cuda_graph_gib_per_gpu": (rank.cuda_graph_bytes / GIB, spread.cuda_graph),
    }
    found = {
        name: Estimate(value, max(0.0, value * (1 + low)), value * (1 + high), "GiB", spread.source)
        for name, (value, (low, high)) in named.items()
    }
    counted = [n for n in named if n != "cuda_graph_gib_per_gpu" or rank.cuda_graph_subtracted]
    pool = rank.kv_pool_bytes / GIB
    below = sum((named[n][0] * named[n][1][1]) ** 2 for n in counted) ** 0.5
    above = sum((named[n][0] * named[n][1][0]) ** 2 for n in counted) ** 0.5
    found["kv_pool_gib_per_gpu"] = Estimate(pool, pool - below, pool + above, "GiB", spread.source)
    return found


def estimates(result: Receipt, calibration: Calibration, version: Version) -> dict[str, Estimate]:
    """The binding rank's numbers and the replica's tokens and concurrency, whose intervals follow the pool's."""
    found = stage_estimates(result.ranks[result.binding], calibration, version)
    pool = found["kv_pool_gib_per_gpu"]
    if result.kv_tokens > 0 and pool.p50 > 0:
        for name, value, unit in (
            ("kv_tokens", float(result.kv_tokens), "tokens"),
            ("max_concurrency", result.max_concurrency, "x"),
        ):
            low, high = max(0.0, value * pool.p10 / pool.p50), value * pool.p90 / pool.p50
            found[name] = Estimate(value, low, high, unit, pool.source)
    return found

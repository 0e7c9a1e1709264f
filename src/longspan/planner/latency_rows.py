"""Latency and throughput of one row of `plan --rows`."""

from dataclasses import replace

from longspan.cluster.catalog import GpuType
from longspan.cluster.inventory import default_link, usual_network
from longspan.model.facts import ModelFacts
from longspan.plan import Estimate
from longspan.planner.engine import GpuMemory, resolve
from longspan.planner.engine_model import EngineModel, Site, engine_model
from longspan.planner.latency import (
    BURST,
    WARM,
    Percentiles,
    Protocol,
    Statistics,
    open_loop,
    statistics,
    with_interval,
)
from longspan.planner.links import Path, network_path, node_path
from longspan.planner.memory import receipt
from longspan.planner.rows import Row
from longspan.planner.simulate import Limits, Request, simulate
from longspan.planner.step_costs import (
    MEDIAN_TTFT_FACTOR,
    OLD_ENGINE_FACTOR,
    OPEN_LOOP_FACTOR,
    WARM_PROMPT_SECONDS,
    family,
    together,
)
from longspan.workload import Workload

LATENCY_KEYS = (
    "ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "output_tok_s", "output_tok_s_per_gpu", "prefill_tok_s_per_gpu",
    "request_per_s", "user_tok_s",
)  # fmt: skip
# The calibration's points of versions before this one were measured warm, without the first burst.
_BURST_SINCE = (0, 14, 0)
_LIMIT_REQUESTS = 3000
_OLDEST_MEASURED = (0, 11, 0)


def row_engine(row: Row, facts: ModelFacts, gpu: GpuType) -> EngineModel:
    """The replica of a row on nodes of the GPU's usual kind: TP inside a node where it fits, stages spread over nodes."""
    layout = row.layout
    link = default_link(gpu)
    inside = node_path(link)
    network = network_path([usual_network(link)], max(row.nodes, 2))
    per_node = max(layout.gpus // max(row.nodes, 1), 1)
    group = (
        inside
        if layout.tp <= per_node
        else Path(network.kind, network.bytes_per_second, -(-layout.tp // per_node))
    )
    stages_per_node = max(per_node // layout.tp, 1)
    sites = tuple(
        Site(
            gpu,
            group,
            None if stage == layout.pp - 1 else inside if (stage + 1) % stages_per_node else network,
        )
        for stage in range(layout.pp)
    )
    exchange = inside if layout.tp * layout.dp <= per_node else network
    found = engine_model(facts, layout, sites, exchange, cache_value_bytes(row, facts, gpu))
    if row.settings.version >= _BURST_SINCE or row.request_rate_per_s:
        return found
    stages = tuple(
        replace(stage, costs=replace(stage.costs, prompt_seconds=WARM_PROMPT_SECONDS))
        for stage in found.stages
    )
    return replace(found, stages=stages)


def cache_value_bytes(row: Row, facts: ModelFacts, gpu: GpuType) -> float | None:
    """Bytes of a cache value: as stated; where nothing is stated, published Blackwell points ran an FP8 cache."""
    stated = row.settings.kv_dtype
    if stated.startswith("fp8"):
        return 1.0
    if stated != "auto":
        return 0.5 if stated == "nvfp4" else 2.0
    return 1.0 if family(gpu) == "blackwell" and facts.quantisation.method else None


def row_limits(row: Row, facts: ModelFacts, gpu: GpuType, engine: EngineModel) -> Limits | None:
    """Scheduler limits and the cache of the row; None where the model does not fit."""
    memory = GpuMemory(gpu.name, gpu.memory_bytes, gpu.link in {"nvlink", "xgmi"})
    settings = row.settings
    found = receipt(facts, row.layout, memory, settings)
    resolved = resolve(settings, facts, memory)
    rank = found.ranks[found.binding]
    if not rank.fits or found.kv_tokens <= 0:
        return None
    tokens = float(found.kv_tokens)
    if settings.kv_dtype == "auto" and engine.stages[0].work.caches and rank.kv_bytes_per_token:
        counted = sum(cache.bytes_per_token for cache in engine.stages[found.binding].work.caches)
        if counted < 0.75 * rank.kv_bytes_per_token:
            tokens *= 2
    return Limits(resolved.max_num_batched_tokens * row.layout.pp, resolved.max_num_seqs, tokens)


def evaluate_latency(row: Row, facts: ModelFacts, gpu: GpuType) -> dict[str, Estimate | None]:
    """The latency keys of a row; None where there is no basis (no lengths, or the model does not fit)."""
    empty: dict[str, Estimate | None] = dict.fromkeys(LATENCY_KEYS)
    isl, osl = row.isl or 0, row.osl or 0
    if not isl and not osl:
        return empty
    engine = row_engine(row, facts, gpu)
    limits = row_limits(row, facts, gpu, engine)
    if limits is None:
        return empty
    found = _statistics(row, engine, limits, max(isl, 1), max(osl, 1))
    median = row.quantity.endswith("_median")

    def pick(seen: Percentiles) -> float:
        return seen.at(50) if median else seen.mean

    gpus = row.layout.gpus
    replicas = row.layout.dp
    values = {
        "ttft_ms": (pick(found.ttft) * 1e3, "ttft", "ms") if isl else None,
        "tpot_ms": (pick(found.tpot) * 1e3, "tpot", "ms") if osl > 1 else None,
        "itl_ms": (pick(found.tpot) * 1e3, "tpot", "ms") if osl > 1 else None,
        "e2e_ms": (pick(found.e2e) * 1e3, "e2el", "ms"),
        "output_tok_s": (found.output_tokens_per_second * replicas, "throughput", "tokens/s"),
        "output_tok_s_per_gpu": (found.output_tokens_per_second * replicas / gpus, "throughput", "tokens/s"),
        "prefill_tok_s_per_gpu": (
            found.requests_per_second * isl * replicas / gpus,
            "throughput",
            "tokens/s",
        ),
        "request_per_s": (found.requests_per_second * replicas, "throughput", "requests/s"),
        "user_tok_s": (1 / pick(found.tpot), "user_speed", "tokens/s")
        if osl > 1 and pick(found.tpot) > 0
        else None,
    }
    return {
        key: None if value is None else with_interval(*value[:2], engine, value[2], _width(row, value[1]))
        for key, value in values.items()
    }


def _width(row: Row, quantity: str) -> float:
    """How much wider an interval is than the measured one: the row asks for what the points do not have."""
    return together(
        OPEN_LOOP_FACTOR if row.request_rate_per_s else 1.0,
        OLD_ENGINE_FACTOR if row.settings.version < _OLDEST_MEASURED else 1.0,
        MEDIAN_TTFT_FACTOR if quantity == "ttft" and row.quantity.endswith("_median") else 1.0,
    )


def _statistics(row: Row, engine: EngineModel, limits: Limits, isl: int, osl: int) -> Statistics:
    if row.request_rate_per_s:
        load = Workload(isl, osl, 0.2, row.request_rate_per_s / row.layout.dp)
        return open_loop(engine, limits, load, min(row.num_prompts or 400, 1000))
    requests, each, warm = closed_loop_of(row)
    protocol = WARM if warm else BURST
    served = simulate(requests, limits, engine.step_seconds, concurrency=each)
    skip = min(protocol.skip_rounds * each, len(requests) // 2)
    return statistics(served, skip, protocol, isl)


def closed_loop_of(row: Row) -> tuple[list[Request], int, bool]:
    """The requests of a closed-loop row, clients per data-parallel rank, and whether it was measured warm."""
    warm = row.settings.version < _BURST_SINCE
    protocol: Protocol = WARM if warm else BURST
    clients = max(-(-int(row.concurrency or row.num_prompts or 1) // row.layout.dp), 1)
    count = max(protocol.rounds * clients, 8)
    count = max(min(count, row.num_prompts or _LIMIT_REQUESTS), 2 * clients)
    return protocol.requests(count, max(row.isl or 1, 1), max(row.osl or 1, 1)), clients, warm


__all__ = ["LATENCY_KEYS", "cache_value_bytes", "evaluate_latency", "row_engine", "row_limits"]

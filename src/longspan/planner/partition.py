"""How many layers each pipeline stage should have when GPUs differ: the split that maximises the smallest stage's cache."""

from dataclasses import replace

from longspan.model.facts import ModelFacts
from longspan.plan import Layout
from longspan.planner.engine import EngineSettings, GpuMemory
from longspan.planner.memory import receipt


def best_partition(
    facts: ModelFacts, layout: Layout, memory: tuple[GpuMemory, ...], settings: EngineSettings
) -> tuple[int, ...]:
    """Layers of each stage (`VLLM_PP_LAYER_PARTITION`), the last one with norm, head and sampler included.

    Starts from a split by memory and moves one layer at a time from the stage with the fewest cache blocks to the one with the
    most, as long as the minimum grows. All stages keep at least one layer.
    """
    split = _by_memory(len(facts.layers), [gpu.total_bytes for gpu in memory])
    best = _blocks(facts, layout, memory, settings, split)
    for _ in range(2 * len(facts.layers)):
        low = min(range(layout.pp), key=lambda stage: best[stage])
        moved = None
        for high in sorted(range(layout.pp), key=lambda stage: -best[stage]):
            if high == low or split[low] <= 1:
                continue
            tried = list(split)
            tried[low] -= 1
            tried[high] += 1
            blocks = _blocks(facts, layout, memory, settings, tried)
            if min(blocks) > min(best):
                moved = (tried, blocks)
                break
        if moved is None:
            return tuple(split)
        split, best = moved
    return tuple(split)


def _by_memory(count: int, sizes: list[int]) -> list[int]:
    total = sum(sizes)
    split = [max(1, count * size // total) for size in sizes]
    for position in range(count - sum(split)):
        split[position % len(split)] += 1
    while sum(split) > count:
        split[split.index(max(split))] -= 1
    return split


def _blocks(
    facts: ModelFacts,
    layout: Layout,
    memory: tuple[GpuMemory, ...],
    settings: EngineSettings,
    split: list[int],
) -> list[float]:
    """Cache tokens that each stage could hold; negative where its weights do not fit."""
    found = receipt(facts, replace(layout, partition=tuple(split)), memory, settings)
    return [
        rank.kv_pool_bytes / rank.kv_bytes_per_token if rank.kv_bytes_per_token > 0 else rank.kv_pool_bytes
        for rank in found.ranks
    ]

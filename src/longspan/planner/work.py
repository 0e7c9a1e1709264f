"""What one rank must read, multiply and send in a step: the physics under `steptime`, without a clock.

Counts follow from the matrices of each layer and from how vLLM splits them: heads and feed-forward over TP, KV heads
replicated when TP exceeds them, the low-rank inputs of MLA and the router on every rank, routed experts over all ranks
of TP x DP (as slices, or whole with expert parallelism), layers over pipeline stages.
"""

from dataclasses import dataclass
from functools import lru_cache

from longspan.model.facts import (
    Attention,
    CompressedAttention,
    Experts,
    LatentAttention,
    Layer,
    ModelFacts,
    Recurrent,
)
from longspan.plan import Layout
from longspan.planner.profile import Identity, Matrices, profile
from longspan.planner.rank_weights import stage_bounds


@dataclass(frozen=True, slots=True)
class ExpertWork:
    """Routed experts of the stage on one rank.

    Attributes:
        layers: how many layers have them. count, top_k: experts of a layer, and how many a token takes.
        matrices: all local experts of all these layers together.
        groups: attention groups (DP) whose tokens meet at these experts.
    """

    layers: int
    count: int
    top_k: int
    matrices: Matrices
    groups: int


@dataclass(frozen=True, slots=True)
class CacheWork:
    """Attention layers of one kind on one rank, summed over the stage's layers of that kind.

    Attributes:
        layers: how many. window: tokens they see, None for all.
        bytes_per_token: of cache read for each token of context.
        prefill_flops, decode_flops: operations for each query-key pair. MLA expands its cache to full heads in
            prefill and multiplies in the latent space in decode, so the two differ.
    """

    layers: int
    window: int | None
    bytes_per_token: float
    prefill_flops: float
    decode_flops: float


@dataclass(frozen=True, slots=True)
class StageWork:
    """One pipeline stage as one of its ranks sees it.

    Attributes:
        layers: decoder layers of the stage.
        dense: matrices that every token passes, without routed experts and without the head.
        head: the language-model head, on the last stage only.
        state_bytes: recurrent state read and written for each request.
        hidden_bytes: of one token's activations between layers.
        reductions: all-reduces of a step over the TP group (or their all-to-all equivalents in `exchanges`).
        exchanges: dispatch-and-combine pairs between DP ranks with routed experts.
        sent_bytes: what one token sends in one exchange, in one direction.
    """

    layers: int
    dense: tuple[Matrices, ...]
    head: Matrices | None
    experts: ExpertWork | None
    caches: tuple[CacheWork, ...]
    state_bytes: float
    hidden_bytes: float
    reductions: int
    exchanges: int
    sent_bytes: float


_CacheKey = tuple[int | None, float, float, float]


def _cache_work(layer: Layer, layout: Layout, value_bytes: float) -> _CacheKey | None:
    """(window, cache bytes per token, prefill and decode flops per pair) of one layer on one rank, or None."""
    mixer = layer.mixer
    tp, dcp = layout.tp, layout.dcp
    if isinstance(mixer, Attention):
        width = mixer.head_dim + mixer.v_head_dim
        size = max(mixer.kv_heads / tp, 1) * width * value_bytes / dcp
        flops = 2 * mixer.heads / tp * width
        return mixer.window or mixer.chunk, size, flops, flops
    if isinstance(mixer, LatentAttention):
        latent = mixer.kv_lora_rank + mixer.rope_dim
        window = mixer.indexer.top_k if mixer.indexer else None
        heads = 2 * mixer.heads / tp
        expanded = heads * (mixer.nope_dim + mixer.rope_dim + mixer.v_dim)
        return window, latent * value_bytes / dcp, expanded, heads * (latent + mixer.kv_lora_rank)
    if isinstance(mixer, CompressedAttention):
        reach = max(mixer.ratio, 1)
        flops = 4 * mixer.heads / tp * mixer.head_dim / reach
        window = mixer.window if mixer.ratio == 0 else None
        return window, mixer.head_dim * value_bytes / reach / dcp, flops, flops
    return None


def _state_bytes(layer: Layer, tp: int) -> float:
    mixer = layer.mixer
    if not isinstance(mixer, Recurrent):
        return 0.0
    return mixer.value_heads * mixer.value_dim * mixer.key_dim * 4 / tp


def _split(split: str, layout: Layout, facts: ModelFacts) -> float:
    if split == "none":
        return 1.0
    if split == "kv":
        return max(1 / layout.tp, 1 / max(facts.kv_heads, 1))
    return 1 / layout.tp


def stage_work(
    facts: ModelFacts, layout: Layout, stage: int, kv_value_bytes: float | None = None
) -> StageWork:
    """What a rank of pipeline stage `stage` does in a step. `kv_value_bytes`: of the cache, by default the model's."""
    return _stage_work(Identity(facts), layout, stage, kv_value_bytes)


@lru_cache(maxsize=4096)
def _stage_work(held: Identity, layout: Layout, stage: int, kv_value_bytes: float | None) -> StageWork:
    facts = held.facts
    known = profile(facts)
    value_bytes = known.kv_value_bytes if kv_value_bytes is None else kv_value_bytes
    members = range(*stage_bounds(facts, layout)[stage])
    dense: dict[str, list[float]] = {}
    caches: dict[_CacheKey, int] = {}
    expert_bytes = expert_values = state = 0.0
    expert_layers = mixers = 0
    experts: tuple[Experts, str, float, float] | None = None
    ranks = layout.tp * layout.dp
    for index in members:
        for compute, split, size, values in known.layers[index]:
            part = _split(split, layout, facts)
            total = dense.setdefault(compute, [0.0, 0.0])
            total[0] += size * part
            total[1] += values * part
        found = known.experts[index]
        if found is not None:
            experts = found
            expert_layers += 1
            expert_bytes += found[2] / ranks
            expert_values += found[3] / ranks
        layer = facts.layers[index]
        mixers += layer.mixer is not None
        state += _state_bytes(layer, layout.tp)
        cache_key = _cache_work(layer, layout, value_bytes)
        if cache_key is not None:
            caches[cache_key] = caches.get(cache_key, 0) + 1
    last = stage == layout.pp - 1
    head = known.head
    feeds = sum(bool(facts.layers[index].feeds) for index in members)
    exchanges = expert_layers if layout.dp > 1 else 0
    # Context parallelism gathers queries and combines partial results: two more collectives in each attention layer.
    extra = 2 * sum(caches.values()) if layout.dcp > 1 else 0
    return StageWork(
        layers=len(members),
        dense=tuple(Matrices(compute, size, values) for compute, (size, values) in dense.items()),
        head=Matrices(head.compute, head.weight_bytes / layout.tp, head.values / layout.tp) if last else None,
        experts=None
        if experts is None
        else ExpertWork(
            expert_layers,
            experts[0].count,
            experts[0].top_k,
            Matrices(experts[1], expert_bytes, expert_values),
            layout.dp,
        ),
        caches=tuple(
            CacheWork(n, w, size * n, pre * n, dec * n) for (w, size, pre, dec), n in caches.items()
        ),
        state_bytes=state,
        hidden_bytes=facts.hidden * facts.dtype_bytes,
        reductions=(mixers + feeds - exchanges + extra) if layout.tp > 1 else 0,
        exchanges=exchanges,
        sent_bytes=facts.hidden * facts.dtype_bytes * (experts[0].top_k if experts and layout.ep else 1),
    )

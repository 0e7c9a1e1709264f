"""The KV cache as vLLM lays it out: one spec a layer, layers in groups that share a pool of equal blocks.

Repeats vLLM's `v1/kv_cache_interface.py` and `v1/core/kv_cache_utils.py` (read in 0.32): page sizes, window admission, unifying
of page sizes and grouping. Sizes are of one rank.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from longspan.model.facts import (
    DTYPE_BYTES,
    Attention,
    CompressedAttention,
    LatentAttention,
    ModelFacts,
    Recurrent,
)
from longspan.planner.versions import Version

BLOCK = 16  # CacheConfig.DEFAULT_BLOCK_SIZE
SPARSE_BLOCK = 64  # FlashMLA sparse and the indexer work on 64 tokens
COMPRESSED_BLOCK = 256  # DeepSeek-V4: 64 entries at ratio 4
# Hybrid models got prefix caching by default, and with it two resident states a request ("align").
STATES_ALIGNED: Version = (0, 20, 0)
# The log line "GPU KV cache size" became concurrency x max_model_len; before: blocks of one group x block size.
TOKENS_BY_CONCURRENCY: Version = (0, 21, 0)
# Window layers reserve for every batch in flight; before, for one.
IN_FLIGHT_BATCHES: Version = (0, 27, 0)
# A packed block is as wide as the widest group since 0.24.
PACKED_BY_GROUP: Version = (0, 24, 0)


@dataclass(frozen=True)
class Spec:
    """What one layer keeps in one block.

    kind: `full`, `sliding`, `chunked` or `state`. `window`: tokens a sliding or chunked layer sees. `states`: pages a request
    of kind `state` holds. `dcp`: whether decode context parallelism divides its tokens.
    """

    kind: str
    block_size: int
    page_bytes: int
    window: int = 0
    states: int = 1
    dcp: bool = True

    def blocks_per_request(self, max_model_len: int, in_flight: int, dcp: int = 1) -> int:
        """Blocks that a request of `max_model_len` tokens holds at most (`max_memory_usage_bytes` over the page)."""
        if self.kind == "state":
            return self.states
        if self.kind == "sliding":
            return ceil(min(self.window - 1 + in_flight, max_model_len) / self.block_size) + 1
        if self.kind == "chunked":
            return ceil(min(self.window + in_flight, max_model_len) / self.block_size)
        return ceil(ceil(max_model_len / (dcp if self.dcp else 1)) / self.block_size)


@dataclass(frozen=True)
class Group:
    """Layers (by index in the model) with one block table; `specs` holds the page of each."""

    layers: tuple[int, ...]
    specs: tuple[Spec, ...]

    @cached_property
    def distinct(self) -> frozenset[Spec]:
        """The different specs of the group."""
        return frozenset(self.specs)

    def stage_bytes(self, start: int, end: int) -> int:
        """Bytes of one block on the stage that holds layers `start` to `end`."""
        return sum(s.page_bytes for i, s in zip(self.layers, self.specs, strict=True) if start <= i < end)


@dataclass(frozen=True)
class CacheLayout:
    """All groups of a model under one layout."""

    groups: tuple[Group, ...]
    dcp: int = 1
    packed_bytes: int = 0

    def block_bytes(self, start: int, end: int) -> int:
        """Bytes that one block id costs on a stage: the widest group there."""
        return self.packed_bytes or max((g.stage_bytes(start, end) for g in self.groups), default=0)

    def token_bytes(self, start: int, end: int) -> float:
        """Bytes that each further token of a long request costs on a stage: layers that see everything."""
        return sum(
            s.page_bytes / s.block_size
            for g in self.groups
            for i, s in zip(g.layers, g.specs, strict=True)
            if start <= i < end and s.kind == "full"
        )

    def blocks_per_request(self, max_model_len: int, in_flight: int) -> int:
        """Block ids that one request of `max_model_len` tokens takes from the shared pool, over all groups."""
        return sum(
            max(s.blocks_per_request(max_model_len, in_flight, self.dcp) for s in g.distinct)
            for g in self.groups
        )

    @property
    def block_size(self) -> int:
        """Tokens of the smallest block, as the old log line used it."""
        return min(
            (s.block_size for g in self.groups for s in g.distinct if s.kind != "state"), default=BLOCK
        )


def kv_value_bytes(facts: ModelFacts, kv_dtype: str) -> float:
    """Bytes of one cached value: `auto` follows the checkpoint, then the activation dtype. NVFP4 counts its scales."""
    asked = facts.kv_dtype if kv_dtype == "auto" else kv_dtype
    if asked == "auto":
        return facts.dtype_bytes
    if asked == "nvfp4":
        return 0.5 + 1 / 16
    return 1 if asked.startswith("fp8") else 2


def state_bytes(m: Recurrent, tp: int, dtype_bytes: int, conv_bytes: int | None = None) -> int:
    """One request's state of a recurrent layer on one rank: convolution window and temporal state.

    Mamba-2 groups are copied where TP exceeds them (vLLM `extra_groups_for_head_shards`).
    """
    groups = m.key_heads
    if m.kind == "mamba2" and groups % tp:
        groups = tp if groups == 1 else groups + (tp - groups % tp)
    channels = 2 * groups * m.key_dim + m.value_heads * m.value_dim
    conv = channels // tp * (m.conv_kernel - 1) * (conv_bytes or dtype_bytes)
    state = m.value_heads // tp * m.value_dim * m.key_dim
    return conv + state * DTYPE_BYTES.get(m.state_dtype, dtype_bytes)


def _mixer_specs(facts: ModelFacts, m: object, tp: int, value: float, block: int) -> list[Spec]:
    """The caches of one attention layer."""
    if isinstance(m, Attention):
        if m.reuses_cache:
            return []
        page = int(block * max(1, m.kv_heads // tp) * (m.head_dim + m.v_head_dim) * value)
        if m.indexer:
            page += block * m.indexer.head_dim * facts.dtype_bytes
        if m.window:
            return [Spec("sliding", block, page, m.window, dcp=False)]
        return [Spec("chunked", block, page, m.chunk)] if m.chunk else [Spec("full", block, page)]
    if isinstance(m, LatentAttention):
        width = (m.kv_lora_rank + m.rope_dim) * value
        if m.indexer and value == 1:
            width = m.kv_lora_rank + m.kv_lora_rank // 128 * 4 + 2 * m.rope_dim  # fp8_ds_mla: 656 bytes
        found = [Spec("full", block, int(block * width))]
        if m.indexer and m.indexer.owns_cache:  # one FP8 key and a float scale per 128 values
            found.append(Spec("full", block, block * (m.indexer.head_dim + m.indexer.head_dim // 128 * 4)))
        return found
    if isinstance(m, CompressedAttention):
        return _compressed_specs(m, nvfp4=value < 1)
    return []


def _compressed_specs(m: CompressedAttention, nvfp4: bool) -> list[Spec]:
    """DeepSeek-V4 (vLLM `models/deepseek_v4`): raw tokens of the window, compressed entries, index keys, compressor states.

    An entry is 448 FP8 values, 64 BF16 rotary values and scales: 584 bytes. Compressor states are FP32 and slide over twice
    the ratio (4) or the ratio (128); pages are padded to 576 bytes.
    """
    nope = m.head_dim - m.rope_dim
    entry = nope // 2 + nope // 16 + 2 * m.rope_dim + 4 if nvfp4 else nope + 2 * m.rope_dim + 8
    found = [Spec("sliding", SPARSE_BLOCK, _padded(SPARSE_BLOCK * entry), m.window, dcp=False)]
    if not m.ratio:
        return found
    states = max(1, COMPRESSED_BLOCK // m.ratio)
    overlap = 2 if m.ratio == 4 else 1
    block = 4 if m.ratio == 4 else 8
    found.append(Spec("full", COMPRESSED_BLOCK, _padded(states * entry)))
    found.append(
        Spec("sliding", block, _padded(block * 2 * overlap * m.head_dim * 4), overlap * m.ratio, dcp=False)
    )
    if m.indexer:
        width = m.indexer.head_dim
        found.append(Spec("full", COMPRESSED_BLOCK, _padded(states * (width + 4))))
        found.append(
            Spec("sliding", block, _padded(block * 2 * overlap * width * 4), overlap * m.ratio, dcp=False)
        )
    return found


def _padded(size: int) -> int:
    """FlashMLA's packing stride of DeepSeek-V4 pages."""
    return -(-size // 576) * 576


def layer_specs(
    facts: ModelFacts,
    tp: int,
    kv_dtype: str = "auto",
    block_size: int | None = None,
    version: Version = (0, 32, 0),
) -> list[list[Spec]]:
    """The cache specs of every layer on one rank; a layer may have none or two."""
    value = kv_value_bytes(facts, kv_dtype)
    sparse = any(isinstance(x.mixer, LatentAttention) and x.mixer.indexer for x in facts.layers)
    block = block_size or (SPARSE_BLOCK if sparse else BLOCK)
    recurrent = next((x.mixer for x in facts.layers if isinstance(x.mixer, Recurrent)), None)
    page = 0
    if recurrent:
        token = max(
            (s.page_bytes for x in facts.layers for s in _mixer_specs(facts, x.mixer, tp, value, 1)),
            default=0,
        )
        page = state_bytes(recurrent, tp, facts.dtype_bytes)
        if token:
            # Attention blocks grow until their page holds a state, in steps of the kernel's block.
            block = max(block, BLOCK * ceil(page / (BLOCK * token)))
            page = max(page, block * token)
    found = []
    for layer in facts.layers:
        if isinstance(layer.mixer, Recurrent):
            states = 2 if version >= STATES_ALIGNED else 1
            found.append([Spec("state", block, page, states=states, dcp=False)])
        else:
            found.append(_mixer_specs(facts, layer.mixer, tp, value, block))
    return found


def _unify(specs: Sequence[Spec]) -> list[Spec]:
    """Equal page sizes: blocks of smaller pages grow by a whole factor, otherwise pages are padded."""
    largest = max(s.page_bytes for s in specs)
    unified = []
    for s in specs:
        factor = largest // s.page_bytes if s.kind != "state" and largest % s.page_bytes == 0 else 1
        unified.append(replace(s, page_bytes=largest, block_size=s.block_size * factor))
    return unified


def cache_layout(
    facts: ModelFacts,
    tp: int,
    kv_dtype: str = "auto",
    dcp: int = 1,
    block_size: int | None = None,
    version: Version = (0, 32, 0),
) -> CacheLayout:
    """Groups of layers as vLLM forms them; computed once for each set of arguments.

    All of one kind: one group, whose block is the sum of its pages. Otherwise pages are unified and each kind is cut into groups
    of the smallest kind's number of layers (or of the largest's, if that is less than half as many again).
    """
    known: dict[tuple[object, ...], CacheLayout] = facts.__dict__.setdefault("_cache_layouts", {})
    key = (tp, kv_dtype, dcp, block_size, version >= STATES_ALIGNED, version < PACKED_BY_GROUP)
    if key not in known:
        flat = [
            (i, s)
            for i, specs in enumerate(layer_specs(facts, tp, kv_dtype, block_size, version))
            for s in specs
        ]
        groups = tuple(_groups(facts, flat))
        packed = (
            any(isinstance(x.mixer, CompressedAttention) for x in facts.layers) and version < PACKED_BY_GROUP
        )
        known[key] = CacheLayout(groups, dcp, _packed_block_bytes(groups) if packed else 0)
    return known[key]


def _groups(facts: ModelFacts, flat: Sequence[tuple[int, Spec]]) -> list[Group]:
    if not flat:
        return []
    if len({(s.kind, s.window, s.block_size) for _, s in flat}) == 1:
        return [Group(tuple(i for i, _ in flat), tuple(s for _, s in flat))]
    if any(isinstance(x.mixer, CompressedAttention) for x in facts.layers):
        return _packed(flat)
    buckets: dict[Spec, list[int]] = {}
    for (i, _), s in zip(flat, _unify([s for _, s in flat]), strict=True):
        buckets.setdefault(s, []).append(i)
    sizes = [len(layers) for layers in buckets.values()]
    size = max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)
    groups = []
    for spec, layers in buckets.items():
        count = ceil(len(layers) / size)
        groups += [Group(tuple(layers[k::count]), (spec,) * len(layers[k::count])) for k in range(count)]
    return groups


def _packed(flat: Sequence[tuple[int, Spec]]) -> list[Group]:
    """DeepSeek-V4's packed pool (vLLM `_get_packed_kv_cache_groups`): V4-Flash makes five groups.

    Layers of one block size and window share a bucket; buckets are cut into groups of as many layers as pad least, at least as
    many as the largest bucket that mixes page sizes.
    """
    buckets: dict[tuple[str, int, int], list[tuple[int, Spec]]] = {}
    for i, s in flat:
        buckets.setdefault((s.kind, s.window, s.block_size), []).append((i, s))
    counts = {key: list(Counter(s.page_bytes for _, s in bucket).values()) for key, bucket in buckets.items()}
    balanced = {key for key, found in counts.items() if len(set(found)) == 1}
    floor = max((counts[key][0] for key in balanced if len(counts[key]) > 1), default=0)
    repeats = _least_padding([counts[key][0] for key in balanced], floor) if floor else 0
    groups = []
    for key, bucket in buckets.items():
        count = ceil(counts[key][0] / repeats) if key in balanced and repeats else 1
        pages = sorted({s.page_bytes for _, s in bucket})
        by_page = [[item for item in bucket if item[1].page_bytes == page] for page in pages]
        for k in range(count):
            part = [item for column in by_page for item in column[k::count]]
            groups.append(Group(tuple(i for i, _ in part), tuple(s for _, s in part)))
    return groups


def _least_padding(sizes: Sequence[int], floor: int) -> int:
    """The group size that wastes the fewest layers, the larger of equals (vLLM `_approximate_gcd`)."""
    return min(range(floor, max(sizes) + 1), key=lambda d: (sum(-x % d for x in sizes), -d), default=floor)


def _packed_block_bytes(groups: Sequence[Group]) -> int:
    """Until 0.23 a packed block held every page size once per repeat (a log of 0.22 in vllm#44376 is met to the block)."""
    repeats = max(max(Counter(s.page_bytes for s in g.specs).values()) for g in groups)
    full = next(g for g in groups if any(s.kind == "full" for s in g.specs))
    return repeats * sum({s.page_bytes for s in full.specs})

"""What lies beside weights and cache: activation peak, memory outside the allocator, CUDA graphs. Keyed by vLLM version.

The forms follow what vLLM allocates in its profiling run; the constants are fits to published logs of vLLM 0.15 to 0.19 on
H100 (llm-d-planner, Apache-2.0; see docs/calibration.md for the fit and its error on models it did not see).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from longspan.model.facts import (
    Attention,
    CompressedAttention,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    ModelFacts,
    Recurrent,
)
from longspan.plan import Layout
from longspan.planner.engine import V1_DEFAULT, GpuMemory, Resolved
from longspan.planner.rank_weights import stage_bounds
from longspan.planner.versions import Version
from longspan.units import GIB


@dataclass(frozen=True)
class SamplerCost:
    """Bytes per (request, vocabulary entry) of the dummy sampler run, logits in FP32 and their sorted copies included."""

    since: Version
    values_bytes: float


# Logits themselves (activation dtype) come on top. 0.14 to 0.16 sorted whole vocabularies with their indices; from 0.17 on not.
# 0.12 and 0.13 were not measured; the step to 0.14 is dated by reports of out-of-memory after an upgrade from 0.11.2.
SAMPLER = (
    SamplerCost((0, 17, 0), 12.54),
    SamplerCost((0, 14, 0), 36.03),
    SamplerCost((0, 8, 0), 12.6),
    SamplerCost((0, 0, 0), 2.0),  # the old engine's profiling run sampled a few tokens only
)
CONSTANT_BYTES = round(0.048 * GIB)
MULTIMODAL_BYTES = round(0.07 * GIB)
# MLA's chunked prefill gathers up to 64 Ki cached tokens (vLLM `MLACommonMetadataBuilder`).
MLA_WORKSPACE_TOKENS = 64 * 1024
# DeepSeek-V4 gathers the keys of four prompts at a time (vLLM `PREFILL_CHUNK_SIZE`).
COMPRESSED_PREFILLS = 4
# What a sparse indexer holds besides for its logits (VLLM_SPARSE_INDEXER_MAX_LOGITS_MB), since profiling reserves it.
INDEXER_LOGITS_BYTES = 512 << 20
INDEXER_LOGITS_RESERVED: Version = (0, 20, 0)
# The sparse indexer reserves 40 rows of 132 bytes per token of max_model_len (vLLM `get_max_prefill_buffer_size`).
INDEXER_ROWS, INDEXER_ROW_BYTES = 40, 132
# Fused MoE works on chunks of at most this many tokens (VLLM_FUSED_MOE_CHUNK_SIZE).
MOE_CHUNK_TOKENS = 32 * 1024


def sampler_bytes(facts: ModelFacts, settings: Resolved) -> float:
    """Peak of the profiling run's sampler: `max_num_seqs` requests over the whole vocabulary, on every TP rank."""
    per_value = next(c.values_bytes for c in SAMPLER if settings.version >= c.since)
    return settings.max_num_seqs * facts.vocab * (per_value + facts.dtype_bytes)


def _layer_forward(facts: ModelFacts, layer: Layer, layout: Layout, settings: Resolved) -> float:
    """Peak of one layer over `max_num_batched_tokens` tokens: four hidden states and the widest projection's parts."""
    tokens, size, tp = settings.max_num_batched_tokens, facts.dtype_bytes, layout.tp
    wide = 0.0
    for feed in layer.feeds:
        if isinstance(feed, FeedForward):
            wide = max(wide, (3 if feed.gated else 2) * feed.intermediate / tp)
        else:
            wide = max(wide, 3 * feed.shared_intermediate / tp)
    mixer = layer.mixer
    if isinstance(mixer, Recurrent):
        wide = max(wide, (2 * mixer.conv_channels + 3 * mixer.value_heads * mixer.value_dim) / tp)
    elif isinstance(mixer, Attention):
        wide = max(wide, (2 * mixer.heads + 2 * mixer.kv_heads) * mixer.head_dim / tp)
    elif isinstance(mixer, CompressedAttention):
        # Queries as projected, and queries and output padded for the kernel (vLLM `get_padded_num_q_heads`).
        local = mixer.heads / tp
        padded = local if local > 128 else 128 if local > 64 else 64
        wide = max(wide, (local + 2 * padded) * mixer.head_dim)
    total = tokens * (wide + 4 * facts.hidden * facts.residual_streams) * size
    if isinstance(mixer, CompressedAttention):
        entries = ceil(settings.max_model_len / mixer.ratio) if mixer.ratio > 1 else 0
        total += COMPRESSED_PREFILLS * (entries + mixer.window + tokens) * mixer.head_dim * size
    if isinstance(mixer, LatentAttention):
        gathered = min(max(8 * settings.max_model_len, 64 * settings.max_num_seqs), MLA_WORKSPACE_TOKENS)
        total += gathered * (mixer.heads / tp) * (mixer.nope_dim + mixer.v_dim) * size
    return total


def _moe_workspace(facts: ModelFacts, experts: Experts, layout: Layout, settings: Resolved) -> float:
    """The fused-MoE kernels' two work areas, kept for the whole run (vLLM `modular_kernel`): `top_k` copies of every token.

    MXFP4 and NVFP4 run in kernels that bring their own small buffers.
    """
    scheme = facts.quantisation.scheme("layers.0.mlp.experts.0.up_proj") or facts.quantisation.experts
    if scheme is not None and scheme.bits == 4 and scheme.name.endswith("fp4"):
        return 0.0
    ranks = 1 if layout.ep else layout.tp * layout.dp
    tokens = min(settings.max_num_batched_tokens * (max(1, layout.dp)), MOE_CHUNK_TOKENS)
    inner, width = experts.intermediate / ranks, experts.width
    up = (2 if experts.gated else 1) * inner
    local = experts.top_k / (layout.ep_size if layout.ep else 1)
    return tokens * max(local, 1) * (max(inner, width) + max(up, width)) * facts.dtype_bytes


def activation_bytes(facts: ModelFacts, layout: Layout, stage: int, settings: Resolved) -> float:
    """Peak that the profiling run adds on a rank of this stage.

    The larger of one layer's forward pass and, on the last stage, the sampler with the hidden states it reads; work areas that
    stay allocated come on top of either.
    """
    start, end = stage_bounds(facts, layout)[stage]
    layers = set(facts.layers[start:end])
    hidden = settings.max_num_batched_tokens * facts.hidden * facts.dtype_bytes
    peak = max((_layer_forward(facts, layer, layout, settings) for layer in layers), default=0.0)
    if layout.pp > 1:
        peak += 2 * hidden + CONSTANT_BYTES  # hidden states and residual received or sent
    if stage == layout.pp - 1:
        peak = max(peak, sampler_bytes(facts, settings) + hidden + CONSTANT_BYTES)
    experts = next((f for x in layers for f in x.feeds if isinstance(f, Experts)), None)
    if experts:
        peak += _moe_workspace(facts, experts, layout, settings)
    if facts.tower and stage == 0:
        peak += hidden + MULTIMODAL_BYTES
    return peak + _indexer_workspace(layers, settings)


def _indexer_workspace(layers: Iterable[Layer], settings: Resolved) -> float:
    """Keys that a sparse indexer gathers for prefill; DeepSeek-V4 gathers compressed ones."""
    sizes = [0.0]
    for layer in layers:
        mixer = layer.mixer
        if isinstance(mixer, LatentAttention) and mixer.indexer:
            sizes.append(float(settings.max_model_len))
        elif isinstance(mixer, CompressedAttention) and mixer.indexer:
            sizes.append(settings.max_model_len / mixer.ratio)
    logits = INDEXER_LOGITS_BYTES if max(sizes) and settings.version >= INDEXER_LOGITS_RESERVED else 0
    return max(sizes) * INDEXER_ROWS * INDEXER_ROW_BYTES + logits


def non_torch_bytes(layout: Layout, settings: Resolved, gpu: GpuMemory) -> float:
    """Memory outside the allocator that appears while profiling: kernels and libraries, NCCL and all-reduce buffers.

    TP on a fabric (NVLink) allocates all-reduce work areas, 2.1 GiB from 0.18 on; without one only NCCL's own.
    """
    if settings.version < V1_DEFAULT:
        return (0.25 if layout.tp > 1 else 0.16) * GIB  # logs in vllm#13061 and vllm#12126
    modern = settings.version >= (0, 18, 0)
    if layout.tp > 1:
        if modern and gpu.fabric:
            return (2.07 if layout.tp == 2 else 2.17) * GIB
        return 0.55 * GIB
    if layout.pp > 1:
        return 0.1 * GIB
    return (0.25 if modern else 0.13) * GIB


# The estimate of CUDA graphs is subtracted from the pool since 0.21.
GRAPHS_SUBTRACTED: Version = (0, 21, 0)
_USUAL_SIZES = 51  # captured batch sizes of the measured runs, up to 512
_GRAPH_BASE_GIB = 0.25


def captured_sizes(facts: ModelFacts, settings: Resolved) -> int:
    """How many batch sizes are captured: 1, 2, 4, eights to 256, sixteens to twice max_num_seqs, at most 512.

    gpt-oss captures up to 1024 (vLLM `GptOssForCausalLMConfig`).
    """
    largest = min(2 * settings.max_num_seqs, 1024 if facts.model_type == "gpt_oss" else 512)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return sum(size <= largest for size in sizes)


def cuda_graph_bytes(facts: ModelFacts, layout: Layout, stage: int, settings: Resolved) -> float:
    """Memory of the captured graphs: a base, and more for every captured size in deep and wide models, experts and MLA."""
    if settings.eager:
        return 0.0
    start, end = stage_bounds(facts, layout)[stage]
    layers = facts.layers[start:end]
    moe = sum(any(isinstance(f, Experts) for f in x.feeds) for x in layers)
    mla = sum(isinstance(x.mixer, LatentAttention) for x in layers)
    size = 0.68 + 0.0093 * moe + 0.0177 * mla + 0.176 * facts.hidden * len(layers) / 1e5
    size = max(0.3, size - (0.18 if layout.tp > 1 else 0.0))
    return (_GRAPH_BASE_GIB + (size - _GRAPH_BASE_GIB) * captured_sizes(facts, settings) / _USUAL_SIZES) * GIB

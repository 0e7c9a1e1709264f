"""Weight bytes of one rank: what TP shards, what it copies, what stands on which pipeline stage.

Follows vLLM's layers (read in 0.32). Experts are divided over `tp * dp` ranks with and without expert parallelism; attention,
dense layers and shared experts are copied over DP.
"""

from collections import Counter
from dataclasses import replace
from math import ceil

from longspan.model.facts import LatentAttention, ModelFacts
from longspan.model.quantisation import Scheme
from longspan.model.weights import VOCAB_PADDING, Matrix, layer_kinds
from longspan.plan import Layout, Part
from longspan.planner.versions import LATEST, Version


def stage_bounds(facts: ModelFacts, layout: Layout) -> list[tuple[int, int]]:
    """First and one-past-last layer of every pipeline stage (vLLM `get_pp_indices`).

    The remainder goes to stages from the second-last backwards, never to the last, which holds norm and head.
    """
    if layout.partition:
        sizes = list(layout.partition)
    else:
        count, pp = len(facts.layers), layout.pp
        sizes = [count // pp] * pp
        for i in range(2, count % pp + 2):
            sizes[-i] += 1
    bounds, start = [], 0
    for size in sizes:
        bounds.append((start, start + size))
        start += size
    return bounds


def _stored(scheme: Scheme | None, out: int, inp: int, value_bytes: int) -> float:
    return out * inp * value_bytes if scheme is None else scheme.size_bytes(out, inp)


def matrix_bytes(
    m: Matrix, layout: Layout, value_bytes: int, redundant_experts: int = 0, version: Version = LATEST
) -> float:
    """Bytes of one matrix on the rank that holds the most of it."""
    tp, size = layout.tp, m.dtype_bytes or value_bytes
    if m.shard == "whole":
        return m.count * _stored(m.scheme, m.out, m.inp, size)
    if m.shard == "row":
        return m.count * _stored(m.scheme, m.out, ceil(m.inp / tp), size)
    if m.shard == "kv":
        per_head = m.out // m.heads
        return m.count * _stored(m.scheme, per_head * max(1, m.heads // tp), m.inp, size)
    if m.shard == "experts":
        ranks = tp * layout.dp
        if layout.ep:
            return ceil((m.count + redundant_experts) / ranks) * _expert(m, m.out, m.inp, size, version)
        if m.name.endswith("down_proj"):
            return m.count * _expert(m, m.out, ceil(m.inp / ranks), size, version)
        if m.name.endswith("down_bias"):
            return m.count * m.out * size
        return m.count * _expert(m, ceil(m.out / ranks), m.inp, size, version)
    return m.count * _stored(m.scheme, ceil(m.out / tp), m.inp, size)


def _round_up(value: int, to: int) -> int:
    return -(-value // to) * to


# Until 0.16, MXFP4 experts were padded to 64 only: gpt-oss weights in logs of 0.15 and 0.19 on H100.
MXFP4_PADS_128: Version = (0, 17, 0)


def _expert(m: Matrix, out: int, inp: int, value_bytes: int, version: Version) -> float:
    """One expert's share; MXFP4 kernels pad (vLLM `mxfp4_round_up_hidden_size_and_intermediate_size`, Marlin and TRT-LLM).

    The intermediate size is padded to 128, the hidden one to 256.
    """
    if m.scheme is not None and m.scheme.name == "mxfp4":
        step = 128 if version >= MXFP4_PADS_128 else 64
        if m.name.endswith("down_proj"):
            out, inp = _round_up(out, 256), _round_up(inp, step)
        else:
            out, inp = _round_up(out, step), _round_up(inp, 256)
    return _stored(m.scheme, out, inp, value_bytes)


def _absorbed(facts: ModelFacts, layout: Layout, start: int, end: int) -> float:
    """MLA decodes with copies of the key and value up-projections, unpacked from `kv_b_proj` (vLLM `W_UK_T`, `W_UV`)."""
    return sum(
        count * ceil(m.heads / layout.tp) * m.kv_lora_rank * (m.nope_dim + m.v_dim) * facts.dtype_bytes
        for m, count in Counter(x.mixer for x in facts.layers[start:end]).items()
        if isinstance(m, LatentAttention)
    )


def padded_vocab(facts: ModelFacts) -> int:
    """Vocabulary rows that vLLM allocates."""
    return _round_up(facts.vocab, VOCAB_PADDING)


# Matrices that vLLM keeps in one tensor.
_FUSED = {
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up", "q_a_proj": "qkv_a",
    "kv_a_proj_with_mqa": "qkv_a", "in_proj_qkv": "in_proj_qkvz", "in_proj_z": "in_proj_qkvz",
}  # fmt: skip
_MIB = 1 << 20


def allocator_waste(size_bytes: float) -> float:
    """What PyTorch's allocator adds to one large tensor.

    Above 10 MiB a segment is a multiple of 2 MiB, and a rest of up to 1 MiB is not split off (CUDACachingAllocator:
    kMinLargeAlloc, kRoundLarge, kSmallSize), so it counts as allocated.
    """
    if size_bytes < 10 * _MIB:
        return 0.0
    rest = -size_bytes % (2 * _MIB)
    return rest if rest <= _MIB else 0.0


def _layer_waste(
    layer: tuple[Matrix, ...], layout: Layout, value: int, redundant_experts: int, version: Version
) -> float:
    tensors: dict[str, float] = {}
    for m in layer:
        stem, _, last = m.name.rpartition(".")
        bare = replace(m, scheme=Scheme(m.scheme.name, m.scheme.bits)) if m.scheme else m
        key = f"{stem}.{_FUSED.get(last, last)}"
        tensors[key] = tensors.get(key, 0.0) + matrix_bytes(bare, layout, value, redundant_experts, version)
    return sum(allocator_waste(size) for size in tensors.values())


def rank_weights(
    facts: ModelFacts,
    layout: Layout,
    stage: int,
    version: Version = LATEST,
    redundant_experts: int = 0,
    encoder_data_parallel: bool = False,
) -> tuple[Part, ...]:
    """Weights of a rank on pipeline stage `stage`, by part, in bytes.

    Args:
        version: vLLM's. redundant_experts: EPLB's extra experts per layer, over all ranks.
        encoder_data_parallel: `--mm-encoder-tp-mode data`: every rank holds the whole encoder.
    """
    start, end = stage_bounds(facts, layout)[stage]
    value = facts.dtype_bytes
    sums: dict[str, float] = {}
    waste = 0.0
    kinds, index = layer_kinds(facts)
    for kind, count in Counter(index[start:end]).items():
        for m in kinds[kind]:
            sums[m.part] = sums.get(m.part, 0.0) + count * matrix_bytes(
                m, layout, value, redundant_experts, version
            )
        waste += count * _layer_waste(kinds[kind], layout, value, redundant_experts, version)
    absorbed = _absorbed(facts, layout, start, end) if facts.is_mla else 0.0
    if absorbed:
        sums["attention"] = sums.get("attention", 0.0) + absorbed
    first, last = stage == 0, stage == layout.pp - 1
    table = padded_vocab(facts) / layout.tp * facts.hidden * value
    if first or (last and facts.tied):
        sums["embedding"] = table
    if last and not facts.tied:
        head = facts.quantisation.scheme("lm_head")
        sums["head"] = head.size_bytes(padded_vocab(facts) // layout.tp, facts.hidden) if head else table
    if last:
        sums["norms"] = sums.get("norms", 0.0) + facts.final_params * value
    if first and facts.tower:
        split = 1 if encoder_data_parallel or facts.tower.heads % layout.tp else layout.tp
        sums["encoder"] = (facts.tower.encoder_params / split + facts.tower.projector_params / split) * value
    waste += sum(allocator_waste(sums.get(name, 0.0)) for name in ("embedding", "head"))
    if waste:
        sums["allocator rounding"] = waste
    if facts.rope_values:
        sums["rotary tables"] = float(facts.rope_values * value)
    return tuple(Part(name, size) for name, size in sums.items())

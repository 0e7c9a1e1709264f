"""Legality of shapes: what TP cuts, against KV heads, layer sizes, FP8 scale blocks and quantisation groups.

Each rule gives vLLM's message and the arithmetic; `legality.py` adds the legal TP sizes to the text.
"""

from collections.abc import Callable, Iterator
from math import gcd

from longspan.model.facts import Attention, CompressedAttention, Experts, FeedForward, ModelFacts, Recurrent
from longspan.model.weights import VOCAB_PADDING, Matrix, layer_kinds
from longspan.plan import Layout, Rejection
from longspan.planner.versions import Version

# resolve_fp8_moe_weight_block_shape is in 0.32 (expert blocks are refined down to 32); 0.19 still refuses.
EXPERT_BLOCKS_REFINED: Version = (0, 32, 0)
# marlin_padded_nk is in 0.32: misaligned tiles are padded, only groups must stay whole.
MARLIN_PADS: Version = (0, 32, 0)

ShapeRule = Callable[[ModelFacts, Layout, Version], Rejection | None]


def kv_heads(facts: ModelFacts, layout: Layout, version: Version) -> Rejection | None:
    """QKVParallelLinear: KV heads are divided, or copied a whole number of times."""
    tp = layout.tp
    for kv in sorted({x.mixer.kv_heads for x in facts.layers if isinstance(x.mixer, Attention)}):
        top, bottom = (tp, kv) if tp >= kv else (kv, tp)
        if top % bottom:
            return Rejection(
                layout,
                "kv-heads",
                f"AssertionError: {top} is not divisible by {bottom}",
                f"{kv} KV heads can be neither divided over nor copied to {tp} ranks evenly.",
                source="vllm/model_executor/layers/linear.py QKVParallelLinear",
            )
    return None


def expert_count(facts: ModelFacts, layout: Layout, version: Version) -> Rejection | None:
    """MoE blocks refuse more TP ranks than experts."""
    experts = facts.experts
    if not experts or layout.tp <= experts.count:
        return None
    return Rejection(
        layout,
        "expert-count",
        f"Tensor parallel size {layout.tp} is greater than the number of experts {experts.count}.",
        f"TP {layout.tp} is more than the {experts.count} experts.",
        source="vllm/model_executor/models (MoE blocks)",
    )


def _divided(facts: ModelFacts, ep: bool) -> Iterator[tuple[str, int]]:
    """Every size that vLLM divides by TP beside the heads, with its name for people, each once."""
    found: dict[tuple[str, int], None] = {}
    for layer in facts.layers:
        for feed in layer.feeds:
            if isinstance(feed, FeedForward):
                found["feed-forward size", feed.intermediate] = None
            elif isinstance(feed, Experts):
                if not ep:
                    found["expert feed-forward size", feed.intermediate] = None
                if feed.shared_intermediate:
                    found["shared-expert size", feed.shared_intermediate] = None
        if isinstance(layer.mixer, Recurrent):
            found["number of recurrent heads", layer.mixer.value_heads] = None
            if layer.mixer.kind != "mamba2":  # Mamba-2 copies groups where they do not divide
                found["number of recurrent key heads", layer.mixer.key_heads] = None
        elif isinstance(layer.mixer, CompressedAttention):
            found["number of output groups", layer.mixer.o_groups] = None
    yield from found
    yield "vocabulary, padded to a multiple of 64,", -(-facts.vocab // VOCAB_PADDING) * VOCAB_PADDING


def sizes(facts: ModelFacts, layout: Layout, version: Version) -> Rejection | None:
    """Column- and row-parallel layers divide their sizes without remainder."""
    for name, size in _divided(facts, layout.ep):
        if size % layout.tp == 0:
            continue
        hint = " Expert parallelism (EP) keeps experts whole." if name.startswith("expert") else ""
        return Rejection(
            layout,
            "sizes",
            f"AssertionError: {size} is not divisible by {layout.tp}",
            f"The {name} {size} is not divisible by {layout.tp}.{hint}",
            source="vllm/distributed/utils.py divide",
        )
    return None


def fp8_blocks(facts: ModelFacts, layout: Layout, version: Version) -> Rejection | None:
    """Linear layers need whole scale blocks on every rank; experts too, or blocks that can be refined down to 32."""
    if layout.tp == 1:
        return None
    for m in _distinct(facts):
        if not m.scheme or not m.scheme.block or m.shard == "whole" or (m.shard == "experts" and layout.ep):
            continue
        message = _blocks_message(m, layout.tp, version)
        if message:
            rows, columns = m.scheme.block
            hint = " With EP, experts stay whole." if m.part == "experts" else ""
            return Rejection(
                layout,
                "fp8-blocks",
                message,
                f"TP {layout.tp} cuts {m.name} ({m.out} x {m.inp}) inside an FP8 scale block of {rows} x {columns}.{hint}",
                source="vllm/model_executor/layers/quantization/utils/fp8_utils.py validate_fp8_block_shape",
            )
    return None


def _distinct(facts: ModelFacts) -> Iterator[Matrix]:
    """Every different matrix of the model, once."""
    return iter(dict.fromkeys(m for layer in layer_kinds(facts)[0] for m in layer))


def _blocks_message(m: Matrix, tp: int, version: Version) -> str:
    assert m.scheme is not None
    assert m.scheme.block is not None
    rows, columns = m.scheme.block
    if m.shard == "experts":
        return _expert_blocks_message(m, tp, version)
    if m.shard == "row":
        size = m.inp // tp
        if size % columns:
            return f"Weight input_size_per_partition = {size} is not divisible by weight quantization block_k = {columns}."
        return ""
    size = m.out // m.heads * max(1, m.heads // tp) if m.shard == "kv" else m.out // tp
    if size % rows:
        return (
            f"Weight output_partition_size = {size} is not divisible by weight quantization block_n = {rows}."
        )
    return ""


def _expert_blocks_message(m: Matrix, tp: int, version: Version) -> str:
    assert m.scheme is not None
    assert m.scheme.block is not None
    rows, columns = m.scheme.block
    down = m.name.endswith("down_proj")
    size, hidden = (m.inp // tp, m.out) if down else (m.out // tp, m.inp)
    if size % (columns if down else rows) == 0:
        return ""
    if version >= EXPERT_BLOCKS_REFINED and gcd(rows, columns, size, hidden) >= 32:
        return ""
    if down:
        return f"The input_size of down's weight = {size} is not divisible by weight quantization block_k = {columns}."
    return f"The output_size of gate's and up's weight = {size} is not divisible by weight quantization block_n = {rows}."


def groups(facts: ModelFacts, layout: Layout, version: Version) -> Rejection | None:
    """INT4 groups stay whole on every rank; before Marlin padded its tiles, 64 outputs did too."""
    tp = layout.tp
    if tp == 1:
        return None
    for m in _distinct(facts):
        if not m.scheme or not m.scheme.name.startswith("int") or not m.scheme.group:
            continue
        if m.shard == "experts" and layout.ep:
            continue
        group = m.scheme.group
        row = m.shard == "row" or (m.shard == "experts" and m.name.endswith("down_proj"))
        size = (m.inp if row else m.out) // tp
        if row and size % group:
            message = (
                f"Weight input_size_per_partition={size} is not divisible by group_size={group}. This happens when "
                "tensor_parallel_size splits the layer input into shards that are not a whole number of quant groups."
            )
        elif version < MARLIN_PADS and m.shard == "column" and size % 64:
            message = (
                f"Weight output_size_per_partition = {size} is not divisible by  min_thread_n = 64. Consider reducing "
                "tensor_parallel_size or running with --quantization gptq."
            )
        else:
            continue
        return Rejection(
            layout,
            "groups",
            message,
            f"TP {tp} cuts {m.name} ({m.out} x {m.inp}) inside a quantisation group of {group}.",
            source="vllm/distributed/utils.py verify_group_size_divides_partition",
        )
    return None


SHAPE_RULES: tuple[ShapeRule, ...] = (kv_heads, expert_count, sizes, fp8_blocks, groups)

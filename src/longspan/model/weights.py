"""The weight matrices of a model: what each layer holds, how it is stored, and how tensor parallelism divides it.

Shapes follow vLLM's model code: QKV and gate/up projections are column-parallel, output and down projections row-parallel;
embeddings and head are split over the vocabulary padded to 64; norms, routers, MLA's down-projections and indexers stay whole.
"""

from dataclasses import dataclass

from longspan.model.facts import (
    Attention,
    CompressedAttention,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    ModelFacts,
    Recurrent,
)
from longspan.model.quantisation import Scheme

VOCAB_PADDING = 64  # vLLM DEFAULT_VOCAB_PADDING_SIZE


@dataclass(frozen=True)
class Matrix:
    """One weight matrix, or `count` equal ones.

    Args:
        part: `attention`, `ffn`, `shared`, `experts`, `router`, `norms`, `recurrent`, `indexer`.
        out, inp: size. shard: `column` (out over TP), `row` (inp over TP), `kv` (out over TP, whole heads, at least one),
            `experts` (over all ranks of the expert group) or `whole`.
        heads: KV heads of a `kv` matrix. scheme: storage, None for the activation dtype. dtype_bytes: 0 for the activation
            dtype, else fixed.
    """

    part: str
    name: str
    out: int
    inp: int
    shard: str = "whole"
    count: int = 1
    heads: int = 0
    scheme: Scheme | None = None
    dtype_bytes: int = 0

    @property
    def params(self) -> int:
        """Parameters of all `count` matrices."""
        return self.count * self.out * self.inp


def _linear(
    facts: ModelFacts, layer: int, part: str, name: str, out: int, inp: int, shard: str, **more: int
) -> Matrix:
    scheme = facts.quantisation.scheme(f"layers.{layer}.{name}")
    return Matrix(part, name, out, inp, shard, scheme=scheme, **more)


def _whole(part: str, name: str, size: int, dtype_bytes: int = 0) -> list[Matrix]:
    return [Matrix(part, name, size, 1, dtype_bytes=dtype_bytes)] if size else []


def _attention(facts: ModelFacts, i: int, m: Attention) -> list[Matrix]:
    hidden, q = facts.hidden, m.heads * m.head_dim
    k, v = m.kv_heads * m.head_dim, m.kv_heads * m.v_head_dim
    out = m.heads * m.v_head_dim
    # A layer that reuses an earlier cache still has its key and value weights in the file, and vLLM loads the fused QKV.
    found = [
        _linear(facts, i, "attention", "self_attn.q_proj", q * (2 if m.output_gate else 1), hidden, "column"),
        _linear(facts, i, "attention", "self_attn.k_proj", k, hidden, "kv", heads=m.kv_heads),
        _linear(facts, i, "attention", "self_attn.o_proj", hidden, out, "row"),
    ]
    if not m.k_is_v:
        found.append(_linear(facts, i, "attention", "self_attn.v_proj", v, hidden, "kv", heads=m.kv_heads))
    if m.qkv_bias:
        found.append(Matrix("attention", "self_attn.qkv.bias", q + k + v, 1, "column"))
    found += _whole("norms", "self_attn.o_proj.bias", hidden if m.output_bias else 0)
    found += _whole("norms", "self_attn.sinks", m.heads if m.sinks else 0)
    found += _whole("norms", "self_attn.qk_norm", m.norm_params)
    if m.indexer:
        size = (m.indexer.heads + 1) * m.indexer.head_dim
        found.append(Matrix("indexer", "self_attn.index", size, hidden))
    return found


def _indexer(facts: ModelFacts, i: int, m: LatentAttention | CompressedAttention, rank: int) -> list[Matrix]:
    """The whole indexer stays on every TP rank (vLLM `Indexer`: ReplicatedLinear)."""
    x = m.indexer
    if x is None or not x.owns_cache:
        return []
    found = [
        _linear(facts, i, "indexer", "self_attn.indexer.wq_b", x.heads * x.head_dim, rank, "whole"),
        Matrix("indexer", "self_attn.indexer.weights_proj", x.heads, facts.hidden),
    ]
    if isinstance(m, LatentAttention):
        found.append(_linear(facts, i, "indexer", "self_attn.indexer.wk", x.head_dim, facts.hidden, "whole"))
        found += _whole("norms", "self_attn.indexer.k_norm", 2 * x.head_dim)
    return found


def _latent(facts: ModelFacts, i: int, m: LatentAttention) -> list[Matrix]:
    hidden, q = facts.hidden, m.heads * (m.nope_dim + m.rope_dim)
    found = []
    if m.q_lora_rank:
        found += [
            _linear(facts, i, "attention", "self_attn.q_a_proj", m.q_lora_rank, hidden, "whole"),
            _linear(facts, i, "attention", "self_attn.q_b_proj", q, m.q_lora_rank, "column"),
        ]
    else:
        found.append(_linear(facts, i, "attention", "self_attn.q_proj", q, hidden, "column"))
    kv_b = m.heads * (m.nope_dim + m.v_dim)
    found += [
        _linear(
            facts,
            i,
            "attention",
            "self_attn.kv_a_proj_with_mqa",
            m.kv_lora_rank + m.rope_dim,
            hidden,
            "whole",
        ),
        _linear(facts, i, "attention", "self_attn.kv_b_proj", kv_b, m.kv_lora_rank, "column"),
        _linear(facts, i, "attention", "self_attn.o_proj", hidden, m.heads * m.v_dim, "row"),
    ]
    if m.output_gate:
        found.append(_linear(facts, i, "attention", "self_attn.g_proj", m.heads * m.v_dim, hidden, "column"))
    found += _whole("norms", "self_attn.a_norms", m.kv_lora_rank + (m.q_lora_rank or 0))
    return found + _indexer(facts, i, m, m.q_lora_rank or hidden)


def _compressed(facts: ModelFacts, i: int, m: CompressedAttention) -> list[Matrix]:
    """DeepSeek-V4 (vLLM `deepseek_v4`): fused q_a + kv whole, q_b by heads, grouped two-step output, compressors whole."""
    hidden = facts.hidden
    group = m.heads * m.head_dim // m.o_groups
    found = [
        _linear(facts, i, "attention", "attn.wq_a", m.q_lora_rank, hidden, "whole"),
        _linear(facts, i, "attention", "attn.wq_b", m.heads * m.head_dim, m.q_lora_rank, "column"),
        _linear(facts, i, "attention", "attn.wkv", m.head_dim, hidden, "whole"),
        _linear(facts, i, "attention", "attn.wo_a", m.o_groups * m.o_lora_rank, group, "column"),
        _linear(facts, i, "attention", "attn.wo_b", hidden, m.o_groups * m.o_lora_rank, "row"),
    ]
    found += _whole("norms", "attn.norms", m.q_lora_rank + m.head_dim + m.heads)
    if m.ratio:
        # The compressor: key and gate projections, twice as wide where windows overlap (ratio 4).
        width = m.head_dim * (2 if m.ratio == 4 else 1)
        found.append(Matrix("attention", "attn.compressor", 2 * width, hidden))
        found += _whole("norms", "attn.compressor.ape", m.ratio * width + m.head_dim, 4)
        if m.indexer:
            width = 2 * m.indexer.head_dim
            found.append(Matrix("indexer", "attn.indexer.compressor", 2 * width, hidden))
    return found + _indexer(facts, i, m, m.q_lora_rank)


def _recurrent(facts: ModelFacts, i: int, m: Recurrent) -> list[Matrix]:
    hidden = facts.hidden
    keys, values = m.key_heads * m.key_dim, m.value_heads * m.value_dim
    found = [Matrix("recurrent", "conv1d", m.conv_channels, m.conv_kernel, "column")]
    if m.kind == "mamba2":
        found += [
            _linear(
                facts,
                i,
                "recurrent",
                "mixer.in_proj",
                values + m.conv_channels + m.value_heads,
                hidden,
                "column",
            ),
            _linear(facts, i, "recurrent", "mixer.out_proj", hidden, values, "row"),
        ]
        size = values + m.conv_channels + 3 * m.value_heads
        return [*found, Matrix("recurrent", "mixer.head_params", size, 1, "column")]
    found += [
        _linear(facts, i, "recurrent", "linear_attn.in_proj_qkv", 2 * keys + values, hidden, "column"),
        _linear(facts, i, "recurrent", "linear_attn.out_proj", hidden, values, "row"),
    ]
    if m.kind == "gated-delta":
        found += [
            _linear(facts, i, "recurrent", "linear_attn.in_proj_z", values, hidden, "column"),
            Matrix("recurrent", "linear_attn.in_proj_ba", 2 * m.value_heads, hidden, "column"),
            Matrix("recurrent", "linear_attn.head_params", 2 * m.value_heads, 1, "column"),
        ]
        return found + _whole("norms", "linear_attn.norm", m.value_dim)
    # KDA: the forget gate is low-rank; the output gate is full or low-rank.
    low = [
        Matrix("recurrent", "self_attn.f_a", m.value_dim, hidden),
        Matrix("recurrent", "self_attn.f_b", values, m.value_dim, "column"),
    ]
    gate = (
        [_linear(facts, i, "recurrent", "self_attn.g_proj", values, hidden, "column")]
        if m.full_rank_gate
        else [
            Matrix("recurrent", "self_attn.g_a", m.value_dim, hidden),
            Matrix("recurrent", "self_attn.g_b", values, m.value_dim, "column"),
        ]
    )
    found += [*low, *gate, Matrix("recurrent", "self_attn.b_proj", m.value_heads, hidden, "column")]
    return found + _whole("norms", "self_attn.head_params", values + m.value_heads + m.value_dim, 4)


def _mixer(facts: ModelFacts, i: int, mixer: Mixer | None) -> list[Matrix]:
    if mixer is None:
        return []
    if isinstance(mixer, Attention):
        return _attention(facts, i, mixer)
    if isinstance(mixer, LatentAttention):
        return _latent(facts, i, mixer)
    if isinstance(mixer, CompressedAttention):
        return _compressed(facts, i, mixer)
    return _recurrent(facts, i, mixer)


def _dense(
    facts: ModelFacts, i: int, size: int, gated: bool, bias: bool, name: str, part: str
) -> list[Matrix]:
    found = [
        _linear(facts, i, part, f"{name}.up_proj", size, facts.hidden, "column"),
        _linear(facts, i, part, f"{name}.down_proj", facts.hidden, size, "row"),
    ]
    if gated:
        found.append(_linear(facts, i, part, f"{name}.gate_proj", size, facts.hidden, "column"))
    if bias:
        found.append(Matrix(part, f"{name}.bias", size * (2 if gated else 1), 1, "column"))
        found += _whole("norms", f"{name}.down.bias", facts.hidden)
    return found


def _feed(facts: ModelFacts, i: int, feed: FeedForward | Experts, beside_dense: bool) -> list[Matrix]:
    # Gemma-4's experts stand beside a dense `mlp` and have a name of their own.
    block = "moe" if beside_dense else "mlp"
    if isinstance(feed, FeedForward):
        return _dense(facts, i, feed.intermediate, feed.gated, feed.bias, "mlp", "ffn")
    x = feed
    found = [
        _linear(
            facts,
            i,
            "experts",
            f"{block}.experts.0.up_proj",
            x.intermediate,
            x.width,
            "experts",
            count=x.count,
        ),
        _linear(
            facts,
            i,
            "experts",
            f"{block}.experts.0.down_proj",
            x.width,
            x.intermediate,
            "experts",
            count=x.count,
        ),
        Matrix("router", f"{block}.gate", x.count, facts.hidden),
    ]
    if x.gated:
        found.append(
            _linear(
                facts,
                i,
                "experts",
                f"{block}.experts.0.gate_proj",
                x.intermediate,
                x.width,
                "experts",
                count=x.count,
            )
        )
    if x.bias:
        found.append(
            Matrix(
                "experts",
                f"{block}.experts.bias",
                x.intermediate * (2 if x.gated else 1),
                1,
                "experts",
                x.count,
            )
        )
        found.append(Matrix("experts", f"{block}.experts.down_bias", x.width, 1, "experts", x.count))
        found += _whole("router", f"{block}.gate.bias", x.count)
    found += _whole("router", f"{block}.correction_bias", x.count if x.correction_bias else 0, 4)
    if x.width != facts.hidden:
        found += [
            _linear(facts, i, "ffn", "mlp.fc1_latent_proj", x.width, facts.hidden, "whole"),
            _linear(facts, i, "ffn", "mlp.fc2_latent_proj", facts.hidden, x.width, "whole"),
        ]
    if x.shared_intermediate:
        found += _dense(facts, i, x.shared_intermediate, x.gated, False, "mlp.shared_experts", "shared")
        found += _whole("router", "mlp.shared_expert_gate", facts.hidden if x.shared_gate else 0)
    return found


def layer_matrices(facts: ModelFacts, index: int) -> tuple[Matrix, ...]:
    """Every matrix of layer `index`."""
    layer: Layer = facts.layers[index]
    found = _mixer(facts, index, layer.mixer)
    for feed in layer.feeds:
        found += _feed(facts, index, feed, len(layer.feeds) > 1)
    found += _whole("norms", "norms", layer.norm_params + layer.extra_params)
    return tuple(found)


def matrices(facts: ModelFacts) -> tuple[tuple[Matrix, ...], ...]:
    """Every layer's matrices, in layer order."""
    kinds, index = layer_kinds(facts)
    return tuple(kinds[k] for k in index)


def layer_kinds(facts: ModelFacts) -> tuple[tuple[tuple[Matrix, ...], ...], tuple[int, ...]]:
    """The different layers of a model, and which of them stands at each place. Computed once a model."""
    found: tuple[tuple[tuple[Matrix, ...], ...], tuple[int, ...]] | None = facts.__dict__.get("_layer_kinds")
    if found is None:
        order: dict[tuple[Matrix, ...], int] = {}
        index = tuple(
            order.setdefault(layer_matrices(facts, i), len(order)) for i in range(len(facts.layers))
        )
        found = (tuple(order), index)
        # A frozen value keeps what was derived from it, as functools.cached_property does.
        facts.__dict__["_layer_kinds"] = found
    return found


def parameters(facts: ModelFacts) -> int:
    """All parameters without multi-token-prediction layers: as published for most checkpoints."""
    layers = sum(m.params for layer in matrices(facts) for m in layer)
    embeddings = facts.vocab * facts.hidden * (1 if facts.tied else 2)
    tower = facts.tower.encoder_params + facts.tower.projector_params if facts.tower else 0
    return layers + embeddings + tower + facts.final_params + facts.position_params


def active_parameters(facts: ModelFacts) -> int:
    """Parameters that one token passes: top-k of the routed experts, the head but not the embedding table."""
    total = facts.vocab * facts.hidden + facts.final_params
    for index, layer in enumerate(matrices(facts)):
        experts = next((f for f in facts.layers[index].feeds if isinstance(f, Experts)), None)
        share = experts.top_k / experts.count if experts else 1.0
        total += round(sum(m.params * (share if m.part == "experts" else 1.0) for m in layer))
    return total

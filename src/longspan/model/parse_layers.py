"""The decoder layers of a config: which mixer and which feed-forward part each has. Decided by fields only."""

from typing import Any

from longspan.errors import ModelError
from longspan.model import fields as known
from longspan.model.facts import (
    Attention,
    CompressedAttention,
    FeedForward,
    Indexer,
    LatentAttention,
    Layer,
    Mixer,
    Recurrent,
)
from longspan.model.fields import Fields
from longspan.model.parse_feeds import parse_dense, parse_experts, parse_feeds

# hybrid_override_pattern of Nemotron-H: Mamba, attention, feed-forward, experts.
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
# Eight times the deepest model published (126 layers), so that a mistyped number ends in words and not in hours.
_MOST_LAYERS = 1000
_RECURRENT = {"mamba", "mamba2", "linear_attention", "linear", "recurrent", "kda"}
_SLIDING = {"sliding_attention", "sliding", "local", "local_attention", "swa"}


def parse_layers(f: Fields) -> tuple[Layer, ...]:
    """All decoder layers in order.

    Raises:
        ModelError: a field is missing or contradicts another.
    """
    count = layer_count(f)
    if f.get("block_configs"):
        return _pruned_layers(f, f.per_layer(f.get("block_configs"), count, "block_configs"))
    kinds = _kinds(f, count)
    one_part = bool(f.get("hybrid_override_pattern") or (f.get("layers_block_type") and "moe" in kinds))
    return tuple(_layer(f, i, kind, one_part) for i, kind in enumerate(kinds))


def layer_count(f: Fields) -> int:
    """Decoder layers: num_hidden_layers, or the length of the list of blocks where only that is given."""
    listed = f.get("hybrid_override_pattern", "layers_block_type")
    count = f.count(
        "num_hidden_layers", "n_layer", "n_layers", "num_layers", default=len(listed) if listed else None
    )
    if count > _MOST_LAYERS:
        raise ModelError(
            f"{f.where}num_hidden_layers in config.json is {count}, which no model has.",
            "Take config.json from the model's own repository.",
        )
    return count


def _kinds(f: Fields, count: int) -> list[str]:
    """A word for each layer's mixer: listed layer by layer, or given by a period."""
    return _listed_kinds(f, count) or _periodic_kinds(f, count)


def _listed_kinds(f: Fields, count: int) -> list[str] | None:
    pattern = f.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        unknown = sorted(set(pattern) - set(_PATTERN))
        if unknown:
            raise ModelError(
                f"hybrid_override_pattern has unknown letters {unknown}.", "Known are M, *, - and E."
            )
        return f.per_layer([_PATTERN[c] for c in pattern], count, "hybrid_override_pattern")
    for name in ("layers_block_type", "layer_types"):
        if isinstance(f.get(name), list):
            return [str(x) for x in f.per_layer(f.get(name), count, name)]
    for name, on, off in (
        ("hybrid_layer_pattern", "sliding_attention", "full_attention"),
        ("attn_type_list", "attention", "linear"),
    ):
        if isinstance(f.get(name), list):
            return [on if x else off for x in f.per_layer(f.get(name), count, name)]
    linear = f.get("linear_attn_config")
    if linear and linear.get("kda_layers"):
        return ["kda" if i + 1 in set(linear["kda_layers"]) else "full_attention" for i in range(count)]
    return None


def _periodic_kinds(f: Fields, count: int) -> list[str]:
    if f.get("full_attention_interval") and f.get("linear_num_value_heads"):
        every = f.count("full_attention_interval")
        return ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(count)]
    if f.get("attention_chunk_size") and f.get("no_rope_layer_interval", "no_rope_layers"):
        every = f.optional("no_rope_layer_interval") or 4
        # 0 marks a layer without rotary embedding: it attends to everything
        flags = f.get("no_rope_layers") or [(i + 1) % every != 0 for i in range(count)]
        return [
            "chunked_attention" if x else "full_attention"
            for x in f.per_layer(flags, count, "no_rope_layers")
        ]
    if f.get("sliding_window_pattern") and f.get("sliding_window"):
        every = f.count("sliding_window_pattern")
        return ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(count)]
    if f.get("attn_layer_period"):
        period, offset = f.count("attn_layer_period"), f.optional("attn_layer_offset")
        return ["attention" if i % period == offset else "mamba" for i in range(count)]
    if f.get("sliding_window") and f.get("use_sliding_window", default=True) and not f.get("compress_ratios"):
        first = f.optional("max_window_layers")  # Qwen2: layers from this one on slide; absent: all
        return ["sliding_attention" if i >= first else "full_attention" for i in range(count)]
    return ["full_attention"] * count


def _layer(f: Fields, index: int, kind: str, one_part: bool) -> Layer:
    hidden = f.count("hidden_size", "n_embd", "d_model")
    norms = 4 if f.type in known.FOUR_NORMS else 1 if one_part or f.type in known.PARALLEL_NORM else 2
    norm_params = norms * hidden * (2 if f.type in known.LAYER_NORM else 1)
    if one_part:
        feeds = (parse_experts(f),) if kind == "moe" else (parse_dense(f),) if kind in {"mlp", "ffn"} else ()
        return Layer(None if feeds else _mixer(f, index, kind), feeds, norm_params)
    return Layer(_mixer(f, index, kind), parse_feeds(f, index), norm_params + _extra_norms(f, hidden))


def _extra_norms(f: Fields, hidden: int) -> int:
    """Norms that only some blocks have: Gemma-4's second feed-forward branch (router scale and three norms)."""
    return 4 * hidden if f.get("enable_moe_block") else 0


def _mixer(f: Fields, index: int, kind: str) -> Mixer:
    if kind in _RECURRENT:
        return _recurrent(f)
    if f.get("compress_ratios"):
        return _compressed(f, index)
    if f.get("kv_lora_rank"):
        return _latent(f, index)
    return _attention(f, index, kind)


def _attention(f: Fields, index: int, kind: str) -> Attention:
    sliding, chunked = kind in _SLIDING, kind == "chunked_attention"
    heads = f.count("num_attention_heads", "n_head", "n_heads")
    default_kv = 1 if f.get("multi_query") else heads
    kv_heads = f.count("num_key_value_heads", "num_kv_heads", "n_head_kv", default=default_kv)
    hidden = f.count("hidden_size", "n_embd", "d_model")
    head_dim = f.get("head_dim", "attention_head_dim")
    if head_dim is None:
        if hidden % heads:
            raise ModelError(
                f"{f.where}hidden_size {hidden} is not a multiple of {f.where}num_attention_heads {heads}, and there is "
                "no head_dim: the fields contradict each other.",
                "Take config.json from the model's own repository.",
            )
        head_dim = hidden // heads
    v_dim = f.get("v_head_dim", default=head_dim)
    if sliding and f.get("swa_num_key_value_heads"):
        heads, kv_heads = (
            f.count("swa_num_attention_heads", default=heads),
            f.count("swa_num_key_value_heads"),
        )
        head_dim, v_dim = f.count("swa_head_dim", default=head_dim), f.count("swa_v_head_dim", default=v_dim)
    k_is_v = False
    if not sliding and f.get("global_head_dim"):
        head_dim = v_dim = f.count("global_head_dim")
        k_is_v = bool(f.get("attention_k_eq_v"))
        kv_heads = f.count("num_global_key_value_heads", default=kv_heads) if k_is_v else kv_heads
    if kv_heads > heads:
        raise ModelError(
            f"{f.where}num_key_value_heads is {kv_heads}, more than the {heads} query heads: the fields contradict each other.",
            "Take config.json from the model's own repository.",
        )
    window = f.get("sliding_window", "sliding_window_size") if sliding else None
    bias = bool(f.get("attention_bias", "qkv_bias", "use_qkv_bias", default=f.type in known.QKV_BIAS))
    layers = layer_count(f)
    return Attention(
        heads, kv_heads, int(head_dim), int(v_dim),
        window=int(window) if window else None,
        chunk=f.optional("attention_chunk_size") or None if chunked else None,
        qkv_bias=bias,
        output_bias=f.type in known.LINEAR_BIAS or (bias and bool(f.get("attention_out_bias", default=f.type == "gpt_oss"))),
        output_gate=bool(f.get("attn_output_gate")),
        k_is_v=k_is_v,
        reuses_cache=index >= layers - f.optional("num_kv_shared_layers"),
        sinks=bool(f.get("add_swa_attention_sink_bias") and sliding) or f.type == "gpt_oss",
        norm_params=_qk_norm(f, heads, kv_heads, int(head_dim)),
        indexer=_block_indexer(f, index),
    )  # fmt: skip


def _qk_norm(f: Fields, heads: int, kv_heads: int, head_dim: int) -> int:
    if f.get("qk_norm_type") == "per_layer":
        return (heads + kv_heads) * head_dim
    default = f.type in known.QK_NORM
    return 2 * head_dim if f.get("use_qk_norm", "qk_norm", default=default) and f.type != "llama4_text" else 0


def _block_indexer(f: Fields, index: int) -> Indexer | None:
    """MiniMax-M3's block-sparse attention: index queries and keys beside the usual ones."""
    sparse = f.get("sparse_attention_config") or {}
    flags = sparse.get("sparse_attention_freq") or []
    if not sparse.get("use_sparse_attention") or (index < len(flags) and not flags[index]):
        return None
    top = int(sparse.get("sparse_topk_blocks", 0)) * int(sparse.get("sparse_block_size", 1))
    return Indexer(
        int(sparse.get("sparse_num_index_heads", 1)), int(sparse.get("sparse_index_dim", 128)), top
    )


def _indexer(f: Fields, index: int) -> Indexer | None:
    if not f.get("index_n_heads"):
        return None
    types = f.get("indexer_types") or []
    owns = not (index < len(types) and types[index] == "shared")
    return Indexer(f.count("index_n_heads"), f.count("index_head_dim"), f.optional("index_topk"), owns)


def _latent(f: Fields, index: int) -> LatentAttention:
    return LatentAttention(
        heads=f.count("num_attention_heads"),
        q_lora_rank=f.optional("q_lora_rank") or None,
        kv_lora_rank=f.count("kv_lora_rank"),
        nope_dim=f.count("qk_nope_head_dim"),
        rope_dim=f.count("qk_rope_head_dim"),
        v_dim=f.count("v_head_dim"),
        output_gate=bool(f.get("mla_use_output_gate")),
        indexer=_indexer(f, index),
    )


def _compressed(f: Fields, index: int) -> CompressedAttention:
    ratio = int(f.get("compress_ratios")[index])
    return CompressedAttention(
        heads=f.count("num_attention_heads"),
        head_dim=f.count("head_dim"),
        rope_dim=f.count("qk_rope_head_dim"),
        q_lora_rank=f.count("q_lora_rank"),
        o_lora_rank=f.count("o_lora_rank"),
        o_groups=f.count("o_groups"),
        window=f.count("sliding_window"),
        ratio=ratio,
        # Only the layers with the finer ratio choose among entries; the coarse ones attend to all of them.
        indexer=_indexer(f, index) if ratio == 4 else None,
    )


def _recurrent(f: Fields) -> Recurrent:
    dtype = str(f.get("mamba_ssm_dtype", "mamba_ssm_cache_dtype", default="auto"))
    linear = f.get("linear_attn_config")
    if linear:
        heads, dim = int(linear["num_heads"]), int(linear["head_dim"])
        full = bool(linear.get("use_full_rank_gate"))
        return Recurrent(
            "kda", heads, dim, heads, dim, int(linear["short_conv_kernel_size"]), "float32", full
        )
    if f.get("linear_num_value_heads"):
        return Recurrent(
            "gated-delta",
            f.count("linear_num_key_heads"), f.count("linear_key_head_dim"),
            f.count("linear_num_value_heads"), f.count("linear_value_head_dim"),
            f.count("linear_conv_kernel_dim", default=4), dtype,
        )  # fmt: skip
    hidden = f.count("hidden_size", "n_embd", "d_model")
    head_dim = f.count("mamba_head_dim", "mamba_d_head", default=64)
    inner = f.optional("mamba_expand", "expand") * hidden
    return Recurrent(
        "mamba2",
        f.count("n_groups", "mamba_n_groups", default=1), f.count("ssm_state_size", "mamba_d_state"),
        f.count("mamba_num_heads", "mamba_n_heads", default=max(1, inner // head_dim)), head_dim,
        f.count("conv_kernel", "mamba_d_conv", default=4), dtype,
    )  # fmt: skip


def _pruned_layers(f: Fields, blocks: list[dict[str, Any]]) -> tuple[Layer, ...]:
    """Layers of a model pruned block by block (Nemotron-NAS): each states its own heads and width, or nothing."""
    heads, hidden = f.count("num_attention_heads"), f.count("hidden_size")
    layers = []
    for block in blocks:
        attention, ffn = block["attention"], block["ffn"]
        mixer = None
        if not attention.get("no_op") and attention.get("n_heads_in_group"):
            dim = f.count("head_dim", default=hidden // heads)
            mixer = Attention(heads, heads // int(attention["n_heads_in_group"]), dim, dim)
        feeds: tuple[FeedForward, ...] = ()
        if not ffn.get("no_op") and ffn.get("ffn_mult"):
            # The reference code: two thirds of the multiple, rounded up to 256.
            size = int(2 * float(ffn["ffn_mult"]) * hidden / 3)
            feeds = (FeedForward(size if size % 256 == 0 else size + 256 - size % 256),)
        layers.append(Layer(mixer, feeds, hidden * ((mixer is not None) + len(feeds))))
    return tuple(layers)

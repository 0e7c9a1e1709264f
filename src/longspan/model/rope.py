"""Tables of rotary embeddings: vLLM keeps cosines and sines for every position of every distinct table, on every rank.

Small for most models, gigabytes for those that state ten million positions (Llama-4 Scout: 2.5 GiB).
"""

from collections.abc import Mapping
from typing import Any

from longspan.model.fields import Fields


def rope_values(f: Fields) -> int:
    """Values of all rotary tables (positions times rotary dimensions), 0 without rotary embedding.

    Positions follow vLLM's rotary classes: linear scaling multiplies the model's positions by the factor, YaRN takes the
    original positions times the factor, multimodal sections take four times as many, others the model's own.
    """
    positions = f.optional("max_position_embeddings", "n_positions", "max_sequence_length")
    nested = f.get("rope_parameters") or {}
    kinds = {k: v for k, v in nested.items() if isinstance(v, Mapping)}
    if kinds:  # one table for each kind of layer
        return sum(_table(f, positions, params, kind) for kind, params in kinds.items())
    scaling = f.get("rope_scaling") or nested
    total = _table(f, positions, scaling if isinstance(scaling, Mapping) else {}, "full_attention")
    if f.type == "gemma3_text" or f.get("rope_local_base_freq", "swa_rope_theta"):
        total += _table(f, positions, {}, "sliding_attention")
    return total


def _table(f: Fields, positions: int, scaling: Mapping[str, Any], kind: str) -> int:
    sort = str(scaling.get("rope_type") or scaling.get("type") or "default")
    factor = float(scaling.get("factor") or 1.0)
    original = int(scaling.get("original_max_position_embeddings") or positions)
    if sort == "linear":
        positions = int(positions * factor)
    elif sort in {"yarn", "deepseek_yarn", "longrope"}:
        positions = max(positions, int(original * factor)) if sort == "longrope" else int(original * factor)
    if scaling.get("mrope_section"):
        positions *= 4
    return positions * _rotary_dim(f, scaling, kind)


def _rotary_dim(f: Fields, scaling: Mapping[str, Any], kind: str) -> int:
    if f.get("qk_rope_head_dim"):
        return f.count("qk_rope_head_dim")
    if f.get("rotary_dim"):
        return f.count("rotary_dim")
    head = f.get("head_dim")
    if kind == "full_attention" and f.get("global_head_dim"):
        head = f.get("global_head_dim")
    if head is None:
        head = f.count("hidden_size", "n_embd", "d_model") // f.count(
            "num_attention_heads", "n_head", default=1
        )
    share = scaling.get("partial_rotary_factor") or f.get("partial_rotary_factor", "rotary_pct", default=1.0)
    return int(int(head) * float(share))

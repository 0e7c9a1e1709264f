"""Vision and audio encoders: their parameters from the sub-config, close enough for memory (within a few percent)."""

from collections.abc import Mapping
from math import prod
from typing import Any

from longspan.model.facts import Tower

_KEYS = ("vision_config", "vision_tower_config", "audio_config")

# Encoders of types whose configs circulate without their vision_config, as transformers' published models state it.
_DEFAULT_VISION: dict[str, dict[str, Any]] = {
    "llama4": {
        "hidden_size": 1408, "num_hidden_layers": 34, "num_attention_heads": 16, "intermediate_size": 5632,
        "patch_size": 14, "image_size": 336, "pixel_shuffle_ratio": 0.5, "projector_input_dim": 4096,
        "projector_output_dim": 4096, "hidden_act": "gelu",
    },
}  # fmt: skip


def parse_tower(config: Mapping[str, Any], text_hidden: int) -> Tower | None:
    """The encoders beside the text model, or None. A sub-config without sizes is counted as unknown (0 parameters)."""
    default = _DEFAULT_VISION.get(str(config.get("model_type")))
    if default and "vision_config" not in config:
        config = {**config, "vision_config": default}
    towers = [_one(config, config[key], text_hidden) for key in _KEYS if isinstance(config.get(key), Mapping)]
    found = [tower for tower in towers if tower is not None]
    if not found:
        return None
    first = found[0]
    return Tower(
        encoder_params=sum(t.encoder_params for t in found),
        projector_params=sum(t.projector_params for t in found),
        heads=first.heads, layers=first.layers, hidden=first.hidden, intermediate=first.intermediate,
        max_tokens=first.max_tokens,
    )  # fmt: skip


def _first(config: Mapping[str, Any], *names: str) -> int:
    return next((int(config[n]) for n in names if isinstance(config.get(n), int | float)), 0)


def _one(config: Mapping[str, Any], vision: Mapping[str, Any], text_hidden: int) -> Tower | None:
    hidden = _first(vision, "vt_hidden_size", "embed_dim", "hidden_size", "d_model")
    layers = _first(vision, "vt_num_hidden_layers", "depth", "num_hidden_layers", "encoder_layers")
    if not hidden or not layers:
        return None
    heads = _first(
        vision, "vt_num_attention_heads", "num_heads", "num_attention_heads", "encoder_attention_heads"
    )
    inner = _first(vision, "vt_intermediate_size", "intermediate_size", "encoder_ffn_dim") or 4 * hidden
    qkv = _first(vision, "qkv_hidden_size") or hidden
    gated = (
        str(vision.get("hidden_act") or vision.get("hidden_activation")) == "silu"
        or "use_clipped_linears" in vision
    )
    bias = not gated and vision.get("norm_type") != "rmsnorm"
    layer = 4 * hidden * qkv + (3 if gated else 2) * hidden * inner
    layer += 2 * hidden + (6 * hidden + inner + 2 * hidden if bias else 0)
    patch = _first(vision, "patch_size") or 14
    stem = 3 * patch * patch * (_first(vision, "temporal_patch_size") or 1) * hidden
    positions = _first(vision, "num_position_embeddings") or 2 * _first(vision, "position_embedding_size")
    if vision.get("init_pos_emb_height"):
        positions = _first(vision, "init_pos_emb_height") * _first(vision, "init_pos_emb_width")
    image = _first(vision, "image_size")
    if not positions and image and not gated:
        positions = (image // patch) ** 2
    encoder = layers * layer + stem + positions * hidden
    return Tower(
        encoder,
        _projector(config, vision, hidden, text_hidden),
        heads,
        layers,
        hidden,
        inner,
        (image // patch) ** 2,
    )


def _projector(config: Mapping[str, Any], vision: Mapping[str, Any], hidden: int, text: int) -> int:
    """Parameters between the encoder and the text model, by the fields that describe it."""
    if vision.get("pixel_shuffle_ratio"):  # Llama-4: adapter of two layers, then one to the text size
        inner = _first(vision, "intermediate_size")
        wide, out = _first(vision, "projector_input_dim"), _first(vision, "projector_output_dim")
        return inner * wide + wide * out + out * text
    merge = vision.get("merge_kernel_size")
    factor = prod(merge) if isinstance(merge, list | tuple) else 0
    if not factor:
        side = _first(vision, "spatial_merge_size") or _first(config, "spatial_merge_size")
        factor = side * side
    if "spatial_merge_size" in config:  # Mistral-3: merger, then two layers
        return factor * hidden * hidden + hidden * text + text * text
    if factor:
        wide = factor * hidden
        mergers = 1 + len(vision.get("deepstack_visual_indexes") or [])
        return mergers * (wide * wide + wide + wide * text + text)
    features = config.get("vision_feature_layer")
    if features is not None:  # LLaVA: chosen layers side by side, then two layers
        count = len(features) if isinstance(features, list) else 1
        return count * hidden * text + text * text + 2 * text
    return hidden * text

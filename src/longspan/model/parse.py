"""config.json -> ModelFacts. Decided by fields, never by the model's name; errors name the field."""

import json
from collections.abc import Mapping
from typing import Any

from longspan.errors import ModelError
from longspan.model import fields as known
from longspan.model.culprit import culprit
from longspan.model.facts import ModelFacts
from longspan.model.fields import Fields
from longspan.model.parse_layers import parse_layers
from longspan.model.parse_quantisation import kv_dtype, parse_quantisation
from longspan.model.rope import rope_values
from longspan.model.tower import parse_tower

_TEXT = ("text_config", "language_config", "llm_config", "thinker_config")
_DTYPES = {"half": "float16", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


# What reading a field of the wrong type or size ends in.
_UNREADABLE = (
    TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError,
)  # fmt: skip


def parse_config(
    config: Mapping[str, Any], name: str = "", hf_quant_config: Mapping[str, Any] | None = None
) -> ModelFacts:
    """Reads a model's dimensions.

    Args:
        config: the parsed config.json.
        name: what to call the model in output.
        hf_quant_config: the parsed hf_quant_config.json that NVIDIA checkpoints keep beside it.

    Raises:
        ModelError: a field is missing or contradicts another; the message names it.
    """
    if not isinstance(config, Mapping):
        raise ModelError("config.json is not a JSON object.", "Take it from the model's own repository.")
    if hf_quant_config is not None and not isinstance(hf_quant_config, Mapping):
        raise ModelError(
            "hf_quant_config.json is not a JSON object.", "Take it from the model's own repository."
        )

    def reads(changed: Mapping[str, Any]) -> bool:
        try:
            _parse(changed, name, hf_quant_config)
        except (ModelError, *_UNREADABLE):
            return False
        return True

    try:
        return _parse(config, name, hf_quant_config)
    except _UNREADABLE as error:
        field = culprit(config, reads)
        value: Any = config
        for key in field.split(".") if field else ():
            value = value[key] if isinstance(value, Mapping) and key in value else "..."
        shown = repr(value)[:60]
        what = (
            f"{field} in config.json is {shown}, which cannot be read"
            if field
            else "config.json, or hf_quant_config.json beside it, cannot be read"
        )
        raise ModelError(
            f"{what} ({type(error).__name__}: {str(error)[:120]}).",
            "Take config.json from the model's own repository.",
        ) from error


def _parse(config: Mapping[str, Any], name: str, hf_quant_config: Mapping[str, Any] | None) -> ModelFacts:
    where, text = "", config
    for key in _TEXT:
        if isinstance(config.get(key), Mapping):
            where, text = f"{key}.", config[key]
            break
    f = Fields(text, where)
    hidden = f.count("hidden_size", "n_embd", "d_model")
    vocab = f.count("vocab_size", "padded_vocab_size")
    layers = parse_layers(f)
    quantisation = config.get("quantization_config") or text.get("quantization_config")
    architecture = (config.get("architectures") or text.get("architectures") or [""])[0]
    return ModelFacts(
        name=name or str(config.get("_name_or_path") or config.get("model_type") or "model"),
        model_type=str(config.get("model_type") or f.type),
        architecture=str(architecture),
        hidden=hidden,
        vocab=vocab,
        max_position=f.optional("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
        or 2048,
        layers=layers,
        tied=_tied(config, f),
        dtype=_dtype(config, text),
        quantisation=parse_quantisation(quantisation or hf_quant_config, f.get("expert_dtype")),
        kv_dtype=kv_dtype(quantisation or hf_quant_config),
        tower=parse_tower(config, hidden),
        mtp_layers=f.optional("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"),
        final_params=hidden * (2 if f.type in known.LAYER_NORM else 1),
        rope_values=rope_values(f),
        residual_streams=f.optional("hc_mult") or 1,
        position_params=hidden * f.optional("n_positions") if f.type == "gpt2" else 0,
    )


def _tied(config: Mapping[str, Any], f: Fields) -> bool:
    for source in (f.config, config):
        if source.get("tie_word_embeddings") is not None:
            return bool(source["tie_word_embeddings"])
    return f.type in known.TIED_BY_DEFAULT


def _dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """The activation dtype vLLM's `auto` takes: the config's, where float32 becomes bfloat16 (vLLM `_resolve_auto_dtype`)."""
    for source in (config, text):
        for key in ("dtype", "torch_dtype"):
            if source.get(key):
                value = str(source[key]).removeprefix("torch.")
                value = _DTYPES.get(value, value)
                if value not in {"bfloat16", "float16", "float32"}:
                    continue
                return "bfloat16" if value == "float32" else value
    return "bfloat16"


def parse_text(text: str, name: str = "", hf_quant_text: str | None = None) -> ModelFacts:
    """Reads the text of a config.json and, where there is one, of the hf_quant_config.json beside it.

    Raises:
        ModelError: not JSON, or a field is missing or contradicts another.
    """
    try:
        config = json.loads(text)
        quant = json.loads(hf_quant_text) if hf_quant_text else None
    except (
        ValueError,
        RecursionError,
    ) as error:  # not JSON, nested too deep, or a number of thousands of digits
        raise ModelError(
            f"config.json of {name or 'the model'} is not JSON: {error}.",
            "Download it again; it may be cut off.",
        ) from error
    return parse_config(config, name, quant)

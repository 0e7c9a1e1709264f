"""Reading fields of a config: synonyms, defaults that transformers fills in, and errors that name the field."""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from longspan.errors import ModelError

# What transformers fills in where a config leaves a field out, by `model_type` (configuration classes of transformers 5).
# Only types whose published configs leave such fields out in practice.
DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
        "max_position_embeddings": 131072, "sliding_window_pattern": 6, "sliding_window": 4096,
    },
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma": {"head_dim": 256},
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    "llama4_text": {"attention_chunk_size": 8192, "interleave_moe_layer_step": 1, "no_rope_layer_interval": 4},
    "qwen2_moe": {"decoder_sparse_step": 1},
    "qwen3_moe": {"decoder_sparse_step": 1, "head_dim": 128},
    "granite": {"head_dim": None},
}  # fmt: skip

# Types whose configuration class ties the embeddings unless told otherwise.
TIED_BY_DEFAULT = frozenset(
    {"gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "gpt2", "bloom", "falcon", "opt", "cohere",
     "cohere2", "starcoder2", "mpt"}
)  # fmt: skip

# Traits that no field states: they are in the modelling code of the type.
QKV_BIAS = frozenset({"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "phi", "gpt2", "opt",
                      "gpt_neox", "gpt_bigcode", "mimo"})  # fmt: skip
LINEAR_BIAS = frozenset({"phi", "gpt2", "opt", "gpt_neox", "gpt_bigcode", "bloom"})
QK_NORM = frozenset({"qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "gemma3_text", "gemma4_text",
                     "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"})  # fmt: skip
UNGATED = frozenset(
    {"phi", "gpt2", "opt", "gpt_neox", "gpt_bigcode", "bloom", "falcon", "mpt", "starcoder2", "nemotron"}
)
ALWAYS_SHARED_EXPERT = frozenset({"llama4_text"})
FOUR_NORMS = frozenset({"gemma2", "gemma3_text", "gemma4_text"})
LAYER_NORM = frozenset({"phi", "gpt2", "opt", "gpt_neox", "gpt_bigcode", "bloom", "falcon", "mpt"})
PARALLEL_NORM = frozenset({"phi"})


# Larger than any size of a model; beyond it, memory and time of the planner itself are at stake.
_TOO_MUCH = 10**12


def _is_whole(value: int | float) -> bool:
    """Whether it is a finite whole number that can be a size."""
    return -inf < value < _TOO_MUCH and value == int(value)


class Fields:
    """A config's fields with their synonyms. `where` is the prefix that errors show, such as `text_config.`."""

    def __init__(self, config: Mapping[str, Any], where: str = "") -> None:
        self.config = config
        self.where = where
        self.type = str(config.get("model_type") or "")
        self.defaults = DEFAULTS.get(self.type, {})

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these fields that is there and not null, else transformers' default, else `default`."""
        for source in (self.config, self.defaults):
            for name in names:
                if source.get(name) is not None:
                    return source[name]
        return default

    def count(self, *names: str, default: int | None = None) -> int:
        """A positive whole number.

        Raises:
            ModelError: missing without a default, or not a positive whole number.
        """
        value = self.get(*names, default=default)
        if value is None:
            others = f" (or {', '.join(names[1:])})" if names[1:] else ""
            raise ModelError(
                f"config.json has no {self.where}{names[0]}{others}; the size of the model cannot be known without it.",
                "Take config.json from the model's own repository, complete.",
            )
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not _is_whole(value)
            or value <= 0
        ):
            raise ModelError(
                f"{self.where}{names[0]} in config.json is {repr(value)[:60]}, not a positive whole number.",
                "Take config.json from the model's own repository.",
            )
        return int(value)

    def optional(self, *names: str) -> int:
        """A whole number that may be missing: 0. So is a negative one, by which some configs mean none.

        Raises:
            ModelError: a number that no size can be.
        """
        value = self.get(*names, default=0)
        if not isinstance(value, int | float):
            return 0
        if not -inf < value < _TOO_MUCH:
            raise ModelError(
                f"{self.where}{names[0]} in config.json is {str(value)[:60]}, which no model has.",
                "Take config.json from the model's own repository.",
            )
        return max(int(value), 0)

    def per_layer(self, values: Iterable[Any], layers: int, name: str) -> list[Any]:
        """A list with one entry a layer.

        Raises:
            ModelError: fewer entries than layers, which contradicts num_hidden_layers.
        """
        found = list(values)
        if len(found) < layers:
            raise ModelError(
                f"{self.where}{name} in config.json has {len(found)} entries, but num_hidden_layers is {layers}: "
                "the fields contradict each other.",
                "Take config.json from the model's own repository.",
            )
        return found[:layers]

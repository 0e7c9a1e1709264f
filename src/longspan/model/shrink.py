"""config.json of any architecture -> one of the same architecture that a laptop can run. Pure.

What decides whether a layout is legal and how ranks divide the work stays as it is: attention and KV heads, recurrent heads,
head sizes, latent ranks, windows, the ratio of experts to those chosen. What only costs memory shrinks: hidden size,
feed-forward sizes, the number of experts and layers, where it can be, the vocabulary. A size that tensor parallelism divides keeps
its divisors up to 64, so that a TP size fits the shrunken model exactly where it fits the real one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import Any

from longspan.errors import ModelError, RehearsalModelError
from longspan.model.facts import ModelFacts
from longspan.model.fields import Fields
from longspan.model.parse import parse_config
from longspan.model.quantisation import Quantisation
from longspan.model.shrink_layers import kind_of, selections, with_layers

LARGEST_TP = 64
HIDDEN = 256
LEAST_FEED = 256  # 32 columns a rank at TP 8: below that kernels of experts refuse
LEAST_EXPERTS = 64
# Where a model's head size is its hidden size over its heads. The smallest that the attention kernels of CPUs and GPUs take.
HEAD_SIZE = 32
VOCABULARY_PADDING = 64
LEAST_TOKENS = 2048  # ids of the tokenizer that a rehearsal makes
# The tokenizer that a rehearsal makes: padding, beginning, end, then what stands for ids of the config such as an image's.
PAD_ID, BEGIN_ID, END_ID, FIRST_OTHER_ID, SPECIAL_IDS = 0, 1, 2, 3, 64

_SPECIAL = {"pad_token_id": PAD_ID, "bos_token_id": BEGIN_ID, "eos_token_id": END_ID}
_DIVISORS = lcm(*range(1, LARGEST_TP + 1))
_TEXT = ("text_config", "language_config", "llm_config", "thinker_config")
_FEEDS = (
    "intermediate_size", "intermediate_size_mlp", "dense_intermediate_size", "moe_intermediate_size", "expert_ffn_hidden_size",
    "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim", "shared_intermediate_size",
    "n_inner", "ffn_dim", "ffn_hidden_size", "moe_latent_size", "routed_expert_hidden_size",
)  # fmt: skip
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_CHOSEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
)
_GROUPS = ("n_group", "num_expert_group")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_VOCABULARY = ("vocab_size", "padded_vocab_size", "vocab_size_per_layer_input")
# Types whose class in vLLM takes `head_dim` where the published configs leave it out (llama.py, mixtral.py, granite.py).
_TAKES_HEAD_DIM = frozenset({"llama", "mistral", "mixtral", "granite"})
_ENCODERS = ("vision_config", "vision_tower_config", "audio_config")
_ENCODER_LAYERS = ("depth", "num_hidden_layers", "vt_num_hidden_layers", "encoder_layers")
# Fields of an encoder that state the text model's hidden size.
_ENCODER_OUTPUTS = ("out_hidden_size", "text_hidden_size")
# What belongs to the published files and not to the architecture.
_DROPPED = ("quantization_config", "compression_config", "expert_dtype", "auto_map", "_name_or_path")


@dataclass(frozen=True, slots=True)
class Change:
    """One size that is smaller in the rehearsal."""

    name: str
    real: int | str
    rehearsed: int | str


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A shrunken model.

    Attributes:
        config: its config.json. facts: what it says.
        layers: the numbers of the real layers that it keeps. partition: how many each pipeline stage has.
        changes: what is smaller. quantisation: how the real weights are stored, where these are plain; empty else.
    """

    config: dict[str, Any]
    facts: ModelFacts
    layers: tuple[int, ...]
    partition: tuple[int, ...]
    changes: tuple[Change, ...]
    quantisation: str


def shrink(
    config: Mapping[str, Any],
    stages: Sequence[int],
    *,
    own_tokenizer: bool,
    hf_quant_config: Mapping[str, Any] | None = None,
) -> Shrunk:
    """A smaller model of the same architecture.

    Args:
        config: the real config.json.
        stages: how many layers each pipeline stage has in the real model.
        own_tokenizer: the rehearsal uses the model's own tokenizer, so the vocabulary stays.

    Raises:
        ModelError: config.json cannot be read. RehearsalModelError: no shorter model has the same kinds of layers.
    """
    real = parse_config(config, hf_quant_config=hf_quant_config)
    kinds = [kind_of(layer) for layer in real.layers]
    key = next((name for name in _TEXT if isinstance(config.get(name), Mapping)), None)
    text = _smaller(dict(config[key] if key else config), real)
    if not own_tokenizer:
        text = _small_vocabulary(text, real.vocab)
    for kept, sizes in selections(kinds, stages):
        found = _joined(config, key, with_layers(text, kept, len(kinds)), real, own_tokenizer)
        try:
            facts = parse_config(found, real.name)
        except ModelError:
            continue
        if [kind_of(layer) for layer in facts.layers] == [kinds[index] for index in kept]:
            changes = _changes(real, facts)
            return Shrunk(found, facts, kept, sizes, changes, _stored(real.quantisation))
    raise RehearsalModelError(
        f"No shorter {real.architecture or real.model_type} has the same kinds of layers: its config.json says what they are"
        " in a field that is not known here.",
        "Rehearse with another model of the same layout; please report this one.",
    )


def unquantised(facts: ModelFacts) -> ModelFacts:
    """The real model with plain weights: what the shrunken one is compared with."""
    return replace(facts, quantisation=Quantisation())


def alike(size: int, least: int) -> int:
    """The smallest number from `least` on with the divisors up to 64 that `size` has, and no other; at most `size`."""
    common = gcd(size, _DIVISORS)
    for number in range(common * -(-least // common), size, common):
        if gcd(number, _DIVISORS) == common:
            return number
    return size


def _stored(found: Quantisation) -> str:
    return found.method or "quantised" if found != Quantisation() else ""


def _smaller(text: dict[str, Any], real: ModelFacts) -> dict[str, Any]:
    f = Fields(text)
    states_feed = any(f.get(name) for name in _FEEDS)
    hidden = real.hidden if not states_feed else _hidden(f, real)
    if text.get("head_dim") is None and f.type in _TAKES_HEAD_DIM and hidden == HIDDEN:
        text["head_dim"] = real.hidden // real.heads
    for name in _HIDDEN:
        if text.get(name):
            text[name] = hidden
    for name in _FEEDS:
        if isinstance(text.get(name), int) and text[name] > 0:
            text[name] = alike(text[name], min(text[name], LEAST_FEED))
    _fewer_experts(text, f, real)
    return text


def _hidden(f: Fields, real: ModelFacts) -> int:
    """As small as head sizes allow: where they are not stated, they are the hidden size over the heads."""
    recurrent = f.optional("mamba_expand", "expand") * real.hidden
    heads, size = f.optional("mamba_num_heads", "mamba_n_heads"), f.optional("mamba_head_dim", "mamba_d_head")
    if recurrent and (not heads or heads * size == recurrent):
        return real.hidden  # the width of Mamba-2 is a multiple of it
    if f.get("head_dim", "attention_head_dim") or f.get("kv_lora_rank") or not real.heads:
        return min(real.hidden, HIDDEN)
    if f.type in _TAKES_HEAD_DIM:
        return min(real.hidden, HIDDEN)
    size = real.hidden // real.heads
    lists = isinstance(f.get("rope_scaling"), Mapping) and any(
        isinstance(value, list) for value in f.get("rope_scaling").values()
    )
    partial = f.get("partial_rotary_factor", "rotary_pct", default=1.0) != 1.0
    return real.heads * (size if lists or (partial and size % HEAD_SIZE) else min(size, HEAD_SIZE))


def _fewer_experts(text: dict[str, Any], f: Fields, real: ModelFacts) -> None:
    """Divides the experts and those chosen by the same power of two, as long as two are chosen and every group has its share."""
    experts = real.experts
    if experts is None:
        return
    divisor = 1
    while _can_divide(experts.count, experts.top_k, f, 2 * divisor):
        divisor *= 2
    for name in (*_EXPERTS, *_CHOSEN):
        if isinstance(text.get(name), int) and text[name] > 1:
            text[name] //= divisor


def _can_divide(count: int, top_k: int, f: Fields, divisor: int) -> bool:
    fewer, chosen = count // divisor, top_k // divisor
    if count % divisor or top_k % divisor or chosen < 2 or fewer < LEAST_EXPERTS:
        return False
    groups = f.optional(*_GROUPS) or 1
    if fewer % groups or chosen > (f.optional("topk_group") or groups) * (fewer // groups):
        return False
    return gcd(fewer, _DIVISORS) == gcd(count, _DIVISORS)


def _small_vocabulary(config: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    padded = -(-vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING
    small = alike(padded, LEAST_TOKENS)
    return {
        name: small if name in _VOCABULARY and value == vocabulary else value
        for name, value in config.items()
    }


def _joined(
    config: Mapping[str, Any],
    key: str | None,
    text: dict[str, Any],
    real: ModelFacts,
    own_tokenizer: bool,
) -> dict[str, Any]:
    """The whole config.json around the text model."""
    hidden = Fields(text).count(*_HIDDEN)
    found: dict[str, Any] = {**config, key: _clean(text)} if key else dict(text)
    if key and not own_tokenizer:
        found = _small_vocabulary(found, real.vocab)
    for name in _ENCODERS:
        if isinstance(found.get(name), Mapping):
            found[name] = _encoder(found, found[name], real.hidden, hidden)
    found = _clean(found)
    return found if own_tokenizer else _token_ids(found, {})


def _clean(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without what belongs to the published files; weights of 32 bits are served in 16 by vLLM, and written so."""
    found = {name: value for name, value in config.items() if name not in _DROPPED}
    for name in ("dtype", "torch_dtype"):
        if str(found.get(name, "")).removeprefix("torch.") not in {"", "float16", "bfloat16"}:
            found[name] = "bfloat16"
    return found


def _encoder(
    config: Mapping[str, Any], encoder: Mapping[str, Any], real_hidden: int, hidden: int
) -> dict[str, Any]:
    """An encoder with a few of its layers, whose output has the text model's hidden size."""
    found = dict(encoder)
    for name in _ENCODER_OUTPUTS:
        if found.get(name) == real_hidden:
            found[name] = hidden
    if isinstance(config.get("vision_feature_layer"), list):
        return found  # chosen layers by number: all stay
    taps = found.get("deepstack_visual_indexes") or []
    layers = max(2, len(taps) + 1)
    if taps:
        found["deepstack_visual_indexes"] = list(range(len(taps)))
    if found.get("fullatt_block_indexes"):
        found["fullatt_block_indexes"] = [layers - 1]
    for name in _ENCODER_LAYERS:
        if isinstance(found.get(name), int) and found[name] > layers:
            found[name] = layers
    return found


def _token_ids(config: Mapping[str, Any], others: dict[int, int]) -> dict[str, Any]:
    """Every id of a token, as the rehearsal's tokenizer has it."""
    return {name: _token_id(name, value, others) for name, value in config.items()}


def _token_id(name: str, value: Any, others: dict[int, int]) -> Any:
    if isinstance(value, Mapping):
        return _token_ids(value, others)
    if name in _SPECIAL:
        return None if value is None else _SPECIAL[name]
    if name.endswith(("_token_id", "_token_index")) and type(value) is int:
        return others.setdefault(value, FIRST_OTHER_ID + len(others))
    return value


def _changes(real: ModelFacts, small: ModelFacts) -> tuple[Change, ...]:
    """What a reader wants to know of the difference."""
    rows: list[tuple[str, int, int]] = [
        ("layers", len(real.layers), len(small.layers)),
        ("hidden size", real.hidden, small.hidden),
        ("vocabulary", real.vocab, small.vocab),
    ]
    if real.experts and small.experts:
        rows += [
            ("experts", real.experts.count, small.experts.count),
            ("experts chosen for a token", real.experts.top_k, small.experts.top_k),
            ("size of an expert", real.experts.intermediate, small.experts.intermediate),
        ]
    rows.append(("head size", head_size(real), head_size(small)))
    return tuple(Change(name, before, after) for name, before, after in rows if before != after)


def head_size(facts: ModelFacts) -> int:
    """Of its attention; 0 where that has none, or several."""
    return int(getattr(facts.first_attention, "head_dim", 0))

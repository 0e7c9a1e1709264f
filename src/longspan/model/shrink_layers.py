"""Which layers a shrunken model keeps, and the config's fields that count or list layers. Pure; `shrink.py` does the sizes.

Kept are runs of neighbouring layers, one run a pipeline stage, so that every stage has the kinds of layers that it has in
the real model, in the real order, and a pattern such as five sliding layers before a full one is kept whole.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from longspan.model.facts import Attention, CompressedAttention, Experts, LatentAttention, Layer, Recurrent

# Published patterns repeat after 2 to 12 layers; up to three dense layers stand before the experts.
_LONGEST_PERIOD = 16
_LONGEST_PREFIX = 8
_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# Layers from the first on, or from the last back, that are special; `first_k_dense_replace` of DeepSeek, `max_window_layers` of
# Qwen2, `num_hash_layers` of DeepSeek-V4, `num_kv_shared_layers` of Gemma-3n.
_FROM_START = ("first_k_dense_replace", "max_window_layers", "num_hash_layers")
_FROM_END = ("num_kv_shared_layers",)
# Numbers of layers, counted from 0 (or from 1: Kimi-Linear).
_NUMBERS_FROM_0 = ("mlp_only_layers", "moe_layers")
_NUMBERS_FROM_1 = ("kda_layers", "full_attn_layers")
# One entry a layer, and sometimes more behind them for the prediction layers.
_LISTS = frozenset(
    {"layer_types", "layers_block_type", "hybrid_layer_pattern", "attn_type_list", "mlp_layer_types", "moe_layer_freq",
     "no_rope_layers", "compress_ratios", "indexer_types", "block_configs", "sparse_attention_freq"}
)  # fmt: skip
# Multi-token-prediction layers; they are not loaded without speculative decoding.
_PREDICTION = (
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_modules",
    "mtp_transformer_layers",
)


def kind_of(layer: Layer) -> Hashable:
    """What a layer is made of: everything but its sizes. Head counts belong to it, since a shrunken model keeps them."""
    feeds = tuple(
        ("experts", feed.shared_intermediate > 0, feed.gated)
        if isinstance(feed, Experts)
        else ("dense", feed.gated)
        for feed in layer.feeds
    )
    return (_mixer_kind(layer), feeds)


def _mixer_kind(layer: Layer) -> Hashable:
    match layer.mixer:
        case Attention() as mixer:
            chosen = mixer.indexer is not None
            return (
                mixer.heads, mixer.kv_heads, mixer.window, mixer.chunk, mixer.k_is_v, mixer.reuses_cache, mixer.sinks, chosen,
            )  # fmt: skip
        case LatentAttention() as mixer:
            return (
                "latent",
                mixer.heads,
                mixer.q_lora_rank is None,
                mixer.indexer and mixer.indexer.owns_cache,
            )
        case CompressedAttention() as mixer:
            return ("compressed", mixer.heads, mixer.o_groups, mixer.ratio, mixer.indexer is not None)
        case Recurrent() as mixer:
            return (mixer.kind, mixer.key_heads, mixer.value_heads)
        case None:
            return None


def period_of(kinds: Sequence[Hashable]) -> int:
    """After how many layers the pattern repeats, whatever stands before it; 1 for equal layers, and where nothing repeats."""
    for prefix in range(min(_LONGEST_PREFIX + 1, len(kinds))):
        tail = kinds[prefix:]
        for period in range(1, min(_LONGEST_PERIOD, len(tail) // 2) + 1):
            if all(a == b for a, b in zip(tail, tail[period:], strict=False)):
                return period
    return 1


def selections(
    kinds: Sequence[Hashable], stages: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ways to shorten a model, the shortest first; the whole model is the last.

    Args:
        kinds: of every layer. stages: how many layers each pipeline stage has in the real model.

    Yields:
        the layers that are kept, ascending, and how many each stage has. Stages with more layers than the smallest keep one
        more, so that an uneven split stays one.
    """
    period = period_of(kinds)
    ends = list(accumulate(stages))
    fewest = min(stages)
    for least in range(max(period, 2 if len(stages) == 1 else 1), fewest):
        kept: list[int] = []
        sizes = []
        for size, end in zip(stages, ends, strict=True):
            wanted = least + (size > fewest)
            run = _run(kinds, range(end - size, end), wanted, len(kept), period)
            if run is None:
                break
            kept += run
            sizes.append(wanted)
        else:
            yield tuple(kept), tuple(sizes)
    yield tuple(range(len(kinds))), tuple(stages)


def _run(
    kinds: Sequence[Hashable], stage: range, wanted: int, position: int, period: int
) -> Sequence[int] | None:
    """The first `wanted` neighbours of a stage with all its kinds, at the same place in the pattern as they will have then."""
    whole = {kinds[index] for index in stage}
    for first in range(stage.start, stage.stop - wanted + 1):
        run = range(first, first + wanted)
        if (first - position) % period == 0 and {kinds[index] for index in run} == whole:
            return run
    return None


def with_layers(config: Mapping[str, Any], kept: Sequence[int], count: int) -> dict[str, Any]:
    """The text model's config with these layers only.

    Args:
        kept: numbers of the layers, from 0, ascending. count: how many the model has.
    """
    place = {index: new for new, index in enumerate(kept)}
    return {name: _field(name, value, place, count) for name, value in config.items()}


def _field(name: str, value: Any, place: Mapping[int, int], count: int) -> Any:
    """One field. `place`: number of a kept layer -> its new number, ascending."""
    if isinstance(value, Mapping):
        return with_layers(value, tuple(place), count)
    if isinstance(value, list):
        return _listed(name, value, place, count)
    if name == "hybrid_override_pattern" and isinstance(value, str):
        return "".join(value[index] for index in place)
    if name == "moe_layers_enum" and value:
        return ",".join(str(place[int(index)]) for index in str(value).split(",") if int(index) in place)
    return _counted(name, value, tuple(place), count) if type(value) is int else value


def _listed(name: str, value: list[Any], place: Mapping[int, int], count: int) -> list[Any]:
    if name in _NUMBERS_FROM_0:
        return [place[index] for index in value if index in place]
    if name in _NUMBERS_FROM_1:
        return [place[index - 1] + 1 for index in value if index - 1 in place]
    if (len(value) == count and count > _LONGEST_PREFIX) or (name in _LISTS and len(value) >= count):
        return [value[index] for index in place]
    return value


def _counted(name: str, value: int, kept: Sequence[int], count: int) -> int:
    if name in _COUNTS:
        return len(kept)
    if name in _FROM_START:
        return sum(index < value for index in kept)
    if name in _FROM_END:
        return sum(index >= count - value for index in kept)
    return 0 if name in _PREDICTION else value

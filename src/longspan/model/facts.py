"""ModelFacts: the dimensions of a checkpoint that decide memory, legality and speed.

Every number is of the whole model before any split. A layer is described by what it is made of (mixer, feed-forward
parts), never by the model's name; equal layers are equal values, so that callers may count them.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

from longspan.model.quantisation import Quantisation

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True)
class Indexer:
    """Scores tokens for sparse attention; keeps a key cache of its own, replicated over TP.

    DeepSeek-V3.2 and GLM-5 keep one FP8 key and a scale per token (`inline_scale_bytes`), see vLLM's
    `DeepseekV32IndexerCache`. `owns_cache` is false where a layer reuses the choice of an earlier layer.
    """

    heads: int
    head_dim: int
    top_k: int
    owns_cache: bool = True


@dataclass(frozen=True)
class Attention:
    """Multi-head, grouped-query or multi-query attention with a KV cache.

    `window`: tokens a sliding layer sees, None for all. `chunk`: local chunk of Llama-4 layers. `output_gate`: the query
    projection is twice as wide. `k_is_v`: no value projection (Gemma-4 global layers). `cache_of`: reuses the cache of
    an earlier layer, so none is kept here. `norm_params`: parameters of query and key norms.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    chunk: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    output_gate: bool = False
    head_gate: bool = False
    k_is_v: bool = False
    reuses_cache: bool = False
    sinks: bool = False
    norm_params: int = 0
    indexer: Indexer | None = None


@dataclass(frozen=True)
class LatentAttention:
    """MLA: one compressed key-value vector a token, the same on every TP rank (`kv_lora_rank + rope_dim` values)."""

    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    output_gate: bool = False
    indexer: Indexer | None = None


@dataclass(frozen=True)
class CompressedAttention:
    """DeepSeek-V4: one shared key-value head, a sliding window of raw tokens and, at `ratio` > 0, one entry per `ratio`.

    `o_groups` and `o_lora_rank` factor the output projection.
    """

    heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    window: int
    ratio: int
    indexer: Indexer | None = None


@dataclass(frozen=True)
class Recurrent:
    """Mamba-2, gated delta net or KDA: one fixed state a request instead of a cache that grows.

    kind: `mamba2`, `gated-delta` or `kda`. Mamba-2's groups and state size are `key_heads` and `key_dim`, its heads and
    head size `value_heads` and `value_dim`. State values: `value_heads * value_dim * key_dim`; convolution channels:
    `2 * key_heads * key_dim + value_heads * value_dim`, each with `conv_kernel - 1` past values.
    """

    kind: str
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv_kernel: int
    state_dtype: str = "auto"
    full_rank_gate: bool = False

    @property
    def conv_channels(self) -> int:
        """Channels of the short convolution."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


Mixer = Attention | LatentAttention | CompressedAttention | Recurrent


@dataclass(frozen=True)
class FeedForward:
    """A dense feed-forward block; gated ones have a gate and an up projection."""

    intermediate: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True)
class Experts:
    """Routed experts and, beside them, shared ones of `shared_intermediate` in all (0: none).

    `width`: input size of a routed expert, smaller than hidden where a latent projection stands before it.
    """

    count: int
    top_k: int
    intermediate: int
    width: int
    shared_intermediate: int = 0
    shared_gate: bool = False
    gated: bool = True
    bias: bool = False
    correction_bias: bool = False


@dataclass(frozen=True)
class Layer:
    """One decoder layer. Nemotron-H layers have a mixer or a feed-forward part, others both; Gemma-4 MoE has two."""

    mixer: Mixer | None
    feeds: tuple[FeedForward | Experts, ...]
    norm_params: int = 0
    extra_params: int = 0


@dataclass(frozen=True)
class Tower:
    """A vision or audio encoder with its projector. `heads` 0: cannot be split. Parameters, not bytes."""

    encoder_params: int
    projector_params: int
    heads: int
    layers: int
    hidden: int
    intermediate: int
    max_tokens: int = 0
    exact: bool = True


@dataclass(frozen=True)
class ModelFacts:
    """A model as the planner sees it.

    Args:
        name: for display only; nothing is decided by it.
        model_type, architecture: as the config states them.
        hidden, vocab, max_position: tokens and sizes of the text model; `lm_head` is `vocab x hidden`.
        dtype: of activations and unquantised weights: `bfloat16`, `float16` or `float32`.
        quantisation: how each weight is stored, by module name.
        kv_dtype: of the KV cache as the checkpoint asks for it: `auto` (the activation dtype) or `fp8`.
        mtp_layers: multi-token-prediction layers in the file; not loaded unless speculative decoding is on.
        final_params: norms and the like outside layers and embeddings.
        residual_streams: copies of the hidden state that a token carries (hyper-connections of DeepSeek-V4).
        rope_values: values of the rotary tables that every rank keeps.
        weight_file_bytes: bytes of the safetensors files, where known from an index.
    """

    name: str
    model_type: str
    architecture: str
    hidden: int
    vocab: int
    max_position: int
    layers: tuple[Layer, ...]
    tied: bool
    dtype: str
    quantisation: Quantisation = field(default_factory=Quantisation)
    kv_dtype: str = "auto"
    tower: Tower | None = None
    mtp_layers: int = 0
    final_params: int = 0
    position_params: int = 0
    rope_values: int = 0
    residual_streams: int = 1
    weight_file_bytes: int | None = None
    weight_file_source: str = ""

    @cached_property
    def first_attention(self) -> Attention | LatentAttention | CompressedAttention | None:
        """The first layer's attention that keeps a cache, or None in a purely recurrent model."""
        return next(
            (x.mixer for x in self.layers if x.mixer is not None and not isinstance(x.mixer, Recurrent)), None
        )

    @cached_property
    def heads(self) -> int:
        """Query heads; 0 without attention."""
        return self.first_attention.heads if self.first_attention else 0

    @cached_property
    def kv_heads(self) -> int:
        """KV heads as the config states them; 1 for latent attention, whose cache is shared by all heads."""
        mixer = self.first_attention
        return 0 if mixer is None else mixer.kv_heads if isinstance(mixer, Attention) else 1

    @cached_property
    def experts(self) -> Experts | None:
        """The first routed experts, or None in a dense model."""
        return next((f for x in self.layers for f in x.feeds if isinstance(f, Experts)), None)

    @cached_property
    def is_mla(self) -> bool:
        """Whether any layer keeps a latent cache."""
        return any(isinstance(x.mixer, LatentAttention | CompressedAttention) for x in self.layers)

    @cached_property
    def is_hybrid(self) -> bool:
        """Whether recurrent layers stand beside attention."""
        return any(isinstance(x.mixer, Recurrent) for x in self.layers)

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one activation value."""
        return DTYPE_BYTES[self.dtype]

    def with_dtype(self, dtype: str) -> "ModelFacts":
        """The same model run in another activation dtype."""
        return replace(self, dtype=dtype)

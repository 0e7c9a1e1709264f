"""A model's weight matrices by layer: how each is stored, how the tensor cores compute with it, and how vLLM splits it."""

from dataclasses import dataclass
from functools import cache, lru_cache

from longspan.model.facts import (
    Attention,
    CompressedAttention,
    Experts,
    FeedForward,
    LatentAttention,
    ModelFacts,
    Recurrent,
)

# How the tensor cores compute with a weight stored in this scheme. Weight-only formats are multiplied in 16 bits.
_COMPUTE = {"fp8": "fp8", "int8": "int8", "nvfp4": "fp4", "mxfp4": "mxfp4"}


@dataclass(frozen=True, slots=True)
class Matrices:
    """Weight matrices of one storage scheme on one rank.

    Attributes:
        compute: fp8, int8, fp4 or mxfp4, or weight-only and 16-bit as "bf16".
        weight_bytes: read once a step. values: multiplied once a token (two operations each).
    """

    compute: str
    weight_bytes: float
    values: float


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix before the split. `split`: tp, kv (heads, replicated when TP exceeds them) or none."""

    name: str
    out: int
    inp: int
    split: str


def _mixer_matrices(mixer: object, hidden: int) -> list[_Matrix]:
    if isinstance(mixer, Attention):
        query = mixer.heads * mixer.head_dim * (2 if mixer.output_gate else 1)
        kv = mixer.kv_heads * (mixer.head_dim + (0 if mixer.k_is_v else mixer.v_head_dim))
        found = [
            _Matrix("self_attn.q_proj", query, hidden, "tp"),
            _Matrix("self_attn.k_proj", kv, hidden, "kv"),
            _Matrix("self_attn.o_proj", hidden, mixer.heads * mixer.v_head_dim, "tp"),
        ]
    elif isinstance(mixer, LatentAttention):
        head = mixer.nope_dim + mixer.rope_dim
        found = [
            _Matrix("self_attn.kv_a_proj_with_mqa", mixer.kv_lora_rank + mixer.rope_dim, hidden, "none"),
            _Matrix(
                "self_attn.kv_b_proj", mixer.heads * (mixer.nope_dim + mixer.v_dim), mixer.kv_lora_rank, "tp"
            ),
            _Matrix("self_attn.o_proj", hidden, mixer.heads * mixer.v_dim, "tp"),
        ]
        if mixer.q_lora_rank:
            found.append(_Matrix("self_attn.q_a_proj", mixer.q_lora_rank, hidden, "none"))
            found.append(_Matrix("self_attn.q_b_proj", mixer.heads * head, mixer.q_lora_rank, "tp"))
        else:
            found.append(_Matrix("self_attn.q_proj", mixer.heads * head, hidden, "tp"))
    elif isinstance(mixer, CompressedAttention):
        width = mixer.heads * mixer.head_dim
        found = [
            _Matrix("self_attn.q_a_proj", mixer.q_lora_rank, hidden, "none"),
            _Matrix("self_attn.q_b_proj", width, mixer.q_lora_rank, "tp"),
            _Matrix("self_attn.kv_proj", mixer.head_dim, hidden, "none"),
            _Matrix("self_attn.o_a_proj", mixer.o_groups * mixer.o_lora_rank, width // mixer.o_groups, "tp"),
            _Matrix("self_attn.o_b_proj", hidden, mixer.o_groups * mixer.o_lora_rank, "tp"),
        ]
    elif isinstance(mixer, Recurrent):
        value = mixer.value_heads * mixer.value_dim
        return [
            _Matrix("linear_attn.in_proj", mixer.conv_channels + value, hidden, "tp"),
            _Matrix("linear_attn.out_proj", hidden, value, "tp"),
        ]
    else:
        return []
    indexer = mixer.indexer
    if indexer is not None and indexer.owns_cache:
        found.append(
            _Matrix("self_attn.indexer", indexer.heads * indexer.head_dim + indexer.head_dim, hidden, "none")
        )
    return found


def _feed_matrices(feed: FeedForward | Experts, hidden: int) -> list[_Matrix]:
    if isinstance(feed, FeedForward):
        up = feed.intermediate * (2 if feed.gated else 1)
        return [
            _Matrix("mlp.gate_proj", up, hidden, "tp"),
            _Matrix("mlp.down_proj", hidden, feed.intermediate, "tp"),
        ]
    found = [_Matrix("mlp.gate", feed.count, hidden, "none")]
    if feed.shared_intermediate:
        up = feed.shared_intermediate * (2 if feed.gated else 1)
        found.append(_Matrix("mlp.shared_experts.gate_proj", up, hidden, "tp"))
        found.append(_Matrix("mlp.shared_experts.down_proj", hidden, feed.shared_intermediate, "tp"))
    return found


def _expert_matrix(experts: Experts) -> _Matrix:
    """One routed expert as one matrix."""
    up = experts.intermediate * (2 if experts.gated else 1)
    return _Matrix("mlp.experts.0.gate_proj", up + experts.intermediate, experts.width, "none")


class Profile:
    """A model's matrices by layer with their storage, worked out once and shared by all layouts."""

    def __init__(self, facts: ModelFacts) -> None:
        self.facts = facts
        self.kv_value_bytes = 1 if facts.kv_dtype.startswith("fp8") else facts.dtype_bytes
        stored = cache(self._stored)
        # layer index -> (compute, split, bytes, values), routed experts apart
        self.layers: list[list[tuple[str, str, float, float]]] = []
        self.experts: list[tuple[Experts, str, float, float] | None] = []
        for index, layer in enumerate(facts.layers):
            matrices = _mixer_matrices(layer.mixer, facts.hidden)
            experts = None
            for feed in layer.feeds:
                matrices += _feed_matrices(feed, facts.hidden)
                if isinstance(feed, Experts):
                    matrix = _expert_matrix(feed)
                    compute, size, values = stored(index, matrix)
                    experts = (feed, compute, size * feed.count, values * feed.count)
            self.layers.append([(c, m.split, b, v) for m in matrices for c, b, v in (stored(index, m),)])
            self.experts.append(experts)
        vocab = (facts.vocab + 63) // 64 * 64
        scheme = facts.quantisation.scheme("lm_head")
        values = vocab * facts.hidden
        size = scheme.size_bytes(vocab, facts.hidden) if scheme else values * facts.dtype_bytes
        self.head = Matrices(_COMPUTE.get(scheme.name, "bf16") if scheme else "bf16", size, values)

    def _stored(self, index: int, matrix: _Matrix) -> tuple[str, float, float]:
        scheme = self.facts.quantisation.scheme(f"layers.{index}.{matrix.name}")
        values = matrix.out * matrix.inp
        if scheme is None or matrix.name == "mlp.gate":
            return "bf16", values * self.facts.dtype_bytes, values
        return _COMPUTE.get(scheme.name, "bf16"), scheme.size_bytes(matrix.out, matrix.inp), values


class Identity:
    """Keys a cache by the object itself: hashing a whole ModelFacts costs more than the profile."""

    def __init__(self, facts: ModelFacts) -> None:
        self.facts = facts

    def __hash__(self) -> int:
        return id(self.facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.facts is self.facts


@lru_cache(maxsize=16)
def _profile_of(held: Identity) -> Profile:
    return Profile(held.facts)


def profile(facts: ModelFacts) -> Profile:
    """The profile of a model, kept while it is among the last used."""
    return _profile_of(Identity(facts))

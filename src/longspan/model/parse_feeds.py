"""The feed-forward part of a layer: dense, experts, or both. Decided by fields only."""

from longspan.model import fields as known
from longspan.model.facts import Experts, FeedForward
from longspan.model.fields import Fields


def _gated(f: Fields) -> bool:
    act = str(
        f.get("mlp_hidden_act", "hidden_act", "hidden_activation", "activation_function", default="silu")
    )
    return f.type not in known.UNGATED and act not in {"relu2", "gelu_new", "relu", "gelu_fast"}


def parse_dense(f: Fields) -> FeedForward:
    """The dense block of a layer."""
    size = f.get("dense_intermediate_size", "intermediate_size_mlp") if _experts_count(f) else None
    if size is None:
        hidden = f.count("hidden_size", "n_embd", "d_model")
        default = 4 * hidden if f.type in known.UNGATED else None
        size = f.count("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=default)
    return FeedForward(
        int(size), _gated(f), bool(f.get("mlp_bias", "use_bias", default=f.type in known.LINEAR_BIAS))
    )


def _experts_count(f: Fields) -> int:
    return f.optional("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


def parse_feeds(f: Fields, index: int) -> tuple[FeedForward | Experts, ...]:
    """What stands after the mixer of layer `index`."""
    if _experts_count(f) <= 1 or not _is_sparse(f, index):
        return (parse_dense(f),)
    # Gemma-4's mixture stands beside a dense branch, not in its place.
    return (parse_dense(f), parse_experts(f)) if f.get("enable_moe_block") else (parse_experts(f),)


def _is_sparse(f: Fields, index: int) -> bool:
    """Whether layer `index` has experts."""
    kinds = f.get("mlp_layer_types")
    if isinstance(kinds, list) and index < len(kinds):
        return str(kinds[index]) == "sparse"
    if index in set(f.get("mlp_only_layers") or []):
        return False
    enum = f.get("moe_layers_enum")
    if enum:
        return str(index) in str(enum).split(",")
    freq = f.get("moe_layer_freq", "moe_layer_frequency")
    if isinstance(freq, list):
        return bool(freq[index])
    if index < f.optional("first_k_dense_replace"):
        return False
    if f.get("decoder_sparse_step"):
        return (index + 1) % f.count("decoder_sparse_step") == 0
    if f.get("interleave_moe_layer_step"):
        return (index + 1) % f.count("interleave_moe_layer_step") == 0
    if f.get("expert_layer_period"):
        return index % f.count("expert_layer_period") == f.optional("expert_layer_offset")
    return index % freq == 0 if freq else True


def parse_experts(f: Fields) -> Experts:
    """The routed and shared experts of a layer."""
    size = f.count("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    latent = f.optional("moe_latent_size", "routed_expert_hidden_size")
    shared = f.optional(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim"
    )
    if not shared:
        number = f.optional("n_shared_experts", "num_shared_experts", "num_shared_expert")
        number = number or (1 if f.type in known.ALWAYS_SHARED_EXPERT else 0)
        shared = number * (f.optional("shared_intermediate_size") or size)
    return Experts(
        count=_experts_count(f),
        top_k=f.count(
            "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_topk"
        ),
        intermediate=size,
        width=latent or f.count("hidden_size"),
        shared_intermediate=shared,
        shared_gate=bool(f.optional("shared_expert_intermediate_size")),
        gated=_gated(f),
        bias=f.type == "gpt_oss",
        correction_bias=bool(
            f.get("use_routing_bias", "use_moe_router_bias") or f.get("topk_method") == "noaux_tc"
        ),
    )

"""The KV cache per rank: pages, groups, windows and states."""

from functools import lru_cache
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.model.facts import ModelFacts
from longspan.model.fetch import load_builtin
from longspan.model.parse import parse_config
from longspan.planner.kv_cache import Spec, cache_layout, state_bytes

BASE: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
    "num_hidden_layers": 12, "vocab_size": 32000, "intermediate_size": 2048, "max_position_embeddings": 32768,
}  # fmt: skip
# The attention and state shapes of Qwen3.5-35B-A3B; the feed-forward part does not touch the cache.
QWEN35_35B: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "num_hidden_layers": 40, "vocab_size": 248320, "intermediate_size": 512, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144,
}  # fmt: skip


@lru_cache
def builtin(name: str) -> ModelFacts:
    """A built-in model that must be there."""
    facts = load_builtin(name)
    assert facts is not None
    return facts


@given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from(["auto", "fp8"]))
def test_kv_heads_are_divided_down_to_one_and_then_copied(tp: int, kv_dtype: str) -> None:
    """A token costs 2 x layers x max(1, kv_heads / TP) x head size x bytes on a rank."""
    layout = cache_layout(parse_config(BASE), tp, kv_dtype)
    value = 1 if kv_dtype == "fp8" else 2
    assert layout.token_bytes(0, 12) == 2 * 12 * max(1, 4 // tp) * 64 * value


@given(st.sampled_from([1, 2, 4, 8, 16]))
def test_mla_cache_is_the_same_on_every_rank(tp: int) -> None:
    """DeepSeek-V3: 61 layers of 512 + 64 values, whatever TP is."""
    layout = cache_layout(builtin("deepseek-ai/DeepSeek-V3"), tp)
    assert layout.token_bytes(0, 61) == 61 * 576 * 2


def test_sparse_attention_keeps_index_keys_too() -> None:
    """DeepSeek-V3.2: 132 bytes of FP8 key and scale a token and layer; with an FP8 cache, 656 bytes of packed latents."""
    facts = builtin("deepseek-ai/DeepSeek-V3.2")
    assert cache_layout(facts, 8).token_bytes(0, 61) == 61 * (576 * 2 + 132)
    assert cache_layout(facts, 8, "fp8").token_bytes(0, 61) == 61 * (656 + 132)


def test_groups_have_as_many_layers_as_the_rarest_kind() -> None:
    """Gemma-3-12B: 8 full and 40 sliding layers make six groups of eight."""
    layout = cache_layout(builtin("google/gemma-3-12b-it"), 1)
    assert [len(g.layers) for g in layout.groups] == [8] * 6
    assert len({g.specs[0].kind for g in layout.groups}) == 2


def test_nearly_equal_kinds_are_padded_to_the_larger() -> None:
    """gpt-oss-20b: 12 and 12 make two groups; 13 and 12 too, not four."""
    assert len(cache_layout(builtin("openai/gpt-oss-20b"), 1).groups) == 2
    kinds = ["full_attention"] * 7 + ["sliding_attention"] * 5
    facts = parse_config({**BASE, "layer_types": kinds, "sliding_window": 128})
    assert len(cache_layout(facts, 1).groups) == 2


@given(st.integers(1, 10**6), st.integers(1, 4096), st.sampled_from([512, 2048, 8192]))
def test_window_layers_never_hold_more_than_window_and_batch(length: int, window: int, batch: int) -> None:
    """A sliding layer holds its window and the tokens in flight, at most the request, rounded to blocks and one more."""
    blocks = Spec("sliding", 16, 1, window).blocks_per_request(length, batch)
    assert blocks == ceil(min(window - 1 + batch, length) / 16) + 1
    assert blocks <= Spec("full", 16, 1).blocks_per_request(length, batch) + 1


def test_recurrent_layers_hold_states_and_stretch_the_attention_block() -> None:
    """A hybrid's attention page grows to the state's size; a request costs its states once, not per token."""
    facts = builtin("Qwen/Qwen3.5-27B")
    layout = cache_layout(facts, 1)
    states = [g for g in layout.groups if g.specs[0].kind == "state"]
    full = [g for g in layout.groups if g.specs[0].kind == "full"]
    assert len(states) == 3 * len(full)
    page = full[0].specs[0].page_bytes
    assert page == states[0].specs[0].page_bytes
    assert page % 16 == 0
    assert full[0].specs[0].block_size % 16 == 0
    short, long = layout.blocks_per_request(1000, 8192), layout.blocks_per_request(100000, 8192)
    assert long - short < 100000 / 16


def test_state_is_divided_by_tp_and_groups_are_copied() -> None:
    """Mamba-2 heads are divided; eight groups stay whole numbers on sixteen ranks by copying."""
    mixer = next(x.mixer for x in builtin("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8").layers if x.mixer)
    assert state_bytes(mixer, 8, 2) < state_bytes(mixer, 1, 2) / 7  # type: ignore[arg-type]
    assert state_bytes(mixer, 16, 2) > state_bytes(mixer, 1, 2) / 16  # type: ignore[arg-type]


@given(st.sampled_from([1, 2, 4]))
def test_context_parallelism_divides_tokens(dcp: int) -> None:
    """DCP spreads a request's blocks over its ranks."""
    layout = cache_layout(builtin("deepseek-ai/DeepSeek-V3"), 8, dcp=dcp)
    assert layout.blocks_per_request(16384, 8192) == 16384 // dcp // 16


@pytest.mark.parametrize(
    ("name", "tp", "kv_dtype", "version", "block", "length", "pool_gib", "concurrency"),
    [
        # vllm#40691: 0.19.0, 290,864 tokens = 371 x 784 logged by the old formula, 33.04x
        ("Qwen/Qwen3.5-27B", 1, "auto", (0, 19, 0), 784, 32768, None, 1487 / 45),
        # club-3090#612: 0.24.0 on an RTX 5090, 5.98 GiB, 567,978 tokens, 4.33x (the 35B-A3B shape)
        ("35b-a3b", 1, "fp8", (0, 24, 0), 2096, 131072, 5.98, 4.3333),
        # talos-argocd-proxmox#1995: two RTX 3090, 4.99 GiB, 302,921 tokens, 2.31x (the 27B shape)
        ("Qwen/Qwen3.5-27B", 2, "fp8", (0, 28, 0), 1568, 131072, 4.99, 2.3111),
    ],
)
def test_hybrid_logs_are_met(
    name: str, tp: int, kv_dtype: str, version: tuple[int, int, int], block: int, length: int,
    pool_gib: float | None, concurrency: float,
) -> None:  # fmt: skip
    """Block sizes and concurrency of hybrid models as users' logs show them; nothing was fitted to these."""
    facts = parse_config(QWEN35_35B) if name == "35b-a3b" else builtin(name)
    layout = cache_layout(facts, tp, kv_dtype, version=version)
    assert layout.block_size == block
    blocks = 1487 if pool_gib is None else int(pool_gib * 2**30 / layout.block_bytes(0, len(facts.layers)))
    assert blocks / layout.blocks_per_request(length, 8192) == pytest.approx(concurrency, rel=1e-3)


def test_deepseek_v4_log_is_met() -> None:
    """vllm#44376 (0.22, 16384 tokens in flight): 30,000 tokens need 6.66 GiB; 5.44 GiB hold 13,528; five groups."""
    facts = builtin("deepseek-ai/DeepSeek-V4-Flash")
    layout = cache_layout(facts, 2, "fp8", version=(0, 22, 0))
    size = layout.block_bytes(0, 43)
    assert len(layout.groups) == 5
    assert layout.blocks_per_request(30000, 16384) * size / 2**30 == pytest.approx(6.66, abs=0.005)
    assert layout.blocks_per_request(13528, 16384) * size / 2**30 <= 5.445
    assert layout.blocks_per_request(13528 + 64, 16384) * size / 2**30 > 5.44

"""The legality oracle: verdicts, vLLM's words and the legal values."""

from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.model.facts import ModelFacts
from longspan.model.fetch import load_builtin
from longspan.model.parse import parse_config
from longspan.model.requantise import stored_as
from longspan.plan import Layout
from longspan.planner.legality import check, legal_tp


@lru_cache
def builtin(name: str) -> ModelFacts:
    """A built-in model that must be there."""
    facts = load_builtin(name)
    assert facts is not None
    return facts


SMOL = builtin("HuggingFaceTB/SmolLM2-135M-Instruct")
DEEPSEEK = builtin("deepseek-ai/DeepSeek-V3")


def test_heads_are_refused_in_vllms_words_with_legal_values() -> None:
    """9 heads: TP 2 is illegal and says why; TP 3 and PP 2 are legal."""
    found = check(SMOL, Layout(tp=2))
    assert found is not None
    assert (
        found.message == "Total number of attention heads (9) must be divisible by tensor parallel size (2)."
    )
    assert "9 attention heads are not divisible by 2" in found.why
    assert found.legal == (1, 3, 9)
    assert check(SMOL, Layout(tp=3)) is None
    assert check(SMOL, Layout(pp=2)) is None
    assert legal_tp(SMOL) == (1, 3)


@pytest.mark.parametrize(
    ("name", "layout", "rule", "words"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", Layout(tp=9), "sizes", "1536 is not divisible by 9"),
        (
            "Qwen/Qwen3-8B",
            Layout(ep=True),
            "experts",
            "Number of experts in the model must be greater than 0",
        ),
        ("Qwen/Qwen3-8B", Layout(pp=2, partition=(20, 20)), "partition", "sum(partitions)=40 does not match"),
        (
            "Qwen/Qwen3-8B",
            Layout(pp=3, partition=(18, 18)),
            "partition",
            "len(partitions)=2 does not match pp_size=3",
        ),
        ("Qwen/Qwen3-8B", Layout(pp=37), "pipeline", "a stage without layers"),
        ("Qwen/Qwen3-8B", Layout(tp=4, dcp=3), "dcp", "tp_size=4 must be divisible by dcp_size=3"),
        (
            "Qwen/Qwen3-8B",
            Layout(tp=8, dcp=2),
            "dcp",
            "greater than the model's total number of KV heads (8)",
        ),
        ("Qwen/Qwen3-235B-A22B", Layout(tp=16, dcp=8), "dcp", "exceeds the maximum supported value (4)"),
        (
            "deepseek-ai/DeepSeek-V3",
            Layout(tp=14),
            "heads",
            "(128) must be divisible by tensor parallel size (14)",
        ),
        (
            "deepseek-ai/DeepSeek-V3",
            Layout(tp=32),
            "fp8-blocks",
            "is not divisible by weight quantization block",
        ),
        ("deepseek-ai/DeepSeek-V4-Flash", Layout(tp=16), "sizes", "8 is not divisible by 16"),
        ("Qwen/Qwen3.5-397B-A17B", Layout(tp=32), "sizes", "16 is not divisible by 32"),
    ],
)
def test_each_rule_speaks_vllms_words(name: str, layout: Layout, rule: str, words: str) -> None:
    """The rule that refuses is the right one, and its message is what vLLM prints."""
    found = check(builtin(name), layout)
    assert found is not None
    assert found.rule == rule
    assert words in found.message


def test_expert_sizes_that_no_tp_divides_are_legal_with_ep() -> None:
    """vllm#54178: an expert feed-forward of 320 in FP8 blocks; expert parallelism keeps experts whole."""
    config = {
        "model_type": "qwen3_moe", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "num_hidden_layers": 2, "vocab_size": 32000, "intermediate_size": 2048,
        "moe_intermediate_size": 320, "num_experts": 64, "num_experts_per_tok": 4,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }  # fmt: skip
    facts = parse_config(config)
    found = check(facts, Layout(tp=2), version="0.19.0")
    assert found is not None
    assert found.rule == "fp8-blocks"
    assert "EP" in found.why
    assert check(facts, Layout(tp=2, ep=True), version="0.19.0") is None


def test_versions_differ_where_vllm_changed() -> None:
    """Block-FP8 experts can be refined since 0.32, so MiniMax at TP 8 became legal."""
    facts = builtin("MiniMaxAI/MiniMax-M2.5")
    assert check(facts, Layout(tp=8), version="0.19.0") is not None
    assert check(facts, Layout(tp=8), version="0.32.0") is None


def test_groups_of_int4_stay_whole() -> None:
    """A row-parallel INT4 layer must keep whole groups of 128 on every rank."""
    facts = stored_as(builtin("google/gemma-3-27b-it"), "int4")
    assert check(facts, Layout(tp=8)) is None
    found = check(facts, Layout(tp=16))  # 21504 / 16 = 1344 is ten and a half groups
    assert found is not None
    assert found.rule == "groups"
    assert "group_size=128" in found.message


def test_nodes_limit_the_mp_executor_to_equal_counts() -> None:
    """8 + 4 GPUs carry TP 3 x PP 4 with Ray, but not with mp."""
    facts = builtin("meta-llama/Llama-3.1-70B-Instruct")
    layout = Layout(tp=4, pp=3)
    assert check(facts, layout, nodes=(8, 4), executor="ray") is None
    found = check(facts, layout, nodes=(8, 4), executor="mp")
    assert found is not None
    assert found.rule == "uneven-nodes"
    assert "--distributed-executor-backend ray" in found.message
    assert check(facts, Layout(tp=8, pp=2), nodes=(8, 4)) is not None


def test_eplb_needs_ep_and_even_experts() -> None:
    """EPLB: whole experts on every rank, with the redundant ones counted."""
    assert check(DEEPSEEK, Layout(tp=8), eplb=True) is not None
    assert check(DEEPSEEK, Layout(tp=8, ep=True), eplb=True) is None
    assert check(DEEPSEEK, Layout(tp=8, ep=True), eplb=True, redundant_experts=4) is not None


@given(
    st.sampled_from(
        ["Qwen/Qwen3-8B", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3", "google/gemma-3-27b-it"]
    ),
    st.integers(1, 64),
)
def test_a_legal_tp_divides_what_vllm_divides(name: str, tp: int) -> None:
    """A layout without a rejection leaves no remainder in heads and padded vocabulary; the legal list agrees with check."""
    facts = builtin(name)
    legal = check(facts, Layout(tp=tp)) is None
    assert legal == (tp in legal_tp(facts, 64))
    if legal:
        assert facts.heads % tp == 0
        assert (-(-facts.vocab // 64) * 64) % tp == 0


@given(st.integers(1, 200), st.integers(1, 20))
def test_rejections_name_only_legal_alternatives(heads: int, tp: int) -> None:
    """Every TP size that a rejection offers passes the rule that refused."""
    facts = parse_config(
        {"hidden_size": heads * 8, "num_attention_heads": heads, "num_hidden_layers": 1, "vocab_size": 640,
         "intermediate_size": 5040}
    )  # fmt: skip
    found = check(facts, Layout(tp=tp))
    if found is not None and found.rule == "heads":
        assert all(heads % t == 0 for t in found.legal)
    elif found is not None and found.rule == "sizes":
        assert all(
            again is None or again.rule != "sizes"
            for again in (check(facts, Layout(tp=t)) for t in found.legal)
        )

"""Weights of a rank: what is divided, what is copied, what stands on which stage."""

from functools import lru_cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.model.facts import ModelFacts
from longspan.model.fetch import builtin_names, load_builtin
from longspan.model.requantise import stored_as
from longspan.model.weights import parameters
from longspan.plan import Layout
from longspan.planner.legality import check
from longspan.planner.rank_weights import rank_weights, stage_bounds
from longspan.units import GIB


@lru_cache
def builtin(name: str) -> ModelFacts:
    """A built-in model that must be there."""
    facts = load_builtin(name)
    assert facts is not None
    return facts


def total(facts: ModelFacts, layout: Layout, stage: int = 0) -> float:
    """GiB of a rank."""
    return sum(part.size_bytes for part in rank_weights(facts, layout, stage)) / GIB


@pytest.mark.parametrize(
    ("name", "form", "layout", "measured_gib"),
    [
        # vLLM 0.19.0 logs on H100, jgchn/llm-d-planner @3c876c8, "Model loading took"
        ("meta-llama/Llama-3.1-8B-Instruct", "bf16", Layout(), 14.99),
        ("meta-llama/Llama-3.1-8B-Instruct", "fp32", Layout(), 29.98),
        ("meta-llama/Llama-3.1-8B-Instruct", "fp8", Layout(), 8.49),
        ("meta-llama/Llama-3.1-8B-Instruct", "bf16", Layout(tp=4), 3.77),
        ("meta-llama/Llama-3.1-8B-Instruct", "bf16", Layout(pp=2), 7.51),
        ("Qwen/Qwen2.5-72B-Instruct", "bf16", Layout(tp=2), 67.80),
        ("Qwen/Qwen3-30B-A3B", "bf16", Layout(), 56.88),
        ("google/gemma-3-12b-it", "bf16", Layout(), 23.31),
        ("google/gemma-3-27b-it", "bf16", Layout(), 51.45),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "bf16", Layout(tp=4), 53.12),
        ("openai/gpt-oss-20b", "mxfp4", Layout(tp=2), 7.01),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "bf16", Layout(), 44.76),
    ],
)
def test_measured_weights_are_met(name: str, form: str, layout: Layout, measured_gib: float) -> None:
    """Rotary tables, padding and replication included, a published log is met: within 0.3 %, MXFP4 tiles 1.5 %."""
    assert total(stored_as(builtin(name), form), layout) == pytest.approx(
        measured_gib, rel=0.015 if form == "mxfp4" else 0.003
    )


@given(st.sampled_from(builtin_names()), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3]))
def test_ranks_together_hold_at_least_the_model(name: str, tp: int, pp: int) -> None:
    """Splitting never loses bytes: all ranks together hold the whole checkpoint or more."""
    facts, layout = builtin(name), Layout(tp=tp, pp=pp)
    if check(facts, layout) is not None:
        return

    def stored(layout: Layout, stage: int) -> float:
        # Tables are the same on every rank, and what the allocator rounds up depends on each tensor's size.
        parts = rank_weights(facts, layout, stage)
        return sum(p.size_bytes for p in parts if p.name not in {"rotary tables", "allocator rounding"})

    whole = stored(Layout(), 0)
    assert tp * sum(stored(layout, stage) for stage in range(pp)) >= whole * 0.999


@given(st.sampled_from(builtin_names()), st.sampled_from([(1, 2), (2, 4), (4, 8)]))
def test_more_tp_never_needs_more_on_a_rank(name: str, sizes: tuple[int, int]) -> None:
    """A rank of a wider TP group holds no more than one of a narrower."""
    facts = builtin(name)
    small, large = sizes
    if check(facts, Layout(tp=large)) is None:
        assert total(facts, Layout(tp=large)) <= total(facts, Layout(tp=small)) * 1.001


@given(st.integers(1, 200), st.integers(1, 16))
def test_stages_cover_all_layers_once(layers: int, pp: int) -> None:
    """vLLM's split: contiguous, sizes differ by at most one, the last stage never gets a remainder."""
    config_layers = builtin("Qwen/Qwen3-0.6B")
    facts = ModelFacts(**{**vars_of(config_layers), "layers": config_layers.layers[:1] * layers})
    if pp > layers:
        return
    bounds = stage_bounds(facts, Layout(pp=pp))
    sizes = [end - start for start, end in bounds]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == layers
    assert all(a[1] == b[0] for a, b in pairwise(bounds))
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)


def vars_of(facts: ModelFacts) -> dict[str, object]:
    """The fields of a model, without what was derived from them."""
    return {name: getattr(facts, name) for name in ModelFacts.__dataclass_fields__}


def test_experts_are_divided_over_dp_and_attention_is_not() -> None:
    """DeepSeek-V3 as DP 8 with EP: an eighth of the experts, all of the attention."""
    facts = builtin("deepseek-ai/DeepSeek-V3")
    dp = {p.name: p.size_bytes for p in rank_weights(facts, Layout(dp=8, ep=True), 0)}
    one = {p.name: p.size_bytes for p in rank_weights(facts, Layout(), 0)}
    assert dp["experts"] == pytest.approx(one["experts"] / 8)
    assert dp["attention"] == one["attention"]
    assert dp["shared"] == one["shared"]


def test_uneven_experts_leave_the_first_ranks_with_more() -> None:
    """128 experts over 12 ranks: the first ranks hold eleven; EPLB's redundant experts count too."""
    facts = builtin("Qwen/Qwen3-30B-A3B")
    one = dict_of(facts, Layout())["experts"]
    assert dict_of(facts, Layout(dp=12, ep=True))["experts"] == pytest.approx(one * 11 / 128)
    parts = rank_weights(facts, Layout(dp=8, ep=True), 0, redundant_experts=8)
    assert {p.name: p.size_bytes for p in parts}["experts"] == pytest.approx(one * 17 / 128)


def dict_of(facts: ModelFacts, layout: Layout) -> dict[str, float]:
    """Bytes by part."""
    return {p.name: p.size_bytes for p in rank_weights(facts, layout, 0)}


def test_embedding_and_head_stand_on_first_and_last_stage() -> None:
    """Untied: table first, head last. Tied: the table on both."""
    untied, tied = builtin("meta-llama/Llama-3.1-8B-Instruct"), builtin("Qwen/Qwen3-0.6B")
    names = [{p.name for p in rank_weights(untied, Layout(pp=3), s)} for s in range(3)]
    assert [("embedding" in n, "head" in n) for n in names] == [(True, False), (False, False), (False, True)]
    names = [{p.name for p in rank_weights(tied, Layout(pp=3), s)} for s in range(3)]
    assert ["embedding" in n for n in names] == [True, False, True]


def test_bf16_of_deepseek_is_not_134_gb() -> None:
    """The claim in circulation: DeepSeek-V3.2 in BF16 has 134 GB of weights. It has ten times that."""
    facts = stored_as(builtin("deepseek-ai/DeepSeek-V3.2"), "bf16")
    assert parameters(facts) * 2 / 1e9 > 1300

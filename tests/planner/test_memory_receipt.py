"""The memory receipt: published logs, invariants, and what binds."""

from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.cluster.catalog import require_gpu
from longspan.model.facts import ModelFacts
from longspan.model.fetch import builtin_names, load_builtin
from longspan.model.requantise import stored_as
from longspan.plan import Layout
from longspan.planner.calibration import Calibration, Correction
from longspan.planner.engine import EngineSettings, GpuMemory, resolve
from longspan.planner.kv_cache import cache_layout
from longspan.planner.legality import check
from longspan.planner.memory import receipt
from longspan.planner.overheads import captured_sizes, cuda_graph_bytes
from longspan.planner.rank_weights import rank_weights, stage_bounds
from longspan.units import GIB

H100 = GpuMemory("H100-SXM-80GB", round(79.19 * GIB))
V019 = EngineSettings(version=(0, 19, 0), utilisation=0.95, max_model_len=8192)


@lru_cache
def builtin(name: str) -> ModelFacts:
    """A built-in model that must be there."""
    facts = load_builtin(name)
    assert facts is not None
    return facts


@pytest.mark.parametrize(
    ("name", "form", "layout", "tokens", "concurrency"),
    [
        # vLLM 0.19.0 logs on H100 at 0.95, jgchn/llm-d-planner @3c876c8
        ("meta-llama/Llama-3.1-8B-Instruct", "bf16", Layout(), 476016, 58.11),
        ("meta-llama/Llama-3.1-8B-Instruct", "bf16", Layout(tp=4), 2209792, 269.75),
        ("meta-llama/Llama-3.1-8B-Instruct", "bf16", Layout(pp=2), 1075312, 131.26),
        ("Qwen/Qwen2.5-72B-Instruct", "bf16", Layout(tp=2), 19920, 2.43),
        ("Qwen/Qwen3-30B-A3B", "bf16", Layout(), 168288, 20.54),
        ("google/gemma-3-12b-it", "bf16", Layout(), 130304, 15.88),
        ("openai/gpt-oss-20b", "mxfp4", Layout(), 1277184, 155.75),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "bf16", Layout(tp=4), 365968, 44.68),
    ],
)
def test_published_logs_are_met(
    name: str, form: str, layout: Layout, tokens: int, concurrency: float
) -> None:
    """KV tokens and concurrency as logged, within three percent (a nearly full GPU amplifies every error)."""
    result = receipt(stored_as(builtin(name), form), layout, H100, V019)
    assert result.kv_tokens == pytest.approx(tokens, rel=0.03)
    assert result.max_concurrency == pytest.approx(concurrency, rel=0.03)
    interval = result.estimates["kv_tokens"]
    assert interval.p10 <= interval.p50 <= interval.p90


@given(
    st.sampled_from(builtin_names()), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]),
    st.floats(0.5, 0.98), st.sampled_from([(0, 16, 0), (0, 19, 0), (0, 32, 0)]),
)  # fmt: skip
def test_the_parts_make_up_the_request(
    name: str, tp: int, pp: int, utilisation: float, version: tuple[int, int, int]
) -> None:
    """Weights, activation, non-torch memory, graphs where subtracted, and the pool are exactly what vLLM may use."""
    facts, layout = builtin(name), Layout(tp=tp, pp=pp)
    if check(facts, layout) is not None:
        return
    result = receipt(facts, layout, H100, EngineSettings(version=version, utilisation=utilisation))
    for rank in result.ranks:
        spent = rank.weights_bytes + rank.activation_bytes + rank.non_torch_bytes + rank.kv_pool_bytes
        spent += rank.cuda_graph_bytes if rank.cuda_graph_subtracted else 0
        assert spent == pytest.approx(rank.requested_bytes)
        assert sum(p.size_bytes for p in rank.weights_parts) == pytest.approx(rank.weights_bytes)


@given(st.sampled_from(builtin_names()), st.floats(0.5, 0.9))
def test_more_memory_never_holds_fewer_tokens(name: str, utilisation: float) -> None:
    """Utilisation up: blocks, tokens and the largest context do not shrink."""
    facts = builtin(name)
    low = receipt(facts, Layout(tp=8), H100, EngineSettings(utilisation=utilisation))
    high = receipt(facts, Layout(tp=8), H100, EngineSettings(utilisation=utilisation + 0.05))
    assert low.blocks <= high.blocks
    assert low.kv_tokens <= high.kv_tokens
    assert low.largest_max_model_len <= high.largest_max_model_len


def test_the_last_stage_binds_because_only_it_samples() -> None:
    """PP 2 of an 8B model: equal layers, but the sampler runs on the last stage."""
    result = receipt(builtin("meta-llama/Llama-3.1-8B-Instruct"), Layout(pp=2), H100, V019)
    assert result.binding == 1
    assert result.ranks[1].activation_bytes > result.ranks[0].activation_bytes


def test_fewer_sequences_free_sampler_memory() -> None:
    """max_num_seqs 1024 to 256 frees the logits of 768 requests, and tokens follow."""
    facts = builtin("meta-llama/Llama-3.1-8B-Instruct")
    many = receipt(facts, Layout(), H100, replace(V019, max_num_seqs=1024))
    few = receipt(facts, Layout(), H100, replace(V019, max_num_seqs=256))
    freed = many.ranks[0].activation_bytes - few.ranks[0].activation_bytes
    assert freed / GIB == pytest.approx(0.9, abs=0.15)
    assert few.kv_tokens > many.kv_tokens


def test_a_model_that_does_not_fit_has_no_tokens() -> None:
    """A 70B model in BF16 on one 80 GB GPU: a negative pool, no tokens, no context."""
    result = receipt(builtin("meta-llama/Llama-3.1-70B-Instruct"), Layout(), H100)
    assert not result.ranks[0].fits
    assert (result.kv_tokens, result.largest_max_model_len) == (0, 0)
    assert "kv_tokens" not in result.estimates


def test_the_largest_context_fits_and_the_next_does_not() -> None:
    """largest_max_model_len is the edge: one more block and the request no longer fits."""
    facts = replace(builtin("Qwen/Qwen2.5-72B-Instruct"), max_position=131072)
    result = receipt(facts, Layout(tp=2), H100, V019)
    largest = result.largest_max_model_len
    assert 0 < largest < 131072
    assert receipt(facts, Layout(tp=2), H100, replace(V019, max_model_len=largest)).max_concurrency >= 1
    assert (
        receipt(facts, Layout(tp=2), H100, replace(V019, max_model_len=largest + 32)).max_concurrency < 1.01
    )


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("deepseek-ai/DeepSeek-V3.2", Layout(8, 8)),
        ("openai/gpt-oss-20b", Layout(1, 5)),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", Layout(4, 7)),
    ],
)
def test_every_stage_has_its_own_layers(name: str, layout: Layout) -> None:
    """Stages that are alike are counted once: each has the weights and the cache that are counted for it alone."""
    facts = builtin(name)
    resolved = resolve(V019, facts, H100)
    cache = cache_layout(
        facts, layout.tp, resolved.kv_dtype, layout.dcp, resolved.block_size, resolved.version
    )
    ranks = receipt(facts, layout, H100, V019).ranks
    assert [rank.pp_rank for rank in ranks] == list(range(layout.pp))
    for stage, (start, end) in enumerate(stage_bounds(facts, layout)):
        alone = rank_weights(facts, layout, stage, resolved.version)
        assert ranks[stage].weights_bytes == sum(part.size_bytes for part in alone)
        assert ranks[stage].kv_bytes_per_token == cache.token_bytes(start, end)


def test_unequal_gpus_bind_by_stage() -> None:
    """A stage on a smaller GPU binds, and the receipt says which."""
    small = GpuMemory("A100-SXM-40GB", round(39.5 * GIB))
    result = receipt(builtin("meta-llama/Llama-3.1-8B-Instruct"), Layout(pp=2), (small, H100), V019)
    assert result.binding == 0


def test_corrections_are_applied_to_their_version_and_gpu_only() -> None:
    """A measured correction shifts the estimate it was measured for, and no other."""
    facts = builtin("meta-llama/Llama-3.1-8B-Instruct")
    calibration = Calibration({("0.19", "H100-SXM-80GB"): Correction(activation_add_gib=1.0)})
    plain, corrected = receipt(facts, Layout(), H100, V019), receipt(facts, Layout(), H100, V019, calibration)
    assert (plain.ranks[0].kv_pool_bytes - corrected.ranks[0].kv_pool_bytes) / GIB == pytest.approx(1.0)
    other = replace(V019, version=(0, 18, 0))
    assert receipt(facts, Layout(), H100, other, calibration) == receipt(facts, Layout(), H100, other)


@pytest.mark.parametrize(("seqs", "count"), [(8, 5), (16, 7), (256, 51), (1024, 51)])
def test_small_batches_capture_fewer_graphs(seqs: int, count: int) -> None:
    """1, 2, 4, eights, sixteens, up to twice max_num_seqs: graph memory follows the number of captured sizes."""
    facts = builtin("meta-llama/Llama-3.1-8B-Instruct")
    settings = resolve(replace(V019, max_num_seqs=seqs), facts, H100)
    assert captured_sizes(facts, settings) == count
    assert cuda_graph_bytes(facts, Layout(), 0, settings) <= cuda_graph_bytes(
        facts, Layout(), 0, resolve(V019, facts, H100)
    )


def test_eager_has_no_graphs() -> None:
    """--enforce-eager keeps nothing for CUDA graphs."""
    result = receipt(builtin("Qwen/Qwen3-8B"), Layout(), H100, replace(V019, eager=True))
    assert result.ranks[0].cuda_graph_bytes == 0


@pytest.mark.parametrize(
    ("layout", "concurrency"), [(Layout(8, ep=True), 20.43), (Layout(1, 1, 8, ep=True), 156.9 / 8)]
)
def test_deepseek_v4_on_b200_is_met(layout: Layout, concurrency: float) -> None:
    """vllm-project/recipes#762 (0.25.0, eight B200, a million tokens, utilisation 0.95): requests at once as the log says."""
    gpu = require_gpu("B200")
    settings = EngineSettings(
        version=(0, 25, 0),
        utilisation=0.95,
        max_model_len=1048576,
        kv_dtype="fp8",
        max_num_batched_tokens=8192,
        max_num_seqs=256,
    )
    facts = load_builtin("deepseek-ai/DeepSeek-V4-Flash")
    assert facts is not None
    found = receipt(facts, layout, GpuMemory(gpu.name, gpu.memory_bytes), settings)
    assert found.max_concurrency == pytest.approx(concurrency, rel=0.005)

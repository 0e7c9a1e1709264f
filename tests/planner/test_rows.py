"""Rows: columns, defaults of versions, statistics chosen by quantity."""

import pytest

from longspan.errors import InputError
from longspan.model.facts import ModelFacts
from longspan.model.fetch import load_builtin
from longspan.plan import Estimate
from longspan.planner.engine import EngineSettings, GpuMemory, resolve
from longspan.planner.rows import MEMORY_KEYS, as_json, evaluate_memory, parse_row, row_facts
from longspan.units import GIB

H100 = GpuMemory("H100-SXM-80GB", round(79.19 * GIB))
ROW = {
    "row_id": "r1", "repo_id": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100", "tp": "1", "pp": "2",
    "max_model_len": "8192", "gpu_mem_util": "0.95", "vllm_version": "0.19.0", "quantity": "kv_pool_per_gpu",
}  # fmt: skip


def model(name: str) -> ModelFacts:
    """A built-in model that must be there."""
    facts = load_builtin(name)
    assert facts is not None
    return facts


LLAMA = model("meta-llama/Llama-3.1-8B-Instruct")


def test_blank_columns_take_defaults() -> None:
    """TP falls back to all GPUs, versions and settings to vLLM's defaults."""
    row = parse_row({"row_id": "x", "repo_id": "a/b", "n_gpu": "8", "pp": "2"})
    assert (row.layout.tp, row.layout.pp, row.layout.dp) == (4, 2, 1)
    assert row.settings == EngineSettings()


@pytest.mark.parametrize(
    ("gpu", "version", "expected"),
    [
        (H100, "0.19.0", (0.90, 1024, 8192)),
        (H100, "0.32.0", (0.92, 1024, 8192)),
        (GpuMemory("B200-SXM-180GB", 178 * GIB), "0.32.0", (0.92, 1024, 16384)),
        (GpuMemory("A100-SXM-80GB", 79 * GIB), "0.19.0", (0.90, 256, 2048)),
        (GpuMemory("RTX-4090", 24 * GIB), "0.19.0", (0.90, 256, 2048)),
    ],
)
def test_defaults_of_version_and_gpu(gpu: GpuMemory, version: str, expected: tuple[float, int, int]) -> None:
    """Utilisation by version; requests and tokens by GPU memory, with A100 among the small ones."""
    settings = parse_row({"row_id": "x", "repo_id": "a/b", "vllm_version": version}).settings
    found = resolve(settings, LLAMA, gpu)
    assert (found.utilisation, found.max_num_seqs, found.max_num_batched_tokens) == expected


def test_the_quantity_chooses_rank_zero_or_the_smallest() -> None:
    """Logs show rank 0; kv_pool_min_rank asks for the rank that binds, here the last stage."""
    first = evaluate_memory(parse_row(ROW), LLAMA, H100)["kv_pool_gib_per_gpu"]
    smallest = evaluate_memory(parse_row({**ROW, "quantity": "kv_pool_min_rank"}), LLAMA, H100)[
        "kv_pool_gib_per_gpu"
    ]
    assert isinstance(first, Estimate)
    assert isinstance(smallest, Estimate)
    assert first.p50 > smallest.p50


def test_old_formula_is_chosen_by_quantity() -> None:
    """Hybrid caches: the log line before 0.21 and the one since differ, and each can be asked for."""
    facts = model("google/gemma-3-12b-it")
    row = {**ROW, "pp": "1", "vllm_version": "0.32.0", "max_model_len": "100000", "quantity": "kv_tokens"}
    new = evaluate_memory(parse_row(row), facts, H100)["kv_tokens"]
    old = evaluate_memory(parse_row({**row, "quantity": "kv_tokens_logged_old_formula"}), facts, H100)[
        "kv_tokens"
    ]
    assert isinstance(new, Estimate)
    assert isinstance(old, float)
    assert new.p50 > 1.5 * old


def test_an_unknown_gpu_has_weights_only() -> None:
    """Where there is no basis, there is no number."""
    found = evaluate_memory(parse_row(ROW), LLAMA, None)
    assert set(found) == set(MEMORY_KEYS)
    assert found["weights_gib_per_gpu"] is not None
    assert all(value is None for key, value in found.items() if key != "weights_gib_per_gpu")


def test_weight_dtype_stores_the_model_otherwise() -> None:
    """FP8 of a BF16 checkpoint halves its linear layers; BF16 said of a quantised checkpoint changes nothing."""
    fp8 = row_facts(parse_row({**ROW, "weight_dtype": "fp8"}), LLAMA)
    assert fp8.quantisation.label == "fp8"
    oss = model("openai/gpt-oss-20b")
    assert row_facts(parse_row({**ROW, "weight_dtype": "bf16"}), oss) is oss
    assert row_facts(parse_row({**ROW, "weight_dtype": "not stated"}), oss) is oss


def test_a_wrong_number_names_row_and_column() -> None:
    """The user sees where to look."""
    with pytest.raises(InputError, match=r"Row r1: column max_model_len is '8k'"):
        parse_row({**ROW, "max_model_len": "8k"})
    with pytest.raises(InputError, match="row_id"):
        parse_row({"repo_id": "a/b"})


def test_estimates_become_percentiles() -> None:
    """JSON carries p10, p50 and p90, plain numbers and nulls."""
    assert as_json(Estimate(2.0, 1.0, 3.0)) == {"p10": 1.0, "p50": 2.0, "p90": 3.0}
    assert as_json(4.0) == 4.0
    assert as_json(None) is None

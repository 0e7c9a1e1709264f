"""Rows: evaluates given layouts instead of searching, one CSV row at a time.

The columns are inputs.csv's of the shared planner data; what a row leaves blank takes the default of its vLLM version.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

from longspan.errors import InputError
from longspan.model.facts import ModelFacts
from longspan.model.requantise import known_formats, stored_as
from longspan.plan import Estimate, Layout, MemoryBudget, Receipt
from longspan.planner.calibration import DEFAULT, Calibration
from longspan.planner.engine import EngineSettings, GpuMemory
from longspan.planner.memory import receipt, stage_estimates
from longspan.planner.versions import parse_version
from longspan.units import GIB

COLUMNS = (
    "row_id", "repo_id", "gpu", "n_gpu", "n_nodes", "tp", "pp", "dp", "ep", "dcp", "weight_dtype", "kv_dtype",
    "max_model_len", "gpu_mem_util", "max_num_seqs", "max_num_batched_tokens", "enforce_eager", "vllm_version", "isl",
    "osl", "concurrency", "request_rate_per_s", "num_prompts", "quantity",
)  # fmt: skip
MEMORY_KEYS = (
    "weights_gib_per_gpu", "kv_pool_gib_per_gpu", "kv_tokens", "max_concurrency", "activation_gib_per_gpu",
    "non_torch_gib_per_gpu", "cuda_graph_gib_per_gpu", "consumed_gib_per_gpu", "gpu_blocks", "max_model_len_tokens",
)  # fmt: skip
# Larger numbers are slips of the hand, and would take the planner hours or all memory.
_MOST = {
    "n_gpu": 16_384, "n_nodes": 16_384, "tp": 16_384, "pp": 1000, "dp": 16_384, "dcp": 16_384, "max_num_seqs": 10**6,
    "isl": 10**6, "osl": 262_144, "concurrency": 20_000, "request_rate_per_s": 10**6, "num_prompts": 10**6,
}  # fmt: skip
_YES = {"yes", "true", "1", "on"}

Value = Estimate | float | None


@dataclass(frozen=True)
class Row:
    """One row, parsed: blank numbers are None."""

    row_id: str
    repo_id: str
    gpu: str
    layout: Layout
    weight_dtype: str
    settings: EngineSettings
    quantity: str
    isl: int | None
    osl: int | None
    concurrency: float | None
    request_rate_per_s: float | None
    num_prompts: int | None
    nodes: int


def _number(row: Mapping[str, str | None], column: str) -> float | None:
    text = (row.get(column) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = nan
    most = _MOST.get(column, 1e9)
    if not 0 <= value <= most:
        raise InputError(
            f"Row {row.get('row_id') or '?'}: column {column} is {text[:40]!r}, not a number from 0 to {most:,.0f}.",
            "Leave it blank if it is not known.",
        )
    return value


def _whole(row: Mapping[str, str | None], column: str) -> int | None:
    value = _number(row, column)
    return None if value is None else int(value)


def parse_row(row: Mapping[str, str | None]) -> Row:
    """Reads one row.

    Raises:
        InputError: no model, or a number that is none; the message names row and column.
    """
    repo = (row.get("repo_id") or "").strip()
    if not (row.get("row_id") or "").strip():
        raise InputError(
            "A row has no row_id, so its answer could not be told apart.", "Give every row a row_id."
        )
    pp, dp = _whole(row, "pp") or 1, _whole(row, "dp") or 1
    gpus = _whole(row, "n_gpu")
    tp = _whole(row, "tp") or max(1, (gpus or 1) // (pp * dp))
    ep = (row.get("ep") or "").strip().lower()
    kv = (row.get("kv_dtype") or "").strip().lower()
    share = _number(row, "gpu_mem_util")
    if share is not None and share > 1:
        raise InputError(
            f"Row {row.get('row_id')}: gpu_mem_util is {share:g}, and it is a share of 1.",
            "Write 0.9 for 90 %.",
        )
    settings = EngineSettings(
        version=parse_version(row.get("vllm_version")),
        utilisation=share,
        max_model_len=_whole(row, "max_model_len"),
        max_num_seqs=_whole(row, "max_num_seqs"),
        max_num_batched_tokens=_whole(row, "max_num_batched_tokens"),
        kv_dtype=kv
        if kv in {"fp8", "fp8_e4m3", "fp8_e5m2", "bf16", "bfloat16", "float16", "nvfp4"}
        else "auto",
        eager=(row.get("enforce_eager") or "").strip().lower() in _YES,
    )
    return Row(
        row_id=(row.get("row_id") or "").strip(),
        repo_id=repo,
        gpu=(row.get("gpu") or "").strip(),
        layout=Layout(tp, pp, dp, ep in _YES or (ep.isdigit() and int(ep) > 1), _whole(row, "dcp") or 1),
        weight_dtype=(row.get("weight_dtype") or "").strip().lower(),
        settings=settings,
        quantity=(row.get("quantity") or "").strip(),
        isl=_whole(row, "isl"),
        osl=_whole(row, "osl"),
        concurrency=_number(row, "concurrency"),
        request_rate_per_s=_number(row, "request_rate_per_s"),
        num_prompts=_whole(row, "num_prompts"),
        nodes=_whole(row, "n_nodes") or 1,
    )


def row_facts(row: Row, facts: ModelFacts) -> ModelFacts:
    """The model as the row says it is stored; a dtype that says no more than the checkpoint changes nothing."""
    wanted = row.weight_dtype
    if not wanted or wanted not in known_formats():
        return facts
    if wanted in {"bf16", "bfloat16"} and facts.quantisation.method:
        return facts  # sources write the activation dtype here for quantised checkpoints
    return stored_as(facts, wanted)


def evaluate_memory(
    row: Row, facts: ModelFacts, gpu: GpuMemory | None, calibration: Calibration = DEFAULT
) -> dict[str, Value]:
    """The memory statistics of a row; None where there is no basis (an unknown GPU has weights only).

    Per-GPU values are rank 0's, as vLLM logs them, except where the quantity asks for the smallest rank. `kv_tokens` follows the
    log line of the row's version; `kv_tokens_logged_old_formula` the line before 0.21.
    """
    known = gpu or GpuMemory("unknown", 80 * GIB)
    result = receipt(facts, row.layout, known, row.settings, calibration)
    rank = result.ranks[result.binding if row.quantity == "kv_pool_min_rank" else 0]
    estimates = stage_estimates(rank, calibration, row.settings.version)
    found: dict[str, Value] = dict.fromkeys(MEMORY_KEYS)
    found["weights_gib_per_gpu"] = estimates["weights_gib_per_gpu"]
    if gpu is None:
        return found
    found.update(estimates)
    found["consumed_gib_per_gpu"] = (rank.weights_bytes + rank.non_torch_bytes) / GIB
    found["gpu_blocks"] = float(result.blocks)
    found["max_model_len_tokens"] = float(result.largest_max_model_len)
    found["kv_tokens"] = result.estimates.get("kv_tokens", float(result.kv_tokens))
    if row.settings.max_model_len or row.quantity == "max_concurrency":
        found["max_concurrency"] = result.estimates.get("max_concurrency", result.max_concurrency)
    if row.quantity == "kv_tokens_logged_old_formula":
        found["kv_tokens"] = float(old_tokens(result, row.layout))
    return found


def old_tokens(result: Receipt, layout: Layout) -> int:
    """Tokens as versions before 0.21 logged them: blocks of one group times the block size."""
    return result.blocks // result.groups * result.block_size * layout.dcp


def as_json(value: Value) -> float | dict[str, float] | None:
    """A number, or an object with p10, p50 and p90."""
    if not isinstance(value, Estimate):
        return value
    return {"p10": value.p10, "p50": value.p50, "p90": value.p90}


__all__ = [
    "COLUMNS",
    "MEMORY_KEYS",
    "MemoryBudget",
    "Row",
    "as_json",
    "evaluate_memory",
    "parse_row",
    "row_facts",
]

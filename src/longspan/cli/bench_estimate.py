"""A measured run as a row of the planner: its estimate beside the measurement, and the rows that calibrate it."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longspan.bench.causes import Predicted, running_each
from longspan.bench.result import Result
from longspan.bench.scaling_report import OUTPUT, Beside
from longspan.bench.series import Measured
from longspan.cli.plan import row_latency
from longspan.cli.plan_rows import Models, evaluate_rows, load_calibration
from longspan.cluster.catalog import GpuType, require_gpu
from longspan.errors import InputError, ResultError
from longspan.planner.latency_rows import row_engine
from longspan.planner.losses import losses, mean_load
from longspan.planner.rows import COLUMNS, parse_row

# quantity of a calibration row -> (name for people, key of the estimate, figure of the run, factor to the row's unit, unit).
# A plan's figures are of a whole run, its first burst included, so they stand beside those of the whole run.
_QUANTITIES = {
    "output_throughput": (OUTPUT, "output_tok_s", "output_run_tokens_per_second", 1.0, "tok/s"),
    "ttft_mean": ("TTFT mean", "ttft_ms", "ttft_sent_mean_seconds", 1000.0, "ms"),
    "tpot_mean": ("TPOT mean", "tpot_ms", "tpot_mean_seconds", 1000.0, "ms"),
}
# Arguments of vLLM that change a row.
_ARGUMENTS = {
    "max-model-len": "max_model_len", "gpu-memory-utilization": "gpu_mem_util", "max-num-seqs": "max_num_seqs",
    "max-num-batched-tokens": "max_num_batched_tokens", "enforce-eager": "enforce_eager", "kv-cache-dtype": "kv_dtype",
}  # fmt: skip

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Estimated:
    """The planner about the runs, in their order.

    Attributes:
        beside: estimates beside measurements. predicted: for the ledger. rows: to calibrate with. why_not: "" or why there is none.
    """

    beside: tuple[tuple[Beside, ...], ...] = ()
    predicted: tuple[Predicted | None, ...] = ()
    rows: tuple[Row, ...] = ()
    why_not: str = ""


def row_of(run: Measured, gpu: GpuType, model: str) -> Row | None:
    """The row of one replica of a run, without a quantity; None where its split is not known or it has no answers.

    Replicas share the load evenly, so that one has its part of the clients or of the rate.
    """
    split, result = run.split, run.result
    prompt, output = (_figure(result, name) for name in ("prompt_tokens_mean", "output_tokens_mean"))
    if not split.tp or not prompt or not output:
        return None
    gpus = split.tp * split.pp
    clients = float(result.load.get("concurrency") or 0) / split.replicas
    rate = float((result.load.get("pattern") or {}).get("rate") or 0) / split.replicas
    row = dict.fromkeys(COLUMNS, "") | {
        "row_id": result.result_id, "repo_id": model, "gpu": gpu.name, "n_gpu": str(gpus), "n_nodes": str(_nodes(run, gpus)),
        "tp": str(split.tp), "pp": str(split.pp), "dp": "1",
        "vllm_version": str(result.conditions.get("engine/version") or ""),
        "isl": str(round(prompt)), "osl": str(round(output)),
        "concurrency": "" if run.is_open else f"{clients:g}", "request_rate_per_s": f"{rate:g}" if run.is_open else "",
        "num_prompts": str(max(1, len(result.requests) // split.replicas)),
    }  # fmt: skip
    for flag, column in _ARGUMENTS.items():
        value = result.conditions.get(f"engine/argument/{flag}")
        row[column] = "" if value is None else str(value)
    return row


def _figure(result: Result, name: str) -> float | None:
    found = result.summary.get(name)
    return found.value if found else None


def _nodes(run: Measured, gpus: int) -> int:
    """Nodes of one replica, from the rank map; 1 where there is none."""
    ranks = str(run.result.conditions.get("layout/rank_map") or "").split()
    return max(len({rank.partition("@")[2] for rank in ranks[:gpus]}), 1)


def estimate(
    runs: Sequence[Measured], gpu_name: str, model: str, configs: Path | None, offline: bool
) -> Estimated:
    """Asks the planner about every run whose split is known.

    Args:
        gpu_name: of the catalogue; "": nobody said which, so nothing is estimated. model: "" for the name in the conditions.

    Raises:
        InputError: no such GPU.
    """
    if not gpu_name:
        return Estimated(why_not="say which GPUs these are (--gpu H100).")
    gpu = require_gpu(gpu_name)
    models = Models(configs, offline)
    beside, predicted, rows = [], [], []
    for run in runs:
        name = model or str(run.result.conditions.get("model/name") or "")
        row = row_of(run, gpu, name) if name else None
        beside.append(_beside(run, row, configs, offline) if row else ())
        predicted.append(_predicted(run, row, gpu, models) if row else None)
        rows += _measured_rows(run, row) if row else []
    why = "; ".join(models.problems.values())
    if not why and not any(beside):
        why = "the runs do not tell their model, its split (RESULT=tp4) and the lengths, or the model does not fit the GPUs."
    return Estimated(tuple(beside), tuple(predicted), tuple(rows), why)


def _beside(run: Measured, row: Row, configs: Path | None, offline: bool) -> tuple[Beside, ...]:
    asked = [{**row, "row_id": quantity, "quantity": quantity} for quantity in _QUANTITIES]
    answers, _ = evaluate_rows(asked, configs, offline, load_calibration(None), row_latency)
    found = []
    for quantity, (title, key, _, _, unit) in _QUANTITIES.items():
        value = answers.get(quantity, {}).get(key)
        if isinstance(value, dict):
            found.append(Beside(title, unit, value["p50"], value["p10"], value["p90"], _value(run, quantity)))
    return tuple(found)


def _value(run: Measured, quantity: str) -> float | None:
    """What was measured, of one replica, in the unit of a row."""
    _, _, figure, factor, _ = _QUANTITIES[quantity]
    seen = _figure(run.result, figure)
    share = run.split.replicas if quantity == "output_throughput" else 1
    return None if seen is None else seen * factor / share


def _predicted(run: Measured, row: Row, gpu: GpuType, models: Models) -> Predicted | None:
    parsed = parse_row(row)
    facts = models.get(parsed)
    if facts is None or not parsed.isl or not parsed.osl:
        return None
    running = running_each(run) or parsed.concurrency
    if not running:
        return None
    found = losses(row_engine(parsed, facts, gpu), mean_load(running, parsed.isl, parsed.osl))
    return Predicted(found.communication_share, found.bubble_share)


def _measured_rows(run: Measured, row: Row) -> list[Row]:
    found = []
    for quantity in _QUANTITIES:
        value = _value(run, quantity)
        if value is not None and 0 < value < 1e9:
            name = f"{row['row_id']}/{quantity}"
            found.append({**row, "row_id": name, "quantity": quantity, "value": f"{value:.6g}"})
    return found


def write_rows(path: Path, rows: Sequence[Row]) -> int:
    """Adds rows to a file of `longspan plan --calibrate`, each once; returns how many were new.

    Raises:
        InputError: the file has other columns. ResultError: it cannot be read or written.
    """
    columns = [*COLUMNS, "value"]
    try:
        known: set[str] = set()
        is_new = not path.exists() or path.stat().st_size == 0
        if not is_new:
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file)
                known = {row.get("row_id") or "" for row in reader}
                columns_there = list(reader.fieldnames or ())
            if set(columns_there) != set(columns):
                raise InputError(
                    f"{path} has other columns than a file of calibration rows.", "Name a new file, or one written by this verb."
                )  # fmt: skip
            columns = columns_there
        fresh = [row for row in rows if row["row_id"] not in known]
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            if is_new:
                writer.writeheader()
            writer.writerows(fresh)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ResultError(f"The rows cannot be written to {path}: {error}.", "Name another file.") from error
    return len(fresh)

"""`longspan plan --rows`: evaluates the layouts of a CSV file, and `--calibrate`: turns measured rows into corrections."""

import csv
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from longspan.cluster.catalog import GpuType, find_gpu
from longspan.errors import CalibrationError, InputError, LongspanError
from longspan.model.facts import ModelFacts
from longspan.model.fetch import load_model
from longspan.planner.calibrate import QUANTITIES, Measured, fit, from_document, to_toml
from longspan.planner.calibration import DEFAULT, Calibration
from longspan.planner.engine import GpuMemory
from longspan.planner.rows import Row, as_json, evaluate_memory, parse_row, row_facts
from longspan.planner.versions import format_version

# Adds latency and throughput to a row: (row, facts as stored, GPU) -> values by key.
Latency = Callable[[Row, ModelFacts, GpuType], Mapping[str, Any]]

# Which correction scales which latency key.
_SCALED = {
    "ttft_ms": "ttft_factor", "tpot_ms": "tpot_factor", "itl_ms": "tpot_factor",
    "output_tok_s": "throughput_factor", "output_tok_s_per_gpu": "throughput_factor",
}  # fmt: skip


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header.

    Raises:
        InputError: not there, empty, or without row_id and repo_id.
    """
    if not path.is_file():
        raise InputError(
            f"{path} is not a file.", "Give a CSV file with a header; docs/calibration.md lists its columns."
        )
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [dict(row) for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{path} cannot be read as a CSV file: {error}.", "Save it as CSV in UTF-8, with a header."
        ) from error
    missing = {"row_id", "repo_id"} - set(rows[0] if rows else {})
    if missing:
        raise InputError(
            f"{path} has no rows, or lacks the columns {', '.join(sorted(missing))}.",
            "Every row needs row_id and repo_id; docs/calibration.md lists the other columns.",
        )
    return rows


def gpu_memory(gpu: GpuType) -> GpuMemory:
    """What the receipt must know of a catalogue type."""
    return GpuMemory(gpu.name, gpu.memory_bytes, gpu.link in {"nvlink", "xgmi"})


class Models:
    """Loads each model of a file once; one that cannot be had gives a note instead of stopping the other rows."""

    def __init__(self, configs: Path | None, offline: bool) -> None:
        self._configs = configs
        self._offline = offline
        self._found: dict[str, ModelFacts | None] = {}
        self._stored: dict[tuple[str, str], ModelFacts] = {}
        self.problems: dict[str, str] = {}

    def get(self, row: Row) -> ModelFacts | None:
        """The row's model as it is stored there, or None if it cannot be had."""
        name = row.repo_id
        if name not in self._found:
            try:
                self._found[name] = load_model(name, self._configs, self._offline) if name else None
            except LongspanError as error:
                self._found[name] = None
                self.problems[name] = str(error)
        base = self._found[name]
        if base is None:
            return None
        key = (name, row.weight_dtype)
        if key not in self._stored:
            self._stored[key] = row_facts(row, base)
        return self._stored[key]


def evaluate_rows(
    rows: list[dict[str, str]],
    configs: Path | None,
    offline: bool = False,
    calibration: Calibration = DEFAULT,
    latency: Latency | None = None,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Evaluates every row; one that cannot be read costs its own answer only.

    Returns:
        Values by row_id and key (numbers, or objects with p10, p50 and p90, or None where there is no basis), and the models
        and rows that could not be had or read, with the reason.
    """
    models = Models(configs, offline)
    answers: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}
    for number, raw in enumerate(rows, 1):
        name = (raw.get("row_id") or "").strip()
        try:
            row = parse_row(raw)
        except InputError as error:
            problems[name or f"row number {number}"] = str(error)
            if name:
                answers[name] = {}
            continue
        facts = models.get(row)
        if facts is None:
            answers[row.row_id] = {}
            continue
        gpu = find_gpu(row.gpu) if row.gpu else None
        found = evaluate_memory(row, facts, gpu_memory(gpu) if gpu else None, calibration)
        answer: dict[str, Any] = {key: as_json(value) for key, value in found.items()}
        if latency is not None and gpu is not None:
            correction = calibration.correction(row.settings.version, gpu.name)
            for key, value in latency(row, facts, gpu).items():
                answer[key] = _scaled(value, getattr(correction, _SCALED[key]) if key in _SCALED else 1.0)
        answers[row.row_id] = answer
    return answers, {**models.problems, **problems}


def _scaled(value: Any, factor: float) -> Any:
    if value is None or factor == 1.0:
        return value
    return {k: v * factor for k, v in value.items()} if isinstance(value, dict) else value * factor


def _p50(value: Any) -> float | None:
    number = value.get("p50") if isinstance(value, dict) else value
    return float(number) if isinstance(number, int | float) else None


def calibrate_rows(
    rows: list[dict[str, str]], configs: Path | None, offline: bool = False, latency: Latency | None = None
) -> tuple[Calibration, list[Measured], dict[str, str]]:
    """Compares measured rows with uncorrected estimates.

    Args:
        rows: the columns of `--rows` and a column `value`; `quantity` says what was measured.

    Raises:
        CalibrationError: no row can correct anything.
    """
    answers, problems = evaluate_rows(rows, configs, offline, DEFAULT, latency)
    measured = []
    for raw in rows:
        if not answers.get((raw.get("row_id") or "").strip()):
            continue
        row = parse_row(raw)
        gpu = find_gpu(row.gpu) if row.gpu else None
        if row.quantity not in QUANTITIES or gpu is None:
            continue
        try:
            value = float(raw.get("value") or "")
        except ValueError:
            continue
        predicted = _p50(answers[row.row_id].get(QUANTITIES[row.quantity][0]))
        if predicted and 0 < value < 1e9:
            version = format_version(row.settings.version)
            measured.append(Measured(row.row_id, version, gpu.name, row.quantity, value, predicted))
    if not measured:
        raise CalibrationError(
            "No row could be compared with an estimate: each needs quantity, value, a known gpu and a known model.",
            f"Quantities that correct something: {', '.join(sorted(QUANTITIES))}.",
        )
    return fit(measured), measured, problems


def calibration_path() -> Path:
    """Where corrections are kept unless a file is named: the user's configuration directory."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "longspan" / "calibration.toml"


def load_calibration(path: Path | None) -> Calibration:
    """The corrections in `path`, or in the default file if there is one.

    Raises:
        CalibrationError: the named file is missing, or a file cannot be read.
    """
    file = path or calibration_path()
    if not file.is_file():
        if path is None:
            return DEFAULT
        raise CalibrationError(
            f"{path} is not a file.", "Write one with `longspan plan --calibrate MEASURED.csv`."
        )
    try:
        return from_document(tomllib.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError, AttributeError, LookupError, OSError, RecursionError) as error:
        raise CalibrationError(
            f"{file} is not a calibration file: {error}.", "Delete it, or write it again with --calibrate."
        ) from error


def save_calibration(calibration: Calibration, path: Path | None) -> Path:
    """Writes the corrections beside those of other versions and GPUs already there; returns the file."""
    file = path or calibration_path()
    known = load_calibration(file).corrections if file.is_file() else {}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(to_toml(Calibration({**known, **calibration.corrections})), encoding="utf-8")
    except OSError as error:
        raise CalibrationError(
            f"The corrections cannot be written to {file}: {error.strerror}.",
            "Name another place with --calibration FILE.",
        ) from error
    return file

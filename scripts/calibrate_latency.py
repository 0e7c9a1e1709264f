#!/usr/bin/env python3
"""Fits the step costs of planner/step_costs.py to measured points, and tells the errors on configurations left out.

PYTHONPATH=src python scripts/calibrate_latency.py FOLDER [--folds 8] [--predictions FILE]

FOLDER holds aic_vllm_agg.csv, row_flags.csv, inputs.csv and model_configs/ in the form that docs/calibration.md describes. Needs
numpy and scipy, which Longspan itself does not. In a closed loop the order of events does not depend on how long a step takes, so
each point is simulated once; the fit then only prices its steps, with the formulas of `steptime` on arrays.

`--predictions` writes {row_id: {ttft_ms, tpot_ms, output_tok_s: {p10, p50, p90}}} in which no row was seen by the fit behind it, nor by
the interval around it: both come from the other folds. A fold holds whole configurations (model, GPU, TP, expert split, precision).
"""

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from scipy.optimize import least_squares

from longspan.cluster.catalog import GpuType, find_gpu
from longspan.model.fetch import load_indexed
from longspan.planner.latency_rows import closed_loop_of, row_engine, row_limits
from longspan.planner.links import Path as LinkPath
from longspan.planner.links import reduce_seconds
from longspan.planner.rows import parse_row, row_facts
from longspan.planner.simulate import Load, simulate
from longspan.planner.step_costs import family
from longspan.planner.steptime import StepCosts, compute_seconds, host_seconds
from longspan.planner.work import StageWork

# name: (start, standard deviation of the prior in natural logarithms, lower and upper bound). _h is Hopper, _b Blackwell.
PARAMETERS = {
    "dense_read_h": (0.75, 0.2, 0.4, 0.95), "dense_read_b": (0.70, 0.2, 0.3, 0.95),
    "expert_read_h": (0.6, 0.3, 0.2, 0.95), "expert_read_b": (0.55, 0.3, 0.2, 0.95),
    "cache_read_h": (0.6, 0.3, 0.2, 1.2), "cache_read_b": (0.5, 0.3, 0.2, 1.2),
    "fp8_h": (0.55, 0.2, 0.2, 0.85), "fp8_b": (0.5, 0.2, 0.2, 0.85), "bf16_h": (0.68, 0.2, 0.2, 0.85),
    "bf16_b": (0.65, 0.2, 0.2, 0.85), "fp4_b": (0.45, 0.2, 0.1, 0.85),
    "expert_fp8_h": (0.35, 0.4, 0.05, 0.8), "expert_fp8_b": (0.3, 0.4, 0.05, 0.8), "expert_bf16": (0.3, 0.4, 0.05, 0.8),
    "expert_fp4_b": (0.25, 0.4, 0.05, 0.8), "expert_mxfp4_h": (0.4, 0.4, 0.05, 0.8), "expert_mxfp4_b": (0.3, 0.4, 0.05, 0.8),
    "attend_h": (0.45, 0.3, 0.1, 0.75), "attend_b": (0.4, 0.3, 0.1, 0.75),
    "layer": (20e-6, 0.7, 3e-6, 6e-5), "layer_factor_b": (1.0, 0.3, 0.5, 2.0), "expert_layer": (20e-6, 0.7, 3e-6, 8e-5),
    "prefill_layer_h": (30e-6, 0.5, 5e-6, 2e-4), "prefill_layer_b": (30e-6, 0.5, 5e-6, 2e-4),
    "mixed_h": (1e-3, 0.8, 1e-5, 2e-2), "mixed_b": (5e-3, 0.8, 1e-5, 2e-2),
    "step": (1e-3, 0.7, 1e-5, 5e-3), "request": (10e-6, 1.0, 1e-7, 5e-5),
    "prompt": (5e-4, 0.7, 1e-5, 1e-2), "warm_prompt": (5e-4, 0.7, 1e-5, 1e-2),
    "reduce": (10e-6, 0.4, 3e-6, 3e-5), "growth": (2e-6, 0.7, 1e-7, 1e-5), "link": (0.7, 0.15, 0.4, 0.95),
    "arrive": (15e-3, 0.5, 1e-3, 0.05), "token": (1e-6, 0.7, 1e-8, 1e-5),
    "warm_arrive": (20e-3, 0.7, 1e-3, 0.1), "warm_factor": (1.5, 0.5, 1.0, 5.0), "skew": (0.9, 0.1, 0.6, 1.0),
}  # fmt: skip
NAMES = list(PARAMETERS)
START, SPREAD, LOW, HIGH = (np.array(column) for column in zip(*PARAMETERS.values(), strict=True))
START, LOW, HIGH = np.log(START), np.log(LOW), np.log(HIGH)
# How far a point may be off before it counts less, and how much TTFT counts beside TPOT.
_TOLERANCE, _TTFT_WEIGHT, _PRIOR_WEIGHT = 0.12, 0.7, 0.7
_STEP = 1e-6


@dataclass(frozen=True)
class Point:
    """A measured point with its steps: loads as arrays, and for each request the steps of its arrival, first and last token."""

    row_id: str
    fitted: bool
    group: tuple[str, ...]
    clients: int
    gpu: GpuType
    tp: int
    work: StageWork
    warm: bool
    isl: int
    steps: np.ndarray
    moments: tuple[np.ndarray, np.ndarray, np.ndarray]
    outputs: np.ndarray
    ttft: float
    tpot: float


def read_points(folder: Path) -> list[Point]:
    """All scored points; `fitted` are those that are not saturated and whose labels are not in doubt."""
    inputs = {r["row_id"]: r for r in _rows(folder / "inputs.csv")}
    flags = {r["row_id"]: r for r in _rows(folder / "row_flags.csv")}
    models, schedules, found = {}, {}, []
    for raw in _rows(folder / "aic_vllm_agg.csv"):
        flag = flags[raw["row_id"]]
        if flag["score"] != "yes":
            continue
        row = parse_row(inputs[raw["row_id"]])
        doubtful = raw["attention_dp_size"] == "" and int(raw["moe_tp_size"]) > int(raw["tp_size"])
        if raw["moe_ep_size"].isdigit() and int(raw["moe_ep_size"]) > 1:
            row = replace(row, layout=replace(row.layout, ep=True))
        key = (row.repo_id, row.weight_dtype)
        if key not in models:
            models[key] = row_facts(row, load_indexed(row.repo_id, folder / "model_configs"))
        gpu = find_gpu(row.gpu)
        engine = row_engine(row, models[key], gpu)
        limits = row_limits(row, models[key], gpu, engine)
        if limits is None:
            continue
        requests, clients, warm = closed_loop_of(row)
        enough = limits.kv_tokens > 1.2 * clients * (row.isl + row.osl)
        name = (row.isl, row.osl, clients, warm, limits.batched_tokens, 0 if enough else limits.kv_tokens)
        if name not in schedules:
            schedules[name] = _schedule(requests, clients, limits, 2 * clients if warm else 0)
        group = (
            raw["model_path"],
            raw["system"],
            raw["tp_size"],
            raw["moe_tp_size"],
            raw["moe_ep_size"],
            raw["precision"],
        )
        found.append(
            Point(row.row_id, not doubtful and "saturated" not in flag["flags"], group, clients, gpu, row.layout.tp, engine.stages[0].work, warm, row.isl, *schedules[name],
                  float(raw["silicon_ttft_ms"]) / 1e3, float(raw["silicon_tpot_ms"]) / 1e3)
        )  # fmt: skip
    return found


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def _schedule(requests, clients, limits, skip):  # type: ignore[no-untyped-def]
    loads: list[Load] = []

    def one_second(load: Load) -> float:
        loads.append(load)
        return 1.0

    served = simulate(requests, limits, one_second, concurrency=clients)[skip:]
    fields = (
        "prefill_tokens",
        "prefill_pairs",
        "prefill_requests",
        "decode_requests",
        "context_tokens",
        "steps",
    )
    steps = np.array([[getattr(load, name) for name in fields] for load in loads], float).T
    ends = np.concatenate([[0], np.cumsum(steps[5])])
    seen = np.array(
        [
            (s.arrival_seconds, s.arrival_seconds + s.ttft_seconds, s.end_seconds, s.output_tokens)
            for s in served
        ]
    )
    moments = tuple(np.searchsorted(ends, seen[:, column] - 0.5) for column in range(3))
    return steps, moments, seen[:, 3]


def costs_of(values: dict[str, float], gpu: GpuType, warm: bool) -> StepCosts:
    """The step costs that a vector of parameters means for a GPU."""
    k = "b" if family(gpu) == "blackwell" else "h"
    v, factor = values, values["layer_factor_b"] if k == "b" else 1.0
    fp4 = v["fp4_b"] if k == "b" else v["bf16_h"]
    return StepCosts(
        v[f"dense_read_{k}"], v[f"expert_read_{k}"], v[f"cache_read_{k}"],
        {"fp8": v[f"fp8_{k}"], "bf16": v[f"bf16_{k}"], "fp4": fp4, "mxfp4": v[f"fp8_{k}"], "int8": v[f"fp8_{k}"]},
        {"fp8": v[f"expert_fp8_{k}"], "bf16": v["expert_bf16"], "fp4": v["expert_fp4_b"], "mxfp4": v[f"expert_mxfp4_{k}"]},
        v[f"attend_{k}"], v["layer"] * factor, v["expert_layer"] * factor, v[f"prefill_layer_{k}"], v[f"mixed_{k}"],
        v["step"], v["request"], v["warm_prompt"] if warm else v["prompt"], v["reduce"], v["growth"], v["link"], v["skew"],
    )  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """Points that share work, GPU and protocol, their steps and requests one after the other: priced in one go."""

    places: np.ndarray
    first: Point
    steps: np.ndarray
    moments: np.ndarray
    outputs: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    isl: np.ndarray


def batches(points: Sequence[Point]) -> list[Batch]:
    """The points in batches; `places` are their positions."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, point in enumerate(points):
        groups.setdefault((point.work, point.gpu, point.tp, point.warm), []).append(place)
    found = []
    for places in groups.values():
        members = [points[place] for place in places]
        ends = np.cumsum([0] + [member.steps.shape[1] for member in members])
        moments = [np.stack(member.moments) + end for member, end in zip(members, ends, strict=False)]
        counts = np.array([len(member.outputs) for member in members])
        found.append(
            Batch(
                np.array(places), members[0], np.concatenate([m.steps for m in members], axis=1),
                np.concatenate(moments, axis=1), np.concatenate([m.outputs for m in members]),
                np.cumsum(np.concatenate([[0], counts[:-1]])), counts, np.array([m.isl for m in members]),
            )
        )  # fmt: skip
    return found


def predict(batch: Batch, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean TTFT and TPOT of each point of a batch in seconds."""
    values = dict(zip(NAMES, np.exp(logs), strict=True))
    point = batch.first
    costs = costs_of(values, point.gpu, point.warm)
    names = ("prefill_tokens", "prefill_pairs", "prefill_requests", "decode_requests", "context_tokens")
    load = SimpleNamespace(**dict(zip(names, batch.steps, strict=False)))
    seconds = compute_seconds(point.work, load, point.gpu, costs) + host_seconds(load, costs)
    if point.tp > 1:
        message = point.work.hidden_bytes * (load.prefill_tokens + load.decode_requests)
        path = LinkPath("nvlink", point.gpu.link_bytes_per_second)
        seconds = seconds + point.work.reductions * reduce_seconds(message, point.tp, path, costs)
    clock = np.concatenate([[0], np.cumsum(seconds * batch.steps[5])])
    arrival, first, last = clock[batch.moments]

    def mean(each: np.ndarray) -> np.ndarray:
        return np.add.reduceat(each, batch.starts) / batch.counts

    engine = mean(first - arrival) * (values["warm_factor"] if point.warm else 1.0)
    client = values["warm_arrive"] if point.warm else values["arrive"]
    tpot = mean((last - first) / np.maximum(batch.outputs - 1, 1))
    return engine + client + values["token"] * batch.isl, tpot


def predict_all(points: Sequence[Point], logs: np.ndarray) -> np.ndarray:
    """TTFT and TPOT of all points, in two rows."""
    found = np.empty((2, len(points)))
    for batch in batches(points):
        found[:, batch.places] = predict(batch, logs)
    return found


def _matters(batch: Batch) -> list[int]:
    """The parameters that change what a batch is predicted to do."""
    here = np.concatenate(predict(batch, START))
    found = []
    for number in range(len(NAMES)):
        moved = START.copy()
        moved[number] += 0.1
        if not np.array_equal(np.concatenate(predict(batch, moved)), here):
            found.append(number)
    return found


def fit(points: Sequence[Point], start: np.ndarray, rounds: int) -> np.ndarray:
    """Parameters (as logarithms) that fit the points, held near the priors."""

    parts = batches(points)
    matters = [_matters(batch) for batch in parts]
    measured = np.log([[point.ttft for point in points], [point.tpot for point in points]])
    weight = np.array([[_TTFT_WEIGHT], [1.0]]) / _TOLERANCE

    def residuals(logs: np.ndarray) -> np.ndarray:
        found = np.empty((2, len(points)))
        for batch in parts:
            found[:, batch.places] = np.log(predict(batch, logs))
        off = (found - measured) * weight
        return np.concatenate([off.ravel(), (logs - START) / SPREAD * _PRIOR_WEIGHT])

    def slopes(logs: np.ndarray) -> np.ndarray:
        """Finite differences, each batch only by the parameters that it depends on."""
        found = np.zeros((len(NAMES), 2, len(points)))
        for batch, names in zip(parts, matters, strict=True):
            here = np.log(predict(batch, logs))
            for number in names:
                # Away from the bound, where the value would be the same for lack of room.
                step = -_STEP if logs[number] + _STEP > HIGH[number] else _STEP
                moved = logs.copy()
                moved[number] += step
                found[number][:, batch.places] = (np.log(predict(batch, moved)) - here) / step
        found *= weight
        return np.concatenate([found.reshape(len(NAMES), -1).T, np.diag(_PRIOR_WEIGHT / SPREAD)])

    inside = np.clip(start, LOW + 1e-6, HIGH - 1e-6)
    return least_squares(
        residuals, inside, jac=slopes, loss="soft_l1", max_nfev=rounds, x_scale=SPREAD, bounds=(LOW, HIGH)
    ).x


QUANTITIES = ("ttft", "tpot", "throughput")
_KEYS = {"ttft": "ttft_ms", "tpot": "tpot_ms", "throughput": "output_tok_s"}
_UNITS = {"ttft": 1e3, "tpot": 1e3, "throughput": 1.0}


def rate(point: Point, ttft: float, tpot: float) -> float:
    """Output tokens a second of a closed loop, from its two latencies."""
    tokens = float(np.mean(point.outputs))
    return point.clients * tokens / (ttft + max(tokens - 1, 0) * tpot)


@dataclass(frozen=True)
class HeldOut:
    """A point as a fit that did not see its configuration predicts it: by quantity, estimate and measurement."""

    point: Point
    fold: int
    pairs: dict[str, tuple[float, float]]


def hold_out(points: Sequence[Point], folds: int, best: np.ndarray) -> list[HeldOut]:
    """Every point, also those that no fit takes in, predicted without its configuration."""
    groups = sorted({point.group for point in points})
    found = []
    for number in range(folds):
        held = set(groups[number::folds])
        # Started away from the fit of all points, so that the held-out ones leave no trace.
        seen = [point for point in points if point.fitted and point.group not in held]
        values = fit(seen, 0.5 * best + 0.5 * START, 12)
        print(f"fold {number + 1} of {folds}: {len(seen)} points", flush=True)
        left_out = [point for point in points if point.group in held]
        for point, (ttft, tpot) in zip(left_out, predict_all(left_out, values).T.tolist(), strict=True):
            pairs = {
                "ttft": (ttft, point.ttft),
                "tpot": (tpot, point.tpot),
                "throughput": (rate(point, ttft, tpot), rate(point, point.ttft, point.tpot)),
            }
            found.append(HeldOut(point, number, pairs))
    return found


def interval(quantity: str, found: Sequence[HeldOut]) -> tuple[float, float]:
    """Measured over estimated, 10th and 90th percentile of the fitted points among `found`."""
    ratios = [one.pairs[quantity][1] / one.pairs[quantity][0] for one in found if one.point.fitted]
    low, high = np.quantile(ratios, [0.1, 0.9])
    return float(low), float(high)


def report(found: Sequence[HeldOut], name: str = "all") -> None:
    """Median and 90th percentile of the error, the interval for `step_costs.SPREADS`, and what it holds of each left-out fold."""
    for quantity in QUANTITIES:
        chosen = [one for one in found if one.point.fitted]
        error = np.abs([one.pairs[quantity][0] / one.pairs[quantity][1] - 1 for one in chosen]) * 100
        low, high = interval(quantity, found)
        inside = []
        for number in {one.fold for one in found}:
            p10, p90 = interval(quantity, [one for one in found if one.fold != number])
            inside += [
                p10 <= one.pairs[quantity][1] / one.pairs[quantity][0] <= p90
                for one in chosen
                if one.fold == number
            ]
        print(
            f"{name}, {quantity}, held out: {len(chosen)} points, median {np.median(error):.1f} %, p90 {np.quantile(error, 0.9):.1f} %, "
            f"measured/estimate {low:.3f} to {high:.3f}, inside the interval of the other folds {np.mean(inside):.0%}"
        )


def predictions(found: Sequence[HeldOut]) -> dict[str, dict[str, dict[str, float]]]:
    """Held-out values with held-out intervals, in the form of `longspan plan --rows --json`."""
    answer: dict[str, dict[str, dict[str, float]]] = {}
    for number in {one.fold for one in found}:
        spread = {q: interval(q, [one for one in found if one.fold != number]) for q in QUANTITIES}
        for one in found:
            if one.fold == number:
                answer[one.point.row_id] = {
                    _KEYS[q]: {
                        "p10": one.pairs[q][0] * spread[q][0] * _UNITS[q],
                        "p50": one.pairs[q][0] * _UNITS[q],
                        "p90": one.pairs[q][0] * spread[q][1] * _UNITS[q],
                    }
                    for q in QUANTITIES
                }
    return answer


def main() -> None:
    """Fits all points, then each fold without its configurations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--folds", type=int, default=8)
    parser.add_argument("--predictions", type=Path, help="write the held-out estimates to this JSON file")
    given = parser.parse_args()
    points = read_points(given.folder)
    best = fit([point for point in points if point.fitted], START, 20)
    for name, value in zip(NAMES, np.exp(best), strict=True):
        print(f"{name} = {value:.4g}", flush=True)
    found = hold_out(points, given.folds, best)
    report(found)
    for name in ("hopper", "blackwell"):
        report([one for one in found if family(one.point.gpu) == name], name)
    if given.predictions:
        given.predictions.write_text(json.dumps(predictions(found)))


if __name__ == "__main__":
    main()

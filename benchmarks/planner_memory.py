"""Cross-validates the memory model: refits its constants without each model, and predicts that model.

usage: python benchmarks/planner_memory.py [DATA] [PREDICTIONS]
    DATA: a folder with inputs.csv, measurements.csv, row_flags.csv and model_configs/
    PREDICTIONS: a file for the held-out values, {row_id: {key: {p10, p50, p90}}}, with the shipped intervals around them

Weights and cache sizes have no fitted constant. The fitted ones are the sampler's bytes a value, the constant beside it, the
multimodal constant, the medians of non-torch memory and the coefficients of CUDA graphs. Prints median and 90th percentile of
the absolute percentage error by quantity, as shipped and held out, and the share of measurements inside the interval.
"""

import csv
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from longspan.cli.plan_rows import gpu_memory
from longspan.cluster.catalog import find_gpu
from longspan.model.facts import ModelFacts
from longspan.model.fetch import load_model
from longspan.plan import Estimate
from longspan.planner.engine import resolve
from longspan.planner.memory import receipt
from longspan.planner.overheads import activation_bytes, sampler_bytes
from longspan.planner.rows import Row, evaluate_memory, parse_row, row_facts
from longspan.units import GIB

KEYS = {
    "weights_per_gpu": "weights_gib_per_gpu", "kv_pool_per_gpu": "kv_pool_gib_per_gpu", "kv_tokens": "kv_tokens",
    "max_concurrency": "max_concurrency", "torch_peak_increase_per_gpu": "activation_gib_per_gpu",
    "non_torch_per_gpu": "non_torch_gib_per_gpu", "cuda_graph_pool_per_gpu": "cuda_graph_gib_per_gpu",
}  # fmt: skip


@dataclass
class Point:
    """One measured value with its row, model and shipped estimate."""

    row: Row
    facts: ModelFacts
    quantity: str
    value: float
    shipped: Estimate | float
    held_out: float = 0.0


def load(data: Path) -> list[Point]:
    """All scored memory measurements."""
    flags = {r["row_id"]: r["score"] for r in csv.DictReader((data / "row_flags.csv").open())}
    values = {r["row_id"]: r for r in csv.DictReader((data / "measurements.csv").open())}
    models: dict[str, ModelFacts] = {}
    points = []
    for raw in csv.DictReader((data / "inputs.csv").open()):
        measured = values.get(raw["row_id"])
        if measured is None or flags[raw["row_id"]] != "yes" or measured["measured_quantity"] not in KEYS:
            continue
        row = parse_row(raw)
        if row.repo_id not in models:
            models[row.repo_id] = load_model(row.repo_id, data / "model_configs", offline=True)
        facts, gpu = row_facts(row, models[row.repo_id]), find_gpu(row.gpu)
        assert gpu is not None
        shipped = evaluate_memory(row, facts, gpu_memory(gpu))[KEYS[measured["measured_quantity"]]]
        assert shipped is not None
        points.append(Point(row, facts, measured["measured_quantity"], float(measured["value"]), shipped))
    return points


def p50(value: Estimate | float) -> float:
    """The best guess of a value."""
    return value.p50 if isinstance(value, Estimate) else value


def group(point: Point) -> tuple[bool, bool, bool]:
    """What non-torch memory depends on."""
    return point.row.settings.version >= (0, 18, 0), point.row.layout.tp > 1, point.row.layout.pp > 1


def ratio_fit(train: list[Point]) -> float:
    """One factor for all estimates of a component: the median of measured over shipped."""
    return median(p.value / p50(p.shipped) for p in train)


def sampler_shift(train: list[Point]) -> dict[bool, float]:
    """Bytes a value by which the sampler's constant would move, for old and new versions."""
    found: dict[bool, list[float]] = defaultdict(list)
    for p in train:
        gpu = find_gpu(p.row.gpu)
        assert gpu is not None
        settings = resolve(p.row.settings, p.facts, gpu_memory(gpu))
        if sampler_bytes(p.facts, settings) > 0.5 * activation_bytes(
            p.facts, p.row.layout, p.row.layout.pp - 1, settings
        ):
            size = settings.max_num_seqs * p.facts.vocab
            found[p.row.settings.version < (0, 17, 0)].append((p.value - p50(p.shipped)) * GIB / size)
    return {old: median(v) for old, v in found.items()}


def hold_out(points: list[Point]) -> None:
    """Predicts every point by constants refitted without its model."""
    by: dict[str, list[Point]] = defaultdict(list)
    for p in points:
        by[p.quantity].append(p)
    for name in sorted({p.row.repo_id for p in points}):
        shift = sampler_shift([p for p in by["torch_peak_increase_per_gpu"] if p.row.repo_id != name])
        graphs = ratio_fit([p for p in by["cuda_graph_pool_per_gpu"] if p.row.repo_id != name])
        others = [p for p in by["non_torch_per_gpu"] if p.row.repo_id != name]
        for p in points:
            if p.row.repo_id != name:
                continue
            gpu = find_gpu(p.row.gpu)
            assert gpu is not None
            settings = resolve(p.row.settings, p.facts, gpu_memory(gpu))
            moved = (
                shift.get(settings.version < (0, 17, 0), 0.0) * settings.max_num_seqs * p.facts.vocab / GIB
            )
            like = [o.value for o in others if group(o) == group(p)]
            base = receipt(p.facts, p.row.layout, gpu_memory(gpu), p.row.settings)
            non_torch = median(like) if like else base.ranks[0].non_torch_bytes / GIB
            lost = moved + non_torch - base.ranks[0].non_torch_bytes / GIB
            pool = base.ranks[base.binding].kv_pool_bytes / GIB
            p.held_out = {
                "torch_peak_increase_per_gpu": p50(p.shipped) + moved,
                "non_torch_per_gpu": non_torch,
                "cuda_graph_pool_per_gpu": p50(p.shipped) * graphs,
                "kv_pool_per_gpu": p50(p.shipped) - lost,
                "kv_tokens": p50(p.shipped) * (1 - lost / pool),
                "max_concurrency": p50(p.shipped) * (1 - lost / pool),
            }.get(p.quantity, p50(p.shipped))


def predictions(points: list[Point]) -> dict[str, dict[str, dict[str, float]]]:
    """The held-out values in the form of `longspan plan --rows --json`."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for p in points:
        if isinstance(p.shipped, Estimate) and p.shipped.p50:
            low, high = p.shipped.p10 / p.shipped.p50, p.shipped.p90 / p.shipped.p50
            values = {"p10": p.held_out * low, "p50": p.held_out, "p90": p.held_out * high}
            found.setdefault(p.row.row_id, {})[KEYS[p.quantity]] = values
    return found


def main() -> None:
    """Prints the table of docs/calibration.md."""
    data = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/planner")
    points = load(data)
    hold_out(points)
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps(predictions(points)))
    print("| quantity | n | shipped median % | p90 % | held out median % | p90 % | inside p10-p90 |")
    print("|-|-|-|-|-|-|-|")
    for quantity in KEYS:
        chosen = [p for p in points if p.quantity == quantity]
        cells = []
        for values in ([p50(p.shipped) for p in chosen], [p.held_out for p in chosen]):
            errors = sorted(abs(x / p.value - 1) * 100 for x, p in zip(values, chosen, strict=True))
            cells += [f"{median(errors):.2f}", f"{quantiles(errors, n=10)[8]:.1f}"]
        inside = [
            p.shipped.p10 <= p.value <= p.shipped.p90 for p in chosen if isinstance(p.shipped, Estimate)
        ]
        print(f"| {quantity} | {len(chosen)} | {' | '.join(cells)} | {sum(inside) / len(inside):.0%} |")


if __name__ == "__main__":
    main()

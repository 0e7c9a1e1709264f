"""`longspan plan`: the search, rows of given layouts (`--rows`) and calibration (`--calibrate`)."""

import json
from math import isnan
from pathlib import Path
from typing import Any

import click

from longspan.cli.plan_probe import print_probe
from longspan.cli.plan_rows import (
    calibrate_rows,
    evaluate_rows,
    load_calibration,
    read_rows,
    save_calibration,
)
from longspan.cli.plan_search import Wish, print_plan
from longspan.cluster.catalog import GpuType
from longspan.model.facts import ModelFacts
from longspan.planner.latency_rows import evaluate_latency
from longspan.planner.rows import Row
from longspan.planner.rows import as_json as value_json

_FILE = click.Path(path_type=Path)


class _Finite(click.FloatRange):
    """A range that does not take `nan` either: it compares with nothing, and so passes every bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if isnan(found):
            self.fail(f"{value} is no number.", param, ctx)
        return found


@click.command()
@click.argument("model", required=False)
@click.option("--gpus", help='The cluster in short: "8xH100", "2x4xA100-PCIe-80GB", "8xH100+4xL40S".')
@click.option("--network", help='Between the nodes of --gpus: "infiniband:400x8", "roce:100", "ethernet:10".')
@click.option("--cluster", type=_FILE, help="An inventory (TOML) instead of --gpus.")
@click.option(
    "--prompt",
    type=click.IntRange(1, 10_000_000),
    default=1000,
    show_default=True,
    help="Mean prompt tokens.",
)
@click.option(
    "--output", type=click.IntRange(1, 262_144), default=300, show_default=True, help="Mean output tokens."
)
@click.option("--concurrency", type=click.IntRange(1, 100_000), help="Clients at once (closed loop).")
@click.option("--rate", type=_Finite(1e-6, 1e6), help="Requests per second (open loop).")
@click.option("--trace", type=_FILE, help="Your own arrivals: CSV of seconds, prompt_tokens, output_tokens.")
@click.option(
    "--prefix-hits", type=float, default=0.0, help="Share of prompt tokens found in the prefix cache."
)
@click.option("--slo", default="", help='Objectives: "ttft_p95=2s,tpot_p95=50ms".')
@click.option(
    "--goal", type=click.Choice(["throughput", "latency", "cost"]), default="throughput", show_default=True
)
@click.option("--dtype", help="Plan another storage of the weights: fp8, int4, nvfp4, ...")
@click.option("--kv-dtype", type=click.Choice(["auto", "fp8"]), default="auto", show_default=True)
@click.option("--max-model-len", type=click.IntRange(1, 10**9), help="Tokens a request may have.")
@click.option("--max-num-seqs", type=click.IntRange(1, 10**6), help="Requests in a batch.")
@click.option("--gpu-memory-utilization", "utilisation", type=_Finite(0.05, 1.0))
@click.option("--vllm-version", "vllm", help="The vLLM version to plan for.")
@click.option("--executor", type=click.Choice(["ray", "mp"]), default="ray", show_default=True)
@click.option("--save", type=_FILE, help="Write the plan to a TOML file for `longspan up`.")
@click.option(
    "--probe",
    "probe",
    metavar="HOSTS|ray[:ADDRESS]",
    help="Ask these hosts (ssh, comma-separated), or the nodes of a running Ray, and print the inventory.",
)
@click.option("--quick", is_flag=True, help="Leave out the what-ifs.")
@click.option("--rows", type=_FILE, help="Evaluate the layouts of a CSV file instead of searching.")
@click.option("--configs", type=_FILE, help="A folder of model configs with an index.csv.")
@click.option(
    "--calibrate", type=_FILE, help="Turn measured rows (columns of --rows and `value`) into corrections."
)
@click.option("--calibration", type=_FILE, help="The file of corrections to use or to write.")
@click.option("--offline", is_flag=True, help="Never ask Hugging Face.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    model: str | None,
    rows: Path | None,
    configs: Path | None,
    calibrate: Path | None,
    calibration: Path | None,
    offline: bool,
    as_json: bool,
    save: Path | None,
    probe: str | None,
    **wishes: Any,
) -> None:
    """Plan MODEL on a cluster: ranked layouts, a receipt of every GiB, why not the others."""
    if rows is not None:
        print_rows(rows, configs, calibration, offline, as_json)
    elif calibrate is not None:
        print_calibration(calibrate, configs, calibration, offline, as_json)
    elif probe is not None:
        print_probe(probe, as_json)
    elif model is None:
        raise click.UsageError("Give a MODEL, --rows, --calibrate or --probe.")
    else:
        given = {name: value for name, value in wishes.items() if value is not None}
        print_plan(Wish(model, configs=configs, offline=offline, **given), save, as_json)


def row_latency(row: Row, facts: ModelFacts, gpu: GpuType) -> dict[str, Any]:
    """The latency keys of a row as JSON values."""
    return {key: value_json(value) for key, value in evaluate_latency(row, facts, gpu).items()}


def print_rows(
    rows: Path, configs: Path | None, calibration: Path | None, offline: bool, as_json: bool
) -> None:
    """Evaluates a file of layouts and prints the answers by row_id."""
    answers, problems = evaluate_rows(
        read_rows(rows), configs, offline, load_calibration(calibration), row_latency
    )
    for name, problem in problems.items():
        click.echo(f"{name}: {problem}", err=True)
    if as_json:
        click.echo(json.dumps(answers))
        return
    for row_id, answer in answers.items():
        shown = ", ".join(f"{k} {_short(v)}" for k, v in answer.items() if v is not None)
        click.echo(f"{row_id}: {shown or 'no basis'}")


def _short(value: object) -> str:
    number = value["p50"] if isinstance(value, dict) else value
    return f"{number:.4g}"


def print_calibration(
    measured: Path, configs: Path | None, calibration: Path | None, offline: bool, as_json: bool
) -> None:
    """Fits corrections to measured rows, keeps them, and prints what changed."""
    found, used, problems = calibrate_rows(read_rows(measured), configs, offline, row_latency)
    for name, problem in problems.items():
        click.echo(f"{name}: {problem}", err=True)
    file = save_calibration(found, calibration)
    if as_json:
        corrections = [{"vllm": v, "gpu": g, **vars(c)} for (v, g), c in found.corrections.items()]
        click.echo(json.dumps({"file": str(file), "rows": len(used), "corrections": corrections}))
        return
    click.echo(f"{len(used)} measured values; corrections are in {file}")
    for (version, gpu), c in found.corrections.items():
        click.echo(
            f"vLLM {version} on {gpu} ({c.rows} values): weights x{c.weights_factor:.4f}, "
            f"activation {c.activation_add_gib:+.2f} GiB, outside the allocator {c.non_torch_add_gib:+.2f} GiB, "
            f"CUDA graphs x{c.cuda_graph_factor:.2f}, TTFT x{c.ttft_factor:.2f}, TPOT x{c.tpot_factor:.2f}, "
            f"throughput x{c.throughput_factor:.2f}"
        )

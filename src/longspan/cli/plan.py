"""`longspan plan`: rows of given layouts (`--rows`) and calibration (`--calibrate`)."""

import json
from pathlib import Path

import click

from longspan.cli.plan_rows import (
    calibrate_rows,
    evaluate_rows,
    load_calibration,
    read_rows,
    save_calibration,
)

_FILE = click.Path(path_type=Path)


@click.command()
@click.option("--rows", type=_FILE, help="Evaluate the layouts of a CSV file instead of searching.")
@click.option("--configs", type=_FILE, help="A folder of model configs with an index.csv.")
@click.option(
    "--calibrate", type=_FILE, help="Turn measured rows (columns of --rows and `value`) into corrections."
)
@click.option("--calibration", type=_FILE, help="The file of corrections to use or to write.")
@click.option("--offline", is_flag=True, help="Never ask Hugging Face.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    rows: Path | None,
    configs: Path | None,
    calibrate: Path | None,
    calibration: Path | None,
    offline: bool,
    as_json: bool,
) -> None:
    """Plan a model on a cluster."""
    if rows is not None:
        print_rows(rows, configs, calibration, offline, as_json)
    elif calibrate is not None:
        print_calibration(calibrate, configs, calibration, offline, as_json)
    else:
        raise click.UsageError("Give --rows or --calibrate.")


def print_rows(
    rows: Path, configs: Path | None, calibration: Path | None, offline: bool, as_json: bool
) -> None:
    """Evaluates a file of layouts and prints the answers by row_id."""
    answers, problems = evaluate_rows(read_rows(rows), configs, offline, load_calibration(calibration))
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
    found, used, problems = calibrate_rows(read_rows(measured), configs, offline)
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

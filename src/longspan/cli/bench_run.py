"""`longspan bench run`: calibrates itself, makes the load, and says what came and how far it is to be believed."""

import contextlib
import json
from pathlib import Path
from typing import Any

import click

from longspan.bench.outcome import why_unsound
from longspan.bench.result import Result
from longspan.bench.store import save
from longspan.cli import bench_measure
from longspan.cli.bench_options import load_options
from longspan.cli.bench_show import print_result
from longspan.cli.bench_store import store_option
from longspan.errors import ResultError, UnsoundRunError


@click.command("run")
@click.argument("url")
@load_options
@click.option(
    "--out", type=click.Path(path_type=Path), help="Where the result goes (default: a new file here)."
)
@store_option
@click.option("--json", "as_json", is_flag=True, help="The whole result as one JSON document.")
def command(url: str, as_json: bool, out: Path | None, store: Path, **options: Any) -> int:
    """Measure the OpenAI-compatible endpoint URL."""
    result_id = bench_measure.new_id()
    path = out or Path(f"bench-{result_id}.json")
    _try_writing(path)
    bench = bench_measure.prepare(url, options)
    return _report(bench_measure.measure(bench, result_id), path, store, as_json)


def _report(result: Result, path: Path, store: Path, as_json: bool) -> int:
    document = json.dumps(result.to_json(), allow_nan=False)
    print_result(result, err=as_json)
    if as_json:
        click.echo(document)
    try:
        path.write_text(document)
    except OSError as error:
        with contextlib.suppress(OSError):
            if path.is_file():  # never a device
                path.unlink()  # half a document helps nobody
        raise ResultError(
            f"The result cannot be written to {path}: {error.strerror}. Its figures are above.",
            "Make room, or give --out; `--json > FILE` writes the whole result elsewhere.",
        ) from error
    click.echo(f"saved: {path}", err=True)
    try:
        save(store, result)
    except ResultError as error:  # the file has it all
        click.echo(f"note: {error.what}", err=True)
    if result.interrupted:
        return 130
    if reason := why_unsound(result):
        if as_json:
            click.echo(f"error: {reason}", err=True)
            return UnsoundRunError.exit_code
        raise UnsoundRunError(reason)
    return 0


def _try_writing(path: Path) -> None:
    """Better now than after an hour of load."""
    existed = path.exists()
    try:
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise ResultError(
            f"The result could not be written to {path}: {error.strerror}.", "Give another place with --out."
        ) from error

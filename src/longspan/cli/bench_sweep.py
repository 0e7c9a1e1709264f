"""`longspan bench sweep`: the same load at rising strength: where the knee is, and the most that holds the objectives."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import click

from longspan.bench import sweep_report
from longspan.bench.load import LoadSpec
from longspan.bench.result import Result
from longspan.bench.store import save
from longspan.bench.sweep import GROWTH, Highest, Point, search
from longspan.bench.sweep_report import Sweep, point_of
from longspan.cli import bench_measure
from longspan.cli.bench_measure import Bench
from longspan.cli.bench_options import load_options
from longspan.cli.bench_report import write_page
from longspan.cli.bench_store import store_option
from longspan.errors import InputError

MOST_POINTS = 16


@click.command("sweep")
@click.argument("url")
@click.option(
    "--over", type=click.Choice(["concurrency", "rate"]), default="concurrency", show_default=True,
    help="Clients that wait for their answers, or requests per second that do not.",
)  # fmt: skip
@click.option("--from", "lowest", type=float, default=1.0, show_default=True, help="The lowest load.")
@click.option("--to", "highest", type=float, default=256.0, show_default=True, help="The highest load.")
@load_options
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write a page with plots to this file.")
@click.option("--markdown", "as_markdown", is_flag=True, help="A table to paste, on standard output.")
@store_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(
    url: str,
    over: Literal["concurrency", "rate"],
    lowest: float,
    highest: float,
    page: Path | None,
    as_markdown: bool,
    store: Path,
    as_json: bool,
    **options: Any,
) -> int:
    """Measure URL at one load after the other.

    With `--slo` the load is doubled until one does not hold it, then the gap is halved; a load holds when so many of its requests were
    good that chance alone hardly explains it. Without, it is doubled from --from to --to. Every point is a run of its own in the store.
    """
    _refuse(over, lowest, highest, options)
    options[over] = int(lowest) if over == "concurrency" else lowest
    bench = bench_measure.prepare(url, options)
    found = _sweep(bench, over, lowest, highest, store)
    _told(found, as_json, as_markdown)
    if page is not None:
        write_page(page, sweep_report.html(found))
    return 130 if found.interrupted else 0


def _refuse(over: str, lowest: float, highest: float, options: dict[str, Any]) -> None:
    if not 0 < lowest <= highest < 1e6 or (
        over == "concurrency" and (lowest < 1 or lowest % 1 or highest % 1)
    ):
        raise InputError(
            f"--from {lowest:g} --to {highest:g} is no range of {over}.",
            "The first is at least 1 and not above the second, both whole."
            if over == "concurrency"
            else "Use 0 < from <= to.",
        )
    if options["trace"]:
        raise InputError(
            "A trace brings its own rate, so there is nothing to sweep over.", "Leave --trace away."
        )
    given = [f"--{name}" for name in ("concurrency", "rate") if options[name] is not None]
    if given and not (over == "rate" and given == ["--concurrency"]):
        raise InputError(f"{given[0]} is what the sweep changes.", "Give --from and --to instead.")


def _sweep(bench: Bench, over: str, lowest: float, highest: float, store: Path) -> Sweep:
    runs: list[tuple[float, Result]] = []
    interrupted = ""

    def measure(load: float) -> Point | None:
        """None when the run was interrupted: what is cut off says nothing of its load."""
        nonlocal interrupted
        click.echo(f"{load:g} {'clients' if over == 'concurrency' else 'requests/s'} …", err=True)
        result = bench_measure.measure(_at(bench, over, load, len(runs)))
        save(store, result)
        if any(one.ok for one in result.requests):
            runs.append((load, result))
        interrupted = result.interrupted
        return None if interrupted else point_of(load, result)

    share = max((one.percentile for one in bench.objectives), default=0.0) / 100 or None
    found: Highest | None = None
    if share:
        found = search(measure, share, lowest, highest, over == "concurrency", MOST_POINTS)
    else:
        _ladder(measure, lowest, highest)
    return Sweep(over, share, tuple(runs), found, interrupted)


def _ladder(measure: Callable[[float], Point | None], lowest: float, highest: float) -> None:
    load = lowest
    while measure(load) is not None and load < highest:
        load = min(load * GROWTH, highest)


def _at(bench: Bench, over: str, load: float, number: int) -> Bench:
    """The same load at this strength, with prompts that no other point had. A closed loop of more clients needs more requests, so
    that each client has several."""
    spec: LoadSpec = bench.spec
    changes: dict[str, Any] = {"salt": spec.salt + 1 + number, "seed": spec.seed + number}
    if over == "concurrency":
        changes["concurrency"] = int(load)
        if spec.requests:
            changes["requests"] = max(spec.requests, 4 * int(load))
    else:
        changes["pattern"] = replace(spec.pattern, rate=load)
    return bench_measure.with_load(bench, **changes)


def _told(found: Sweep, as_json: bool, as_markdown: bool) -> None:
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
        return
    if as_markdown:
        click.echo(sweep_report.markdown(found), nl=False)
        return
    rows = sweep_report.table(found)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    click.echo()
    for text in sweep_report.sentences(found):
        click.echo(text)

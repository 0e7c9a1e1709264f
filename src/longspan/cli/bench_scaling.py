"""`longspan bench scaling`: how much of a GPU's throughput is left on more GPUs, and where the rest went."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from longspan.bench import scaling_report
from longspan.bench.outcome import why_unsound
from longspan.bench.scaling import scaling
from longspan.bench.scaling_report import Report
from longspan.bench.series import Measured, ordered, parse_split, refused, split_of
from longspan.bench.store import find
from longspan.cli import bench_estimate
from longspan.cli.bench_report import write_page
from longspan.cli.bench_store import store_option
from longspan.errors import ConditionsError, InputError, UnsoundRunError
from longspan.workload import parse_objectives


@click.command("scaling")
@click.argument("results", nargs=-1, required=True, metavar="RESULT[=SPLIT]...")
@click.option(
    "--slo", default="", help='Judge by requests in time, e.g. "ttft p95 < 500ms"; else by output tokens.'
)
@click.option("--gpu", default="", help="The GPUs' name (H100), for the plan's estimates.")
@click.option("--model", default="", help="Its directory or Hugging Face id, where the runs do not tell it.")
@click.option(
    "--configs", type=click.Path(path_type=Path), help="A folder of model configs with an index.csv."
)
@click.option("--offline", is_flag=True, help="Never ask Hugging Face.")
@click.option(
    "--rows",
    type=click.Path(path_type=Path),
    help="Add the runs to this file of `longspan plan --calibrate`.",
)
@click.option(
    "--allow", multiple=True, metavar="NAME", help="A condition that may differ, as in `bench compare`."
)
@click.option(
    "--unsound", is_flag=True, help="Judge although a run measured its client, or its counts differ."
)
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write a page with plots to this file.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Tables to paste, on standard output.")
@store_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(
    results: tuple[str, ...],
    slo: str,
    gpu: str,
    model: str,
    configs: Path | None,
    offline: bool,
    rows: Path | None,
    allow: tuple[str, ...],
    unsound: bool,
    page: Path | None,
    as_markdown: bool,
    store: Path,
    as_json: bool,
) -> None:
    """Say how well throughput grows with GPUs, from runs that were made on different numbers of them.

    RESULT is a stored result or its file, one for each number of GPUs. Runs of a deployment of this machine know their split; of others say it:
    RESULT=4, or RESULT=tp4, RESULT=3xtp2pp2. All must have had the same load (strong scaling), or the same a GPU (weak). Ends with 95 when
    what must be equal differs, with 92 when a run measured its client.
    """
    runs = ordered([_measured(text, store) for text in results])
    caveats = _sound(runs, unsound)
    unknown = _refuse(runs, allow)
    objectives = parse_objectives(slo) if slo else ()
    seen = bench_estimate.estimate(runs, gpu, model, configs, offline)
    why_not = seen.why_not.rstrip(".")
    found = scaling(runs, objectives, seen.predicted, why_not)
    report = Report(found, seen.beside, seen.why_not, tuple(unknown), tuple(caveats))
    if rows is not None:
        _write_rows(rows, seen)
    if as_json:
        click.echo(json.dumps(scaling_report.document(report), allow_nan=False))
    elif as_markdown:
        click.echo(scaling_report.markdown(report), nl=False)
    else:
        for line in scaling_report.lines(report):
            click.echo(line)
    if page is not None:
        write_page(page, scaling_report.html(report))


def _measured(text: str, store: Path) -> Measured:
    """A result with its split: what follows the last "=", where that is no part of a file's name, counts more than its conditions."""
    name, equals, split = text.rpartition("=")
    if equals and not Path(text).is_file():
        return Measured(find(name, store), parse_split(split))
    result = find(text, store)
    found = split_of(result)
    if found is None:
        raise InputError(
            f"{text} does not tell on how many GPUs it was measured.", f"Say it: {text}=4, or with its split {text}=tp4."
        )  # fmt: skip
    return Measured(result, found)


def _sound(runs: Sequence[Measured], is_accepted: bool) -> list[str]:
    caveats = []
    for one in runs:
        name = one.result.result_id
        if trouble := why_unsound(one.result):
            if not is_accepted:
                raise UnsoundRunError(
                    f"{name} says nothing of the servers. {trouble}", "Measure again, or give --unsound."
                )
            caveats.append(f"{name}: {trouble}")
        if one.result.interrupted:
            caveats.append(f"{name} ended early: {one.result.interrupted}")
    return caveats


def _refuse(runs: Sequence[Measured], allow: Sequence[str]) -> list[str]:
    """Raises ConditionsError that names every difference; returns what is not known."""
    forbidding, unknown = refused(runs, allow)
    if not forbidding:
        return unknown
    base = runs[0].result.result_id
    named = "".join(
        f"\n  {difference.name}: {base} has {difference.a}, {name} has {difference.b} ({difference.why})"
        for name, difference in forbidding
    )
    flags = " ".join(dict.fromkeys(f"--allow {difference.name}" for _, difference in forbidding[:3]))
    raise ConditionsError(
        f"The runs were not measured under the same conditions:{named}",
        f"Measure under the same, or say that it may differ: {flags}",
    )


def _write_rows(path: Path, seen: bench_estimate.Estimated) -> None:
    if not seen.rows:
        raise InputError(f"There are no rows to write to {path}: {seen.why_not or 'no run tells enough.'}")
    added = bench_estimate.write_rows(path, seen.rows)
    click.echo(
        f"{added} of {len(seen.rows)} rows are new in {path}; `longspan plan --calibrate {path}` corrects the planner with them.",
        err=True,
    )

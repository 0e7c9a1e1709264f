"""`longspan doctor`: why a launch failed or hangs."""

import json
import os
import stat
import sys
from pathlib import Path

import click
from click.core import ParameterSource

from longspan.daemon.places import Places
from longspan.doctor.collect import STDIN, diagnose
from longspan.doctor.lines import printable
from longspan.doctor.match import Diagnosis
from longspan.errors import InputError, NoDeploymentError
from longspan.finding import Finding
from longspan.units import format_bytes, format_seconds

_COLOURS = {"error": "red", "warning": "yellow", "info": "blue"}
_OUTCOMES = {
    "serves": "The server came up and serves.",
    "stopped": "The server was stopped on purpose.",
    "failed": "The launch or server failed.",
    "open": "The log shows neither a server that serves nor an error.",
}  # fmt: skip


def to_json(diagnosis: Diagnosis) -> dict[str, object]:
    """The document that `--json` prints."""
    return {
        "findings": [f.to_json() for f in diagnosis.findings],
        "outcome": diagnosis.outcome,
        "attempts": diagnosis.attempts,
        "timeline": [m.to_json() for m in diagnosis.timeline],
        "hints": [h.to_json() for h in diagnosis.hints],
        "consequences": [{"file": e.file, "line": e.line, "text": e.text} for e in diagnosis.consequences],
        "clock_skew_seconds": {node: round(s, 1) for node, s in diagnosis.skew_seconds.items()},
        "lines": diagnosis.lines,
        "size_bytes": diagnosis.size_bytes,
    }


def _print_finding(finding: Finding) -> None:
    mark = click.style(f"{finding.severity}: {finding.cause}", fg=_COLOURS[finding.severity], bold=True)
    click.echo(f"{mark}  {finding.confidence:.0%} sure  {click.style(printable(finding.subject), dim=True)}")
    click.echo(f"  {finding.summary}")
    for evidence in finding.evidence:
        place = f"{evidence.file}:{evidence.line}" if evidence.line else evidence.file
        click.echo(f"    {click.style(printable(place), fg='cyan')}  {evidence.text[:200]}")
    click.echo(f"  do:     {finding.remedy}")
    if finding.undo:
        click.echo(f"  undo:   {finding.undo}")
    if finding.source:
        click.echo(f"  source: {finding.source}")
    click.echo()


def print_diagnosis(diagnosis: Diagnosis, timeline: bool = False) -> None:
    """What people read."""
    click.echo(
        f"{_OUTCOMES[diagnosis.outcome]} Read {diagnosis.lines:,} lines ({format_bytes(diagnosis.size_bytes)})"
        + (f", {diagnosis.attempts} launches; this is about the last." if diagnosis.attempts > 1 else ".")
    )
    for node, seconds in diagnosis.skew_seconds.items():
        click.echo(
            f"The clock of {node or 'the driver'} is {format_seconds(abs(seconds))} {'ahead' if seconds > 0 else 'behind'}; times are corrected."
        )
    click.echo()
    for finding in diagnosis.findings:
        _print_finding(finding)
    if diagnosis.consequences:
        click.echo("Consequences, not causes:")
        for evidence in diagnosis.consequences[:3]:
            click.echo(f"    {printable(evidence.file)}:{evidence.line}  {evidence.text[:160]}")
        click.echo()
    if timeline:
        for moment in diagnosis.timeline:
            click.echo(
                f"  {moment.clock:>8}  {moment.node or '-':<16} {moment.what:<22} {printable(moment.file)}:{moment.line}"
            )
    for hint in diagnosis.hints:
        click.echo(
            f"{click.style('hint:', fg='blue')} {hint.text} ({printable(hint.evidence.file)}:{hint.evidence.line})"
        )
    if not diagnosis.findings:
        click.echo("No fault found.")


def _piped() -> bool:
    """Whether something is piped or redirected into us: neither a terminal nor /dev/null."""
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):
        return sys.stdin is not None  # a stream that some program put there


def _deployment(name: str, named: bool, logs: tuple[Path, ...]) -> Places | None:
    """The deployment to look at; None where logs are to be read.

    Raises:
        InputError: there is nothing to look at, or both logs and a deployment were named.
        NoDeploymentError: the one that was named never ran here.
    """
    if logs and named:
        raise InputError(
            "Logs and a deployment were named.", "Leave --name out to read logs, or the logs to use --name."
        )
    if logs or (_piped() and not named):
        return None
    from longspan.cli.doctor_live import has_run

    places = Places.of(name)
    if has_run(places):
        return places
    if named:
        raise NoDeploymentError(
            f"No deployment called {name!r} runs or ran on this machine.",
            "Name its logs, or run the doctor where `longspan up` was run.",
        )
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError(
            f"No log was named, and no deployment called {name!r} runs or ran here.",
            "Name log files or directories, pipe one in, or name a deployment with --name.",
        )
    return None


@click.command()
@click.argument("logs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--name", default="default", show_default=True, help="The deployment, where no LOGS are named.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--timeline", is_flag=True, help="Show when each node reached which phase.")
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    help="Also write a redacted .tar.gz of the logs and the diagnosis to share.",
)
@click.option(
    "--redact", multiple=True, metavar="NAME", help="A further host or user name to take out of the bundle."
)
@click.pass_context
def command(
    ctx: click.Context,
    logs: tuple[Path, ...],
    name: str,
    as_json: bool,
    timeline: bool,
    bundle: Path | None,
    redact: tuple[str, ...],
) -> None:
    """Say why a launch failed or hangs.

    LOGS are files (also .gz, .xz, .bz2), directories such as /tmp/ray/session_latest/logs, or - for standard input; give
    the logs of all nodes at once. Without LOGS it looks at the deployment of this machine: its logs, those of its other
    hosts over ssh, and while it starts its processes too. Ends with 0 whether or not it finds a fault; the answer is in what it prints.
    """
    places = _deployment(name, ctx.get_parameter_source("name") is ParameterSource.COMMANDLINE, logs)
    seen = None
    if places is None:
        logs = logs or (STDIN,)
        diagnosis = diagnose(logs)
        document = to_json(diagnosis)
    else:
        from longspan.cli.doctor_live import look, print_seen

        seen = look(places)
        logs = seen.paths
        diagnosis = seen.diagnosis
        redact = (*redact, *seen.names)
        document = {**to_json(diagnosis), **seen.to_json(name)}
    if bundle is not None:
        from longspan.doctor.bundle import write

        members = write(bundle, logs, document, redact, seen.raw if seen else ())
        click.echo(
            f"Wrote {bundle} ({len(members)} files, redacted). Look through it before you share it.", err=True
        )
    if as_json:
        click.echo(json.dumps(document, ensure_ascii=False))
        return
    print_diagnosis(diagnosis, timeline)
    if seen is not None:
        print_seen(seen, name)

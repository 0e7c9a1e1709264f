"""`longspan doctor`: why a launch failed or hangs."""

import json
import sys
from pathlib import Path

import click

from longspan.doctor.collect import STDIN, diagnose
from longspan.doctor.match import Diagnosis
from longspan.errors import InputError


def to_json(diagnosis: Diagnosis) -> dict[str, object]:
    """The document that `--json` prints."""
    return {
        "findings": [f.to_json() for f in diagnosis.findings],
        "outcome": diagnosis.outcome,
        "attempts": diagnosis.attempts,
        "consequences": [{"file": e.file, "line": e.line, "text": e.text} for e in diagnosis.consequences],
        "clock_skew_seconds": {node: round(s, 1) for node, s in diagnosis.skew_seconds.items()},
        "lines": diagnosis.lines,
        "size_bytes": diagnosis.size_bytes,
    }


@click.command()
@click.argument("logs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(logs: tuple[Path, ...], as_json: bool) -> None:
    """Say why a launch failed or hangs: LOGS are files, directories, or - for standard input."""
    if not logs:
        if sys.stdin.isatty():
            raise InputError("No log was named.", "Name log files or directories, or pipe one in.")
        logs = (STDIN,)
    diagnosis = diagnose(logs)
    if as_json:
        click.echo(json.dumps(to_json(diagnosis), ensure_ascii=False))

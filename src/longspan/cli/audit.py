"""`longspan audit`: the production checklist, run over what serves."""

import json
import sys
from pathlib import Path

import click

from longspan.audit.rules import Line, audit
from longspan.cli.audit_gather import gather
from longspan.daemon.places import Places
from longspan.errors import AuditError

COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


@click.command("audit")
@click.option("--name", default="default", show_default=True, help="The deployment's name.")
@click.option(
    "--cluster",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Its cluster file, which knows the networks.",
)
@click.option("--strict", is_flag=True, help="Warnings fail too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(name: str, cluster: Path | None, strict: bool, as_json: bool) -> int:
    """Judge a running deployment by the production checklist; docs/audit.md lists the rules.

    The exit code is 0 where no rule failed; with --strict, where none warned either.
    """
    lines = audit(gather(Places.of(name), cluster))
    found = [finding for line in lines for finding in line.findings]
    if as_json:
        click.echo(json.dumps({"rules": [_document(line) for line in lines]}))
    else:
        for line in lines:
            _show(line)
        passed = sum(not line.findings and not line.skipped for line in lines)
        skipped = sum(bool(line.skipped) for line in lines)
        click.echo(f"{passed} passed, {len(found)} findings, {skipped} not looked at")
    sys.stdout.flush()
    failing = [one for one in found if one.severity == "error" or (strict and one.severity == "warning")]
    if failing:
        if as_json:  # the document is out; a second one would not be read
            return AuditError.exit_code
        raise AuditError(f"{len(failing)} findings fail the audit.", "Each names its remedy above.")
    return 0


def _document(line: Line) -> dict[str, object]:
    state = "skipped" if line.skipped else "failed" if line.findings else "passed"
    findings = [finding.to_json() for finding in line.findings]
    return {
        "rule": line.rule.name,
        "severity": line.rule.severity,
        "state": state,
        "why": line.skipped,
        "findings": findings,
    }


def _show(line: Line) -> None:
    if line.skipped:
        click.echo(f"  {click.style('·', dim=True)} {line.rule.name}: not looked at: {line.skipped}")
    elif not line.findings:
        click.echo(f"  {click.style('✓', fg='green')} {line.rule.passes}")
    for finding in line.findings:
        click.echo(
            f"  {click.style('✗', fg=COLOURS[finding.severity])} {finding.severity}: {finding.summary}"
        )
        for evidence in finding.evidence[:3]:
            click.echo(f"      seen: {evidence.text}")
        click.echo(f"      do:   {finding.remedy}")

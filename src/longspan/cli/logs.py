"""`longspan logs`: what a replica, rank or node wrote, from all machines, on this one."""

import json
import time
from pathlib import Path
from typing import Any

import click

from longspan.cli import control
from longspan.cli.log_sources import Source, Wanted, sources, wanted, wrote
from longspan.daemon.places import Places
from longspan.errors import ControlPlaneError, LogsError, NoDeploymentError

EVERY_SECONDS = 0.5
# A process that starts later has a log later.
LOOK_AGAIN_SECONDS = 5.0


@click.command("logs")
@click.argument("subject", metavar="REPLICA|NODE")
@click.option("--rank", type=click.IntRange(min=0), help="Only what this rank wrote.")
@click.option("-f", "--follow", is_flag=True, help="Go on as lines come, until Ctrl-C.")
@click.option(
    "-n", "--lines", default=100, show_default=True, type=click.IntRange(min=0), help="How many of each log."
)
@click.option("--name", default="default", show_default=True, help="The deployment's name.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(subject: str, rank: int | None, follow: bool, lines: int, name: str, as_json: bool) -> int:
    """Show logs of a replica (r0), a node, the gateway (front) or the controller; also after the deployment has ended."""
    if follow and as_json:
        raise click.UsageError("--json is one document, --follow never ends.")
    places = Places.of(name)
    want = wanted(_status(places, name), subject, rank)
    found = sources(_roots(places), want)
    if not found:
        raise LogsError(f"{subject} has no log here yet.", f"They lie in {places.root / 'collected'}.")
    texts = [(one, one.tail(lines, want.pid)) for one in found]
    if as_json:
        document = [
            {"node": one.node, "process": one.process, "file": str(one.path), "lines": part}
            for one, part in texts
        ]
        click.echo(json.dumps({"logs": document}))
        return 0
    several = len(found) > 1
    for one, part in texts:
        _show(one, part, several)
    if follow:
        _follow(places, want, found)
    return 0


def _roots(places: Places) -> tuple[Path, ...]:
    """Those collected from all nodes; beside them those of this machine."""
    return places.root / "collected", places.logs


def _status(places: Places, name: str) -> dict[str, Any]:
    """The status document of what runs, or of what ran last.

    Raises:
        NoDeploymentError: nothing ever ran under this name.
    """
    record = places.running()
    if record is not None:
        try:
            return control.request(record, "/v1/status")
        except ControlPlaneError:
            if not places.last_status.exists():
                raise
    try:
        found: dict[str, Any] = json.loads(places.last_status.read_text())
    except (OSError, ValueError) as error:
        raise NoDeploymentError(
            f"Nothing called {name!r} runs or ran on this machine.", "`longspan up` starts a deployment."
        ) from error
    return found


def _show(source: Source, lines: list[str], several: bool) -> None:
    head = f"{source.node or 'here'}/{source.process} | " if several else ""
    for line in lines:
        click.echo(head + line)


def _follow(places: Places, want: Wanted, found: list[Source]) -> None:
    """Until Ctrl-C."""
    look_again = time.monotonic() + LOOK_AGAIN_SECONDS
    known = {(one.node, one.process) for one in found}
    while True:
        for one in found:
            _show(one, [line for line in one.more() if wrote(line, want.pid)], len(found) > 1)
        if time.monotonic() > look_again:
            look_again = time.monotonic() + LOOK_AGAIN_SECONDS
            new = [one for one in sources(_roots(places), want) if (one.node, one.process) not in known]
            found += new
            known |= {(one.node, one.process) for one in new}
        time.sleep(EVERY_SECONDS)

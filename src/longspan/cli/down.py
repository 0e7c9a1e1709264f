"""`longspan down`: takes the deployment down and waits until nothing of it is left."""

import json
from collections.abc import Sequence

import click

from longspan.cli import control
from longspan.daemon import processes
from longspan.daemon.places import Places
from longspan.errors import ControlPlaneError


@click.command("down")
@click.option("--name", default="default", show_default=True, help="The deployment's name.")
@click.option(
    "--force", is_flag=True, help="The controller does not answer: end what it started on this machine."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(name: str, force: bool, as_json: bool) -> int:
    """Stop the deployment: engine, Ray, gateway, agents, controller. Twice is no error."""
    places = Places.of(name)
    record = places.running()
    if record is None and places.record() is None:
        _say(as_json, name, "nothing was running", [])
        return 0
    if record is None or force:
        return _end_by_force(places, name, as_json)
    click.echo("Stopping …", err=True)
    control.take_down(record)
    findings = json.loads(places.last_status.read_text())["findings"] if places.last_status.exists() else []
    left_texts = [
        finding["summary"] for finding in findings if finding["cause"] in {"process-left", "agent-silent"}
    ]
    _say(as_json, name, "stopped", left_texts)
    return 0 if not left_texts else ControlPlaneError.exit_code


def _end_by_force(places: Places, name: str, as_json: bool) -> int:
    """Ends what a controller that died, or that does not answer, has started here and on the other hosts."""
    record = places.record()
    assert record is not None
    both = (record, record.get("controller") or record)  # who supervises, and who is supervised
    alive = {
        one["pid"] for one in both if processes.alive(processes.Identity(one["pid"], one["start_ticks"]))
    }
    left = processes.end(alive, grace_seconds=1)
    elsewhere = control.sweep_elsewhere(places, record)
    left |= control.end_by_mark(places, record)
    what = "ended by force" if alive else "its controller had died; what it left was ended"
    texts = [f"pid {pid} does not end" for pid in sorted(left)] + elsewhere
    _say(as_json, name, what, texts)
    return 0 if not texts else ControlPlaneError.exit_code


def _say(as_json: bool, name: str, what: str, left: Sequence[object]) -> None:
    if as_json:
        click.echo(json.dumps({"name": name, "result": what, "left": left}))
        return
    click.echo(f"{name}: {what}.")
    for text in left:
        click.echo(f"  left: {text}")

"""`longspan scale`: more or fewer replicas while it serves."""

import json
import time
from typing import Any

import click

from longspan.cli import control
from longspan.daemon.places import Places
from longspan.errors import CapacityError, ControlPlaneError, InputError

# Streams of a replica that leaves may go on for ten minutes, and large weights load for longer.
WAIT_SECONDS = 3600
# Held by the operator or suspected is for others to judge: the engine is there.
_THERE = frozenset({"serving", "suspected", "isolated", "draining", "drained"})


@click.command("scale")
@click.argument("replicas", type=int, metavar="REPLICAS")
@click.option("--name", default="default", show_default=True, help="The deployment's name.")
@click.option(
    "--wait",
    type=int,
    default=WAIT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for it.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(replicas: int, name: str, wait: int, as_json: bool) -> int:
    """Serve with another number of replicas; no request is lost.

    A new one gets traffic once its answers are proved; one that leaves finishes its streams first. There is room for as
    many as `up --max-replicas` has taken nodes for.
    """
    record = control.running(name)
    _refuse(control.request(record, "/v1/status"), replicas)
    control.request(record, "/v1/scale", body={"replicas": replicas})
    status = _follow(record, Places.of(name), replicas, wait)
    if as_json:
        click.echo(json.dumps({"replicas": status["replicas"], "wanted_replicas": replicas}))
    else:
        names = ", ".join(one["name"] for one in status["replicas"])
        click.echo(f"{replicas} replica{'s' if replicas > 1 else ''}: {names}.")
    return 0


def _refuse(status: dict[str, Any], replicas: int) -> None:
    """What the controller would refuse, in words."""
    most = status["max_replicas"]
    if replicas < 1:
        raise InputError(f"{replicas} replicas serve nobody.", "`longspan down` stops the deployment.")
    if replicas > most:
        raise CapacityError(
            f"{replicas} replicas are wanted, nodes were taken and checked for {most}.",
            "Start the deployment with a larger --max-replicas.",
        )
    if not status["served"]:
        raise ControlPlaneError(
            "The deployment has not served yet, so it is not scaled.",
            "`longspan status` shows how far it is.",
        )


def _follow(record: dict[str, Any], places: Places, replicas: int, wait: int) -> dict[str, Any]:
    """Waits until every replica that is wanted serves and every other one is gone."""
    deadline = time.monotonic() + wait
    told: dict[str, str] = {}
    for status in control.follow(record, places):
        now = {one["name"]: one["phase"] for one in status["replicas"]}
        for name, phase in now.items():
            if told.get(name) != phase:
                click.echo(f"  {name}: {phase}", err=True)
        for name in told.keys() - now.keys():
            click.echo(f"  {name}: gone, its GPUs are free", err=True)
        told = now
        if failed := next((one for one in status["replicas"] if one["phase"] == "failed"), None):
            raise ControlPlaneError(
                f"{failed['name']} was given up: {failed['reason']}",
                f"`longspan restore {failed['name']}` tries again, `longspan logs {failed['name']}` shows why.",
            )
        if set(now) == {f"r{number}" for number in range(replicas)} and set(now.values()) <= _THERE:
            return status
        if status["phase"] == "gone":
            raise ControlPlaneError("The deployment ended meanwhile.", "`longspan status` says why.")
        if time.monotonic() > deadline:
            break
    raise ControlPlaneError(
        f"After {wait} s there are not {replicas} replicas yet; it goes on.",
        "`longspan status` shows how far it is.",
    )

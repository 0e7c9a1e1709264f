"""`longspan status`: what runs, where its ranks are, how to reach it."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from longspan.cli import change, control
from longspan.daemon.places import Places
from longspan.errors import ControlPlaneError, NoDeploymentError

# How long a controller that has closed its door may take to end.
ENDING_SECONDS = 10


@click.command("status")
@click.option("--name", default="default", show_default=True, help="The deployment's name.")
@click.option(
    "--launches", is_flag=True, help="The record of past launches instead: how each ended, and what changed."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(name: str, launches: bool, as_json: bool) -> int:
    """Show the deployment: phases, ranks on nodes as the engine reports them, proof, endpoint, key file."""
    places = Places.of(name)
    if launches:
        return _launches(places, as_json)
    record = places.running()
    if record is None:
        if places.record():
            raise ControlPlaneError(
                f"The controller of {name!r} died. Its agents end what they started within half a minute.",
                "`longspan down` ends it on this machine at once.",
            )
        raise _nothing_runs(places, name)
    try:
        status = control.request(record, "/v1/status")
    except ControlPlaneError as error:
        # It has said its last word and is about to end: its record goes last.
        if places.last_status.exists() and control.wait_until_gone(record, ENDING_SECONDS):
            raise _nothing_runs(places, name) from error
        raise
    if as_json:
        click.echo(json.dumps(status))
        return 0
    _show(status)
    return 0


def _show(status: dict[str, Any]) -> None:
    from longspan.cli.render import alarm_lines, console, phases, proof_lines, rank_table, replica_lines

    out = console()
    out.print(phases(status))
    out.print()
    out.print(rank_table(status))
    for line in replica_lines(status):
        out.print(line)
    for line in proof_lines(status["proof"] or {}):
        out.print(line)
    for node in status["nodes"]:
        if node["environment"]:
            words = " ".join(f"{key}={value}" for key, value in node["environment"].items())
            out.print(f"  {node['name']}: {words}")
    for reason in status["suspicions"].values():
        out.print(f"  [yellow]out of traffic[/yellow]: {reason}")
    for line in alarm_lines(status.get("alarms", [])):
        out.print(line)
    for subject, wish in status["held"].items():
        out.print(
            f"  [yellow]{wish}[/yellow]: {subject}, by the operator; `longspan restore {subject}` lifts it"
        )
    if traffic := status["traffic"]:
        money = traffic["money"]
        spent = (
            f"{money['outside_usd']:.2f} USD there, {money['avoided_usd']:.2f} USD avoided by serving here"
        )
        out.print(
            f"  traffic   {sum(traffic['requests'].values())} requests, {traffic['running']} running, {traffic['waiting']} waiting,"
            f" {traffic['outside_share']:.0%} outside" + (f"; {spent}" if traffic["outside_share"] else ""),
            highlight=False,
        )
    if found := status["change"]:
        out.print(f"  change    {change.line(found)}", markup=False, highlight=False)
    for lost in status["lost"]:
        out.print(
            f"  [red]lost[/red]: {lost['node']}, since {lost['seconds_ago']:.0f} s; being brought back ({lost['step']})"
        )
    for restart in status["restarts"]:
        out.print(f"  restarted {restart['seconds_ago']:.0f} s ago: {restart['reason']}", markup=False)
    _addresses(out, status)


def _addresses(out: Any, status: dict[str, Any]) -> None:
    out.print(f"\n  endpoint  {status['endpoint'] or 'not yet'}")
    if second := status.get("standby"):
        out.print(f"  standby   {second['endpoint'] or 'not yet'} on {second['node']}")
    out.print(f"  model     {status['served_name']}")
    out.print(f"  key       in {status['api_key_file']}")
    out.print(f"  logs      {status['logs']}")


def _nothing_runs(places: Places, name: str) -> NoDeploymentError:
    """With the last one's failure, where it failed."""
    last = ""
    if places.last_status.exists():
        failure = json.loads(places.last_status.read_text())["failure"]
        last = f"The last one failed: {failure['what']}" if failure else ""
    return control.nothing_runs(name, last)


def _launches(places: Places, as_json: bool) -> int:
    """The newest first; each with what it has other than the good one before it."""
    from longspan.daemon.launch_store import LaunchStore
    from longspan.doctor.launches import difference

    found = LaunchStore(places.launches).all()
    rows = []
    for number, launch in enumerate(found):
        good = next((one for one in found[number + 1 :] if one.outcome == "good"), None)
        changes = difference(good.made_of, launch.made_of) if good else []
        rows.append((launch, [change for change in changes if change[0] != "deployment/identity"]))
    if as_json:
        click.echo(
            json.dumps(
                [
                    {**asdict(launch), "changes": [{"what": w, "then": t, "now": n} for w, t, n in changes]}
                    for launch, changes in rows
                ]
            )
        )
        return 0
    for launch, changes in rows:
        started = datetime.fromtimestamp(launch.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        click.echo(f"{launch.id:>4}  {started}  {launch.outcome:<8}  {launch.digest}  {launch.what[:120]}")
        for what, then, now in changes[:12]:
            click.echo(f"        {what}: {then} -> {now}")
    return 0

"""`longspan status`: what runs, where its ranks are, how to reach it."""

import json

import click

from longspan.cli import control
from longspan.daemon.places import Places
from longspan.errors import ControlPlaneError, NoDeploymentError


@click.command("status")
@click.option("--name", default="default", show_default=True, help="The deployment's name.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(name: str, as_json: bool) -> int:
    """Show the deployment: phases, ranks on nodes as the engine reports them, proof, endpoint, key file."""
    places = Places.of(name)
    record = places.running()
    if record is None:
        last = ""
        if places.record():
            raise ControlPlaneError(
                f"The controller of {name!r} died. Its agents end what they started within half a minute.",
                "`longspan down` ends it on this machine at once.",
            )
        if places.last_status.exists():
            failure = json.loads(places.last_status.read_text())["failure"]
            last = f" The last one failed: {failure['what']}" if failure else ""
        raise NoDeploymentError(
            f"No deployment called {name!r} runs on this machine.{last}", "`longspan up` starts one."
        )
    status = control.request(record, "/v1/status")
    if as_json:
        click.echo(json.dumps(status))
        return 0
    from longspan.cli.render import console, phases, proof_lines, rank_table

    out = console()
    out.print(phases(status))
    out.print()
    out.print(rank_table(status))
    for line in proof_lines(status["proof"] or {}):
        out.print(line)
    for reason in status["suspicions"].values():
        out.print(f"  [yellow]out of traffic[/yellow]: {reason}")
    out.print(f"\n  endpoint  {status['endpoint'] or 'not yet'}")
    out.print(f"  model     {status['served_name']}")
    out.print(f"  key       in {status['api_key_file']}")
    out.print(f"  logs      {status['logs']}")
    return 0

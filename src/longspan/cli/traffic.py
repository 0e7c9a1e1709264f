"""`longspan drain`, `isolate` and `restore`: a replica or node out of traffic by hand, or back."""

import json

import click

from longspan.cli import control
from longspan.errors import InputError

_HELP = {
    "drain": "Nothing new is sent there; once what runs there has ended, its GPUs are released.",
    "isolate": "Out of traffic at once; its engine stays loaded, and what runs there still ends.",
    "restore": "Back into traffic; what was drained or given up is started again. A replica's name lifts everything.",
}
_SAID = {
    "drain": "is being drained; `longspan status` says when its GPUs are free",
    "isolate": "is isolated",
    "restore": "is let into traffic again",
}


def _verb(wish: str) -> click.Command:
    @click.command(wish, help=_HELP[wish])
    @click.argument("subject", metavar="REPLICA|NODE")
    @click.option("--name", default="default", show_default=True, help="The deployment's name.")
    @click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
    def command(subject: str, name: str, as_json: bool) -> int:
        record = control.running(name)
        names = control.request(record, "/v1/status")["subjects"]
        if subject not in names:
            raise InputError(f"There is no {subject!r} in this deployment.", f"There are {', '.join(names)}.")
        answer = control.request(record, f"/v1/{wish}", body={"subject": subject})
        held = ", ".join(f"{one} ({what})" for one, what in answer["held"].items())
        told = f"{subject} {_SAID[wish]}. Out of traffic by hand: {held or 'nothing'}."
        click.echo(json.dumps(answer) if as_json else told)
        return 0

    return command


drain, isolate, restore = (_verb(wish) for wish in ("drain", "isolate", "restore"))

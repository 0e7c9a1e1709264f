"""`longspan up --rolling`: another specification for a deployment that serves, one replica at a time."""

import json
from typing import Any

import click

from longspan.cli import control
from longspan.daemon.places import Places
from longspan.deployment import DeploymentSpec
from longspan.errors import CheckError, ControlPlaneError, InputError, LaunchError
from longspan.launch.rolling import DEFAULT_WATCH_SECONDS, OVER


def refuse_alone(rolling: bool, watch_seconds: float | None, *, outage: bool) -> None:
    """What is for `--rolling` only means nothing without it.

    Raises:
        InputError
    """
    if not rolling and (watch_seconds is not None or outage):
        name = "--outage" if outage else "--watch"
        raise InputError(f"{name} is for --rolling.", "Add --rolling, or leave it out.")


def roll(
    spec: DeploymentSpec, places: Places, *, watch_seconds: float | None, outage: bool, as_json: bool
) -> int:
    """Asks for it and follows it to its end.

    Raises:
        InputError: it cannot change while the deployment serves. ControlPlaneError: not at this moment.
        CheckError: the nodes' copies or versions do not fit; nothing was touched. LaunchError: it was taken back.
    """
    record = control.running(spec.name)
    watched = DEFAULT_WATCH_SECONDS if watch_seconds is None else watch_seconds
    body = {"spec": spec.to_json(), "watch_seconds": watched, "outage": outage}
    if refused := control.request(record, "/v1/change", body=body).get("refused"):
        kind = InputError if refused["wish"] else ControlPlaneError
        raise kind(refused["what"], refused["remedy"])
    status = _follow(record, places)
    found = status["change"]
    if found["stage"] == "refused":
        raise CheckError(f"The change was not begun: {found['reason']}", "Everything is as it was.")
    if found["stage"] == "went back":
        raise LaunchError(
            f"The change was taken back, and all replicas are as they were: {found['reason']}",
            f"`longspan logs` of that replica shows more. Logs: {status['logs']}.",
        )
    if as_json:
        click.echo(json.dumps({"change": found, "replicas": status["replicas"]}))
    else:
        click.echo(
            f"Changed: {', '.join(one['name'] for one in status['replicas'])}. {'; '.join(found['what'])}."
        )
    return 0


def _follow(record: dict[str, Any], places: Places) -> dict[str, Any]:
    """Tells each step until nothing is left to do."""
    told = ""
    for status in control.follow(record, places):
        found = status["change"]
        if status["phase"] == "gone":
            break
        if found["stage"] in OVER:
            return status
        phase = next((one["phase"] for one in status["replicas"] if one["name"] == found["replica"]), "")
        now = f"{line(found, with_seconds=False)}{f' ({phase})' if phase else ''}"
        if now != told:
            click.echo(f"  {now}", err=True)
        told = now
    raise ControlPlaneError("The deployment ended meanwhile.", "`longspan status` says why.")


def line(found: dict[str, Any], *, with_seconds: bool = True) -> str:
    """Where a change stands, as one line."""
    words = [f"{found['stage']}: {'; '.join(found['what'])}"]
    if found["stage"] == "checking":
        words.append("asking the nodes for their copies and versions")
    if found["replica"]:
        role = ", the canary" if found["replica"] == found["canary"] else ""
        words.append(f"{'watching' if found['watching'] else 'now'} {found['replica']}{role}")
    if found["changed"] and found["stage"] not in OVER:
        words.append(f"{', '.join(found['changed'])} changed")
    if found["waits"] and found["stage"] not in OVER:
        words.append(f"waits {found['waits']}")
    if found["reason"]:
        words.append(found["reason"])
    if with_seconds:
        words.append(f"{found['seconds']:.0f} s")
    return "; ".join(words)

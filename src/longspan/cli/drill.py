"""`longspan drill`: breaks something on purpose under a steady load, and times what follows."""

import asyncio
import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any

import click

from longspan.cli import control
from longspan.cli.drill_load import Load, until
from longspan.errors import ControlPlaneError, DrillError, InputError
from longspan.launch.drill import FAULTS, Drilled, conclude, target

WARM_SECONDS = 120.0
POLL_SECONDS = 0.1
SETTLE_SECONDS = (
    20.0  # longer than the suspicion that convicts: a fault that shows nothing by then shows nothing
)


@click.command("drill")
@click.argument("fault", metavar="FAULT")
@click.option("--name", default="default", show_default=True, help="The deployment's name.")
@click.option("--replica", help="Which replica, for faults of an engine.  [default: the last]")
@click.option("--rank", type=int, help="Which rank, for faults of one.  [default: the last]")
@click.option("--rate", default=2.0, show_default=True, help="Requests a second meanwhile.")
@click.option("--wait", default=1200, show_default=True, help="Seconds until it must be back.")
@click.option("--yes", is_flag=True, help="It serves, and will be broken: needed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    fault: str,
    name: str,
    replica: str | None,
    rank: int | None,
    rate: float,
    wait: int,
    yes: bool,
    as_json: bool,
) -> int:
    """Break something on purpose and time detection, rerouting and recovery.

    FAULT is kill-rank, kill-launcher, kill-gateway, kill-controller, kill-raylet, kill-ray-head, freeze-rank or
    pause-rank.
    """
    record = control.running(name)
    status = control.request(record, "/v1/status")
    target(fault, status, rank, replica)
    if not 0 < rate <= 1000:
        raise InputError(f"--rate {rate} is no rate.", "Use requests a second, up to 1000.")
    if not _well(status):
        raise ControlPlaneError(
            f"The deployment does not serve ({status['phase']}), so nothing could be learned.",
            "`longspan status` says why.",
        )
    if not yes:
        raise InputError(
            f"{name!r} serves, and `{fault}` will {FAULTS[fault].text}.",
            "Say --yes if that is what you want.",
        )
    key = Path(status["api_key_file"]).read_text().strip()
    load = Load(status["endpoint"], status["served_name"], key, rate)
    found = asyncio.run(
        _drill(record, status, {"fault": fault, "replica": replica, "rank": rank}, load, wait)
    )
    click.echo(json.dumps(found.to_json()) if as_json else _words(found))
    if not found.recovered:
        raise DrillError(
            f"It was not back {wait} s after {fault}.", "`longspan status` and `longspan doctor` say why."
        )
    return 0


def _well(status: dict[str, Any]) -> bool:
    """Nothing is wrong as far as the controller knows."""
    serving = all(one["phase"] == "serving" for one in status["replicas"])
    return status["phase"] == "serving" and serving and not status["suspicions"] and not status["held"]


async def _drill(
    record: dict[str, Any], status: dict[str, Any], struck: dict[str, Any], load: Load, wait: int
) -> Drilled:
    stop = asyncio.Event()
    running = asyncio.create_task(load.run(stop))
    fault = struck["fault"]
    states: list[tuple[float, bool]] = []
    try:
        if not await until(lambda: any(outcome == "answered" for *_, outcome in load.done), WARM_SECONDS):
            raise ControlPlaneError(
                "The endpoint does not answer, so nothing was broken.", "`longspan doctor` says why."
            )
        click.echo(f"{FAULTS[fault].text} …", err=True)
        zero = time.monotonic()
        await asyncio.to_thread(control.request, record, "/v1/strike", body=struck)
        await _follow(record, fault, struck, states, load, zero, wait)
    finally:
        stop.set()
        await running
    after = control.request(record, "/v1/status") if states and states[-1][1] else status
    return conclude(fault, states, load.requests(zero), len(after["restarts"]) - len(status["restarts"]))


async def _follow(
    record: dict[str, Any], fault: str, struck: dict[str, Any], states: list[tuple[float, bool]], load: Load, zero: float,
    wait: int,
) -> None:  # fmt: skip
    """Looks at the status until all is well again and a request was answered whole after that."""
    resume = FAULTS[fault].after_seconds
    told = ""
    while (now := time.monotonic() - zero) < wait:
        if resume and now >= resume:
            await asyncio.to_thread(control.request, record, "/v1/strike", body={**struck, "resume": True})
            resume = 0.0
        status: dict[str, Any] = {}
        with contextlib.suppress(ControlPlaneError):
            status = await asyncio.to_thread(control.request, record, "/v1/status?after=0")
        states.append((time.monotonic() - zero, bool(status) and _well(status)))
        if status.get("phase", told) != told:
            told = status["phase"]
            click.echo(f"  {now:6.1f} s  {told}", err=True)
        found = conclude(fault, states, load.requests(zero), 0)
        seen = not math.isnan(found.detect_seconds) or now > SETTLE_SECONDS
        if found.recovered and seen and not resume:
            return
        await asyncio.sleep(POLL_SECONDS)


def _words(found: Drilled) -> str:
    def seconds(value: float) -> str:
        return "never" if math.isnan(value) else f"{value:.1f} s"

    counts = ", ".join(f"{number} {kind}" for kind, number in found.counts.items())
    return (
        f"{found.fault}\n"
        f"  detected   {seconds(found.detect_seconds)}\n"
        f"  rerouted   {seconds(found.reroute_seconds)}   until a request begun after the fault had an answer\n"
        f"  recovered  {seconds(found.recover_seconds)}\n"
        f"  requests   {counts}\n"
        f"  restarts   {found.restarts} of the engine"
    )

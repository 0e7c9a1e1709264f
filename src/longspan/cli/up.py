"""`longspan up`: makes the deployment true, shows the phases, ends with real tokens and a proof."""

import contextlib
import json
import signal
import sqlite3
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from longspan.cli import change, check_record, control, preflighting
from longspan.cli.joining import read_cluster
from longspan.cli.keys import ensure_api_key
from longspan.cli.prepare import prepare
from longspan.cli.request import Request, parse_autoscale
from longspan.cli.room import check_port, check_room
from longspan.cluster.hosts import HostsFile
from longspan.daemon.launch_store import LaunchStore
from longspan.daemon.places import Places, own_files, write_private
from longspan.deployment import DeploymentSpec
from longspan.doctor.launches import changes_since, recorded
from longspan.errors import (
    CapacityError,
    CheckError,
    DeploymentExistsError,
    HostError,
    LaunchError,
    LongspanError,
    PortError,
    ProofError,
    RayError,
)
from longspan.finding import Finding
from longspan.launch.rolling import DEFAULT_WATCH_SECONDS

FAILURES: dict[str, type[LongspanError]] = {
    "host": HostError,
    "ray": RayError,
    "capacity": CapacityError,
    "launch": LaunchError,
    "proof": ProofError,
    "port": PortError,
}


class UpCommand(click.Command):
    """Everything after `--` is vLLM's, whether or not a MODEL stands before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Splits at the first `--` before click does."""
        if "--" in args:
            at = args.index("--")
            ctx.meta["vllm_arguments"] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


@click.command("up", cls=UpCommand)
@click.argument("model", required=False)
@click.option("--tp", type=int, help="Tensor-parallel size; chosen where it is left out.")
@click.option("--pp", type=int, help="Pipeline stages; chosen where it is left out.")
@click.option("--nodes", type=int, help="How many Ray nodes to start on this machine.")
@click.option(
    "--cluster",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A cluster file (TOML): hosts over ssh, or a running Ray.",
)
@click.option(
    "--plan",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A plan of `longspan plan --save`: model, layout, GPUs and vLLM's arguments come from it.",
)
@click.option("--replica", help="Which of the plan's replicas, such as r0.")
@click.option(
    "--replicas", type=int, help="How many replicas serve side by side.  [default: 1, or all of the plan's]"
)
@click.option(
    "--max-replicas",
    type=int,
    help="For how many nodes are taken and checked, so that `longspan scale` can start them.  [default: --replicas]",
)
@click.option(
    "--autoscale",
    metavar="MIN:MAX[:SECONDS]",
    help="Let the queue decide how many replicas serve; SECONDS of waiting are too many.  [SECONDS: 5]",
)
@click.option("--ray", metavar="HOST:PORT", help="Join the Ray cluster that runs there, with all its nodes.")
@click.option(
    "--ray-wait",
    type=int,
    default=0,
    metavar="SECONDS",
    help="How long to wait for that Ray and its GPUs.",
)
@click.option(
    "--device",
    type=click.Choice(["cuda", "rocm", "cpu"]),
    help="What the nodes have.  [default: what the cluster file, Ray or the nodes themselves say]",
)
@click.option("--executor", type=click.Choice(["ray", "mp"]), help="[default: ray]")
@click.option("--gpus-per-node", type=int, help="In a Slurm allocation whose GPUs Slurm does not count.")
@click.option("--name", default="default", show_default=True, help="The deployment's name.")
@click.option("--served-name", help="The model name that clients use.")
@click.option(
    "--listen",
    default="127.0.0.1:8000",
    show_default=True,
    metavar="HOST:PORT",
    help="The gateway's address.",
)
@click.option(
    "--standby-gateway",
    metavar="NODE=HOST:PORT",
    help="A second gateway on a node, for clients with two addresses or a virtual IP; either one is enough.",
)
@click.option("--revision", help="Revision of a Hugging Face id.")
@click.option(
    "--full", "full_digest", is_flag=True, help="Compare every byte of the checkpoint on all nodes."
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The clients' key, out of a file. [default: one is made and kept]",
)
@click.option(
    "--gateway",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Tables (TOML) for the gateway: providers, overflow, keys, queue, routing, …",
)
@click.option(
    "--foreground",
    is_flag=True,
    help="Stay until the deployment is gone; SIGTERM takes it down. For Slurm, containers and systemd.",
)
@click.option(
    "--rolling",
    is_flag=True,
    help="Change the deployment that serves to this command line, one replica at a time, a canary first.",
)
@click.option(
    "--watch",
    "watch_seconds",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help=f"With --rolling: how long the canary serves before the next one is changed.  [default: {DEFAULT_WATCH_SECONDS:g}]",
)
@click.option(
    "--outage",
    is_flag=True,
    help="With --rolling: accept that nobody serves while the only replica is changed.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def command(
    ctx: click.Context,
    model: str | None,
    tp: int | None,
    pp: int | None,
    nodes: int | None,
    cluster: Path | None,
    plan: Path | None,
    replica: str | None,
    replicas: int | None,
    max_replicas: int | None,
    autoscale: str | None,
    ray: str | None,
    ray_wait: int,
    device: Any,
    executor: Any,
    gpus_per_node: int | None,
    name: str,
    served_name: str | None,
    listen: str,
    standby_gateway: str | None,
    revision: str | None,
    full_digest: bool,
    api_key_file: Path | None,
    gateway: Path | None,
    foreground: bool,
    rolling: bool,
    watch_seconds: float | None,
    outage: bool,
    as_json: bool,
) -> int:
    """Serve MODEL (a directory or a Hugging Face id; the demo model where it is left out).

    Anything after `--` goes to vLLM unchanged: longspan up MODEL -- --max-model-len 8192.
    With a plan, it stands after the plan's own arguments and so outweighs them.
    """
    change.refuse_alone(rolling, watch_seconds, outage=outage)
    places = Places.of(name)
    scaling = parse_autoscale(autoscale, replicas, max_replicas)
    if scaling:
        replicas, max_replicas = scaling[:2]
    request = Request(
        model, tp, pp, nodes, cluster, executor, name, served_name, listen, revision, full_digest,
        ctx.meta.get("vllm_arguments", ()), plan, replica, gpus_per_node, ray, ray_wait, device, gateway,
        replicas, max_replicas, scaling, standby_gateway,
    )  # fmt: skip
    spec = prepare(request, progress=lambda text: click.echo(text, err=True))
    if rolling:
        return change.roll(spec, places, watch_seconds=watch_seconds, outage=outage, as_json=as_json)
    if foreground:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: down, and wait for it
    record = places.running()
    if record:
        _already(record, places, spec, as_json)
        return _stay(record, places, as_json) if foreground else 0
    started = bring_up(spec, places, cluster, api_key_file)
    record, status = started.record, started.status
    if status["phase"] == "gone":
        raise failure_of(status)
    # Unattended, what is printed goes into somebody's log, where a key does not belong.
    _announce(status, started.new_key if not foreground else None, as_json)
    return _stay(record, places, as_json) if foreground else 0


@dataclass(frozen=True, slots=True)
class Started:
    """A launch that was watched to its end.

    Attributes:
        record: its controller. status: the last one: serving, or gone.
        new_key: the clients' key if it was made just now; it is shown once.
    """

    record: dict[str, Any]
    status: dict[str, Any]
    new_key: str | None = field(repr=False)


def bring_up(
    spec: DeploymentSpec, places: Places, cluster: Path | None, api_key_file: Path | None = None
) -> Started:
    """Ends what a dead controller left, checks hosts and room, starts the deployment and shows its phases until it serves or is gone.

    Args:
        cluster: the cluster file, for the pre-flight.

    Raises:
        LongspanError: something before the start. click.Abort: Ctrl-C, after everything was taken down.
    """
    if orphaned := places.record():
        click.echo("The last controller died; ending what it left …", err=True)
        for text in control.sweep_elsewhere(places, orphaned):
            click.echo(f"  {text}", err=True)
        control.end_by_mark(places, orphaned)
    with own_files(places.root):
        places.preflight.unlink(missing_ok=True)
    if spec.ray_address or not all(node.is_here for node in spec.ray_nodes()):
        spec = _preflight(spec, read_cluster(cluster) if cluster else None, places)
    # Only now: a deployment that runs holds its port and memory, and `up` twice is no error.
    check_room(Path(spec.model) if Path(spec.model).is_absolute() else None, spec)
    check_port(spec.listen)
    try:
        with own_files(places.root):
            key, new_key = ensure_api_key(places, api_key_file)
            record = control.start_controller(places, spec, _controller_host(spec))
        status = _watch(record, places)
    except KeyboardInterrupt:
        # Also before the first line was shown: whatever has been started by then is taken down.
        click.echo("\nInterrupted: taking everything down …", err=True)
        if started := places.running():
            control.take_down(started)
        raise click.Abort from None
    return Started(record, status, key if new_key else None)


def _stay(record: dict[str, Any], places: Places, as_json: bool) -> int:
    """Until the deployment is gone: by `down` or a signal to us (0), or because it failed.

    Raises:
        LongspanError: what it failed of; with `as_json` only its exit code comes back, since the document is out.
    """
    try:
        for status in control.follow(record, places):
            if status["phase"] == "gone" and status.get("failure"):
                failure = failure_of(status)
                if not as_json:
                    raise failure
                click.echo(str(failure), err=True)
                return failure.exit_code
    except KeyboardInterrupt:
        click.echo("Signalled: taking everything down …", err=True)
        control.take_down(record)
    return 0


def _preflight(spec: DeploymentSpec, hosts: HostsFile | None, places: Places) -> DeploymentSpec:
    """The fast part of `longspan check`: warnings are shown, an error ends the launch, what was seen is kept.

    Returns:
        the deployment with each node's compiled environment.

    Raises:
        CheckError: an error was found; with what differs from the last launch that served.
    """
    checked = preflighting.before_launch(spec, hosts, lambda text: click.echo(f"  check: {text}", err=True))
    record = check_record.record_of(checked)
    with own_files(places.root):
        write_private(places.preflight, json.dumps(record))
    for line in preflighting.finding_lines(checked):
        click.echo(f"  {line}", err=True)
    click.echo(f"  check: {preflighting.summary(checked)}", err=True)
    try:
        preflighting.refuse_errors(checked)
    except CheckError as error:
        store = LaunchStore(places.launches)
        changes = changes_since(store.last_good(), spec, {}, record["nodes"])
        with contextlib.suppress(
            OSError, sqlite3.Error
        ):  # the error that is told must not be hidden by its record
            store.begin(recorded(spec, {}, record["nodes"]), "refused", error.what)
        if changes:
            told = "\n".join(f"    {what}: {then} -> {now}" for what, then, now in changes)
            error.remedy += f"\n  Changed since the last good launch:\n{told}"
        raise
    return preflighting.with_environment(spec, checked.scene)


def _controller_host(spec: DeploymentSpec) -> str:
    """The address that the agents reach the controller by: loopback while all nodes are on this machine."""
    first = spec.nodes[0].address
    if first.startswith("127."):
        return "127.0.0.1"
    import socket

    with socket.socket(socket.AF_INET6 if ":" in first else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((first, 9))  # no packet is sent: the kernel only chooses the route
        except OSError as error:
            raise HostError(
                f"This machine has no route to {first} ({spec.nodes[0].name}): {error.strerror}.",
                "Run `longspan up` where all nodes can be reached, or correct the address in the cluster file.",
            ) from error
        return str(probe.getsockname()[0])


def _already(record: dict[str, Any], places: Places, spec: DeploymentSpec, as_json: bool) -> None:
    """`up` a second time: nothing changes when the same thing is wanted.

    Raises:
        DeploymentExistsError: something else is wanted.
    """
    status = control.request(record, "/v1/status")
    if record["identity"] != spec.identity:
        raise DeploymentExistsError(
            f"A deployment called {spec.name!r} runs already ({status['served_name']}, phase {status['phase']}), with other"
            " settings.",
            "`longspan up … --rolling` changes it while it serves; else `longspan down` first, or give this one another --name and --listen.",
        )
    if status["phase"] != "serving":
        status = _watch(record, places)
        if status["phase"] == "gone":
            raise failure_of(status)
    else:
        click.echo("Already serving; nothing changed.", err=True)
    _announce(status, None, as_json)


def _watch(record: dict[str, Any], places: Places) -> dict[str, Any]:
    """Shows the phases until the deployment serves or is gone."""
    from longspan.cli.render import PhaseView

    status: dict[str, Any] = {}
    with PhaseView() as view:
        for status in control.follow(record, places):
            view.update(status)
            if status["phase"] in {"serving", "gone"}:
                return status
    return status


def failure_of(status: dict[str, Any]) -> LongspanError:
    """The error of a deployment that is gone, with what the doctor makes of it."""
    failure = status.get("failure")
    if failure is None:
        return LaunchError("The deployment was taken down while it was starting.", "")
    remedy = f"{failure['remedy']} {_diagnosis(status)}Logs: {status['logs']}."
    return FAILURES[failure["kind"]](failure["what"], remedy.strip())


def _diagnosis(status: dict[str, Any]) -> str:
    """What the doctor makes of a launch that failed: its best finding, and what the last good launch had other."""
    from longspan.cli import doctor_logs
    from longspan.cli.doctor_live import change_lines, connected, spec_of

    try:
        findings: list[Finding] = []
        changes: list[tuple[str, str, str]] = []
        places = Places(Path(status["state_dir"]))
        if spec := spec_of(places):
            left = doctor_logs.read(places, spec)
            found = doctor_logs.with_survivors(left, status).findings
            findings, changes = connected(found, places, spec, status)
    except Exception as error:  # noqa: BLE001 - the failure that is being reported must not be hidden by its explanation
        return f"\n  doctor: no verdict ({type(error).__name__}: {error}).\n  "
    told = ""
    if findings and findings[0].cause != "insufficient-evidence":
        best = findings[0]
        told = f"\n  doctor: {best.subject + ': ' if best.subject else ''}{best.summary} ({best.cause}, {best.confidence:.0%} sure). {best.remedy}"
    if changes:
        told += "\n  Changed since the last good launch:\n" + "\n".join(
            f"  {line}" for line in change_lines(changes)
        )
    return f"{told}\n  " if told else ""


def _announce(status: dict[str, Any], key: str | None, as_json: bool) -> None:
    """How to use it, as lines that work when pasted."""
    if as_json:
        click.echo(json.dumps(status))
        return
    from longspan.cli.pasted import curl_line, openai_line
    from longspan.cli.render import console, proof_lines

    out = console()
    endpoint, model, key_file = status["endpoint"], status["served_name"], status["api_key_file"]
    for line in proof_lines(status["proof"] or {}):
        out.print(line)
    name = "" if status["name"] == "default" else f" --name {status['name']}"
    out.print()
    click.echo(f"  endpoint  {endpoint}\n  model     {model}")
    click.echo(
        f"  key       {key}   (shown once; kept in {key_file})" if key else f"  key       in {key_file}"
    )
    # Not through rich, which takes square brackets for its own.
    click.echo(f"\n{curl_line(endpoint, model, key_file)}")
    click.echo(f"\n{openai_line(endpoint, model, key_file)}")
    out.print(f"\nlongspan status{name}   # the same later\nlongspan down{name}     # stop it")
    sys.stdout.flush()

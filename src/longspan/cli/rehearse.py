"""`longspan rehearse`: the plan with a shrunken model, on this machine's processors or on the real nodes; then all is taken down."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from longspan.cli import control, plan_choice, prepare, rehearse_layout, rehearse_model, rehearse_show, stage
from longspan.cli import up as bringing
from longspan.cli.rehearse_layout import PARTITION
from longspan.cli.rehearse_model import Checkpoint
from longspan.cli.rehearse_show import Rehearsal
from longspan.cli.request import Request
from longspan.cluster.hosts import HostEntry
from longspan.daemon.places import Places
from longspan.deployment import DeploymentSpec
from longspan.errors import (
    ControlPlaneError,
    DeploymentExistsError,
    InputError,
    LongspanError,
    RehearsalError,
)
from longspan.launch import rehearsal
from longspan.launch.owned_flags import refuse_owned_flags
from longspan.launch.rehearsal import LeftOut
from longspan.launch.rehearsal_report import report
from longspan.plan import Layout
from longspan.planner import legality

# Of the deployment. Short, because it is part of the path of Ray's sockets (`LONGEST_NODE_NAME`).
NAME = "reh"


@click.command("rehearse", cls=bringing.UpCommand)
@click.argument("model", required=False)
@click.option("--tp", type=int, help="Tensor-parallel size of the real deployment.")
@click.option(
    "--pp", type=int, help="Its pipeline stages.  [default: 2 where nothing says how it is laid out]"
)
@click.option("--nodes", type=int, help="Its nodes, where no file names them.")
@click.option(
    "--plan",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A plan of `longspan plan --save`: model, layout, nodes and vLLM's arguments.",
)
@click.option("--replica", help="Which of the plan's replicas, such as r0.")
@click.option(
    "--cluster",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The cluster file; without --on-cluster only its nodes' names and GPU counts are used.",
)
@click.option("--on-cluster", is_flag=True, help="On the real nodes with their GPUs, over the real network.")
@click.option("--executor", type=click.Choice(["ray", "mp"]), help="[default: ray]")
@click.option("--ranks", type=int, help="At most so many ranks here.  [default: what memory and cores take]")
@click.option(
    "--device",
    type=click.Choice(["cuda", "rocm", "cpu"]),
    help="What the nodes have, with --on-cluster.  [default: they are asked]",
)
@click.option("--gpus-per-node", type=int, help="In a Slurm allocation whose GPUs Slurm does not count.")
@click.option("--revision", help="Revision of a Hugging Face id.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def command(
    ctx: click.Context, model: str | None, tp: int | None, pp: int | None, nodes: int | None, plan: Path | None,
    replica: str | None, cluster: Path | None, on_cluster: bool, executor: Any, ranks: int | None, device: Any,
    gpus_per_node: int | None, revision: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Run the plan of MODEL with a shrunken model of the same architecture, say what that proved, take everything down.

    No weights are needed: MODEL is a directory with config.json, a config file or a Hugging Face id. Anything after `--`
    goes to vLLM as it would in `longspan up`.
    """
    if ranks is not None and (ranks < 1 or on_cluster):
        raise InputError(f"--ranks {ranks} makes no sense here.", "At least 1, and without --on-cluster.")
    if device is not None and not on_cluster:
        raise InputError(
            "--device is for --on-cluster: a rehearsal here runs on processors.", "Leave it out."
        )
    request = Request(
        model, tp, pp, nodes, cluster, executor, NAME, None, f"127.0.0.1:{_free_port()}", revision, True,
        ctx.meta.get("vllm_arguments", ()), plan, replica, gpus_per_node, device=device,
    )  # fmt: skip
    # As Ctrl-C: a job or a CI step that is stopped leaves nothing running either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = _prepare(request, on_cluster=on_cluster, ranks=ranks)
    rehearse_show.say_plan(found)
    status, left, error = _run(found, cluster)
    result = report(found.scene, status, left=left)
    rehearse_show.show(found, result, status, as_json)
    if error is not None:
        if not as_json:
            raise error
        click.echo(str(error), err=True)
        return error.exit_code
    return 0 if result.passed else RehearsalError.exit_code


def _prepare(request: Request, *, on_cluster: bool, ranks: int | None) -> Rehearsal:
    """Everything before the first process: real layout checked, scaled, model made.

    Raises:
        LongspanError: what would stop `up` before it starts, with the same exit code.
    """
    refuse_owned_flags(request.vllm_arguments)
    for flag, value in (("--tp", request.tp), ("--pp", request.pp), ("--nodes", request.nodes)):
        if value is not None and value < 1:
            raise InputError(f"{flag} {value} makes no sense.", "It is at least 1.")
    if request.cluster and request.nodes:
        raise InputError("--nodes is for imagined nodes, --cluster names them.", "Give one of them.")
    request, choice = plan_choice.with_plan(request)
    prepare.require_engine()
    source = rehearse_model.find(request.model, request.revision, _progress)
    wanted = rehearse_layout.find(request, choice, source.facts, on_cluster=on_cluster, progress=_progress)
    left: tuple[LeftOut, ...] = ()
    spec = wanted.spec
    if not on_cluster:
        spec, left = rehearse_layout.here(wanted, ranks or rehearse_layout.affordable_ranks())
    stages = wanted.stages(source.facts, spec.pp)
    checkpoint = rehearse_model.make(source, stages, _progress)
    if not on_cluster:
        _refuse_without_experts(checkpoint, spec)
    arguments, dropped = rehearsal.adapted(
        spec.vllm_arguments, cpu=spec.device == "cpu", own_tokenizer=checkpoint.own_tokenizer
    )
    if checkpoint.weights_reason:
        arguments = (*arguments, "--load-format", "dummy")
    if spec.device == "cpu" and source.facts.tower is not None and "--language-model-only" not in arguments:
        arguments = (*arguments, "--language-model-only")
    name = f"rehearsal-of-{re.sub(r'[^a-z0-9.-]+', '-', source.name.lower())}"
    kept_split = bool(wanted.partition) and spec.pp == wanted.spec.pp
    partition = checkpoint.shrunk.partition if kept_split else ()
    spec = rehearse_layout.with_model(spec, str(checkpoint.directory), name, arguments, partition)
    os.environ.pop(PARTITION, None)  # the nodes' own value says it for the layers of the shrunken model
    return Rehearsal(source, wanted, checkpoint, spec, (*dropped, *left), not on_cluster)


def _refuse_without_experts(checkpoint: Checkpoint, spec: DeploymentSpec) -> None:
    """A layout that only expert parallelism makes legal cannot be rehearsed where there is none.

    Raises:
        RehearsalError
    """
    rejection = legality.check(checkpoint.shrunk.facts, Layout(tp=spec.tp, pp=spec.pp))
    if rejection is not None:
        raise RehearsalError(
            f"Without GPUs the rehearsal has TP {spec.tp} x PP {spec.pp} and no expert parallelism, which the CPU build lacks:"
            f" {rejection.why}",
            f"Give --ranks {spec.pp} to leave TP out of it, or rehearse on the nodes with --on-cluster.",
        )


def _run(
    found: Rehearsal, cluster: Path | None
) -> tuple[dict[str, Any] | None, list[str] | None, LongspanError | None]:
    """Starts it, waits for the proof, and takes it down whatever happened.

    Returns:
        its last status, what is left of it (None where nothing was started), and the error of the step that failed.
    """
    places = Places.of(found.spec.name)
    if places.running():
        raise DeploymentExistsError(
            "A rehearsal runs already, and one at a time is enough for this machine.",
            f"`longspan down --name {found.spec.name}` ends it.",
        )
    left: list[str] | None = None
    status: dict[str, Any] | None = None
    error: LongspanError | None = None
    left_behind: list[str] = []
    with _on_nodes(found, left_behind) as spec:
        try:
            started = bringing.bring_up(spec, places, cluster)
            status, left = started.status, []
            if status["phase"] == "gone":
                error = bringing.failure_of(status)
        except LongspanError as stopped:
            error = stopped
        finally:
            if record := places.running():
                click.echo("Taking the rehearsal down …", err=True)
                left = left or []
                try:
                    control.take_down(record)
                except ControlPlaneError as stays:
                    left.append(stays.what)
    left = _left(places, left)
    if left_behind:
        left = [*(left or []), *left_behind]
    return status, left, error


def _left(places: Places, left: list[str] | None) -> list[str] | None:
    """What the controller said, when it went, that does not end."""
    if left is None or not places.last_status.exists():
        return left
    findings = json.loads(places.last_status.read_text()).get("findings", [])
    kinds = {"process-left", "agent-silent"}
    return [*left, *(finding["summary"] for finding in findings if finding["cause"] in kinds)]


@contextlib.contextmanager
def _on_nodes(found: Rehearsal, left: list[str]) -> Iterator[DeploymentSpec]:
    """The shrunken model under one path on all nodes, and gone from there afterwards.

    Args:
        left: gets what could not be removed.

    Raises:
        InputError: a Ray that we only join has nodes that nothing says how to reach. LongspanError: see `stage`.
    """
    hosts = found.wanted.hosts
    used = found.spec.used_nodes()
    if found.here or hosts is None or (all(node.is_here for node in used) and hosts.ray_address is None):
        yield found.spec
        return
    names = {node.name for node in used}
    entries: list[HostEntry] = [
        host for host in hosts.hosts if host.name in names and (host.ssh or host.slurm)
    ]
    if hosts.ray_address and len(entries) < len(names):
        raise InputError(
            "The rehearsal's model must be brought to the nodes of that Ray, and not all have ssh = … in the cluster file.",
            "Name them with ssh = … beside [ray] address.",
        )
    copy = rehearse_model.copy_for_nodes(found.checkpoint.directory)
    try:
        stage.bring(copy, entries)
        yield replace(found.spec, model=str(copy))
    finally:
        left += stage.remove(copy, entries)
        shutil.rmtree(copy, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _progress(text: str) -> None:
    click.echo(text, err=True)

"""`longspan manifest`: what a scheduler needs to run `longspan up` by itself, as text to read, keep and change."""

import re
import sys
from pathlib import Path
from typing import Any

import click

from longspan.cli import plan_choice
from longspan.cli.up import UpCommand
from longspan.daemon.places import Places
from longspan.errors import InputError
from longspan.launch import kubernetes, slurm_script
from longspan.launch.owned_flags import refuse_owned_flags
from longspan.launch.unattended import Serving, of_replica
from longspan.launch.yaml_text import to_yaml

_DNS = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


@click.command("manifest", cls=UpCommand)
@click.argument("target", type=click.Choice(["slurm", "kuberay", "lws"]))
@click.argument("model", required=False)
@click.option("--tp", type=int, help="Tensor-parallel size.  [default: the GPUs of a node]")
@click.option("--pp", type=int, help="Pipeline stages.  [default: the nodes]")
@click.option("--nodes", type=int, default=1, show_default=True, help="How many nodes of the replica.")
@click.option("--gpus-per-node", type=int, default=8, show_default=True)
@click.option(
    "--plan", type=click.Path(path_type=Path, dir_okay=False), help="A saved plan, instead of the above."
)
@click.option("--replica", help="Which of the plan's replicas.")
@click.option("--executor", type=click.Choice(["ray", "mp"]), default="ray", show_default=True)
@click.option(
    "--device", type=click.Choice(["cuda", "rocm", "cpu"]), help="[default: slurm: what is found; else cuda]"
)
@click.option("--name", default="default", show_default=True, help="The deployment's name.")
@click.option("--served-name", help="The model name that clients use.")
@click.option("--revision", help="Revision of a Hugging Face id.")
@click.option(
    "--listen",
    default="0.0.0.0:8000",
    show_default=True,
    metavar="HOST:PORT",
    help="slurm: the gateway's address.",
)
@click.option(
    "--sbatch", multiple=True, metavar="NAME=VALUE", help="slurm: a further option, such as partition=gpu."
)
@click.option(
    "--source",
    multiple=True,
    metavar="FILE",
    help="slurm: a file that the shell reads first (modules, venv).",
)
@click.option("--image", help="kuberay, lws: an image with Longspan and the engine.")
@click.option("--namespace", help="kuberay, lws.")
@click.option("--ray-secret", default="longspan-ray", show_default=True, help='Secret with "token", for Ray.')
@click.option(
    "--api-secret", default="longspan-api", show_default=True, help='Secret with "key", for clients.'
)
@click.option("--hf-secret", help='Secret with "token", for Hugging Face.')
@click.option("--pull-secret", help="Secret for the image's registry.")
@click.option("--claim", help="PersistentVolumeClaim with the models.")
@click.option("--mount", default="/models", show_default=True, help="Where it is mounted.")
@click.option("--gpu-resource", default="nvidia.com/gpu", show_default=True)
@click.option("--rdma", metavar="RESOURCE", help="One RDMA device a pod, such as rdma/hca.")
@click.option("--cpus", type=int, help="CPUs of a pod with GPUs.")
@click.option("--memory-gib", type=int, help="Memory of a pod with GPUs, shared memory included.")
@click.option("--shm-gib", type=int, default=32, show_default=True, help="/dev/shm of a pod.")
@click.option("--node-selector", multiple=True, metavar="LABEL=VALUE")
@click.option(
    "--tolerate", multiple=True, metavar="KEY", help="A taint to tolerate, beside the GPU resource's."
)
@click.option("--replicas", type=int, default=1, show_default=True, help="lws: how many groups.")
@click.option("--startup-minutes", type=int, default=60, show_default=True, help="Until the first token.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file.  [default: standard output]",
)
@click.pass_context
def command(ctx: click.Context, /, target: str, output: Path | None, **given: Any) -> int:
    """Write a Slurm batch script, a KubeRay RayCluster or a LeaderWorkerSet that serves MODEL.

    The model's place or Hugging Face id is as the nodes see it. Anything after `--` goes to vLLM unchanged.
    """
    serving = _serving(given, ctx.meta.get("vllm_arguments", ()))
    if target == "slurm":
        text = slurm_script.batch_script(
            serving, longspan=_longspan(), listen=given["listen"], device=given["device"], sbatch=given["sbatch"],
            sources=[str(Path(path).absolute()) for path in given["source"]],
        )  # fmt: skip
    else:
        make = kubernetes.ray_cluster if target == "kuberay" else kubernetes.leader_worker_set
        text = to_yaml(make(serving, _wishes(given)))
    if output is None:
        click.echo(text, nl=False)
        return 0
    try:
        output.write_text(text)
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror}.") from error
    click.echo(f"{output}: {'sbatch' if target == 'slurm' else 'kubectl apply -f'} {output}", err=True)
    return 0


def _longspan() -> tuple[str, ...]:
    """This installation, by its path: a batch job has another PATH. Slurm's nodes share the file system."""
    script = Path(sys.executable).with_name("longspan")
    return (str(script),) if script.exists() else ("longspan",)


def _serving(given: dict[str, Any], vllm_arguments: tuple[str, ...]) -> Serving:
    """What is to be served.

    Raises:
        InputError: a size or name that cannot be; the plan's own errors.
    """
    name = given["name"]
    Places.of(name)  # checks the name
    refuse_owned_flags(vllm_arguments)
    if given["plan"] is not None:
        if given["model"] is not None or given["tp"] or given["pp"]:
            raise InputError("--plan says the model and the layout.", "Leave out MODEL, --tp and --pp.")
        choice = plan_choice.read_choice(given["plan"], given["replica"])
        words = (*plan_choice.vllm_arguments(choice.replica), *vllm_arguments)
        return of_replica(name, choice.plan.model, choice.replica, words)
    if given["model"] is None:
        raise InputError("There is no model.", "Give MODEL or --plan.")
    if given["model"].startswith("-"):
        raise InputError(f"{given['model']!r} is no model.")
    nodes, gpus = given["nodes"], given["gpus_per_node"]
    tp, pp = given["tp"] or gpus, given["pp"] or nodes
    for flag, value in (("--nodes", nodes), ("--gpus-per-node", gpus), ("--tp", tp), ("--pp", pp)):
        if value < 1:
            raise InputError(f"{flag} {value} makes no sense.", "It is at least 1.")
    if tp * pp > nodes * gpus:
        raise InputError(
            f"TP {tp} x PP {pp} needs {tp * pp} GPUs, {nodes} x {gpus} are {nodes * gpus}.",
            "Lower --tp or --pp, or raise --nodes or --gpus-per-node.",
        )
    return Serving(
        name, given["model"], tp, pp, given["executor"], (gpus,) * nodes, given["served_name"], given["revision"],
        vllm_arguments=vllm_arguments,
    )  # fmt: skip


def _wishes(given: dict[str, Any]) -> kubernetes.Wishes:
    """The Kubernetes options, each of a form that the API server takes.

    Raises:
        InputError: one is not.
    """
    if not given["image"]:
        raise InputError("--image is missing.", "Build one with the Dockerfile of Longspan, and push it.")
    for flag in ("namespace", "ray_secret", "api_secret", "hf_secret", "pull_secret", "claim"):
        if given[flag] and not _DNS.fullmatch(given[flag]):
            raise InputError(f"--{flag.replace('_', '-')} {given[flag]!r} cannot be a name in Kubernetes.")
    pairs = [tuple(text.split("=", 1)) for text in given["node_selector"]]
    if not all(len(pair) == 2 for pair in pairs):
        raise InputError("--node-selector must be LABEL=VALUE.")
    names = [given["gpu_resource"], given["rdma"], *given["tolerate"], *(pair[0] for pair in pairs)]
    for name in filter(None, names):
        if not _QUALIFIED.fullmatch(name):
            raise InputError(f"{name!r} cannot be a label or resource in Kubernetes.")
    if not given["mount"].startswith("/") or ":" in given["mount"]:
        raise InputError(f"--mount {given['mount']!r} must be an absolute path.")
    for flag in ("cpus", "memory_gib", "shm_gib", "replicas", "startup_minutes"):
        if given[flag] is not None and given[flag] < 1:
            raise InputError(f"--{flag.replace('_', '-')} {given[flag]} makes no sense.", "It is at least 1.")
    return kubernetes.Wishes(
        given["image"], given["namespace"], given["ray_secret"], given["api_secret"] or None, given["hf_secret"],
        given["pull_secret"], given["claim"], given["mount"], given["gpu_resource"], given["rdma"], given["cpus"],
        given["memory_gib"], given["shm_gib"], tuple((pair[0], pair[1]) for pair in pairs), tuple(given["tolerate"]),
        given["replicas"], given["startup_minutes"] * 60, given["device"],
    )  # fmt: skip

"""A container for one node's agent -> the command line of docker or podman, as a pure function.

The agent is the container's first process, so that the container ends when the agent does, and everything in it with
it. Its configuration, a key among it, comes through standard input (`--interactive`): neither argv nor the
environment, which `docker inspect` shows, holds a secret.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from longspan.cluster.container import Container
from longspan.launch.words import AGENT_VARIABLE

# Below the user's home on the host, and where they appear in the container, whoever its user is.
CACHES = (
    (".cache/huggingface", "/longspan/huggingface", "HF_HOME"),
    (".cache/vllm", "/longspan/vllm", "VLLM_CACHE_ROOT"),
    (".cache/longspan", "/longspan/cache/longspan", ""),
)
LOGS = "/longspan/logs"
MARK_LABEL = "longspan.mark"
NAME_LABEL = "longspan.deployment"

# Run on the host before: makes what is mounted (docker would make it as root, podman not at all), and tells its home and
# whether engine and image are there. Arguments: the engine, the image, directories below home.
PREPARE = (
    'engine=$1; image=$2; shift 2; cd && for d in "$@"; do mkdir -p -- "$d" || exit 1; done;'
    ' command -v -- "$engine" >/dev/null || { echo "no-engine"; exit 0; };'
    ' "$engine" image inspect -- "$image" >/dev/null 2>&1 || { "$engine" info >/dev/null 2>&1 && echo "no-image" || echo'
    ' "no-daemon"; exit 0; }; echo "home $HOME"'
)


@dataclass(frozen=True, slots=True)
class Job:
    """One agent's container.

    Attributes:
        home: the user's home on that host. mark: of this start. model: an absolute directory on the host, or an id.
    """

    deployment: str
    node: str
    mark: str
    home: str
    model: str


def log_folder(deployment: str, node: str) -> str:
    """The node's logs on the host, below the home."""
    return f".local/state/longspan/{deployment}/logs/{node}"


def prepare_command(container: Container, job: Job) -> list[str]:
    """What the host is asked before (see PREPARE); prints one word, with "home" also the directory."""
    folders = [folder for folder, _, _ in CACHES]
    return [
        "sh", "-c", PREPARE, "sh", container.engine, container.image, *folders, log_folder(job.deployment, job.node),
    ]  # fmt: skip


def run_command(container: Container, job: Job, argv: Sequence[str]) -> list[str]:
    """`docker run …`: the host's network (ranks talk to each other by the host's addresses), its GPUs, limits that NCCL
    and Ray need, model and caches under fixed paths.

    Args:
        argv: what runs inside, such as (python, "-m", "longspan.daemon.agent").
    """
    options = [
        "--rm",
        "--interactive",
        "--init",  # reaps what is orphaned, and takes signals for us
        "--sig-proxy=false",  # the connection that started it may end without ending the ranks
        "--pull=never",  # 10 GB do not load within an agent's start; `docker pull` before
        f"--name=longspan-{job.mark}-{job.node}",
        f"--label={NAME_LABEL}={job.deployment}",
        f"--label={MARK_LABEL}={job.mark}",
        "--network=host",
        f"--shm-size={container.shm_gib}g",
        "--ulimit=memlock=-1:-1",  # RDMA registers its buffers
        "--ulimit=stack=67108864:67108864",
        "--ulimit=nofile=1048576:1048576",
        *_devices(container),
        *(
            ["--security-opt=label=disable"] if container.engine == "podman" else []
        ),  # SELinux hides mounts else
    ]
    for folder, target, variable in CACHES:
        options.append(f"--volume={job.home}/{folder}:{target}")
        options += [f"--env={variable}={target}"] if variable else []
    options += [
        f"--volume={job.home}/{log_folder(job.deployment, job.node)}:{LOGS}",
        "--env=XDG_CACHE_HOME=/longspan/cache",
    ]
    options += [f"--volume={mount}" for mount in (*model_mounts(job.model), *container.volumes)]
    options.append(f"--env={AGENT_VARIABLE}={job.mark}")
    options += [f"--env={name}" for name in container.env]
    program, *arguments = argv
    return [
        container.engine,
        "run",
        *options,
        *container.options,
        f"--entrypoint={program}",
        container.image,
        *arguments,
    ]


def _devices(container: Container) -> list[str]:
    """GPUs as each engine takes them, and the InfiniBand devices."""
    words = []
    if container.gpus == "nvidia":
        # docker: the NVIDIA runtime; podman: CDI, which `nvidia-ctk cdi generate` sets up.
        words += ["--gpus=all"] if container.engine == "docker" else ["--device=nvidia.com/gpu=all"]
    elif container.gpus == "amd":
        words += [
            "--device=/dev/kfd",
            "--device=/dev/dri",
            "--group-add=video",
            "--security-opt=seccomp=unconfined",
        ]
    if container.rdma:
        words += ["--device=/dev/infiniband", "--cap-add=IPC_LOCK"]
    return words


def model_mounts(model: str) -> list[str]:
    """A checkpoint's directory, read-only at its own path. A snapshot in a Hugging Face cache is links to its
    neighbours, so there the whole repository is mounted."""
    path = PurePosixPath(model)
    if not path.is_absolute():
        return []
    if path.parent.name == "snapshots":
        path = path.parent.parent
    return [f"{path}:{path}:ro"]

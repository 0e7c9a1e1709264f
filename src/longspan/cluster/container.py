"""The container that a host's processes run in, as a cluster file names it. Pure.

container = "vllm/vllm-openai:v0.20.0"          # on a node, or at the top for all nodes

[container]                                     # the same with more to say
image = "registry.example.com/longspan-vllm@sha256:…"
engine = "podman"                               # docker where it is left out
volumes = ["/data/models:/data/models:ro"]
options = ["--cap-add=SYS_PTRACE"]              # further words of `docker run`
env = ["HF_TOKEN"]                              # names: the value is taken from that host's own environment
shm_gib = 64
"""

import re
from dataclasses import dataclass
from typing import Any

from longspan.errors import InputError

ENGINES = ("docker", "podman")
# An image's reference (distribution/reference grammar, loosely): no blanks, no leading dash.
_IMAGE = re.compile(r"[A-Za-z0-9][\w./:@+-]{0,511}", re.ASCII)
_FIELDS = {"image", "engine", "python", "volumes", "options", "env", "shm_gib", "gpu_vendor"}
# vLLM's ranks of one node exchange tensors through shared memory; docker gives 64 MiB. 16 GiB is what vLLM's and
# NVIDIA's guides ask for; a tmpfs only takes what is written.
DEFAULT_SHM_GIB = 32


@dataclass(frozen=True, slots=True)
class Container:
    """What runs on a host, inside which image.

    Attributes:
        python: the interpreter in the image.
        volumes: "SOURCE:TARGET[:MODE]", absolute; beside the model and the caches.
        options: further words for `docker run`, before the image.
        env: names of variables whose values come from the host's own environment; no value stands in argv.
        gpus: "nvidia", "amd" or "none".
        rdma: hand the InfiniBand devices in.
    """

    image: str
    engine: str = "docker"
    python: str = "python3"
    volumes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    shm_gib: int = DEFAULT_SHM_GIB
    gpus: str = "nvidia"
    rdma: bool = False

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Container":
        """Back from `dataclasses.asdict`."""
        listed = {name: tuple(document[name]) for name in ("volumes", "options", "env")}
        return cls(**{**document, **listed})


def parse_container(value: Any, where: str, *, rdma: bool = False) -> Container | None:
    """A cluster file's `container`: an image's name or a table; None and false for none.

    Raises:
        InputError: a wrong field; the message names it.
    """
    if value is None or value is False:
        return None
    table = {"image": value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        raise InputError(
            f'{where}: container must be an image such as "vllm/vllm-openai:v0.20.0", or a table.'
        )
    if unknown := sorted(set(table) - _FIELDS):
        raise InputError(
            f"{where}: container has unknown field{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}.",
            f"Known: {', '.join(sorted(_FIELDS))}.",
        )
    image, engine = table.get("image"), table.get("engine", "docker")
    if not isinstance(image, str) or not _IMAGE.fullmatch(image):
        raise InputError(f"{where}: container.image must be an image's name, not {image!r}.")
    if engine not in ENGINES:
        raise InputError(f"{where}: container.engine must be docker or podman, not {engine!r}.")
    vendor = table.get("gpu_vendor", "nvidia")
    if vendor not in ("nvidia", "amd", "none"):
        raise InputError(f"{where}: container.gpu_vendor must be nvidia, amd or none, not {vendor!r}.")
    shm = table.get("shm_gib", DEFAULT_SHM_GIB)
    if isinstance(shm, bool) or not isinstance(shm, int) or shm < 1:
        raise InputError(f"{where}: container.shm_gib must be a number of GiB, not {shm!r}.")
    python = table.get("python", "python3")
    if not isinstance(python, str) or not python or python.startswith("-"):
        raise InputError(f"{where}: container.python must be an interpreter in the image, not {python!r}.")
    return Container(
        image, engine, python,
        _texts(table, "volumes", where, r"/[^:\0]*:/[^:\0]*(:[A-Za-z,]+)?", "absolute SOURCE:TARGET or SOURCE:TARGET:ro"),
        _texts(table, "options", where, r"-[^\0]+", "options of `docker run`, each with its value as --NAME=VALUE"),
        _texts(table, "env", where, r"[A-Za-z_][A-Za-z0-9_]*", "names; values of the file go into env = { … } of the node"),
        shm, vendor, rdma,
    )  # fmt: skip


def _texts(table: dict[str, Any], name: str, where: str, pattern: str, what: str) -> tuple[str, ...]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(
        isinstance(one, str) and re.fullmatch(pattern, one) for one in value
    ):
        raise InputError(f"{where}: container.{name} must be a list of {what}, not {value!r}.")
    return tuple(value)

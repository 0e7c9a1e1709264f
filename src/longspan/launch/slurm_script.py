"""What is to be served -> a batch script for `sbatch`. Pure; every word that comes from outside is quoted."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from longspan.errors import InputError
from longspan.launch.unattended import Serving, up_words

# `longspan up` is told so long before the time limit that it can take everything down in order; Slurm may be up to a
# minute late with it (sbatch(1), --signal).
SIGNAL_SECONDS = 180
_OWNED = (
    "nodes",
    "N",
    "gres",
    "gpus",
    "gpus-per-node",
    "G",
    "signal",
    "job-name",
    "J",
    "ntasks-per-node",
    "wrap",
)
_OPTION = re.compile(r"([a-zA-Z][a-zA-Z0-9-]*)(=[\w./:@%+,\[\]=*()-]+)?", re.ASCII)


def batch_script(
    serving: Serving,
    *,
    longspan: Sequence[str],
    listen: str,
    device: str | None = None,
    sbatch: Sequence[str] = (),
    sources: Sequence[str] = (),
) -> str:
    """The script's text.

    Nodes with different numbers of GPUs become the components of a heterogeneous job, in the order of the ranks.

    Args:
        longspan: how Longspan is called on the nodes. device: of the nodes; None lets `up` find out.
        sbatch: further options without their dashes, such as "partition=gpu" or "time=8:00:00".
        sources: files that the shell reads first (modules, a virtual environment).

    Raises:
        InputError: an option that is none, or that says what the plan says.
    """
    options = [_option(word) for word in sbatch]
    more = ["--device", device] if device else []
    lines = ["#!/bin/bash"]
    for number, (nodes, gpus) in enumerate(serving.groups):
        lines += ["#SBATCH hetjob"] if number else []
        own = [
            f"nodes={nodes}", "ntasks-per-node=1", f"gres=gpu:{gpus}", *options,
        ]  # fmt: skip
        if not number:
            own = [
                f"job-name=longspan-{serving.name}", f"output=longspan-{serving.name}-%j.log",
                f"signal=B:TERM@{SIGNAL_SECONDS}", *own,
            ]  # fmt: skip
        if not any(re.match(r"(exclusive|mem|oversubscribe)\b", word) for word in options):
            own.append("exclusive")
        lines += [f"#SBATCH --{word}" for word in own]
    lines += [
        "",
        "# The first node runs `longspan up`, which starts an agent on each node with srun and stays until the end.",
        "set -eo pipefail",
        *(f"source {shlex.quote(_path(path))}" for path in sources),
        *(f"export {name}={shlex.quote(value)}" for name, value in map(_variable, serving.environment)),
        f"exec {shlex.join([*longspan, *up_words(serving, listen=listen, more=more)])}",
    ]
    return "\n".join(lines) + "\n"


def _option(word: str) -> str:
    found = _OPTION.fullmatch(word.removeprefix("--"))
    if found is None:
        raise InputError(
            f"--sbatch {word!r} is no option of sbatch.",
            "Write it as NAME=VALUE, such as --sbatch partition=gpu.",
        )
    if found[1] in _OWNED:
        raise InputError(
            f"--sbatch {word}: {found[1]} follows from what is to be served.",
            "Use --nodes, --gpus-per-node, --tp, --pp, --plan and --name.",
        )
    return found[0]


def _path(path: str) -> str:
    if "\n" in path or "\0" in path or not PurePosixPath(path).is_absolute():
        raise InputError(f"--source {path!r} must be an absolute path.")
    return path


def _variable(pair: tuple[str, str]) -> tuple[str, str]:
    if not re.fullmatch(r"[A-Za-z_]\w*", pair[0], re.ASCII):
        raise InputError(f"{pair[0]!r} cannot be a variable's name.")
    return pair

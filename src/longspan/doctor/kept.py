"""What was collected from a node, as files beside its logs: written before the ranks are ended, read when the failure is
explained, and packed into the bundle."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from longspan.doctor.stacks import Collected

# Below a node's directory of logs. What lies here is no log: its texts are judged, not searched for messages.
FOLDER = "collected"
_RANK = re.compile(r"stack-rank-(\d+)")


def texts_of(collected: Collected) -> dict[str, str]:
    """Everything that a host gave, by the name that its file gets; what is empty is left out."""
    stacks = {f"stack-rank-{rank}": text for rank, text in collected.stacks.items()}
    return {name: text for name, text in {**stacks, **(collected.files or {})}.items() if text.strip()}


def keep(node_logs: Path, texts: Mapping[str, str]) -> list[str]:
    """Writes a node's texts below its directory of logs, readable by the owner only, and returns their names."""
    folder = node_logs / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = []
    for name, text in texts.items():
        path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:80]}.txt"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        names.append(path.name)
    return names


def kept(logs: Path) -> list[Collected]:
    """What lies below a deployment's logs, node by node; nothing where nothing was collected."""
    found = []
    for folder in sorted(logs.glob(f"*/{FOLDER}")):
        texts = {path.stem: path.read_text(errors="replace") for path in sorted(folder.glob("*.txt"))}
        stacks = {int(match[1]): text for name, text in texts.items() if (match := _RANK.fullmatch(name))}
        files = {name: text for name, text in texts.items() if not _RANK.fullmatch(name)}
        found.append(
            Collected(folder.parent.name, stacks, files.get("sockets", ""), files.get("gpus", ""), files)
        )
    return found


def kernel_lines(collected: Sequence[Collected]) -> dict[str, bytes]:
    """node -> its kernel's messages: these are a log, and name killed processes and broken GPUs."""
    return {c.host: text.encode() for c in collected if (text := (c.files or {}).get("kernel", ""))}

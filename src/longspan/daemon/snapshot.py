"""This node's copy of a checkpoint: the directory itself, or a Hugging Face id's snapshot in the node's own hub cache."""

import json
import re
from collections.abc import Collection
from pathlib import Path

from longspan.launch.checkpoint import WEIGHT_SUFFIXES

_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r".+-\d+-of-(\d+)\.\w+")


def local_copy(model: str, revision: str | None) -> Path | None:
    """Where this node has the checkpoint; None for an id that its hub cache does not hold whole yet.

    Args:
        model: an absolute directory, or a Hugging Face id.
        revision: of the id, a commit where it could be resolved.
    """
    path = Path(model)
    if path.is_absolute():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = Path(snapshot_download(model, revision=revision, local_files_only=True))
        names = {file.name for file in found.iterdir() if file.is_file()}
        index = found / _INDEX
        listed = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else None
    except (LocalEntryNotFoundError, ValueError, LookupError, OSError):
        return None
    return found if is_whole(names, listed) else None


def is_whole(names: Collection[str], listed: Collection[str] | None) -> bool:
    """Whether all weight files are there: reading config.json alone already makes a snapshot.

    Args:
        names: the files of the snapshot; in a hub cache a file has its name only once it is complete.
        listed: the weight files that the index names; None without an index.
    """
    if listed is not None:
        return set(listed) <= set(names)
    weights = [name for name in names if name.endswith(WEIGHT_SUFFIXES)]
    shards = {int(found[1]) for name in weights if (found := _SHARD.fullmatch(name))}
    return bool(weights) and all(len(weights) >= count for count in shards)


def same_on_all_nodes(path: str) -> bool:
    """Whether a file of a snapshot belongs to the comparison: each node's cache also holds what only it ever asked for."""
    return path.endswith(WEIGHT_SUFFIXES) or path == "config.json"

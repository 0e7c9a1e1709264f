"""A node's copy of a model that is named by its Hugging Face id."""

import asyncio
import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from longspan.daemon import functions
from longspan.daemon.snapshot import is_whole, local_copy

COMMIT = "b" * 40
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def cache(root: Path, files: dict[str, str]) -> Path:
    """A hub cache with one snapshot."""
    snapshot = root / "models--org--m" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name, text in files.items():
        (snapshot / name).write_text(text)
    return snapshot


def digest(**changes: Any) -> Any:
    """What the agent answers."""
    wanted = {"model": "org/m", "revision": COMMIT, "nonce": "n", "full": False, **changes}
    return asyncio.run(functions.digest_model(wanted, "/tmp"))


@pytest.mark.parametrize(
    ("names", "listed", "whole"),
    [
        ({"config.json"}, None, False),
        ({"config.json", "model.safetensors"}, None, True),
        ({ONE}, None, False),
        ({ONE, TWO}, None, True),
        ({ONE}, {ONE, TWO}, False),
        ({ONE, TWO, "x"}, {ONE, TWO}, True),
    ],
)
def test_a_snapshot_is_whole(names: set[str], listed: set[str] | None, whole: bool) -> None:
    """Reading config.json makes a snapshot already, and a download ends with its last shard."""
    assert is_whole(names, listed) == whole


def test_an_id_is_digested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot of the commit is read: weights and config, not what only this node's cache happens to hold."""
    files = {"config.json": "{}", ONE: "x", TWO: "y", "tokenizer.json": "{}", "README.md": "",
             "model.safetensors.index.json": json.dumps({"weight_map": {"a": ONE, "b": TWO}})}  # fmt: skip
    snapshot = cache(tmp_path, files)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **how: str(snapshot))
    found = digest()
    assert [file["path"] for file in found["files"]] == ["config.json", ONE, TWO]
    (snapshot / TWO).unlink()
    assert digest()["files"] == []


def test_an_id_that_is_not_here_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty hub cache is no copy, and no error: the engine fetches the commit itself."""

    def nowhere(name: str, *, revision: str, local_files_only: bool) -> str:
        assert (revision, local_files_only) == (COMMIT, True)
        raise huggingface_hub.errors.LocalEntryNotFoundError("not here")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", nowhere)
    assert local_copy("org/m", COMMIT) is None
    assert digest()["files"] == []

"""Digests of real files."""

import os
from pathlib import Path

import pytest

from longspan.errors import ModelError
from longspan.launch import digest as digest_module
from longspan.launch.checkpoint import compare_copies
from longspan.launch.digest import checkpoint_files, checkpoint_identity, digest_checkpoint, weights_bytes

MIB = 1 << 20


def checkpoint(directory: Path, size: int = 3 * MIB) -> Path:
    """A directory that looks like a checkpoint, its weights a header and a repeating pattern."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "README.md").write_text("not part of the model")
    header = b'{"w":{}}'
    body = bytes(range(251)) * (size // 251)
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
    return directory


def flip(path: Path, offset: int) -> None:
    """Flips one bit."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("offset", [0, 9, 1_500_000, -1])
def test_one_flipped_bit_names_node_and_file(tmp_path: Path, offset: int) -> None:
    """Files up to 4 GiB are read whole, so one flipped bit anywhere is found, with the node and the file."""
    good, bad = checkpoint(tmp_path / "good"), checkpoint(tmp_path / "bad")
    weights = bad / "model.safetensors"
    flip(weights, offset % weights.stat().st_size)
    digests = {"a": digest_checkpoint(good, "n"), "b": digest_checkpoint(bad, "n")}
    assert digests["a"].coverage == 1
    (finding,) = compare_copies(digests, "a")
    assert finding.subject == "b"
    assert "model.safetensors" in finding.summary


def test_the_nonce_does_not_matter_where_all_is_read(tmp_path: Path) -> None:
    """Whole digests are the same under every nonce, so that they can name a copy."""
    directory = checkpoint(tmp_path / "m")
    assert digest_checkpoint(directory, "one").files == digest_checkpoint(directory, "two").files


def test_large_files_are_sampled_and_say_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit a large file is sampled: damage in header or tail is found, coverage is stated, small files stay whole."""
    monkeypatch.setattr("longspan.launch.checkpoint.SAMPLE_BUDGET_BYTES", 16 * MIB)
    directory = checkpoint(tmp_path / "m")
    weights = directory / "model.safetensors"
    os.truncate(weights, 400 * MIB)  # sparse: no disk is used
    first = digest_checkpoint(directory, "n", whole_limit_bytes=MIB)
    assert first.mode == "sampled"
    assert first.bytes_read < first.size_bytes / 10
    assert first.coverage == pytest.approx(first.bytes_read / first.size_bytes)
    assert {f.path: f.mode for f in first.files} == {"config.json": "whole", "model.safetensors": "sampled"}
    assert digest_checkpoint(directory, "n", whole_limit_bytes=MIB) == first
    for offset in (9, weights.stat().st_size - 1):
        flip(weights, offset)
        assert digest_checkpoint(directory, "n", whole_limit_bytes=MIB).identity != first.identity
        flip(weights, offset)


def test_full_reads_everything(tmp_path: Path) -> None:
    """`--full` reads every byte, whatever the size."""
    directory = checkpoint(tmp_path / "m")
    os.truncate(directory / "model.safetensors", 65 * MIB)
    assert digest_checkpoint(directory, "n", full=True, whole_limit_bytes=MIB).coverage == 1
    assert digest_checkpoint(directory, "n", whole_limit_bytes=MIB).mode == "sampled"


def test_what_belongs_to_a_checkpoint(tmp_path: Path) -> None:
    """What vLLM would not read is left out: README, hidden files, older weight formats, other formats in subdirectories."""
    directory = checkpoint(tmp_path / "m")
    for name in (
        "pytorch_model.bin",
        ".cache/x.json",
        "original/w.pth",
        "1_Pooling/config.json",
        "merges.txt",
    ):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("x")
    names = {path.relative_to(directory).as_posix() for path in checkpoint_files(directory)}
    assert names == {"config.json", "model.safetensors", "1_Pooling/config.json", "merges.txt"}
    assert weights_bytes(directory) == (directory / "model.safetensors").stat().st_size


def test_links_count_as_their_target(tmp_path: Path) -> None:
    """A snapshot of symbolic links, as the Hugging Face cache makes them, equals the files themselves."""
    real, linked = checkpoint(tmp_path / "real"), tmp_path / "linked"
    linked.mkdir()
    for path in real.iterdir():
        (linked / path.name).symlink_to(path)
    assert digest_checkpoint(linked, "n").files == digest_checkpoint(real, "n").files


def test_no_checkpoint_is_a_model_error(tmp_path: Path) -> None:
    """A missing or empty directory is said so, not digested to nothing."""
    for directory in (tmp_path / "missing", tmp_path):
        with pytest.raises(ModelError, match="holds no checkpoint"):
            digest_checkpoint(directory, "n")


def test_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    """A file that is still being copied or becomes shorter is an error, not a digest of less."""
    directory = checkpoint(tmp_path / "m")
    weights = directory / "model.safetensors"
    with pytest.raises(OSError, match="shorter"):
        digest_module._read_leaf(weights, (0, weights.stat().st_size + 1))


def test_the_identity_follows_the_content(tmp_path: Path) -> None:
    """Equal copies share one identity; damage, also where it was not sampled, gives another."""
    one, other = checkpoint(tmp_path / "one"), checkpoint(tmp_path / "two")
    assert checkpoint_identity(one) == checkpoint_identity(other)
    flip(other / "model.safetensors", 2 * MIB)
    assert checkpoint_identity(one) != checkpoint_identity(other)
    weights = one / "model.safetensors"
    os.truncate(weights, 65 * MIB)
    before = checkpoint_identity(one, whole_limit_bytes=MIB)
    os.utime(weights, ns=(1, weights.stat().st_mtime_ns + 1))
    assert checkpoint_identity(one, whole_limit_bytes=MIB) != before

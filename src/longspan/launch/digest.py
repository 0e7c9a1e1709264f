"""Reads a checkpoint's files and returns their digests: what an agent runs when the controller asks for the copy's proof.

`digest_checkpoint(path, nonce)` for the comparison among nodes; `checkpoint_identity(path)` for the key of a cached reference.
Both block for as long as the disk takes; call them in a thread.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from longspan.errors import ModelError
from longspan.launch.checkpoint import (
    OTHER_SUFFIXES,
    SMALL_FILE_BYTES,
    WEIGHT_SUFFIXES,
    WHOLE_LIMIT_BYTES,
    Block,
    CheckpointDigest,
    FileDigest,
    Mode,
    join_digests,
    leaf_digest,
    sample_count,
    sampled_blocks,
    whole_blocks,
)

_IDENTITY_NONCE = "identity"
_HEADER_LIMIT_BYTES = (
    256 << 20
)  # a safetensors header is at most 100 MB by its format; a larger claim is damage
_THREADS_MAX = 16


def checkpoint_files(directory: Path) -> list[Path]:
    """The files that an engine may read, at the top and one directory below, sorted; symbolic links count as their target.

    Where safetensors are present, weights in the older formats are left out, as vLLM leaves them out.

    Raises:
        ModelError: there is no such directory, it cannot be read, or nothing in it is part of a model.
    """
    try:
        names = [path for pattern in ("*", "*/*") for path in directory.glob(pattern)]
        files = [
            path
            for path in names
            if path.suffix in WEIGHT_SUFFIXES + OTHER_SUFFIXES
            and not any(part.startswith(".") for part in path.relative_to(directory).parts)
            # A subdirectory's weights (`original/`, `onnx/`) are other formats of the same model, which vLLM ignores.
            and (path.parent == directory or path.suffix not in WEIGHT_SUFFIXES)
            and path.is_file()
        ]
    except OSError as error:
        raise ModelError(f"The checkpoint {directory} cannot be read: {error.strerror}.") from error
    if any(path.suffix == ".safetensors" for path in files):
        files = [path for path in files if path.suffix in (".safetensors", *OTHER_SUFFIXES)]
    if not files:
        raise ModelError(
            f"{directory} holds no checkpoint: neither weights nor a config.json were found.",
            "Name a directory that holds config.json and *.safetensors, at the same path on every node.",
        )
    return sorted(files)


def digest_checkpoint(
    directory: Path, nonce: str, *, full: bool = False, whole_limit_bytes: int = WHOLE_LIMIT_BYTES
) -> CheckpointDigest:
    """Digests one node's copy: whole files up to `whole_limit_bytes` in total or with `full`, else sampled blocks.

    Args:
        directory: the checkpoint.
        nonce: decides the sampled blocks; the same on all nodes, and new for every comparison, so that repeated
            starts see ever more of the bytes.

    Raises:
        ModelError: the directory is missing, unreadable or holds no checkpoint.
    """
    files = checkpoint_files(directory)
    try:
        sizes = [path.stat().st_size for path in files]
        total = sum(sizes)
        whole = full or total <= whole_limit_bytes
        with ThreadPoolExecutor(min(_THREADS_MAX, (os.cpu_count() or 1) * 2)) as pool:
            jobs = []
            for path, size in zip(files, sizes, strict=True):
                name = path.relative_to(directory).as_posix()
                mode: Mode = "whole" if whole or size <= SMALL_FILE_BYTES else "sampled"
                if mode == "whole":
                    blocks = list(whole_blocks(size))
                else:
                    blocks = list(
                        sampled_blocks(
                            name,
                            size,
                            nonce=nonce,
                            count=sample_count(size, total),
                            header_bytes=_header_bytes(path),
                        )
                    )
                leaves = [pool.submit(_read_leaf, path, block) for block in blocks]
                jobs.append((name, size, mode, sum(length for _, length in blocks), leaves))
            digests = tuple(
                FileDigest(name, size, join_digests(size, [leaf.result() for leaf in leaves]), mode, read)
                for name, size, mode, read, leaves in jobs
            )
    except OSError as error:
        raise ModelError(
            f"{error.filename or directory} cannot be read: {error.strerror or error}.",
            "A read error in a checkpoint often means a failing disk or a file that is still being copied.",
        ) from error
    return CheckpointDigest(str(directory), nonce, digests)


def checkpoint_identity(directory: Path, *, whole_limit_bytes: int = WHOLE_LIMIT_BYTES) -> str:
    """Names a copy by its content, for caches. Large copies are sampled, so their files' times of change count too.

    Raises:
        ModelError: as `digest_checkpoint`.
    """
    digest = digest_checkpoint(directory, _IDENTITY_NONCE, whole_limit_bytes=whole_limit_bytes)
    if digest.mode == "whole":
        return digest.identity
    state = hashlib.blake2b(digest.identity.encode(), digest_size=32)
    for file in digest.files:
        state.update(f"{file.path}\0{(directory / file.path).stat().st_mtime_ns}\0".encode())
    return state.hexdigest()


def weights_bytes(directory: Path) -> int:
    """The bytes of the weight files, which is what one rank that holds the whole model must load.

    Raises:
        ModelError: as `checkpoint_files`.
    """
    return sum(path.stat().st_size for path in checkpoint_files(directory) if path.suffix in WEIGHT_SUFFIXES)


def _header_bytes(path: Path) -> int:
    """The length of a safetensors header with its own length field; 0 for other formats."""
    if path.suffix != ".safetensors":
        return 0
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    return 8 + length if length <= _HEADER_LIMIT_BYTES else 0


def _read_leaf(path: Path, block: Block) -> bytes:
    offset, length = block
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(length)
    if len(data) != length:
        raise OSError(5, "the file became shorter while it was read", str(path))
    return leaf_digest(data)

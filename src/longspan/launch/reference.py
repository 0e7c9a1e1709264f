"""Makes the reference: one rank of the same engine, checkpoint and dtype, started for this, asked, and stopped.

`make_reference(wish)` runs vLLM's OpenAI server with TP=1 and PP=1 behind a socket in a private directory (no port, so nothing can
be taken and nobody else on the machine can ask), and returns a `Reference`, or a `NotMade` with the reason where a rank cannot be
spared. Results are cached under `<cache_dir>/references/`, by content: checkpoint, engine version, dtype, device, arguments, texts.
The engine runs in a session of its own and is killed as a whole, also when the caller is cancelled.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from longspan.errors import LaunchError, ProofError
from longspan.host import available_memory_bytes
from longspan.launch.digest import checkpoint_identity, weights_bytes
from longspan.launch.logprobs import NotMade, Reference
from longspan.launch.one_rank import running_engine
from longspan.launch.proof_texts import TEXTS_VERSION
from longspan.launch.prover import score_texts
from longspan.units import GIB, format_bytes

_NAME = "reference"
# What one rank needs beside its weights: a measured 1.6 GiB of resident libraries and buffers on CPU, and a small KV cache.
_OVERHEAD_BYTES = 3 * GIB


@dataclass(frozen=True, slots=True)
class Wish:
    """What reference is wanted.

    Attributes:
        model: directory of the checkpoint, the node's own copy.
        engine_version: part of the cache's key, e.g. "0.32.0".
        device: part of the key and of the words, e.g. "cpu" or "NVIDIA H100 80GB HBM3".
        dtype: vLLM's --dtype: "auto" for the checkpoint's own, "float32" for the exact run that measures the noise.
        entry: the words that start the API server; `vllm serve …`'s and the module's arguments follow.
        arguments: further vLLM arguments of the deployment that change its numbers (quantization, …).
        env: the engine's whole environment; None for the caller's.
        free_bytes: memory that one rank may take: of a spare GPU, or None to look at this machine's.
        cache_dir: usually `~/.cache/longspan`.
        timeout_seconds: until the engine is ready.
    """

    model: Path
    engine_version: str
    device: str
    cache_dir: Path
    dtype: str = "auto"
    entry: tuple[str, ...] = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] | None = field(default=None, repr=False)
    free_bytes: int | None = None
    timeout_seconds: float = 600.0


def default_argv(wish: Wish, socket: Path) -> list[str]:
    """The command line of the one-rank engine: small context, no compilation, no key, since only a private socket is open."""
    model = [str(wish.model)] if wish.entry[-1] == "serve" else ["--model", str(wish.model)]
    return [
        *wish.entry,
        *model,
        *("--served-model-name", _NAME),
        *("--uds", str(socket)),
        *("--dtype", wish.dtype),
        *("--tensor-parallel-size", "1", "--pipeline-parallel-size", "1"),
        *("--max-model-len", "512", "--max-num-seqs", "2"),
        "--enforce-eager",
        *wish.arguments,
    ]


async def make_reference(wish: Wish) -> Reference | NotMade:
    """Returns the cached reference, or makes it.

    Raises:
        ModelError: the checkpoint cannot be read.
    """
    path = await asyncio.to_thread(_cache_path, wish)
    cached = _load(path)
    if cached is not None:
        return cached
    needed, free = await asyncio.to_thread(needed_bytes, wish), wish.free_bytes
    free = available_memory_bytes() if free is None else free
    if needed > free:
        return NotMade(
            f"one rank needs {format_bytes(needed)} for this checkpoint in dtype {wish.dtype}, and {format_bytes(free)} are free"
        )
    try:
        async with running_engine(
            lambda socket: default_argv(wish, socket),
            model=_NAME,
            env=wish.env,
            timeout_seconds=wish.timeout_seconds,
        ) as endpoint:
            texts = await score_texts(endpoint)
    except (LaunchError, ProofError) as error:
        return NotMade(f"the one-rank engine gave none: {error.what}")
    reference = Reference(wish.dtype, f"vLLM {wish.engine_version} on {wish.device}", texts)
    _store(path, reference)
    return reference


def needed_bytes(wish: Wish) -> int:
    """Weights in the dtype asked for, and the overhead. float32 doubles what is stored in 16 bits."""
    return weights_bytes(wish.model) * (2 if wish.dtype == "float32" else 1) + _OVERHEAD_BYTES


def _cache_path(wish: Wish) -> Path:
    parts = [
        checkpoint_identity(wish.model),
        wish.engine_version,
        wish.dtype,
        wish.device,
        json.dumps(wish.arguments),
        str(TEXTS_VERSION),
    ]
    key = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    return wish.cache_dir / "references" / f"{key}.json"


def _load(path: Path) -> Reference | None:
    """A cached reference; one that cannot be read is as good as none."""
    try:
        return Reference.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _store(path: Path, reference: Reference) -> None:
    """Keeps a reference; a full or read-only disk costs time the next time, and nothing else."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(reference.to_json()))
        draft.replace(path)

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
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from longspan.errors import LaunchError, ProofError
from longspan.launch.digest import checkpoint_identity, weights_bytes
from longspan.launch.logprobs import Reference
from longspan.launch.proof_texts import TEXTS_VERSION
from longspan.launch.prover import Endpoint, score_texts
from longspan.units import GIB, format_bytes

_NAME = "reference"
# What one rank needs beside its weights: a measured 1.6 GiB of resident libraries and buffers on CPU, and a small KV cache.
_OVERHEAD_BYTES = 3 * GIB
_STOP_SECONDS = 10.0
_LOG_TAIL_BYTES = 2000


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


@dataclass(frozen=True, slots=True)
class NotMade:
    """No reference, and why; the proof's layer is then skipped with this reason."""

    reason: str


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
    needed, free = await asyncio.to_thread(_needed_bytes, wish), wish.free_bytes
    free = _available_bytes() if free is None else free
    if needed > free:
        return NotMade(
            f"one rank needs {format_bytes(needed)} for this checkpoint in dtype {wish.dtype}, and {format_bytes(free)} are free"
        )
    try:
        async with _engine(wish) as endpoint:
            texts = await score_texts(endpoint)
    except (LaunchError, ProofError) as error:
        return NotMade(f"the one-rank engine gave none: {error.what}")
    reference = Reference(wish.dtype, f"vLLM {wish.engine_version} on {wish.device}", texts)
    _store(path, reference)
    return reference


async def engine_version(python: str = sys.executable, env: Mapping[str, str] | None = None) -> str:
    """The version of the vLLM that this interpreter has, whichever distribution carries it; "unknown" where it has none."""
    code = (
        "from importlib.metadata import packages_distributions, version\n"
        "names = packages_distributions().get('vllm', ())\n"
        "print(version(names[0]) if names else 'unknown')"
    )
    process = await asyncio.create_subprocess_exec(
        python, "-c", code, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return output.decode().strip() or "unknown"


@contextlib.asynccontextmanager
async def _engine(wish: Wish) -> AsyncIterator[Endpoint]:
    """A running one-rank engine; nothing of it is left afterwards, whatever happens inside."""
    home = Path(
        tempfile.mkdtemp(prefix="longspan-ref-")
    )  # short, since a socket's path has at most 107 bytes
    socket, log = home / "s", home / "log"
    process: asyncio.subprocess.Process | None = None
    try:
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *default_argv(wish, socket),
                env=None if wish.env is None else dict(wish.env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=home,
            )
        endpoint = Endpoint("http://localhost", _NAME, unix_socket=str(socket), timeout_seconds=300)
        await _until_ready(process, endpoint, log, wish.timeout_seconds)
        yield endpoint
    except FileNotFoundError as error:
        raise LaunchError(f"{wish.entry[0]} does not exist, so no engine can be started.") from error
    finally:
        if process is not None:
            stop = asyncio.ensure_future(_stop(process))
            try:
                await asyncio.shield(stop)
            except asyncio.CancelledError:
                _kill_session(process.pid)
                await stop
                raise
            finally:
                shutil.rmtree(home, ignore_errors=True)
        else:
            shutil.rmtree(home, ignore_errors=True)


async def _until_ready(
    process: asyncio.subprocess.Process, endpoint: Endpoint, log: Path, timeout_seconds: float
) -> None:
    """Waits until `/health` answers.

    Raises:
        LaunchError: the engine ended, or the time ran out; with the last words of its log.
    """
    try:
        async with asyncio.timeout(timeout_seconds), endpoint.session() as session:
            while process.returncode is None:
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    async with session.get(f"{endpoint.base_url}/health") as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.25)
    except TimeoutError as error:
        raise LaunchError(f"it was not ready after {timeout_seconds:.0f} s; {_last_words(log)}") from error
    raise LaunchError(f"it ended with status {process.returncode}; {_last_words(log)}")


def _last_words(log: Path) -> str:
    text = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return f"its log says: {(errors or lines or ['nothing'])[-1][:300]}"


async def _stop(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, time to end, then SIGKILL for everything that is left in the engine's session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _STOP_SECONDS)
    _kill_session(process.pid)
    await process.wait()


def _kill_session(leader: int) -> None:
    """Kills every process of the session, whichever process groups they made for themselves."""
    for pid in _session_members(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _session_members(leader: int) -> Sequence[int]:
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # After the command's closing parenthesis: state, parent, process group, session (proc(5)).
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    members.append(int(entry.name))
    return members


def _needed_bytes(wish: Wish) -> int:
    """Weights in the dtype asked for, and the overhead. float32 doubles what is stored in 16 bits."""
    return weights_bytes(wish.model) * (2 if wish.dtype == "float32" else 1) + _OVERHEAD_BYTES


def _available_bytes() -> int:
    """What the kernel says can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


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

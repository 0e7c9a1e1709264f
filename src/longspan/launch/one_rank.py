"""One engine process for a short time: started behind a socket in a private directory, and ended as a whole.

The process leads a session of its own, so that everything it starts can be found and killed by that session's number, without
matching names and whichever process groups its children make for themselves.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import aiohttp

from longspan.errors import LaunchError
from longspan.launch.prover import Endpoint

_STOP_SECONDS = 10.0
_KILL_ROUNDS = 100
_KILL_ROUND_SECONDS = 0.02
_LOG_TAIL_BYTES = 2000


@contextlib.asynccontextmanager
async def running_engine(
    argv: Callable[[Path], Sequence[str]],
    *,
    model: str,
    env: Mapping[str, str] | None,
    timeout_seconds: float,
) -> AsyncIterator[Endpoint]:
    """An OpenAI server that is up as long as the context; nothing of it is left afterwards, whatever happens inside.

    Args:
        argv: the command line, given the path of the socket on which the server shall listen.
        model: the name under which it serves.
        env: its whole environment; None for the caller's.
        timeout_seconds: until `/health` answers.

    Raises:
        LaunchError: it could not be started, ended, or was not ready in time.
    """
    home = _private_directory()
    socket, log = home / "s", home / "log"
    words = list(argv(socket))
    process: asyncio.subprocess.Process | None = None
    try:
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *words,
                env=None if env is None else dict(env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        endpoint = Endpoint("http://localhost", model, unix_socket=str(socket), timeout_seconds=300)
        await _until_ready(process, endpoint, log, timeout_seconds)
        yield endpoint
    except FileNotFoundError as error:
        raise LaunchError(f"{words[0]} does not exist, so no engine can be started.") from error
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


def _private_directory() -> Path:
    """A new directory for the user alone; in /tmp where TMPDIR is too long, since a socket's path has at most 107 bytes."""
    long = len(tempfile.gettempdir()) > 80
    return Path(tempfile.mkdtemp(prefix="longspan-ref-", dir="/tmp" if long else None))


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
    """SIGTERM, time for all of the session to end, then SIGKILL for what is left of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
            while _session_members(process.pid):  # noqa: ASYNC110 - nothing tells when grandchildren end
                await asyncio.sleep(0.05)
    _kill_session(process.pid)
    await process.wait()


def _kill_session(leader: int) -> None:
    """Kills every process of the session, whichever process groups they made for themselves, until none is left: one that forks at
    this moment leaves a child that was not listed. Blocks for milliseconds, as whoever calls it may be cancelled at any wait."""
    for _ in range(_KILL_ROUNDS):
        members = _session_members(leader)
        if not members:
            return
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_KILL_ROUND_SECONDS)


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

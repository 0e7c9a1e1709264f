"""Sending a directory's files to many nodes at once, each from where it stopped, with progress."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from longspan.errors import HostError, LongspanError, StageError
from longspan.host import Completed, LocalHost, SlurmHost, SshHost, feed
from longspan.launch import staging
from longspan.launch.staging import Listing, NodePlan, Piece, SourceFile

Reached = LocalHost | SshHost | SlurmHost
CHUNK_BYTES = 1 << 20
LISTING_TIMEOUT_SECONDS = 60
# A connection that a broken network cuts without a word ends after these, so that it can be taken up again.
KEEP_ALIVE = ("ServerAliveInterval=10", "ServerAliveCountMax=3")


@dataclass(slots=True)
class Progress:
    """How far it is, for whoever shows it. Written by the sending threads; a reader may be a chunk late.

    Attributes:
        sent_bytes: by node. state: by node: "waiting", "sending", "done" or an error's text.
    """

    left_bytes: dict[str, int]
    sent_bytes: dict[str, int] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    stop: threading.Event = field(default_factory=threading.Event)


def reach(host: Reached) -> Reached:
    """The same host with a connection that notices when it is cut."""
    return (
        SshHost(host.name, host.target, (*host.options, *KEEP_ALIVE)) if isinstance(host, SshHost) else host
    )


def sources(directory: Path, choose: Callable[[Path], Sequence[Path]]) -> list[SourceFile]:
    """The files to send; links count as their targets."""
    return [
        SourceFile(path.relative_to(directory).as_posix(), path.stat().st_size) for path in choose(directory)
    ]


def shell(
    host: Reached, program: str, *arguments: str, timeout_seconds: float = LISTING_TIMEOUT_SECONDS
) -> Completed:
    """Runs one of the shell programs on a host."""
    return host.run(["sh", "-c", program, "sh", *arguments], timeout_seconds=timeout_seconds)


def listing(host: Reached, directory: str) -> Listing:
    """What is in a directory of a host.

    Raises:
        HostError, StageError
    """
    done = shell(host, staging.LISTING, directory)
    if done.returncode:
        raise StageError(f"{host.name} cannot list {directory}: {done.stderr.strip()[-200:]}")
    return staging.parse_listing(done.stdout, host.name)


def send_all(
    source: Path, plans: Sequence[NodePlan], hosts: dict[str, Reached], progress: Progress, *, parallel: int
) -> list[LongspanError]:
    """Sends to each node what its plan says, `parallel` nodes at a time.

    Returns:
        the nodes' errors; the others are not kept waiting by them.
    """

    def one(plan: NodePlan) -> LongspanError | None:
        try:
            for piece in plan.pieces:
                progress.state[plan.node] = "sending"
                send_piece(source, plan, piece, hosts[plan.node], progress)
        except LongspanError as error:
            progress.state[plan.node] = error.what
            return error
        except OSError as error:
            progress.state[plan.node] = str(error)
            return StageError(f"{source} cannot be read while it is sent to {plan.node}: {error}.")
        progress.state[plan.node] = "shared" if plan.shared else "done"
        return None

    for plan in plans:
        progress.state[plan.node] = "waiting"
    with ThreadPoolExecutor(parallel) as pool:
        try:
            return [error for error in pool.map(one, plans) if error]
        except BaseException:
            progress.stop.set()
            raise


def send_piece(source: Path, plan: NodePlan, piece: Piece, host: Reached, progress: Progress) -> None:
    """One file's rest.

    Raises:
        StageError: the node took less than all; the same command goes on from there.
    """

    def chunks() -> Iterator[bytes]:
        left = piece.left_bytes
        with (source / piece.path).open("rb") as file:
            file.seek(piece.offset)
            while left and (chunk := file.read(min(CHUNK_BYTES, left))):
                if progress.stop.is_set():
                    raise StageError(
                        f"Stopped while {piece.path} was sent to {plan.node}.", "The same command goes on."
                    )
                yield chunk
                left -= len(chunk)
                progress.sent_bytes[plan.node] = progress.sent_bytes.get(plan.node, 0) + len(chunk)

    target = f"{plan.directory}/{piece.path}"
    argv = host.argv(["sh", "-c", staging.RECEIVE, "sh", target, str(piece.size_bytes), staging.PART])
    try:
        done = feed(plan.node, argv, chunks(), env=host.env if isinstance(host, SlurmHost) else None)
    except HostError as error:
        raise StageError(
            f"{piece.path} could not be sent to {plan.node}: {error.what}", "The same command goes on."
        ) from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise StageError(
            f"{piece.path} was not taken whole by {plan.node}: {last[0]}.",
            "The same command goes on from where it stopped.",
        )

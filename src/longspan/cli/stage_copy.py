"""Sending a directory's files to a node from this machine, each from where it stopped, with progress."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from longspan.errors import HostError, StageError
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
        sent_bytes: what came to each node. here_bytes: what of it this machine sent; the rest came from other nodes.
        state: by node: "sending", "shared", "done" or an error's text.
    """

    left_bytes: dict[str, int]
    sent_bytes: dict[str, int] = field(default_factory=dict)
    here_bytes: int = 0
    state: dict[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, node: str, count: int, *, here: bool = False) -> None:
        """So many more bytes have come to a node."""
        with self._lock:
            self.sent_bytes[node] = self.sent_bytes.get(node, 0) + count
            self.here_bytes += count if here else 0


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
                progress.add(plan.node, len(chunk), here=True)

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

"""Carries out who gives which file to whom (`launch.spread`): from this machine over ssh, between the nodes over their own network."""

import json
import secrets
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from longspan.cli.stage_copy import Progress, Reached, send_piece
from longspan.cluster.hosts import HostEntry
from longspan.errors import HostError, LongspanError, StageError
from longspan.host import Conversation
from longspan.launch import relay, staging
from longspan.launch.spread import HERE, Spread, Transfer
from longspan.launch.staging import NodePlan, Piece

# A taker says something twice a second while bytes come, and gives a silent giver up after relay.SILENCE_SECONDS.
ANSWER_SECONDS = relay.SILENCE_SECONDS + 20
START_SECONDS = 30
_PROGRAM = Path(relay.__file__).read_text
# A node that serves in a container has an interpreter of its own only by chance. Arguments: Python, program, job.
_RUN = 'p=$1; shift; command -v -- "$p" >/dev/null 2>&1 || p=python3; exec "$p" -c "$@"'


@dataclass(slots=True)
class Relays:
    """The conversations with the programs that give and take on the nodes; each begins when it is first needed."""

    entries: Mapping[str, HostEntry]
    hosts: Mapping[str, Reached]
    directories: Mapping[str, str]
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    _giving: dict[str, tuple[Conversation, int]] = field(default_factory=dict)
    _taking: dict[str, Conversation] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _open(self, node: str, job: str, first: Mapping[str, Any]) -> Conversation:
        entry = self.entries[node]
        python = "python3" if entry.container else entry.python or sys.executable
        program = self.hosts[node].open(["sh", "-c", _RUN, "sh", python, _PROGRAM(), job])
        program.send(json.dumps({"directory": self.directories[node], "token": self.token, **first}))
        return program

    def port(self, node: str) -> int:
        """Where a node gives.

        Raises:
            HostError: it cannot.
        """
        with self._lock:
            if node not in self._giving:
                program = self._open(node, "give", {"address": self.entries[node].address})
                try:
                    self._giving[node] = program, int(_answer(program, START_SECONDS)["port"])
                except HostError:
                    program.close()
                    raise
            return self._giving[node][1]

    def take(self, transfer: Transfer, piece: Piece, progress: Progress) -> None:
        """Lets one node take a file from another.

        Raises:
            HostError: it did not come; what did is kept.
        """
        with self._lock:
            program = self._taking.get(transfer.node)
        if program is None:
            program = self._taking[transfer.node] = self._open(
                transfer.node, "take", {"suffix": staging.PART}
            )
        address, port = self.entries[transfer.giver].address, self.port(transfer.giver)
        program.send(
            json.dumps({"path": piece.path, "size": piece.size_bytes, "address": address, "port": port})
        )
        try:
            while "done" not in (said := _answer(program, ANSWER_SECONDS)):
                progress.add(transfer.node, int(said.get("got", 0)))
        except HostError:
            # An answer that comes late would be taken for the next one's.
            with self._lock:
                self._taking.pop(transfer.node, None)
            program.close()
            raise

    def close(self) -> None:
        """Ends them all; nothing of ours runs on a node afterwards."""
        with self._lock:
            programs = [*self._taking.values(), *(program for program, _ in self._giving.values())]
            self._taking.clear()
            self._giving.clear()
        for program in programs:
            program.close()


def _answer(program: Conversation, timeout_seconds: float) -> dict[str, Any]:
    """The next thing that a program on a node says.

    Raises:
        HostError: it says an error, nothing, or ends.
    """
    try:
        line = program.receive(timeout_seconds)
    except TimeoutError as error:
        raise HostError(f"no answer for {timeout_seconds:.0f} s") from error
    if line is None:
        raise HostError(" ".join(program.errors[-1:]) or "it ended")
    try:
        said: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise HostError(f"it said {line[:200]!r}") from error
    if "error" in said:
        raise HostError(str(said["error"]))
    return said


def send_all(
    source: Path,
    plans: Sequence[NodePlan],
    entries: Sequence[HostEntry],
    hosts: Mapping[str, Reached],
    progress: Progress,
    *,
    streams: int,
    are_copies_trusted: bool,
) -> list[LongspanError]:
    """Brings to each node what its plan says: each file once from here, then from node to node.

    Args:
        streams: files that this machine sends at a time.
        are_copies_trusted: whether nodes may pass on what they have. Not after one was found damaged.

    Returns:
        the nodes' errors; the others are not kept waiting by them.
    """
    pieces = {plan.node: {piece.path: piece for piece in plan.pieces} for plan in plans}
    lacks = {plan.node: list(pieces[plan.node]) for plan in plans if not plan.shared}
    files = {path for paths in pieces.values() for path in paths}
    spread = Spread.of(lacks, files, givers=lacks if are_copies_trusted else (), streams=streams)
    relays = Relays({one.name: one for one in entries}, hosts, {plan.node: plan.directory for plan in plans})
    by_name = {plan.node: plan for plan in plans}
    errors: list[LongspanError] = []

    def one(transfer: Transfer) -> None:
        plan, piece = by_name[transfer.node], pieces[transfer.node][transfer.path]
        if transfer.giver == HERE:
            send_piece(source, plan, piece, hosts[plan.node], progress)
        else:
            relays.take(transfer, piece, progress)

    for plan in plans:
        progress.state[plan.node] = "shared" if plan.shared else "sending" if plan.pieces else "done"
    running: dict[Future[None], Transfer] = {}
    # As many as can run at once: one for each node.
    with ThreadPoolExecutor(max(1, len(lacks))) as pool:
        try:
            while begun := spread.start() or running:
                if isinstance(begun, list):
                    running |= {pool.submit(one, transfer): transfer for transfer in begun}
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    _ended(spread, running.pop(future), future, source, progress, errors)
        except BaseException:
            progress.stop.set()
            raise
        finally:
            relays.close()
    return errors


def _ended(
    spread: Spread,
    transfer: Transfer,
    future: Future[None],
    source: Path,
    progress: Progress,
    errors: list[LongspanError],
) -> None:
    """Books one transfer: what a node did not get from another it gets from elsewhere; from here is its last chance."""
    error = future.exception()
    spread.ended(transfer, came=error is None)
    if error is None:
        if not spread.lacks[transfer.node]:
            progress.state[transfer.node] = "done"
        return
    if not isinstance(error, LongspanError | OSError):
        raise error
    if transfer.giver != HERE:
        what = error.what if isinstance(error, LongspanError) else str(error)
        click.echo(
            f"  {transfer.node} did not get {transfer.path} from {transfer.giver} ({what}); from elsewhere then",
            err=True,
        )
        return
    if not isinstance(error, LongspanError):
        error = StageError(f"{source} cannot be read while it is sent to {transfer.node}: {error}.")
    progress.state[transfer.node] = error.what
    errors.append(error)

"""Messages between the brain and its workers: length-prefixed marshal over a socket pair.

marshal is no format for strangers; both ends are this very program, started by itself.
"""

import asyncio
import marshal
import struct
from collections.abc import Callable
from typing import Any

from longspan.gateway.ledger import Entry
from longspan.gateway.ticket import Action, Ask, GiveUp, Reject, Send

LENGTH = struct.Struct("<I")
ACTIONS: dict[str, type[Send] | type[Reject] | type[GiveUp]] = {
    "Send": Send,
    "Reject": Reject,
    "GiveUp": GiveUp,
}
Message = tuple[Any, ...]


class Peer(asyncio.Protocol):
    """One end of the pair."""

    def __init__(self, receive: Callable[[Message], None], lost: Callable[[], None]) -> None:
        self._receive = receive
        self._lost = lost
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: ready."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's is none of asyncio's classes

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the other end is gone."""
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= 4:
            (size,) = LENGTH.unpack_from(self._buffer, at)
            if len(self._buffer) - at - 4 < size:
                break
            message = marshal.loads(bytes(self._buffer[at + 4 : at + 4 + size]))  # noqa: S302 - see above
            at += 4 + size
            self._receive(message)
        del self._buffer[:at]

    def send(self, *message: Any) -> None:
        """Sends a message if the other end lives."""
        if self._transport is not None:
            data = marshal.dumps(message)
            self._transport.write(LENGTH.pack(len(data)) + data)


def pack_action(action: Action) -> Message:
    """An action as a message."""
    return ("action", type(action).__name__, *action)


def unpack_action(message: Message) -> Action:
    """The action of such a message."""
    return ACTIONS[message[1]](*message[2:])


class RemoteLink:
    """A worker's link to the brain in the parent process."""

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self.is_ready = False

    def _tell(self, *message: Any) -> None:
        if self.peer is not None:
            self.peer.send(*message)

    def arrive(self, ask: Ask) -> None:
        """A request that was admitted."""
        self._tell("arrive", *ask)

    def content(self, request: int) -> None:
        """Its first content came."""
        self._tell("content", request)

    def own(self, request: int, state: str) -> None:
        """Its answer has an id by which later requests ask for the same replica."""
        self._tell("own", request, state)

    def failed(self, request: int, cause: str) -> None:
        """Its attempt failed before content."""
        self._tell("failed", request, cause)

    def broken(self, request: int, cause: str) -> None:
        """Its stream was cut after content, and could be continued."""
        self._tell("broken", request, cause)

    def slow(self, request: int) -> None:
        """Its attempt passed the first-token deadline."""
        self._tell("slow", request)

    def moved(self, seen: dict[str, float]) -> None:
        """Content bytes came from these upstreams."""
        self._tell("moved", seen)

    def refused(self, counts: dict[tuple[int, str], int]) -> None:
        """Requests that were refused before they were routed."""
        self._tell("refused", counts)

    def over(self, request: int, entry: Entry) -> None:
        """It ended."""
        self._tell("over", request, *entry)

    def ready(self) -> bool:
        """What the brain said last."""
        return self.is_ready

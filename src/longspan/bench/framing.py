"""HTTP/1.1 answers as bytes: where the head ends, where the body ends, and which bytes of it arrived when. Pure.

The client needs to know the end of an answer while it measures, and must not pay for parsing then: it looks at the
last bytes only. Everything else happens after the run.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass

MAX_HEAD_BYTES = 64 * 1024
LAST_CHUNK = b"0\r\n\r\n"
# An end that cannot be anything else; what looks like an end otherwise is walked through.
SURE_END = b"[DONE]\n\n\r\n0\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})")


@dataclass(frozen=True, slots=True)
class Head:
    """The head of an answer.

    Attributes:
        length: of the body; -1: chunked, -2: it ends with the connection.
        begin: where the body begins.
        keep: whether the connection may carry another request.
    """

    status: int
    content_type: str
    length: int
    begin: int
    keep: bool


def read_head(data: bytes) -> Head | None:
    """The head, or None while it is incomplete. Interim answers (1xx) are skipped.

    Raises:
        ValueError: this is no HTTP.
    """
    start = 0
    while True:
        end = data.find(b"\r\n\r\n", start)
        if end < 0:
            if len(data) - start > MAX_HEAD_BYTES or not b"HTTP/1."[: len(data) - start].startswith(
                data[start : start + 7]
            ):
                raise ValueError("no HTTP answer")
            return None
        lines = data[start:end].split(b"\r\n")
        found = _STATUS.match(lines[0])
        if found is None:
            raise ValueError("no HTTP answer")
        status = int(found.group(1))
        if status < 200:
            start = end + 4
            continue
        known = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            known[name.strip().lower()] = value.strip()
        length = -2
        if b"chunked" in known.get(b"transfer-encoding", b"").lower():
            length = -1
        elif b"content-length" in known:
            length = int(known[b"content-length"])
        elif status in (204, 304):
            length = 0
        keep = b"close" not in known.get(b"connection", b"").lower() and length != -2
        keep = keep and not data.startswith(b"HTTP/1.0", start)
        kind = known.get(b"content-type", b"").decode("latin-1").lower()
        return Head(status, kind, length, end + 4, keep)


def may_end(tail: bytes) -> bool:
    """Whether a chunked body could end with these last bytes (64 are enough); cheap, and never wrongly False."""
    return tail.endswith(LAST_CHUNK) or (tail.endswith(b"\r\n\r\n") and b"\r\n0\r\n" in tail)


def chunked_end(data: bytes, begin: int) -> int:
    """Where the chunked body that begins at `begin` ends (behind its trailer); -1 while it is incomplete.

    Raises:
        ValueError: the chunks are broken.
    """
    at = begin
    while True:
        line = data.find(b"\r\n", at)
        if line < 0:
            return -1
        size = int(data[at:line].partition(b";")[0], 16)
        if size < 0:
            raise ValueError("a chunk of negative size")
        if size == 0:
            if data.startswith(b"\r\n", line + 2):
                return line + 4
            end = data.find(b"\r\n\r\n", line + 2)
            return end + 4 if end >= 0 else -1
        at = line + 2 + size + 2
        if at > len(data):
            return -1


def unchunk(data: bytes, begin: int) -> tuple[bytes, list[int], list[int], bool]:
    """The body of a chunked answer, as far as it came.

    Returns:
        The body; where in it each chunk begins; where in `data` that chunk begins; whether its end was seen.
    """
    pieces: list[bytes] = []
    body_begins: list[int] = []
    data_begins: list[int] = []
    at, total = begin, 0
    find = data.find
    while True:
        line = find(b"\r\n", at)
        if line < 0:
            return b"".join(pieces), body_begins, data_begins, False
        try:
            size = int(data[at:line], 16)
        except ValueError:
            try:
                size = int(data[at:line].partition(b";")[0], 16)
            except ValueError:
                return b"".join(pieces), body_begins, data_begins, False
        if size <= 0:
            return b"".join(pieces), body_begins, data_begins, size == 0 and b"\r\n\r\n" in data[line:]
        at = line + 2
        piece = data[at : at + size]
        body_begins.append(total)
        data_begins.append(at)
        pieces.append(piece)
        total += len(piece)
        at += size + 2


class Clock:
    """Maps a place in an answer's bytes to the moment it arrived.

    Args:
        ends: where each received block ends in the joined bytes, ascending.
        stamps: when each was received.
    """

    def __init__(
        self, ends: "list[int]", stamps: "list[float]", body_begins: list[int], data_begins: list[int]
    ) -> None:
        self._ends = ends
        self._stamps = stamps
        self._body = body_begins
        self._data = data_begins

    def at(self, body_place: int) -> float:
        """When the byte of the body at this place arrived."""
        chunk = bisect_right(self._body, body_place) - 1
        place = self._data[chunk] + body_place - self._body[chunk]
        block = bisect_right(self._ends, place)
        return self._stamps[min(block, len(self._stamps) - 1)]

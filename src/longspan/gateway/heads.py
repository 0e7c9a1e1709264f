"""Request heads that were parsed before. A client's head is the same on every request but for its content length,
and the same bytes mean the same: parsing them again, and judging key, path and headers again, is most of what a
request would cost. Pure.
"""

from typing import Any

from longspan.gateway.wire import Header

MAX_KNOWN = 512
# Longer ones would let strangers fill memory, and are rare.
MAX_HEAD_BYTES = 4096
# A content length of more digits is left to the parser, which knows what to say about it.
MAX_DIGITS = 10
_LENGTH = b"content-length:"
# These make the parser do more than read a head, or say where the body ends in another way.
_SPECIAL = (b"expect", b"upgrade", b"transfer-encoding")


class Head:
    """The head of a request, parsed.

    headers: names in lower case; the content length among them is that of the request that was parsed. known: the
    same for looking up; of a repeated header the last.
    meaning: what the server made of it; it notices itself when its configuration is another one.
    """

    __slots__ = ("headers", "keep", "known", "meaning", "method", "target", "version")

    def __init__(self, method: bytes, target: bytes, headers: list[Header], version: str, keep: bool) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.version = version
        self.keep = keep
        self.known = dict(headers)
        self.meaning: Any = None


def declined(head: Head) -> bytes | None:
    """The bytes of a head that offers to go on in HTTP/2, with the offer taken out of its Connection header; None for
    CONNECT and for offers of anything else, such as websockets, which clients need and do not get here.
    """
    offers = [value for name, value in head.headers if name == b"upgrade"]
    tokens = {token.strip().lower() for value in offers for token in value.split(b",")}
    if tokens != {b"h2c"} or head.method == b"CONNECT" or head.version != "1.1":
        return None
    lines = [head.method + b" " + head.target + b" HTTP/1.1"]
    for name, value in head.headers:
        if name == b"expect":
            continue  # answered when the head came the first time
        if name == b"connection":
            kept = [token for token in value.split(b",") if token.strip().lower() != b"upgrade"]
            lines.append(b"connection: " + b",".join(kept).strip())
        else:
            lines.append(name + b": " + value)
    if any(b"\r" in line or b"\n" in line for line in lines):
        return None
    return b"\r\n".join([*lines, b"", b""])


class KnownHead:
    """The bytes of a head around the digits of its content length, and what they mean."""

    __slots__ = ("after", "before", "head")

    def __init__(self, before: bytes, after: bytes, head: Head) -> None:
        self.before = before
        self.after = after
        self.head = head

    def body_of(self, data: bytes) -> bytes | None:
        """The body, if `data` is exactly one request with this head; else None, and the parser reads it."""
        before = self.before
        if not data.startswith(before):
            return None
        at = len(before)
        end = data.find(b"\r", at, at + MAX_DIGITS + 1)
        digits = data[at:end] if end > at else b""
        if not digits.isdigit() or not data.startswith(self.after, end):
            return None
        start = end + len(self.after)
        return data[start:] if len(data) - start == int(digits) else None


class HeadBook:
    """The known heads of a process, shared by its connections: thousands of them send the same."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], KnownHead] = {}

    def learn(self, raw: bytes, head: Head) -> KnownHead | None:
        """Takes the bytes that the parser read `head` from; None if such a head must always be parsed."""
        length = head.known.get(b"content-length")
        if length is None or not length.isdigit() or len(raw) > MAX_HEAD_BYTES:
            return None
        if any(name in head.known for name in _SPECIAL):
            return None
        lowered = raw.lower()
        if lowered.count(_LENGTH) != 1 or raw.count(b"\n") != raw.count(b"\r\n"):
            return None  # with bare line feeds the head may end earlier than at the first empty line
        at = raw.find(length, lowered.index(_LENGTH) + len(_LENGTH))
        before, after = raw[:at], raw[at + len(length) :]
        if not after.startswith(b"\r\n") or lowered[at - len(_LENGTH) - 1 : at].strip() != _LENGTH:
            return None
        known = self._known.get((before, after))
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[before, after] = KnownHead(before, after, head)
        return known

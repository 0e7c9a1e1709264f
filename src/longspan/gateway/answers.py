"""Plain whole answers of an engine, read without the parser: they are most of what is not streamed, and their header
lines are the same every time. Whatever is not plain is left to the parser. Pure.
"""

import re

from longspan.gateway.wire import Header

MAX_HEAD_BYTES = 4096
MAX_KNOWN = 1024
_LENGTH = b"content-length"
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2: token
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
# With these an answer is more than its bytes after the head.
_SPECIAL = frozenset({
    b"transfer-encoding", b"content-encoding", b"connection", b"upgrade", b"trailer", b"proxy-connection",
})  # fmt: skip
_STATUS = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2}) [\t\x20-\x7e]*")
_BODILESS = (204, 304)


class AnswerBook:
    """Header lines that were read before; shared by all connections of a process, bounded."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[bytes, Header] = {}

    def whole(self, data: bytes) -> tuple[int, list[Header], bytes] | None:
        """Status, headers (names in lower case) and body, if `data` is exactly one plain answer with its length."""
        end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
        if end < 0:
            return None
        first, *lines = data[:end].split(b"\r\n")
        found = _STATUS.fullmatch(first)
        if found is None:
            return None
        headers: list[Header] = []
        length = -1
        for line in lines:
            header = self._lines.get(line) or self._read(line)
            if header is None:
                return None
            if header[0] == _LENGTH:
                if length >= 0:
                    return None
                length = int(header[1])
            headers.append(header)
        status = int(found.group(1))
        if len(data) - end - 4 != length or status in _BODILESS:
            return None
        return status, headers, data[end + 4 :]

    def _read(self, line: bytes) -> Header | None:
        name, colon, value = line.partition(b":")
        value = value.lstrip(b" \t")  # the parser keeps what follows the value
        if not colon or _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            return None
        name = name.lower()
        if name in _SPECIAL or (name == _LENGTH and not (value.isdigit() and len(value) < 12)):
            return None
        if len(self._lines) >= MAX_KNOWN:
            self._lines.clear()
        header = self._lines[line] = (name, value)
        return header

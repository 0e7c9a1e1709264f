"""HTTP/1.1 heads as bytes: which headers pass, which are ours. No parsing, no sockets."""

from collections.abc import Iterable, Sequence

Header = tuple[bytes, bytes]

# RFC 9110 section 7.6.1: these belong to one connection, not to the message.
HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
# Set anew towards an engine. Coded bodies would blind the scanner, so none is asked for.
NOT_TO_ENGINE = HOP_BY_HOP | {
    b"host", b"content-length", b"expect", b"accept-encoding", b"authorization", b"x-api-key", b"cookie",
    b"x-longspan-local-only", b"x-longspan-priority", b"x-request-id",
}  # fmt: skip
NOT_TO_CLIENT = HOP_BY_HOP | {b"content-length", b"x-request-id", b"x-served-by"}

# Without a body these name no length.
_BODILESS = (b"GET", b"HEAD", b"DELETE")

REASONS = {
    200: b"OK", 201: b"Created", 202: b"Accepted", 204: b"No Content", 400: b"Bad Request", 401: b"Unauthorized",
    403: b"Forbidden", 404: b"Not Found", 405: b"Method Not Allowed", 408: b"Request Timeout",
    409: b"Conflict", 411: b"Length Required", 413: b"Content Too Large", 422: b"Unprocessable Content",
    429: b"Too Many Requests", 431: b"Request Header Fields Too Large", 500: b"Internal Server Error",
    501: b"Not Implemented", 502: b"Bad Gateway", 503: b"Service Unavailable", 504: b"Gateway Timeout",
}  # fmt: skip


def connection_tokens(headers: Iterable[Header]) -> frozenset[bytes]:
    """Names that a Connection header declares hop-by-hop (RFC 9110 section 7.6.1)."""
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            return frozenset(token.strip().lower() for token in value.split(b","))
    return frozenset()


def request_lead(method: bytes, target: bytes, host: bytes, headers: Sequence[Header]) -> bytes:
    """The head of a request to an upstream up to its last lines; `headers` are final and lower-case."""
    lines = [method + b" " + target + b" HTTP/1.1\r\nhost: " + host]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines)


def request_end(method: bytes, body_bytes: int) -> bytes:
    """The last lines of such a head, without the line end before them."""
    length = b"\r\ncontent-length: %d" % body_bytes if body_bytes or method not in _BODILESS else b""
    return length + b"\r\n\r\n"


def request_head(
    method: bytes, target: bytes, host: bytes, headers: Sequence[Header], body_bytes: int
) -> bytes:
    """The whole head of a request to an upstream."""
    return request_lead(method, target, host, headers) + request_end(method, body_bytes)


def response_head(status: int, headers: Sequence[Header], framing: bytes, close: bool) -> bytes:
    """The head of a response; `framing` is a whole `content-length: N` or `transfer-encoding: chunked` line."""
    lines = [b"HTTP/1.1 %d %b" % (status, REASONS.get(status, b"Status"))]
    lines += [name + b": " + value for name, value in headers]
    if framing:
        lines.append(framing)
    if close:
        lines.append(b"connection: close")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def split_url(url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and path (without a trailing slash) of an http(s) URL; user names are not taken.

    Raises:
        ValueError: another scheme, no host, a port that is none.
    """
    scheme, found, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    if not found or scheme not in ("http", "https") or "@" in authority or any(c in rest for c in "?# "):
        raise ValueError(url)
    if authority.startswith("["):
        host, _, tail = authority[1:].partition("]")
        port = tail.removeprefix(":")
    else:
        host, _, port = authority.partition(":")
    number = int(port) if port else (443 if scheme == "https" else 80)
    if not host or not 0 < number < 65536:
        raise ValueError(url)
    return scheme, host, number, "/" + path.rstrip("/") if path.rstrip("/") else ""


LAST_CHUNK = b"0\r\n\r\n"


def find(headers: Iterable[Header], name: bytes) -> bytes | None:
    """The first value of a lower-case name."""
    for key, value in headers:
        if key == name:
            return value
    return None

"""W3C trace context (Recommendation of 2021): reads `traceparent`, continues it, and writes our own. Pure."""

from collections.abc import Callable
from typing import NamedTuple

HEADER = b"traceparent"
_HEX = frozenset(b"0123456789abcdef")


class Trace(NamedTuple):
    """Hex ids as they stand in the header. parent: the caller's span, empty if the trace begins here."""

    trace: str
    span: str
    parent: str


def read(value: bytes | None) -> tuple[str, str, bool] | None:
    """Trace id, parent id and whether the caller records it; None if there is none or it is malformed."""
    if value is None or len(value) < 55 or value[2:3] + value[35:36] + value[52:53] != b"---":
        return None
    version, trace, parent, flags = value[:2], value[3:35], value[36:52], value[53:55]
    if not _HEX.issuperset(version + trace + parent + flags) or version == b"ff":
        return None
    if (version == b"00" and len(value) > 55) or not trace.strip(b"0") or not parent.strip(b"0"):
        return None
    return trace.decode(), parent.decode(), bool(int(flags, 16) & 1)


def begin(given: bytes | None, share: float, bits: Callable[[int], int]) -> Trace | None:
    """Our span for a request; None if it is not recorded.

    Args:
        given: the request's `traceparent`. Its caller decides whether the trace is recorded.
        share: of the requests without one that are recorded.
        bits: n random bits, as `random.getrandbits`.
    """
    found = read(given)
    if found is not None:
        return Trace(found[0], f"{bits(64) or 1:016x}", found[1]) if found[2] else None
    if bits(32) >= share * 2**32:
        return None
    return Trace(f"{bits(128) or 1:032x}", f"{bits(64) or 1:016x}", "")


def header(trace: Trace) -> bytes:
    """The `traceparent` for an upstream, whose parent is our span."""
    return f"00-{trace.trace}-{trace.span}-01".encode()


def parse(text: str) -> Trace | None:
    """What `format_trace` wrote; None for an empty text."""
    return Trace(*text.split("-")) if text else None


def format_trace(trace: Trace) -> str:
    """As it stands in the ledger: the three ids."""
    return "-".join(trace)

"""Log lines that a shipper wrapped into JSON (Docker, journald, Loki, structured logging): the line inside is what rules know."""

import json
from collections.abc import Mapping
from typing import Any

_TEXT = ("log", "message", "msg", "MESSAGE", "textPayload", "line", "text", "body", "_line")
_TIME = ("time", "timestamp", "@timestamp", "ts", "asctime", "receiveTimestamp")
_HOST = ("_HOSTNAME", "host_name", "hostname", "host", "node", "node_name", "nodeName")
RECORD_LIMIT_BYTES = 256 << 10
# Between what a record says of its line and the line itself.
HEAD_ENDS = "\x1f"


def _first(record: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    return next((value for key in keys if isinstance(value := record.get(key), str) and value), "")


def unwrapped(line: bytes) -> bytes:
    """The line inside a record, with the record's time and host before it; any other line as it is.

    A shipper's own level is not taken over: it calls everything "info". Python's `levelname` is.
    """
    if not line.startswith(b'{"') or len(line) > RECORD_LIMIT_BYTES:
        return line
    try:
        record = json.loads(line)
    except ValueError:
        return line
    if not isinstance(record, dict):
        return line
    text = _first(record, _TEXT).rstrip("\n")
    if not text:
        return line
    time, host, level = _first(record, _TIME), _first(record, _HOST), _first(record, ("levelname",))
    head = f"{time} {host} log: " if time and host and " " not in host else f"{time} " if time else ""
    # A record with several lines stays one line of the file: the scanner tells its parts apart by the carriage return.
    head += f"{level} " if level else ""
    parts = [f"{head}{HEAD_ENDS}{part}" if head else part for part in text.split("\n")]
    return "\r".join(parts).encode()

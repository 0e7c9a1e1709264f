"""Log lines as OpenTelemetry's log records, in the JSON form of OTLP over HTTP. Pure; no library is needed for that form."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# Severity numbers of OpenTelemetry's log data model. The word is vLLM's and Ray's level, behind the prefixes that name the process.
SEVERITIES = {"DEBUG": 5, "INFO": 9, "WARNING": 13, "ERROR": 17, "CRITICAL": 21, "FATAL": 21}
_LEVEL = re.compile(r"(?:^|[\s)\]\"])(DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\b")
_LEVEL_WITHIN = 120  # characters; further on it is what a line is about
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line of a process on a node, and when it came."""

    node: str
    process: str
    text: str
    came_at_unix_seconds: float


def severity(text: str) -> tuple[int, str]:
    """Number and word of a line's level; (0, "") where it names none."""
    found = _LEVEL.search(text[:_LEVEL_WITHIN])
    return (SEVERITIES[found[1]], found[1]) if found else (0, "")


def document(deployment: str, records: Iterable[LogRecord]) -> dict[str, Any]:
    """The body of a request to `/v1/logs`: one resource for each node and process."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in records:
        text = _COLOUR.sub("", one.text)
        number, word = severity(text)
        nanoseconds = str(int(one.came_at_unix_seconds * 1e9))
        record: dict[str, Any] = {"observedTimeUnixNano": nanoseconds, "body": {"stringValue": text}}
        if number:
            record |= {"severityNumber": number, "severityText": word}
        groups.setdefault((one.node, one.process), []).append(record)
    return {
        "resourceLogs": [
            {
                "resource": {"attributes": [
                    _attribute("service.name", f"longspan-{process}"), _attribute("service.namespace", deployment),
                    _attribute("host.name", node),
                ]},
                "scopeLogs": [{"scope": {"name": "longspan"}, "logRecords": found}],
            }
            for (node, process), found in groups.items()
        ]
    }  # fmt: skip


def _attribute(name: str, value: str) -> dict[str, Any]:
    return {"key": name, "value": {"stringValue": value}}

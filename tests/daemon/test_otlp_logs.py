"""Log lines to an OpenTelemetry collector: their form, and that a collector that fails costs only them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from test_telemetry import run, served, until

from longspan.daemon import otlp_logs
from longspan.daemon.otlp_logs import OtlpLogs
from longspan.monitor.otlp import LogRecord, document, severity


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("(Worker_TP0 pid=7) INFO 12-01 00:00:00 [a.py:1] x", (9, "INFO")), ("[2026-12-01] WARNING x", (13, "WARNING")),
        ("ERROR x", (17, "ERROR")), ("x" * 200 + " ERROR", (0, "")), ("INFORMATION", (0, "")), ("", (0, "")),
    ],
)  # fmt: skip
def test_a_line_has_its_level(line: str, found: tuple[int, str]) -> None:
    """The level that an engine writes at the beginning, none where it writes none."""
    assert severity(line) == found


def test_records_are_grouped_by_node_and_process() -> None:
    """The form that collectors take: resources with their attributes, times as text in nanoseconds, no colours."""
    records = [
        LogRecord("n0", "engine", "\x1b[31mERROR\x1b[0m x", 1.5),
        LogRecord("n0", "engine", "y", 2.0),
        LogRecord("n1", "agent", "z", 3.0),
    ]
    first, second = document("prod", records)["resourceLogs"]
    attributes = {a["key"]: a["value"]["stringValue"] for a in first["resource"]["attributes"]}
    assert attributes == {"service.name": "longspan-engine", "service.namespace": "prod", "host.name": "n0"}
    one, other = first["scopeLogs"][0]["logRecords"]
    assert one == {
        "observedTimeUnixNano": "1500000000",
        "body": {"stringValue": "ERROR x"},
        "severityNumber": 17,
        "severityText": "ERROR",
    }
    assert "severityNumber" not in other
    assert len(second["scopeLogs"][0]["logRecords"]) == 1


def test_lines_are_sent_and_failures_cost_only_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is queued without a collector; with one everything comes; what it refuses is counted as lost; the queue is bounded."""
    monkeypatch.setattr(otlp_logs, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(otlp_logs, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(otlp_logs, "MAX_WAITING", 5)
    came: list[dict[str, Any]] = []
    answers = [200, 503]

    async def collect(request: web.Request) -> web.Response:
        came.append(await request.json())
        return web.Response(status=answers.pop(0))

    async def test() -> None:
        async with served(web.post("/v1/logs", collect)) as url:
            path = tmp_path / "otlp-logs-url"
            sender = OtlpLogs("prod", path)
            sender.add("n0", "engine", ["nobody asked"])
            job = asyncio.create_task(sender.run())
            path.touch(0o600)
            path.write_text(f"{url}/v1/logs")
            await until(lambda: sender._address)
            sender.add("n0", "engine", ["one", "two"])
            await until(lambda: came)
            assert len(came[0]["resourceLogs"][0]["scopeLogs"][0]["logRecords"]) == 2
            assert sender.lost == 0
            sender.add("n0", "engine", ["x"] * 8)
            await until(lambda: sender.lost == 8)  # three had no room, five were refused
            job.cancel()

    run(test())

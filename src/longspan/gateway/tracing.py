"""OpenTelemetry spans out of finished ledger rows, sent by a thread of their own: nothing of it is on the data path.

A request is one server span with one client span for each attempt. Names follow OpenTelemetry's conventions for HTTP
and generative AI where they have one. Prompts and answers are in no span.
"""

import queue
import threading
from typing import Any

from longspan.errors import GatewayConfigError
from longspan.gateway.config import Tracing
from longspan.gateway.ledger import NO_FAILURE, Row
from longspan.gateway.trace import parse

BATCH_SECONDS = 1.0
# More spans than this wait for a collector that does not answer; the rest is lost, and counted.
MAX_WAITING = 20_000


class Tracer:
    """Takes rows, sends spans."""

    def __init__(self, settings: Tracing) -> None:
        """Loads the exporter.

        Raises:
            GatewayConfigError: the extra is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import ReadableSpan
        except ImportError as error:
            text = f"[tracing] is configured, but OpenTelemetry cannot be imported: {error}."
            raise GatewayConfigError(text, "pip install 'longspan[otel]', or remove [tracing].") from error
        self.settings = settings
        self.lost = 0
        self._span: Any = ReadableSpan
        self._resource = Resource.create({"service.name": settings.service_name})
        self._exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=5)
        self._rows: queue.Queue[Row] = queue.Queue(MAX_WAITING)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def add(self, row: Row) -> None:
        """Queues a row that has a trace."""
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            self.lost += 1

    def close(self) -> None:
        """Sends the rest, for a few seconds at most."""
        self._stop.set()
        self._thread.join(timeout=6)

    def _run(self) -> None:
        while True:
            stopping = self._stop.wait(BATCH_SECONDS)
            rows = [self._rows.get() for _ in range(self._rows.qsize())]
            if rows:
                self._send(rows)
            if stopping:
                self._exporter.shutdown()
                return

    def _send(self, rows: list[Row]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        spans = [span for row in rows for span in self._spans(row)]
        try:
            done = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - whatever a collector does, the gateway goes on
            done = False
        if not done:
            self.lost += len(rows)

    def _spans(self, row: Row) -> list[Any]:
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        trace = parse(row.entry.trace)
        assert trace is not None
        entry = row.entry
        flags = TraceFlags(TraceFlags.SAMPLED)

        def context(span: str, remote: bool = False) -> Any:
            return SpanContext(int(trace.trace, 16), int(span, 16), remote, flags)

        def make(
            name: str, kind: Any, span: str, parent: str, begin: float, end: float, failed: str, **more: Any
        ) -> Any:
            return self._span(
                name=name, context=context(span), parent=context(parent, kind is SpanKind.SERVER) if parent else None,
                resource=self._resource, kind=kind, attributes={k.replace("__", "."): v for k, v in more.items()},
                status=Status(StatusCode.ERROR, failed) if failed else Status(StatusCode.UNSET),
                start_time=int(begin * 1e9), end_time=int(end * 1e9),
            )  # fmt: skip

        end = entry.started + entry.seconds
        failed = "" if entry.outcome in NO_FAILURE else entry.outcome
        attributes: dict[str, Any] = {
            "http__response__status_code": entry.status, "gen_ai__request__model": entry.model,
            "gen_ai__usage__input_tokens": entry.prompt_tokens, "gen_ai__usage__output_tokens": entry.completion_tokens,
            "longspan__request_id": entry.request_id, "longspan__key": entry.key, "longspan__outcome": entry.outcome,
            "longspan__target": entry.target, "longspan__held_seconds": row.held_seconds, "longspan__cost_usd": entry.usd,
        }  # fmt: skip
        if entry.ttft_seconds is not None:
            attributes["longspan__ttft_seconds"] = entry.ttft_seconds
        if entry.reason:
            attributes["longspan__reason"] = entry.reason
        spans = [
            make(
                "gateway request",
                SpanKind.SERVER,
                trace.span,
                trace.parent,
                entry.started,
                end,
                failed,
                **attributes,
            )
        ]
        begins = [entry.started + attempt.at_seconds for attempt in row.attempts]
        for number, attempt in enumerate(row.attempts):
            last = number + 1 == len(row.attempts)
            span = f"{(int(trace.span, 16) + number + 1) % 2**64 or 1:016x}"
            spans.append(make(
                f"attempt {attempt.target}", SpanKind.CLIENT, span, trace.span, begins[number],
                end if last else begins[number + 1], attempt.cause, longspan__target=attempt.target,
                longspan__outside=attempt.outside, longspan__predicted_seconds=attempt.predicted_seconds,
            ))  # fmt: skip
        return spans

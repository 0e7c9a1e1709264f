"""The result of one run of a load test, as a frozen value and as a JSON document.

docs/bench.md describes the document field by field. `from_json` takes what `to_json` gave and nothing else: a document of
another schema is refused, not guessed at.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from longspan.bench.record import COLUMNS, RequestRecord
from longspan.errors import ResultError

SCHEMA = "longspan.bench/1"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a summary.

    Attributes:
        value: None when it is undefined or withheld, and then `note` says why; may be infinite (a percentile that
            falls among failures).
        unit: "s", "tok/s", "req/s", "tok", "1" (a share or a count).
        low, high: ends of the 95 % confidence interval; None where the sample cannot bound it on that side.
        count: observations behind it.
        note: why there is no value, or what limits it.
    """

    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    count: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class ClientQuality:
    """What the client knows about its own error.

    Attributes:
        processes: worker processes of the load generator.
        lag_p50_seconds, lag_p99_seconds, lag_max_seconds: how late the event loops woke during the run.
        batch_seconds: the longest that one loop spent stamping chunks that were ready together; the last of them is
            stamped so much late.
        dispatch_p99_seconds: sent minus scheduled, of requests that no limit held back; None in a closed loop.
        null_ttft_p50_seconds, null_ttft_p99_seconds: TTFT against the built-in null server at a like load, which is
            what the client, the kernel and the loopback add; None: not calibrated.
        null_itl_p99_seconds: how far a gap between chunks was off at the null server, p99.
        error_seconds: the error bar of a single latency: half of what the client may have added.
        cpu_share: the busiest worker's use of a core, 0 to 1.
        limited: the run is CLIENT-LIMITED: it measured the client, not the server.
        reasons: why it is limited, or what else lowers the trust.
    """

    processes: int = 0
    lag_p50_seconds: float = 0.0
    lag_p99_seconds: float = 0.0
    lag_max_seconds: float = 0.0
    batch_seconds: float = 0.0
    dispatch_p99_seconds: float | None = None
    null_ttft_p50_seconds: float | None = None
    null_ttft_p99_seconds: float | None = None
    null_itl_p99_seconds: float | None = None
    error_seconds: float = 0.0
    cpu_share: float = 0.0
    limited: bool = False
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineSample:
    """What the engine's gauges said once during the run; summed over engines, KV use is that of the fullest.

    Attributes:
        at_seconds: on the run's axis.
        running, waiting: requests. kv_share: 0 to 1; None where the engine has no such gauge.
        generation_tokens: counter since the engine's start.
    """

    at_seconds: float
    running: float | None = None
    waiting: float | None = None
    kv_share: float | None = None
    generation_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class TokenAudit:
    """Three counts of the same output tokens. All three are of the whole run, warm-up and failures included.

    Attributes:
        usage_tokens: sum of `usage`; None where no answer had any.
        engine_tokens: growth of the engine's `generation_tokens_total`; None: no counter was read.
        engine_request_tokens: growth of the engine's per-request sum (`request_generation_tokens_sum`).
        engine_requests: requests that the engine finished; client_requests: those that the client saw succeed.
        verdict: "agree", "differ" or "cannot tell".
        reason: what differs, or why it cannot be told.
    """

    usage_tokens: int | None = None
    engine_tokens: int | None = None
    engine_request_tokens: int | None = None
    engine_requests: int | None = None
    client_requests: int = 0
    verdict: str = "cannot tell"
    reason: str = "no engine counters were read"


@dataclass(frozen=True, slots=True)
class EngineObservation:
    """What the engine's /metrics said about the run.

    Attributes:
        urls: where it was read.
        before, after: counters by short name (`generation_tokens`, `preemptions`, `prefix_cache_hits`, ...), summed over
            engines and replicas; `restarted` tells that one of them shrank, which only a new process explains.
        prefix_hit_share: hits / queries in tokens during the run; None where there was no query.
        preemptions: during the run; None: no counter.
        samples: gauges, about once a second.
        trouble: why something could not be read.
    """

    urls: tuple[str, ...] = ()
    before: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float] = field(default_factory=dict)
    restarted: bool = False
    prefix_hit_share: float | None = None
    preemptions: float | None = None
    samples: tuple[EngineSample, ...] = ()
    audit: TokenAudit = TokenAudit()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """One run.

    Attributes:
        result_id: names it in the store; made by who ran it, unique.
        started_unix_seconds: wall clock at zero of the run's axis, for people only.
        url, kind, model: target; kind is "chat", "completions" or "embeddings".
        load: the load asked for, as data (see `load.LoadSpec.document`), enough to make it again.
        seeds: every seed used, by name.
        conditions: name -> value of the conditions lock; None means unknown, said openly.
        summary: figures by name; `stats.summarise` names them.
        client: the client about itself. engine: the engine about the run; None when its metrics were not read.
        window_seconds: begin and end of the measured window, after warm-up and up to the last arrival.
        interrupted: why the run ended early; "".
        notes: what a reader must know (warm caches, missing usage, ...).
        requests: every request, in the order of the schedule.
    """

    result_id: str
    started_unix_seconds: float
    url: str
    kind: str
    model: str
    load: Mapping[str, Any]
    seeds: Mapping[str, int]
    conditions: Mapping[str, Any]
    summary: Mapping[str, Figure]
    client: ClientQuality
    engine: EngineObservation | None
    window_seconds: tuple[float, float]
    requests: tuple[RequestRecord, ...]
    interrupted: str = ""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The document; strict JSON (an infinite value is the string "inf")."""
        found: dict[str, Any] = {"schema": SCHEMA}
        for item in fields(self):
            if item.name != "requests":
                found[item.name] = _plain(getattr(self, item.name))
        found["requests"] = {"columns": list(COLUMNS), "rows": [record.to_row() for record in self.requests]}
        return found

    @classmethod
    def from_json(cls, document: Any) -> "Result":
        """Reads a document.

        Raises:
            ResultError: it is none of ours, of another schema, or broken.
        """
        seen = document.get("schema") if isinstance(document, dict) else None
        if seen != SCHEMA:
            raise ResultError(
                f"This is no result of `longspan bench` that this version reads: its schema is {seen!r}, not {SCHEMA!r}.",
                "Results of other tools are read by `longspan bench import`.",
            )
        try:
            return _read(document)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ResultError(
                f"The result is broken: {type(error).__name__}: {error}.", "Measure again."
            ) from error


def _plain(value: Any) -> Any:
    """Dataclasses to objects, tuples to lists, infinities to strings."""
    if hasattr(value, "__dataclass_fields__"):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _read(document: dict[str, Any]) -> Result:
    engine = document["engine"]
    table = document["requests"]
    columns = table["columns"]
    begin, end = document["window_seconds"]
    plain = {
        name: document[name]
        for name in (
            "result_id",
            "started_unix_seconds",
            "url",
            "kind",
            "model",
            "load",
            "seeds",
            "conditions",
        )
    }
    return Result(
        **plain,
        summary={name: _figure(item) for name, item in document["summary"].items()},
        client=ClientQuality(**{**document["client"], "reasons": tuple(document["client"]["reasons"])}),
        engine=None if engine is None else _engine(engine),
        window_seconds=(float(begin), float(end)),
        requests=tuple(RequestRecord.from_row(dict(zip(columns, row, strict=True))) for row in table["rows"]),
        interrupted=document["interrupted"],
        notes=tuple(document["notes"]),
    )


def _figure(item: dict[str, Any]) -> Figure:
    ends = {name: _number(item[name]) for name in ("value", "low", "high")}
    return Figure(unit=item["unit"], count=item["count"], note=item["note"], **ends)


def _engine(item: dict[str, Any]) -> EngineObservation:
    return EngineObservation(
        **{
            **item,
            "urls": tuple(item["urls"]),
            "samples": tuple(EngineSample(**sample) for sample in item["samples"]),
            "audit": TokenAudit(**item["audit"]),
        }
    )

"""Puts the parts of a run together to its result. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longspan.bench import quality
from longspan.bench.calibrate import Calibration
from longspan.bench.load import LoadSpec
from longspan.bench.record import RequestRecord
from longspan.bench.result import ClientQuality, EngineObservation, Figure, Result
from longspan.bench.steady import mark_transient
from longspan.bench.summary import summarise
from longspan.workload import Objective

# A wall clock that moved more than this against the monotonic one during a run was set by somebody.
CLOCK_JUMP_SECONDS = 0.5
WARM_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Run:
    """What a run was and measured, before it is judged; `started_unix_seconds` is the wall clock at zero."""

    result_id: str
    url: str
    model: str
    spec: LoadSpec
    conditions: Mapping[str, Any]
    records: tuple[RequestRecord, ...]
    lag: quality.Lateness
    batch: quality.Lateness
    cpu_share: float
    processes: int
    started_unix_seconds: float
    clock_jump_seconds: float = 0.0
    interrupted: str = ""
    notes: tuple[str, ...] = ()


def conclude(
    run: Run,
    objectives: Sequence[Objective] = (),
    engine: EngineObservation | None = None,
    calibrated: Calibration | None = None,
) -> Result:
    """The result with its figures, from which those are withheld that the client could have made."""
    spec = run.spec
    records, steady = mark_transient(run.records)
    rate = spec.pattern.rate if spec.pattern.kind in ("constant", "poisson", "gamma", "bursts") else 0.0
    summed = summarise(records, objectives, rate)
    capped = not spec.pattern.is_open or spec.concurrency > 0 or spec.turns > 1
    dispatch = summed.figures.get("dispatch_p99_seconds")
    client = ClientQuality(
        processes=run.processes, lag_p50_seconds=run.lag.p50, lag_p99_seconds=run.lag.p99,
        lag_max_seconds=run.lag.longest, batch_seconds=run.batch.p99,
        dispatch_p99_seconds=None if capped or dispatch is None else dispatch.value, cpu_share=run.cpu_share,
    )  # fmt: skip
    if calibrated is not None:
        client = replace(
            client,
            null_ttft_p50_seconds=calibrated.ttft_p50_seconds,
            null_ttft_p99_seconds=calibrated.ttft_p99_seconds,
            null_itl_p99_seconds=calibrated.itl_p99_seconds,
            error_seconds=calibrated.ttft_p99_seconds / 2,
        )
    client = quality.judge(client, summed.figures, capped=capped, requested_rate=rate)
    figures = quality.withhold(summed.figures, quality.worst([run.lag, run.batch]))
    notes = [*run.notes, *summed.notes, *([steady] if steady else []), *_notes(run, engine)]
    return Result(
        result_id=run.result_id, started_unix_seconds=run.started_unix_seconds, url=run.url, kind=spec.kind,
        model=run.model, load=spec.document(), seeds={"seed": spec.seed, "salt": spec.salt},
        conditions=run.conditions, summary=figures, client=client, engine=engine,
        window_seconds=summed.window_seconds, requests=records, interrupted=run.interrupted, notes=tuple(notes),
    )  # fmt: skip


def _notes(run: Run, engine: EngineObservation | None) -> list[str]:
    notes = []
    if abs(run.clock_jump_seconds) > CLOCK_JUMP_SECONDS:
        notes.append(
            f"the wall clock moved by {run.clock_jump_seconds:+.1f} s during the run; figures use the monotonic clock and are not touched"
        )
    if engine is not None:
        share = engine.prefix_hit_share
        if (
            share is not None
            and share > WARM_SHARE
            and not run.spec.shared_prefix_tokens
            and run.spec.turns == 1
        ):
            notes.append(f"warm: {share:.0%} of the prompt tokens came from the prefix cache")
        if engine.restarted:
            notes.append("an engine was started anew during the run: its counters shrank")
        if engine.audit.verdict == "differ":
            notes.append(f"token counts differ: {engine.audit.reason}")
    return notes


def why_unsound(result: Result) -> str:
    """Why figures of this result are not to be believed; "" when they may be."""
    succeeded = result.summary.get("requests_succeeded", Figure(None, "1")).value
    if not succeeded:
        failed = next((one for one in result.requests if one.failed), None)
        return "No request succeeded" + (f"; the first: {failed.outcome}, {failed.error}." if failed else ".")
    if result.client.limited:
        return f"CLIENT-LIMITED: {'; '.join(result.client.reasons)}."
    if result.engine is not None and result.engine.audit.verdict == "differ":
        return f"Token counts differ: {result.engine.audit.reason}."
    return ""

"""One request while it runs, and the record that becomes of it. Pure."""

from array import array
from dataclasses import dataclass, field

from longspan.bench import record
from longspan.bench.load import LoadSpec
from longspan.bench.record import RequestRecord
from longspan.bench.scan import Scanned


@dataclass(slots=True)
class Sending:
    """One request while it runs."""

    index: int
    session: int
    turn: int
    wanted: int
    scheduled: float
    sent: float | None = None
    end: float | None = None
    outcome: str = record.NOT_SENT
    error: str = ""
    blocks: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    stamps: list[float] = field(default_factory=list)


def record_of(one: Sending, found: Scanned, zero: float, spec: LoadSpec) -> RequestRecord:
    """The record of a request from what was sent and what its answer was; `zero`: of the run, on the clock of the stamps."""
    chunks = array("d", (stamp - zero for stamp in found.stamps))
    outcome, error = (one.outcome, one.error) if one.outcome else (found.outcome, found.error)
    if not one.outcome and not one.blocks:
        outcome, error = record.RESET, "the connection closed before an answer"
    last = found.last_stamp
    wanted = one.wanted if spec.ignore_eos else 0
    return RequestRecord(
        index=one.index, scheduled_seconds=one.scheduled - zero,
        sent_seconds=None if one.sent is None else one.sent - zero,
        first_seconds=chunks[0] if chunks else None,
        last_seconds=None if last is None else last - zero,
        end_seconds=None if one.end is None else one.end - zero,
        chunk_seconds=chunks, chunks=len(chunks), first_chunk_tokens=found.first_chunk_tokens,
        prompt_tokens=found.prompt_tokens, output_tokens=found.output_tokens,
        cached_tokens=found.cached_tokens, counted=found.counted, wanted_tokens=wanted,
        finish=found.finish, outcome=outcome, status=found.status, error=error,
        warmup=one.index < spec.warmup, session=one.session if spec.turns > 1 else -1, turn=one.turn,
    )  # fmt: skip

"""One request of a load test, as it was measured. All times are seconds on one monotonic axis whose zero is the start of
the run (`CLOCK_MONOTONIC`, which all processes of a machine share).
"""

from array import array
from dataclasses import dataclass, field
from typing import Any

# Why a request counts as failed. "" is success; the others are what the JSON and the tables say.
OK = ""
ENGINE_ERROR = "engine_error"  # an error event inside a stream that began with 200
NO_END = "no_end"  # the stream ended without its end marker ([DONE]) or without a finish reason
EARLY_STOP = "early_stop"  # fewer tokens than asked for although end-of-sequence was to be ignored
WRONG_COUNT = "wrong_count"  # the usage says another number of tokens than the stream could have carried
HTTP_STATUS = "http_status"  # an answer with another status than 200
BAD_ANSWER = "bad_answer"  # a 200 whose body is none of what was asked for
REFUSED = "refused"  # no connection
RESET = "reset"  # the connection died before the answer was complete
TIMEOUT = "timeout"  # no complete answer within the time given to a request
ABORTED = (
    "aborted"  # the run was ended (Ctrl-C, --duration) while the request ran; neither success nor failure
)
NOT_SENT = "not_sent"  # scheduled, but the run ended before it was sent
FAILURES = (ENGINE_ERROR, NO_END, EARLY_STOP, WRONG_COUNT, HTTP_STATUS, BAD_ANSWER, REFUSED, RESET, TIMEOUT)
OUTCOMES = (OK, *FAILURES, ABORTED, NOT_SENT)

_MICRO = 1_000_000


def _stamps() -> "array[float]":
    return array("d")


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request.

    Attributes:
        index: its place in the schedule, from 0; unique in a run.
        warmup: sent to warm up; in no figure.
        session: the conversation it belongs to, or -1; turn: its place therein, from 0.
        scheduled_seconds: when the load wanted it sent. In a closed loop and for later turns of a conversation that is
            when it could first be sent: the end of the one before it, plus the think time.
        sent_seconds: when the client began to send it, the making of a new connection included; None: never.
        first_seconds: arrival of the first chunk that carries content, reasoning or a tool call; of an answer that is
            not a stream, None (it has no first token that a client could see).
        last_seconds: arrival of the last such chunk (of a plain answer: of its body). The end of E2EL.
        end_seconds: when the outcome was known: the end of the answer, or of the failure.
        chunk_seconds: arrivals of all content chunks, ascending; empty when they were not kept.
        chunks: number of content chunks.
        first_chunk_tokens: tokens of the first content chunk; 0 unknown. Exact where the stream says it, else its share
            of the characters.
        prompt_tokens, output_tokens: from `usage`; -1 unknown. cached_tokens: of the prompt, from the prefix cache; -1 unknown.
        counted: whether the output tokens come from `usage`; else they are the number of chunks.
        wanted_tokens: output tokens that were asked for with end-of-sequence ignored; 0: the engine may stop when it likes.
        finish: the finish reason, as the engine said it.
        outcome: "" for success, else one of `OUTCOMES`.
        status: HTTP status; 0 none.
        error: what was seen, for people; never the prompt, never a key.
    """

    index: int
    scheduled_seconds: float
    sent_seconds: float | None = None
    first_seconds: float | None = None
    last_seconds: float | None = None
    end_seconds: float | None = None
    chunk_seconds: "array[float]" = field(default_factory=_stamps)
    chunks: int = 0
    first_chunk_tokens: int = 0
    prompt_tokens: int = -1
    output_tokens: int = -1
    cached_tokens: int = -1
    counted: bool = False
    wanted_tokens: int = 0
    finish: str = ""
    outcome: str = OK
    status: int = 0
    error: str = ""
    warmup: bool = False
    session: int = -1
    turn: int = 0

    @property
    def ok(self) -> bool:
        """Whether it was answered as asked."""
        return self.outcome == OK

    @property
    def failed(self) -> bool:
        """Whether it counts as a failure; a request that the end of the run cut off is neither."""
        return self.outcome in FAILURES

    @property
    def tpot_seconds(self) -> float | None:
        """(last token - first token) / (N - tokens of the first chunk); None where that is undefined."""
        if self.first_seconds is None or self.last_seconds is None or self.first_chunk_tokens <= 0:
            return None
        rest = self.output_tokens - self.first_chunk_tokens
        return (self.last_seconds - self.first_seconds) / rest if rest > 0 else None

    def ttft_seconds(self, scheduled: bool) -> float | None:
        """Time to the first token, from the scheduled or from the sent time."""
        return _since(self.first_seconds, self.scheduled_seconds if scheduled else self.sent_seconds)

    def e2el_seconds(self, scheduled: bool) -> float | None:
        """Time to the last token, from the scheduled or from the sent time."""
        return _since(self.last_seconds, self.scheduled_seconds if scheduled else self.sent_seconds)

    def to_row(self) -> list[Any]:
        """The values of `COLUMNS`. Times are whole microseconds; chunk stamps are the gaps between them, which are short."""
        return [_packed(name, getattr(self, name)) for name in COLUMNS]

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "RequestRecord":
        """Reads a row made of `COLUMNS`; columns it does not know are ignored, missing ones keep their default.

        Raises:
            (KeyError, TypeError, ValueError): not such a row.
        """
        known = {name: _unpacked(name, row[name]) for name in COLUMNS if name in row}
        record = cls(**known)
        if record.outcome not in OUTCOMES:
            raise ValueError(f"unknown outcome {record.outcome!r}")
        return record


COLUMNS = tuple(RequestRecord.__slots__)


def _since(end: float | None, begin: float | None) -> float | None:
    return None if end is None or begin is None else end - begin


def _packed(name: str, value: Any) -> Any:
    if name == "chunk_seconds":
        whole = [round(stamp * _MICRO) for stamp in value]
        return [now - before for before, now in zip([0, *whole], whole, strict=False)]
    if name.endswith("_seconds"):
        return None if value is None else round(value * _MICRO)
    return value


def _unpacked(name: str, value: Any) -> Any:
    if name == "chunk_seconds":
        stamps, total = _stamps(), 0
        for gap in value:
            total += int(gap)
            stamps.append(total / _MICRO)
        return stamps
    if name.endswith("_seconds"):
        return None if value is None else int(value) / _MICRO
    return value

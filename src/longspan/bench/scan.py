"""What an answer was, from its bytes and when they arrived: tokens, first content, usage, end, failure. Pure.

The rules follow docs/bench.md. A chunk counts as content when it carries text, reasoning or a tool call; an empty text
without a role counts too (a special token that prints nothing); a chunk that only names the role, and comments, do not.
"""

import json
from array import array
from dataclasses import dataclass, field
from typing import Any

from longspan.bench import framing, record
from longspan.bench.content import content, first_share, told_tokens

MAX_ERROR_CHARACTERS = 200


@dataclass(slots=True)
class Scanned:
    """What was found. `stamps` are the arrivals of content chunks; `error` what was seen, for people."""

    outcome: str = record.OK
    error: str = ""
    stamps: "array[float]" = field(default_factory=lambda: array("d"))
    last_stamp: float | None = None
    first_chunk_tokens: int = 0
    prompt_tokens: int = -1
    output_tokens: int = -1
    cached_tokens: int = -1
    counted: bool = False
    finish: str = ""
    status: int = 0
    text: str = ""


@dataclass(slots=True)
class _Stream:
    """What the events of one stream say so far."""

    found: Scanned
    done: bool = False
    lengths: list[int] = field(default_factory=list)
    printed: int = 0
    told_first: int = 0
    texts: list[str] = field(default_factory=list)


def scan(
    data: bytes,
    ends: list[int],
    stamps: list[float],
    *,
    kind: str = "chat",
    stream: bool = True,
    wanted_tokens: int = 0,
    max_tokens: int = 0,
    keep_text: bool = False,
) -> Scanned:
    """Reads one answer.

    Args:
        data: all its bytes, head included.
        ends, stamps: where each received block ends in `data`, and when it was received.
        kind: "chat", "completions" or "embeddings".
        stream: whether a stream was asked for.
        wanted_tokens: output tokens asked for with end-of-sequence ignored; 0: it may stop when it likes.
        max_tokens: the limit that was sent; 0: none.
        keep_text: whether the answer's text is wanted (the next turn of a conversation needs it).
    """
    found = Scanned()
    try:
        head = framing.read_head(data)
    except ValueError:
        return _fail(found, record.BAD_ANSWER, f"no HTTP: {data[:40]!r}")
    if head is None:
        return _fail(found, record.RESET, "the connection closed before an answer")
    found.status = head.status
    if head.length == -1:
        body, body_begins, data_begins, whole = framing.unchunk(data, head.begin)
    else:
        body, body_begins, data_begins = data[head.begin :], [0], [head.begin]
        whole = head.length == -2 or len(body) >= head.length
    if head.status != 200:
        return _fail(found, record.HTTP_STATUS, f"HTTP {head.status}: {_said(body)}")
    clock = framing.Clock(ends, stamps, body_begins, data_begins)
    if not stream or kind == "embeddings":
        return _plain(found, body, whole, stamps, kind, wanted_tokens, max_tokens)
    if "event-stream" not in head.content_type:
        return _fail(
            found,
            record.BAD_ANSWER,
            f"not a stream but {head.content_type or 'nothing named'}: {_said(body)}",
        )
    state = _Stream(found)
    _events(state, body, clock, keep_text)
    found.text = "".join(state.texts)
    return _judge_stream(state, whole, wanted_tokens, max_tokens)


def _fail(found: Scanned, outcome: str, error: str) -> Scanned:
    if found.outcome == record.OK:
        found.outcome, found.error = outcome, error[:MAX_ERROR_CHARACTERS]
    return found


def _said(body: bytes) -> str:
    """An error's own words."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return body[:80].decode("utf-8", "replace")
    if isinstance(value, dict):
        error = value.get("error", value)
        value = error.get("message", error) if isinstance(error, dict) else error
    return str(value)[:160]


def _events(state: _Stream, body: bytes, clock: framing.Clock, keep_text: bool) -> None:
    """Goes through the lines; an event's time is the arrival of the end of its data line."""
    at, end = 0, len(body)
    find = body.find
    named_error = False
    while at < end and not state.done:
        line_end = find(b"\n", at)
        if line_end < 0:
            return  # cut off inside a line: a missing end, which is judged later
        line = body[at:line_end]
        at = line_end + 1
        if line.startswith(b"data:"):
            payload = line[5:].strip()
            if payload == b"[DONE]":
                state.done = True
                return
            _event(state, payload, clock, line_end, named_error, keep_text)
            named_error = False
        elif line.startswith(b"event:"):
            named_error = line[6:].strip() == b"error"


def _event(
    state: _Stream, payload: bytes, clock: framing.Clock, place: int, named_error: bool, keep_text: bool
) -> None:
    found = state.found
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        if named_error:
            _fail(found, record.ENGINE_ERROR, payload[:160].decode("utf-8", "replace"))
        else:
            _fail(found, record.BAD_ANSWER, f"an event that is no JSON: {payload[:60]!r}")
        return
    if not isinstance(value, dict):
        return
    if named_error or value.get("error") or value.get("object") == "error":
        _fail(found, record.ENGINE_ERROR, _said(payload))
        return
    usage = value.get("usage")
    if isinstance(usage, dict):
        _take_usage(found, usage)
    contents = [_choice(state, choice, usage, keep_text) for choice in value.get("choices") or ()]
    if any(contents):
        found.stamps.append(clock.at(place))


def _choice(state: _Stream, choice: Any, usage: Any, keep_text: bool) -> bool:
    """Takes one choice of a chunk; whether it carried content."""
    if not isinstance(choice, dict):
        return False
    if choice.get("finish_reason"):
        state.found.finish = str(choice["finish_reason"])
    length, text = content(choice)
    if length < 0:
        return False
    state.lengths.append(length)
    state.printed += length > 0
    if keep_text and text:
        state.texts.append(text)
    if len(state.lengths) == 1:
        state.told_first = told_tokens(choice, usage)
    return True


def _take_usage(found: Scanned, usage: dict[str, Any]) -> None:
    for name, key in (("prompt_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        value = usage.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12:
            setattr(found, name, value)
            found.counted = found.counted or name == "output_tokens"
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if isinstance(cached, int):
        found.cached_tokens = cached


def _judge_stream(state: _Stream, whole: bool, wanted: int, limit: int) -> Scanned:
    found = state.found
    chunks = len(found.stamps)
    if chunks:
        found.last_stamp = found.stamps[-1]
    if not found.counted and chunks:
        found.output_tokens = chunks
    found.first_chunk_tokens = state.told_first or first_share(state.lengths, found.output_tokens)
    if found.outcome == record.OK and not state.done:
        how = "the connection closed" if not whole else "the stream closed"
        _fail(found, record.NO_END, f"{how} after {chunks} chunks without [DONE]")
    if found.outcome == record.OK and not found.finish:
        _fail(found, record.NO_END, f"no finish reason after {chunks} chunks")
    _judge_count(found, wanted, limit)
    if found.counted and state.printed > found.output_tokens + 1:
        # Each chunk with text took a token; one more may hold text that a parser kept back.
        _fail(
            found,
            record.WRONG_COUNT,
            f"usage says {found.output_tokens} tokens, but {state.printed} chunks had text",
        )
    return found


def _judge_count(found: Scanned, wanted: int, limit: int) -> None:
    tokens = found.output_tokens
    if wanted and found.counted and tokens < wanted:
        _fail(found, record.EARLY_STOP, f"{tokens} of {wanted} tokens, finish reason {found.finish!r}")
    elif wanted and found.finish in ("stop", "eos"):
        _fail(
            found,
            record.EARLY_STOP,
            f"finish reason {found.finish!r} although the end of sequence was to be ignored",
        )
    elif limit and found.counted and found.finish == "length" and tokens < limit:
        _fail(found, record.EARLY_STOP, f"finish reason 'length' after {tokens} of {limit} tokens")
    elif limit and found.counted and tokens > limit:
        _fail(found, record.WRONG_COUNT, f"usage says {tokens} tokens, the limit was {limit}")


def _plain(
    found: Scanned, body: bytes, whole: bool, stamps: list[float], kind: str, wanted: int, limit: int
) -> Scanned:
    """An answer that is no stream: its only moment is the last byte's."""
    if not whole:
        return _fail(found, record.RESET, "the connection closed inside the answer")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return _fail(found, record.BAD_ANSWER, f"no JSON: {body[:60]!r}")
    if not isinstance(value, dict):
        return _fail(found, record.BAD_ANSWER, f"no object: {body[:60]!r}")
    if value.get("error") or value.get("object") == "error":
        return _fail(found, record.ENGINE_ERROR, _said(body))
    if isinstance(value.get("usage"), dict):
        _take_usage(found, value["usage"])
    found.last_stamp = stamps[-1] if stamps else None
    if kind == "embeddings":
        vectors = value.get("data")
        if not isinstance(vectors, list) or not vectors:
            return _fail(found, record.BAD_ANSWER, "no embedding in the answer")
        found.output_tokens, found.counted = 0, found.prompt_tokens >= 0
        return found
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return _fail(found, record.BAD_ANSWER, "no choice in the answer")
    found.finish = str(choices[0].get("finish_reason") or "")
    message = choices[0].get("message")
    text = message.get("content") if isinstance(message, dict) else choices[0].get("text")
    found.text = text if isinstance(text, str) else ""
    if not found.finish:
        return _fail(found, record.NO_END, "no finish reason")
    _judge_count(found, wanted, limit)
    return found

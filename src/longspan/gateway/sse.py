"""A side-car scanner for event streams: it reads along, holds lifecycle frames back until content, hides what the
client did not ask for, and knows how the stream ended. It delays nothing else.

Bytes leave in whole events only, so that an error event appended after a cut always stands on its own.
"""

import json
import re
from typing import Any

from longspan.gateway.continuation import Delivered, joined_usage
from longspan.gateway.dialect import CHAT, MESSAGES, RESPONSES, TEXT, Dialect

# An event longer than this is relayed in pieces: nothing of ours is that long, and memory must stay bounded.
MAX_HELD_BYTES = 256 * 1024

# More tokens than this are no count: they would not fit the ledger, and less than none would be a refund.
MAX_TOKENS = 10**12

Usage = dict[str, int]
_SCAN = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # the C scanner, undocumented since 2.7
_COLON = re.compile(rb"\s*:\s*")
_BOUNDARY = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)")


class StreamScanner:
    """Feeds on the decoded body of one stream.

    content: something that the client may not see twice was released.
    done: the dialect's end marker was seen.
    error: the engine's own error event, not released to the client.
    events: content events released, which is the number of tokens for engines that send one a token.
    usage: the last usage numbers seen.

    Args:
        delivered: where the text is kept if the stream may have to be continued elsewhere.
        resumed: tokens that the client has from an attempt before this one, which goes on where it ended.
    """

    __slots__ = (
        "_delivered", "_held", "_joined", "_resumed", "_tail", "content", "dialect", "done", "error", "events",
        "hide_usage", "usage",
    )  # fmt: skip

    def __init__(
        self, dialect: Dialect, hide_usage: bool = False, delivered: Delivered | None = None, resumed: int = 0
    ) -> None:
        self._delivered = delivered
        self._resumed = resumed
        self._joined = b""
        self.dialect = dialect
        self.hide_usage = hide_usage
        self.content = False
        self.done = False
        self.error: dict[str, Any] | None = None
        self.events = 0
        self.usage: Usage | None = None
        self._held = b""
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        """Takes the next bytes, returns what may go to the client now."""
        if self.done and self.dialect.usage_option:
            return b""  # a stream ends in its marker, whatever an engine sends behind it
        if self._tail:
            if b"\n" not in data and len(self._tail) < MAX_HELD_BYTES:
                self._tail += data
                return b""
            data = self._tail + data
            self._tail = b""
        if not data.endswith(b"\n\n"):
            cut = max(data.rfind(b"\n\n") + 2, data.rfind(b"\r\n\r\n") + 4)
            if cut < 4:
                cut = 2 if data[:2] == b"\n\n" else 0
            if len(data) - cut > MAX_HELD_BYTES:
                return self._release(data)
            self._tail = data[cut:]
            data = data[:cut]
            if not data:
                return b""
        if self.content and not self.error and self._delivered is None:
            for needle in self.dialect.needles:
                if needle in data:
                    break
            else:
                self.events += data.count(b"data:")
                return data
        return self._read(data)

    def rest(self) -> bytes:
        """What was never completed by a blank line; call at a clean end of the body."""
        tail, self._tail = self._tail, b""
        if not tail.strip():
            return tail if self.content else b""
        return self._read(tail)

    def held(self) -> bytes:
        """Lifecycle frames that were held back and never followed by content."""
        held, self._held = self._held, b""
        return held

    def _release(self, data: bytes) -> bytes:
        out = self._held + data
        self._held = b""
        self.content = True
        self.events += 1
        return out

    def _read(self, data: bytes) -> bytes:
        """Judges event by event."""
        out: list[bytes] = []
        for event in _split(data):
            if self.error is not None or (self.done and self.dialect.usage_option):
                break  # nothing follows an error event, nor [DONE]
            verdict = self._judge(event)
            if verdict == "hide":
                continue
            if verdict == "hold" and not self.content:
                self._held += event
                if len(self._held) > MAX_HELD_BYTES:
                    out.append(self._release(b""))
                continue
            if not self.content and verdict in ("content", "done"):
                out.append(self._held if not self._resumed else b"")
                self._held = b""
                self.content = True
            if self._joined:
                event, self._joined = self._joined, b""  # noqa: PLW2901 - the same event, its numbers put right
            if verdict == "content":
                self.events += 1
            if verdict != "error":
                out.append(event)
        return b"".join(out)

    def _judge(self, event: bytes) -> str:
        """`content`, `hold` (lifecycle), `hide`, `done` or `error`."""
        payload = _payload(event)
        if payload is None:
            return "hold"
        if payload == b"[DONE]":
            self.done = True
            return "done"
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError):
            value = None
        verdict = self._judge_value(value)
        if self._delivered is not None and verdict == "content":
            self._delivered.take(value)
        return verdict

    def _judge_value(self, value: Any) -> str:
        if not isinstance(value, dict):
            return "content"  # broken events are the engine's; they pass, and what follows them too
        if self.dialect is RESPONSES:
            return self._judge_responses(value)
        if self.dialect is MESSAGES:
            return self._judge_messages(value)
        return self._judge_openai(value)

    def _judge_openai(self, value: dict[str, Any]) -> str:
        if value.get("error"):
            return self._fail(value["error"])
        usage = value.get("usage")
        if isinstance(usage, dict):
            if self._resumed:
                value = joined_usage(value, self._resumed)
                self._joined = b"data: " + json.dumps(value).encode() + b"\n\n"
            self.usage = read_usage(value["usage"])
            if value.get("choices") == []:
                return "hide" if self.hide_usage else "hold"
        if self.dialect is not CHAT and self.dialect is not TEXT:
            return "content"
        choices = value.get("choices")
        if not isinstance(choices, list):
            return "hold"
        for choice in choices:
            if not isinstance(choice, dict) or choice.get("finish_reason") or choice.get("text"):
                return "content"
            delta = choice.get("delta")
            if isinstance(delta, dict) and any(item for name, item in delta.items() if name != "role"):
                return "content"
        return "hold"

    def _judge_responses(self, value: dict[str, Any]) -> str:
        kind = str(value.get("type", ""))
        response = value.get("response")
        if isinstance(response, dict) and isinstance(response.get("usage"), dict):
            self.usage = read_usage(response["usage"])
        if kind == "error":
            return self._fail(value)
        if kind == "response.failed":
            return self._fail((response or {}).get("error") or {"message": "response failed"})
        if kind in ("response.completed", "response.incomplete"):
            self.done = True
            return "done"
        return "content" if kind.endswith(".delta") else "hold"

    def _judge_messages(self, value: dict[str, Any]) -> str:
        kind = value.get("type")
        if kind == "error" or value.get("error"):
            return self._fail(value.get("error") or value)
        usage = value.get("usage") or (value.get("message") or {}).get("usage")
        if isinstance(usage, dict):
            self.usage = {**(self.usage or {}), **{k: v for k, v in read_usage(usage).items() if v}}
        if kind == "message_stop":
            self.done = True
            return "done"
        return "content" if kind in ("content_block_delta", "message_delta") else "hold"

    def _fail(self, error: Any) -> str:
        self.error = error if isinstance(error, dict) else {"message": str(error)}
        return "error"


def read_usage(usage: dict[str, Any]) -> Usage:
    """OpenAI's and Anthropic's names for the same three numbers."""
    found: Usage = {}
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    completion = usage.get("completion_tokens", usage.get("output_tokens"))
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = (
        details.get("cached_tokens") if isinstance(details, dict) else usage.get("cache_read_input_tokens")
    )
    for name, number in (("prompt", prompt), ("completion", completion), ("cached", cached)):
        if isinstance(number, int) and 0 <= number <= MAX_TOKENS:
            found[name] = number
    return found


def usage_in_json(body: bytes) -> Usage | None:
    """The usage object of an answer that is not a stream, found without parsing the rest."""
    at = len(body)
    while (at := body.rfind(b'"usage"', 0, at)) >= 0:
        found = _COLON.match(body, at + 7)
        if found is not None:
            text = body[found.end() : at + 2007].decode("utf-8", "replace")
            try:
                value, _ = _SCAN(text, 0)
            except (ValueError, StopIteration, RecursionError):
                return None
            return read_usage(value) if isinstance(value, dict) else None
    return None


def _split(data: bytes) -> list[bytes]:
    """Whole events, each with its blank line, so that joining them gives the input."""
    if b"\r" in data:
        return [part for part in _BOUNDARY.split(data) if part]
    parts = data.split(b"\n\n")
    last = parts.pop()
    events = [part + b"\n\n" for part in parts]
    if last:
        events.append(last)
    return events


def _payload(event: bytes) -> bytes | None:
    """The data lines of an event, joined; None for a comment or an empty event."""
    if event.startswith(b"data: ") and event.find(b"\n", 0, len(event) - 2) < 0:
        return event[6:].strip()
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None

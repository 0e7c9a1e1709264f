"""The APIs that pass through: which path speaks which, how its streams end, what its errors look like.

Four dialects: OpenAI chat, OpenAI completions, OpenAI Responses, Anthropic Messages. Everything else under
/v1/ is `other`: relayed, with OpenAI-style errors.
"""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API.

    needles: byte strings that may mark an event worth parsing once content flows; all others are relayed unread.
    strict_end: a stream without its end marker is cut off, not complete.
    usage_option: the API has stream_options.include_usage.
    """

    name: str
    needles: tuple[bytes, ...]
    strict_end: bool = True
    usage_option: bool = False
    generates: bool = True


CHAT = Dialect("chat", (b"[DONE]", b'"choices":[]', b'"choices": []', b'"error"'), usage_option=True)
TEXT = Dialect("completions", CHAT.needles, usage_option=True)
RESPONSES = Dialect(
    "responses",
    (
        b"response.completed",
        b"response.incomplete",
        b"response.failed",
        b'"error"',
        b"event: error",
        b"[DONE]",
    ),
)
MESSAGES = Dialect("messages", (b"message_stop", b"message_delta", b'"error"', b"[DONE]"))
OTHER = Dialect("other", (b"[DONE]", b'"error"', b'"usage"'), strict_end=False, generates=False)

PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": TEXT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}


def dialect_of(path: str) -> Dialect:
    """The dialect of a request path without its query."""
    return PATHS.get(path, OTHER)


def error_body(dialect: Dialect, status: int, code: str, message: str, **more: Any) -> bytes:
    """An error answer as JSON, in the shape that the dialect's clients parse."""
    kind = error_type(status)
    if dialect is MESSAGES:
        kind = _ANTHROPIC.get(status, "api_error")
        return json.dumps(
            {"type": "error", "error": {"type": kind, "message": message, "code": code, **more}}
        ).encode()
    error = {"message": message, "type": kind, "param": None, "code": code, **more}
    return json.dumps({"error": error}).encode()


def error_event(dialect: Dialect, message: str, code: str, tokens_delivered: int, retryable: bool) -> bytes:
    """The event that ends a broken stream. Both OpenAI clients raise on it, the Anthropic client too."""
    more = {"tokens_delivered": tokens_delivered, "retryable": retryable}
    if dialect is RESPONSES:
        event = {
            "type": "error",
            "code": code,
            "message": message,
            "param": None,
            "sequence_number": 0,
            **more,
        }
        return b"event: error\ndata: " + json.dumps(event).encode() + b"\n\n"
    if dialect is MESSAGES:
        error: dict[str, Any] = {"type": "api_error", "message": message, "code": code, **more}
        return b"event: error\ndata: " + json.dumps({"type": "error", "error": error}).encode() + b"\n\n"
    error = {"message": message, "type": "upstream_error", "param": None, "code": code, **more}
    return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"


def error_type(status: int) -> str:
    """The OpenAI `type` of an error of this status."""
    return _OPENAI.get(status, "server_error" if status >= 500 else "invalid_request_error")


_OPENAI = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error",
    502: "upstream_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip
_ANTHROPIC = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 529: "overloaded_error",
}  # fmt: skip

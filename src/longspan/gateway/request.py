"""A request's body as far as the gateway reads it, and the few rewrites that are made in its bytes."""

import json
import re
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from longspan.gateway import affinity
from longspan.gateway.dialect import Dialect

# Estimate of prompt tokens from bytes. English text has about four characters a token; a guess that usage corrects.
BYTES_PER_TOKEN = 4
USAGE_OPTION = b'"stream_options":{"include_usage":true},'
_FORM_MODEL = re.compile(rb'name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n')
_SCAN = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # the C scanner, undocumented since 2.7
_SPACE = re.compile(r"[ \t\r\n]*")


class BadBodyError(ValueError):
    """The body is not what its path takes; the text is for the client."""


@dataclass(slots=True)
class Body:
    """What was read from a body.

    fields: the top level of a JSON body, None for any other kind.
    shows_usage: the client asked for the usage chunk of a stream.
    max_tokens: the completion limit that the client set, 0 without one.
    """

    raw: bytes
    fields: dict[str, Any] | None
    model: str | None
    stream: bool = False
    shows_usage: bool = False
    max_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Estimated prompt tokens."""
        return len(self.raw) // BYTES_PER_TOKEN if self.fields is not None else 0


def read_body(dialect: Dialect, content_type: bytes, raw: bytes) -> Body:
    """Reads a body.

    Raises:
        BadBodyError: a generation request that is not a JSON object, or whose `model` is no string.
    """
    if not dialect.generates and raw.lstrip()[:1] != b"{":
        found = _FORM_MODEL.search(raw) if b"multipart/form-data" in content_type else None
        return Body(raw, None, found.group(1).decode("utf-8", "replace") if found else None)
    try:
        fields = _loads(raw)
    except (ValueError, RecursionError) as error:
        if not dialect.generates:
            return Body(raw, None, None)
        raise BadBodyError(f"The body is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadBodyError("The body is not a JSON object.")
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise BadBodyError("`model` is not a string.")
    options = fields.get("stream_options")
    shows = isinstance(options, dict) and bool(options.get("include_usage"))
    return Body(raw, fields, model, fields.get("stream") is True, shows, _limit(fields))


def _limit(fields: dict[str, Any]) -> int:
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = fields.get(name)
        if isinstance(value, int) and value > 0:
            return value
    return 0


def _loads(raw: bytes) -> Any:
    """json.loads without its guesses about the encoding: they cost as much as a small body, and JSON is UTF-8."""
    text = raw.decode()
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:
        return json.loads(
            text.removeprefix("\ufeff")
        )  # leading space, or no JSON: the slow way knows what to say
    return value if end == len(text) or not text[end:].strip() else json.loads(text)


def rewrite(body: Body, dialect: Dialect, model: str | None) -> bytes:
    """The bytes for an engine: another model name if given, and the usage chunk of a stream switched on.

    All other bytes stay as they came.
    """
    fields = body.fields
    if fields is None:
        if model is not None and body.model is not None and model != body.model:
            return _rename_form(body.raw, body.model, model)
        return body.raw
    changes: dict[str, Any] = {}
    if model is not None and body.model is not None and model != body.model:
        changes["model"] = model
    wants_usage = body.stream and dialect.usage_option and not body.shows_usage
    if wants_usage and "stream_options" in fields:
        options = fields["stream_options"]
        changes["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        wants_usage = False
    raw = replace_top_level(body.raw, changes) if changes else body.raw
    if wants_usage:
        at = raw.index(b"{") + 1
        raw = raw[:at] + USAGE_OPTION + raw[at:]
    return raw


def replace_top_level(raw: bytes, changes: dict[str, Any]) -> bytes:
    """Replaces values of top-level keys of a JSON object in place; everything else keeps its bytes."""
    text = raw.decode()
    decoder = json.JSONDecoder()
    out: list[str] = []
    copied = 0
    at = text.index("{") + 1
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if text[at] == "}":
            break
        if text[at] == ",":
            at += 1
            continue
        key, at = scanstring(text, at + 1)
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        at = _SPACE.match(text, at + 1).end()  # type: ignore[union-attr]  # past the colon
        _, end = decoder.raw_decode(text, at)
        if key in changes:
            out += (text[copied:at], json.dumps(changes[key]))
            copied = end
        at = end
    out.append(text[copied:])
    return "".join(out).encode()


def _rename_form(raw: bytes, old: str, new: str) -> bytes:
    found = _FORM_MODEL.search(raw)
    if found is None or found.group(1).decode("utf-8", "replace") != old:
        return raw
    return raw[: found.start(1)] + new.encode() + raw[found.end(1) :]


def session_of(body: Body, header: bytes | None, mode: str) -> int | None:
    """The session key: a header, else in session mode the `user` field, else the whole prompt's beginning."""
    if header:
        return affinity.session_key(header.decode("utf-8", "replace"))
    if mode != "session" or not body.fields:
        return None
    user = body.fields.get("user")
    if isinstance(user, str) and user:
        return affinity.session_key(user)
    text = affinity.prompt_text(body.fields, 1024)
    return affinity.session_key(text[:1024]) if text else None


def state_of(body: Body, path: str) -> str:
    """The stored response that a request continues, reads or deletes; it lives in one replica only."""
    found = path.split("/")[3] if path.startswith("/v1/responses/") else ""
    return found or _named(body, path, "previous_response_id")


def claimed_by(body: Body, path: str) -> str:
    """The id that a client chose for its response: vLLM stores it under `request_id`, over whatever was there."""
    return _named(body, path, "request_id")


def _named(body: Body, path: str, field: str) -> str:
    value = body.fields.get(field) if body.fields and path.rstrip("/") == "/v1/responses" else None
    return value if isinstance(value, str) else ""

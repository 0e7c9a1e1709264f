"""What is asked of a request before it is routed: path, key, body, model. Pure: bytes in, an answer or an Ask out.

What follows from the head alone is worked out once for every head, the rest once for every request.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field

from longspan.gateway import affinity
from longspan.gateway.config import PRIORITIES, GatewayConfig, KeyRule
from longspan.gateway.dialect import OTHER, PATHS, RESPONSES, Dialect, dialect_of, error_body
from longspan.gateway.heads import Head
from longspan.gateway.request import BadBodyError, Body, claimed_by, read_body, session_of, state_of
from longspan.gateway.ticket import Ask
from longspan.gateway.wire import Header

# vLLM's own endpoints outside /v1/ that answer questions and change nothing.
ALSO_PASSED = frozenset(
    {"/tokenize", "/detokenize", "/score", "/rerank", "/pooling", "/classify", "/v2/rerank", "/v2/embed"}
)
# These change the engine for everybody, so they are no business of a client's.
NEVER_PASSED = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
# These need no key.
OPEN_PATHS = ("/health", "/ready")
_TRICKS = ("..", "//", "\\", "#", "%2e", "%2f", "%5c", "%00", "%25", "%23", "%3f")
_PERCENT = re.compile(rb"%([0-9a-fA-F]{2})")
JSON: Header = (b"content-type", b"application/json")
ANYONE = KeyRule("anyone", "")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that needs no upstream. code: why a request is refused, one of a fixed list; empty if it is not."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = ()
    code: str = ""


@dataclass(slots=True, eq=False)
class Meaning:
    """What follows from a request's head alone, worked out once for every head (`heads.py`).

    config: the configuration it was worked out under. answer: given without reading the body.
    leads: the heads towards upstreams, all but what differs by request; filled as they are needed.
    """

    config: GatewayConfig
    path: str
    dialect: Dialect
    key: KeyRule = ANYONE
    answer: Answer | None = None
    local_only: bool = False
    priority: str = "normal"
    session: bytes | None = None
    request_id: str | None = None
    content_type: bytes = b""
    leads: dict[str, bytes] = field(default_factory=dict)


def path_of(target: bytes) -> str | None:
    """The path of a request target as an engine will read it, or None if it tries to be another one than it looks.

    Engines decode percent signs before they choose a handler, and forget what follows a `#`.
    """
    path = target.split(b"?", 1)[0].decode("latin-1")
    if path in PATHS:
        return path
    if not path.startswith("/") or any(trick in path.lower() for trick in _TRICKS):
        return None
    return _decoded(path) if "%" in path else path


def _decoded(path: str) -> str:
    """A path without percent signs, as engines read it."""
    raw = _PERCENT.sub(lambda found: bytes([int(found.group(1), 16)]), path.encode("latin-1"))
    return raw.decode("utf-8", "replace")


def key_of(hashes: dict[str, KeyRule], known: dict[bytes, bytes], open_door: bool) -> KeyRule | None:
    """The rule of the request's key; anyone's behind an open door; None if it is missing or wrong."""
    value = known.get(b"authorization")
    if value is not None and value[:7].lower() == b"bearer ":
        secret: bytes | None = value[7:].strip()
    else:
        secret = known.get(b"x-api-key")
    rule = hashes.get(hashlib.sha256(secret).hexdigest()) if secret else None
    return rule or (ANYONE if open_door and not hashes else None)


def study(config: GatewayConfig, hashes: dict[str, KeyRule], head: Head) -> Meaning:
    """Judges a head: its path, its key, what it wishes."""
    path = path_of(head.target)
    if path is None and head.method in (b"GET", b"HEAD") and head.target.startswith(b"/v1/models/"):
        # Answered here, so no engine can read it otherwise; clients write the slash in a model's name as %2F.
        path = _decoded(head.target.split(b"?", 1)[0].decode("latin-1"))
    if path is None:
        bad = refusal(OTHER, 400, "bad_path", "The request path is not plain.")
        return Meaning(config, "", OTHER, answer=bad)
    known = head.known
    meaning = Meaning(config, path, dialect_of(path), request_id=_request_id(known.get(b"x-request-id")))
    if path in OPEN_PATHS:
        return meaning
    key = key_of(hashes, known, open_door=not config.keys and not config.ledger)
    if key is None:
        text = "No valid key. Send `Authorization: Bearer lsp_...`."
        meaning.answer = refusal(meaning.dialect, 401, "invalid_api_key", text)
        return meaning
    meaning.key = key
    if path.startswith("/v1/models") and head.method in (b"GET", b"HEAD"):
        meaning.answer = models_answer(config, key, path)
    elif path in NEVER_PASSED:
        text = f"{path} changes the engine for everybody and is not passed on."
        meaning.answer = refusal(meaning.dialect, 403, "forbidden_path", text)
    elif not path.startswith("/v1/") and path not in ALSO_PASSED:
        meaning.answer = refusal(meaning.dialect, 404, "not_found", f"There is nothing at {path}.")
    else:
        _wishes(meaning, known, head.headers)
    return meaning


def _wishes(meaning: Meaning, known: dict[bytes, bytes], given: list[Header]) -> None:
    """What a client may ask for in headers of ours."""
    config, key = meaning.config, meaning.key
    names = (name.lower().encode() for name in config.routing.session_headers)
    meaning.session = next((known[name] for name in names if name in known), None)
    meaning.local_only = key.local_only
    if b"x-longspan-local-only" in known:  # said twice, once is enough
        said = (value.strip().lower() for name, value in given if name == b"x-longspan-local-only")
        meaning.local_only = key.local_only or any(
            value not in (b"0", b"false", b"no", b"") for value in said
        )
    meaning.priority = key.priority
    wanted = known.get(b"x-longspan-priority", b"").decode("latin-1").strip().lower()
    if wanted in PRIORITIES and PRIORITIES.index(wanted) > PRIORITIES.index(key.priority):
        meaning.priority = wanted  # a client may step back, never forward
    meaning.content_type = known.get(b"content-type", b"")


def _request_id(given: bytes | None) -> str | None:
    """The client's own id, if it is one that may stand in a log and a header."""
    if given and len(given) <= 64 and given.replace(b"-", b"").replace(b"_", b"").isalnum():
        return given.decode()
    return None


def admit(meaning: Meaning, request: int, raw: bytes) -> tuple[Ask, Body] | Answer:
    """Reads a request's body and says what it asks for; an answer if it asks for nothing that is here."""
    config, key, dialect = meaning.config, meaning.key, meaning.dialect
    try:
        body = read_body(dialect, meaning.content_type, raw)
    except BadBodyError as error:
        return refusal(dialect, 400, "invalid_body", str(error))
    state = claims = ""
    if dialect is RESPONSES or dialect is OTHER:
        state, claims = state_of(body, meaning.path), claimed_by(body, meaning.path)
    model = config.resolve(body.model) if body.model else _only_model(config, state)
    if model is None:
        if body.model:
            names = ", ".join(entry.name for entry in config.models) or "none"
            text = f"The model {body.model!r} does not exist here. Models: {names}."
            return refusal(dialect, 404, "model_not_found", text)
        return refusal(dialect, 400, "model_required", "Several models are served here: name one in `model`.")
    if key.models and model not in key.models:
        return refusal(dialect, 403, "model_forbidden", f"Key {key.name!r} may not use the model {model!r}.")
    mode = config.routing.affinity
    prefix: tuple[int, ...] = ()
    if (
        len(raw) >= affinity.PREFIX_STEPS[0]
        and mode in ("auto", "prefix")
        and not meaning.session
        and body.fields
    ):
        prefix = affinity.prefix_keys(affinity.prompt_text(body.fields))
    session = session_of(body, meaning.session, mode) if meaning.session or mode == "session" else None
    return Ask(
        request, model, key.name, body.prompt_tokens, body.max_tokens, body.stream, meaning.local_only,
        meaning.priority, session, prefix, state, claims,
    ), body  # fmt: skip


def _only_model(config: GatewayConfig, state: str) -> str | None:
    """Where no model is named: the only one there is; for stored state its owner decides, and any name will do."""
    return config.models[0].name if len(config.models) == 1 or (config.models and state) else None


def refusal(dialect: Dialect, status: int, code: str, message: str) -> Answer:
    """An error that no retry will change."""
    headers: list[Header] = [(b"content-type", b"application/json"), (b"x-should-retry", b"false")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return Answer(status, error_body(dialect, status, code, message), tuple(headers), code)


def models_answer(config: GatewayConfig, key: KeyRule, path: str) -> Answer:
    """GET /v1/models and /v1/models/NAME: what is configured, whatever is up at the moment."""
    names = [name for entry in config.models for name in (entry.name, *entry.aliases)]
    names += [name for provider in config.providers for name in provider.models if name not in names]
    if key.models:
        names = [name for name in names if config.resolve(name) in key.models]
    unique = list(dict.fromkeys(names))
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "longspan"} for name in unique]
    wanted = path.removeprefix("/v1/models").removeprefix("/")
    if not wanted:
        return Answer(200, json.dumps({"object": "list", "data": data}).encode(), (JSON,))
    for entry in data:
        if entry["id"] == wanted:
            return Answer(200, json.dumps(entry).encode(), (JSON,))
    return refusal(dialect_of(path), 404, "model_not_found", f"The model {wanted!r} does not exist here.")

"""What is asked of a request before it is routed: path, key, body, model. Pure: bytes in, an answer or an Ask out."""

import hashlib
import json
from dataclasses import dataclass

from longspan.gateway import affinity
from longspan.gateway.config import PRIORITIES, GatewayConfig, KeyRule
from longspan.gateway.dialect import PATHS, Dialect, dialect_of, error_body
from longspan.gateway.request import BadBodyError, Body, read_body, session_of, state_of
from longspan.gateway.ticket import Ask
from longspan.gateway.wire import Header

# vLLM's own endpoints outside /v1/ that answer questions and change nothing.
ALSO_PASSED = frozenset(
    {"/tokenize", "/detokenize", "/score", "/rerank", "/pooling", "/classify", "/v2/rerank", "/v2/embed"}
)
# These change the engine for everybody, so they are no business of a client's.
NEVER_PASSED = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
_TRICKS = ("..", "//", "\\", "%2e", "%2f", "%5c", "%00", "%25")
JSON: Header = (b"content-type", b"application/json")
ANYONE = KeyRule("anyone", "")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that needs no upstream."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may be routed."""

    ask: Ask
    body: Body
    dialect: Dialect


def path_of(target: bytes) -> str | None:
    """The path of a request target, or None if it tries to be another one than it looks."""
    path = target.split(b"?", 1)[0].decode("latin-1")
    if path in PATHS:
        return path
    if not path.startswith("/") or any(trick in path.lower() for trick in _TRICKS):
        return None
    return path


def key_of(hashes: dict[str, KeyRule], known: dict[bytes, bytes], open_door: bool) -> KeyRule | None:
    """The rule of the request's key; anyone's behind an open door; None if it is missing or wrong."""
    value = known.get(b"authorization")
    if value is not None and value[:7].lower() == b"bearer ":
        secret: bytes | None = value[7:].strip()
    else:
        secret = known.get(b"x-api-key")
    rule = hashes.get(hashlib.sha256(secret).hexdigest()) if secret else None
    return rule or (ANYONE if open_door and not hashes else None)


def admit(
    config: GatewayConfig, key: KeyRule, request: int, path: str, known: dict[bytes, bytes], raw: bytes
) -> Admitted | Answer:
    """Reads a request's body and says what it asks for."""
    dialect = dialect_of(path)
    if path in NEVER_PASSED:
        return refusal(
            dialect, 403, "forbidden_path", f"{path} changes the engine for everybody and is not passed on."
        )
    if not path.startswith("/v1/") and path not in ALSO_PASSED:
        return refusal(dialect, 404, "not_found", f"There is nothing at {path}.")
    try:
        body = read_body(dialect, known.get(b"content-type", b""), raw)
    except BadBodyError as error:
        return refusal(dialect, 400, "invalid_body", str(error))
    model = config.resolve(body.model) if body.model else _only_model(config, state_of(body, path))
    if model is None:
        if body.model:
            names = ", ".join(entry.name for entry in config.models) or "none"
            text = f"The model {body.model!r} does not exist here. Models: {names}."
            return refusal(dialect, 404, "model_not_found", text)
        return refusal(dialect, 400, "model_required", "Several models are served here: name one in `model`.")
    if key.models and model not in key.models:
        return refusal(dialect, 403, "model_forbidden", f"Key {key.name!r} may not use the model {model!r}.")
    return Admitted(_ask(config, key, request, model, body, known, path), body, dialect)


def _ask(
    config: GatewayConfig,
    key: KeyRule,
    request: int,
    model: str,
    body: Body,
    known: dict[bytes, bytes],
    path: str,
) -> Ask:
    session_header = next(
        (known[n] for n in map(str.encode, config.routing.session_headers) if n in known), None
    )
    local = key.local_only
    if b"x-longspan-local-only" in known:
        local = local or known[b"x-longspan-local-only"].strip().lower() not in (b"0", b"false", b"no", b"")
    priority = key.priority
    wanted = known.get(b"x-longspan-priority", b"").decode("latin-1").strip().lower()
    if wanted in PRIORITIES and PRIORITIES.index(wanted) > PRIORITIES.index(priority):
        priority = wanted  # a client may step back, never forward
    mode = config.routing.affinity
    prefix: tuple[int, ...] = ()
    if (
        mode in ("auto", "prefix")
        and not session_header
        and body.fields
        and len(body.raw) >= affinity.PREFIX_STEPS[0]
    ):
        prefix = affinity.prefix_keys(affinity.prompt_text(body.fields))
    session = session_of(body, session_header, mode)
    state = state_of(body, path)
    tokens, most = body.prompt_tokens, body.max_tokens
    return Ask(request, model, key.name, tokens, most, body.stream, local, priority, session, prefix, state)


def _only_model(config: GatewayConfig, state: str) -> str | None:
    """Where no model is named: the only one there is; for stored state its owner decides, and any name will do."""
    return config.models[0].name if len(config.models) == 1 or (config.models and state) else None


def refusal(dialect: Dialect, status: int, code: str, message: str) -> Answer:
    """An error that no retry will change."""
    headers: list[Header] = [(b"content-type", b"application/json"), (b"x-should-retry", b"false")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return Answer(status, error_body(dialect, status, code, message), tuple(headers))


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

"""The admin API's description (OpenAPI 3.1) and the check of a new key's fields. Data, no I/O."""

from typing import Any

from longspan.gateway.config import PRIORITIES

KEY_FIELDS = (
    "name", "local_only", "priority", "requests_per_minute", "tokens_per_minute", "max_parallel", "models",
)  # fmt: skip
NAME_PATTERN_TEXT = "^[A-Za-z0-9_.-]{1,64}$"
_NAME_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_LIMIT: dict[str, Any] = {"type": ["integer", "null"], "minimum": 1, "maximum": 10**12}
_ERROR = {
    "description": "error",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_SPAN = [
    {
        "name": name,
        "in": "query",
        "required": False,
        "schema": {"type": "number", "minimum": 0, "exclusiveMaximum": 1e12},
    }
    for name in ("since", "until")
]


def bad_field(fields: Any) -> str:
    """What is wrong with the fields of a new key, or an empty string."""
    if not isinstance(fields, dict):
        return "The body is not a JSON object."
    unknown = sorted(set(fields) - set(KEY_FIELDS))
    if unknown:
        return f"Unknown fields {', '.join(map(repr, unknown))}. Known: {', '.join(KEY_FIELDS)}."
    name = fields.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= 64 or not set(name) <= _NAME_CHARACTERS:
        return f"name must match {NAME_PATTERN_TEXT}."
    if not isinstance(fields.get("local_only", False), bool):
        return "local_only is true or false."
    if fields.get("priority", "normal") not in PRIORITIES:
        return f"priority is one of {', '.join(PRIORITIES)}."
    for limit in ("requests_per_minute", "tokens_per_minute", "max_parallel"):
        value = fields.get(limit)
        whole = type(value) is int or (
            type(value) is float and value.is_integer()
        )  # 3.0 is an integer in JSON Schema
        if value is not None and not (whole and 1 <= value <= 10**12):
            return f"{limit} is a whole number from 1, or null for no limit."
    models = fields.get("models", [])
    if not isinstance(models, list) or not all(isinstance(model, str) for model in models):
        return "models is a list of model names."
    return ""


def _get(
    summary: str, parameters: list[dict[str, Any]], kind: str = "application/json", *more: str
) -> dict[str, Any]:
    content = {kind: {"schema": {"type": "object"} if kind == "application/json" else {"type": "string"}}}
    codes = dict.fromkeys(("401", *more), _ERROR)
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": {"200": {"description": "ok", "content": content}, **codes},
    }


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


_KEY_SCHEMA: dict[str, Any] = {
    "type": "object", "required": ["name"], "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "pattern": NAME_PATTERN_TEXT}, "local_only": {"type": "boolean"},
        "priority": {"enum": list(PRIORITIES)}, "requests_per_minute": _LIMIT, "tokens_per_minute": _LIMIT,
        "max_parallel": _LIMIT, "models": {"type": "array", "items": {"type": "string"}},
    },
}  # fmt: skip
_NUMBER = {"type": "number", "minimum": 0, "exclusiveMaximum": 1e12}
_EXPORT = _get(
    "Rows of the ledger",
    [*_SPAN, _query("format", {"enum": ["jsonl", "csv"]})],
    "application/jsonl",
    "400",
    "409",
)
_EXPORT["responses"]["200"]["content"]["text/csv"] = {"schema": {"type": "string"}}

SPEC: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Longspan gateway admin API", "version": "1"},
    "security": [{"key": []}],
    "components": {
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        "schemas": {"Error": {"type": "object", "required": ["error"]}, "Key": _KEY_SCHEMA},
    },
    "paths": {
        "/metrics": {"get": _get("Prometheus metrics", [], "text/plain")},
        "/admin/status": {"get": _get("Replicas, queues and money now", [])},
        "/admin/keys": {
            "get": _get("Keys and their limits", []),
            "post": {
                "summary": "Make a key; the answer shows it once",
                "requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Key"}}}},
                "responses": {
                    "201": {"description": "made", "content": {"application/json": {"schema": {"type": "object", "required": ["key"]}}}},
                    "400": _ERROR, "401": _ERROR, "409": _ERROR, "503": _ERROR,
                },
            },
        },
        "/admin/keys/{name}": {
            "delete": {
                "summary": "Revoke a key",
                "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string", "pattern": NAME_PATTERN_TEXT}}],
                "responses": {"204": {"description": "revoked"}, "401": _ERROR, "404": _ERROR, "503": _ERROR},
            }
        },
        "/admin/usage": {
            "get": _get("Totals", [*_SPAN, _query("by", {"enum": ["key", "model", "target", "outcome"]})], "application/json", "400", "409")
        },
        "/admin/requests/{id}": {
            "get": _get(
                "One request explained",
                [{"name": "id", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}}],
                "application/json", "404", "409",
            )
        },
        "/admin/replay": {
            "get": _get(
                "Another overflow threshold on the same requests",
                [*_SPAN, _query("threshold_seconds", _NUMBER), _query("usd_per_million_completion_tokens", _NUMBER)],
                "application/json", "400", "409",
            )
        },
        "/admin/export": {"get": _EXPORT},
        "/admin/audit": {"get": _get("Newest lines of the audit log", [], "application/json", "409")},
    },
}  # fmt: skip

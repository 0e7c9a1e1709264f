"""Plain documents -> YAML text that people can read and edit. Pure.

A subset that every reader agrees on: block mappings and sequences, and JSON's scalars, which are YAML's too. A string
stands without quotes only where no version of YAML could take it for something else.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(?::[0-9A-Za-z][A-Za-z0-9_./-]*)*")
# YAML 1.1 reads these as booleans or null.
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def to_yaml(documents: Sequence[Any]) -> str:
    """Several documents, each after its `---`. Values are those of JSON; keys are strings."""
    return "".join("---\n" + "\n".join(_lines(document)) + "\n" for document in documents)


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        found = []
        for key, inner in value.items():
            found += _entry(f"{_scalar(key)}:", inner)
        return found
    if isinstance(value, list | tuple) and value:
        found = []
        for inner in value:
            first, *rest = _lines(inner)
            found += [f"- {first}", *(f"  {line}" for line in rest)]
        return found
    return [_scalar(value)]


def _entry(key: str, value: Any) -> list[str]:
    if isinstance(value, dict | list | tuple) and value:
        return [key, *(f"  {line}" for line in _lines(value))]
    return [f"{key} {_scalar(value)}"]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    if isinstance(value, tuple):
        value = list(value)
    text = json.dumps(value, ensure_ascii=False)
    # JSON allows these raw in a string, YAML 1.1 takes them for line breaks or refuses them.
    return re.sub(
        "[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]",
        lambda found: f"\\u{ord(found[0]):04x}",
        text,
    )

"""Frozen dataclasses to plain JSON documents and back, as long as the sender and the reader may be of two versions. Pure.

A key that is missing becomes the field's default, a key that nobody knows is ignored, and a value of another type is an error.
"""

import dataclasses
import functools
import math
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


class RecordError(ValueError):
    """A document is not of the form that the dataclass asks for."""


def to_json(value: Any) -> Any:
    """A document of lists, dictionaries and plain values; a number that JSON lacks (NaN, infinity) becomes null."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if kind in {tuple, list}:
        return [to_json(item) for item in value]
    if kind is dict:
        return {str(key): to_json(item) for key, item in value.items()}
    return {name: to_json(getattr(value, name)) for name in _names(kind)}


# Agents write one each second: what is asked of each class is asked once.
_PLAIN = frozenset({str, int, bool, type(None)})
_NAMES: dict[type[Any], tuple[str, ...]] = {}


def _names(kind: type[Any]) -> tuple[str, ...]:
    if kind not in _NAMES:
        _NAMES[kind] = tuple(field.name for field in dataclasses.fields(kind))
    return _NAMES[kind]


def from_json(kind: type[T], document: Any) -> T:
    """The inverse of `to_json` for a dataclass.

    Raises:
        RecordError: with the field that does not fit.
    """
    found = _read(kind, document, kind.__name__)
    assert isinstance(found, kind)
    return found


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise RecordError(f"{where} is no object")
        hints = _hints(hint)
        known = {f.name: _read(hints[f.name], value[f.name], f"{where}.{f.name}")
                 for f in dataclasses.fields(hint) if f.name in value}  # fmt: skip
        try:
            return hint(**known)
        except TypeError as error:  # a field without a default is missing
            raise RecordError(f"{where}: {error}") from error
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        if value is None and type(None) in arguments:
            return None
        return _read(next(a for a in arguments if a is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise RecordError(f"{where} is no list")
        return tuple(_read(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is typing.Literal:
        if value not in arguments:
            raise RecordError(f"{where} is {value!r}, which is none of {', '.join(map(str, arguments))}")
        return value
    return _plain(hint, value, where)


def _plain(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise RecordError(f"{where} is {type(value).__name__}, not {hint.__name__}")
    return value

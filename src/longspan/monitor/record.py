"""Frozen dataclasses to plain JSON documents and back, as long as the sender and the reader may be of two versions. Pure.

A key that is missing becomes the field's default, a key that nobody knows is ignored, and a value of another type is an error.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable
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
    try:
        hint: Any = kind
        found = _reader(hint)(document)
    except RecordError as error:
        raise RecordError(f"{kind.__name__}{error}") from error
    assert isinstance(found, kind)
    return found


# A reader takes a value and gives what it means, or raises RecordError; the way to the field is put in front on the way out,
# since a picture of 64 nodes has 25,000 fields and only a wrong one needs its way.
Reader = Callable[[Any], Any]


@functools.cache
def _reader(hint: Any) -> Reader:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _object_reader(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        inner = _reader(next(a for a in arguments if a is not type(None)))
        return (lambda value: None if value is None else inner(value)) if type(None) in arguments else inner
    if origin is tuple:
        return _list_reader(_reader(arguments[0]))
    if origin is typing.Literal:
        return _literal_reader(arguments)
    return _plain_reader(hint)


def _object_reader(kind: type) -> Reader:
    hints = typing.get_type_hints(kind)
    fields = [(field.name, _reader(hints[field.name])) for field in dataclasses.fields(kind)]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise RecordError(" is no object")
        known = {}
        for name, reader in fields:
            if name in value:
                try:
                    known[name] = reader(value[name])
                except RecordError as error:
                    raise RecordError(f".{name}{error}") from error
        try:
            return kind(**known)
        except TypeError as error:  # a field without a default is missing
            raise RecordError(f": {error}") from error

    return read


def _list_reader(inner: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise RecordError(" is no list")
        found = []
        for item in value:
            try:
                found.append(inner(item))
            except RecordError as error:
                raise RecordError(f"[{len(found)}]{error}") from error
        return tuple(found)

    return read


def _literal_reader(words: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if value not in words:
            raise RecordError(f" is {value!r}, which is none of {', '.join(map(str, words))}")
        return value

    return read


def _plain_reader(hint: Any) -> Reader:
    if hint is Any:
        return lambda value: value
    if hint is float:

        def number(value: Any) -> float:
            if type(value) is float:
                return value
            if isinstance(value, int) and not isinstance(value, bool):
                return float(value)
            raise RecordError(f" is {type(value).__name__}, not float")

        return number

    def plain(value: Any) -> Any:
        if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
            raise RecordError(f" is {type(value).__name__}, not {hint.__name__}")
        return value

    return plain

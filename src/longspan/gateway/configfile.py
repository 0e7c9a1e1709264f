"""The gateway's TOML text to its configuration, every mistake named with its place.

The file is written by the controller or by hand and read again whenever it changes. Nothing here opens a file:
`settings.py` reads, this module judges, so that a bad file can be refused while the old values stay in use.
"""

import dataclasses
import difflib
import math
import tomllib
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from longspan.errors import GatewayConfigError
from longspan.gateway.config import (
    AFFINITIES,
    LOOPBACK,
    PRIORITIES,
    REPLICA_STATES,
    GatewayConfig,
    split_address,
)
from longspan.gateway.wire import split_url

T = TypeVar("T")


def parse_config(text: str) -> GatewayConfig:
    """Reads TOML text.

    Raises:
        GatewayConfigError: not TOML, an unknown key, a wrong type, a dangling reference; the place is named.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise GatewayConfigError(f"The gateway's configuration is not valid TOML: {error}.") from error
    config = _build(GatewayConfig, table, "")
    _check(config)
    return config


def _build(cls: type[T], table: dict[str, Any], where: str) -> T:
    """Fills a dataclass from a table, checking names and types of every field."""
    hints = get_type_hints(cls)
    for name in table:
        if name not in hints:
            near = difflib.get_close_matches(name, hints, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(sorted(hints))}."
            raise GatewayConfigError(f"Unknown key {name!r} {_place(where)}.", hint)
    values = {name: _convert(hints[name], value, f"{where}{name}") for name, value in table.items()}
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]
        missing = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if missing and item.name not in values:
            raise GatewayConfigError(f"{item.name!r} is missing {_place(where)}.", "Add it to the file.")
    return cls(**values)


def _place(where: str) -> str:
    return f"in [{where.rstrip('.')}]" if where else "at the top of the gateway's configuration"


def _convert(kind: Any, value: Any, where: str) -> Any:
    """One TOML value as the annotated type."""
    if get_origin(kind) in (Union, UnionType):
        kind = next(arg for arg in get_args(kind) if arg is not type(None))
    origin = get_origin(kind)
    if origin is tuple and isinstance(value, list):
        return tuple(_convert(get_args(kind)[0], item, f"{where}.{i}") for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {
            str(name): _convert(get_args(kind)[1], item, f"{where}.{name}") for name, item in value.items()
        }
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        return _build(kind, value, where + ".")
    if (
        kind in (int, float) and type(value) in (int, float) and not 0 <= value < math.inf
    ):  # false for NaN, too
        raise GatewayConfigError(f"{where} is {value!r}.", "Numbers here are finite and not negative.")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is None and kind in (str, int, float, bool) and type(value) is kind:
        return value
    wanted = getattr(kind, "__name__", str(kind))
    raise GatewayConfigError(f"{where} is {value!r}, which is not of type {wanted}.", "Correct the value.")


def _check(config: GatewayConfig) -> None:
    """Refuses references to nothing and values outside their range."""
    host, _ = split_address(config.listen)
    if config.admin:
        split_address(config.admin.listen)
    if not config.keys and config.ledger is None and host not in LOOPBACK:
        text = f"The gateway would listen on {host}, beyond this machine, without any key."
        raise GatewayConfigError(text, "Add [[keys]], or listen on 127.0.0.1.")
    if config.routing.affinity not in AFFINITIES:
        raise GatewayConfigError(f"routing.affinity is {config.routing.affinity!r}.", f"One of {AFFINITIES}.")
    if config.tracing and not config.tracing.endpoint.startswith(("http://", "https://")):
        text = f"tracing.endpoint is {config.tracing.endpoint!r}."
        raise GatewayConfigError(text, "Write it like http://HOST:4318/v1/traces.")
    if config.workers < 1:
        raise GatewayConfigError("workers must be at least 1.")
    _check_upstreams(config)
    _check_names("keys", [key.name for key in config.keys])
    _check_names("names of models", [name for m in config.models for name in sorted({m.name, *m.aliases})])
    if config.admin and not _is_sha256(config.admin.sha256):
        raise GatewayConfigError("admin.sha256 is not 64 lower-case hex digits.")
    for key in config.keys:
        if not _is_sha256(key.sha256):
            raise GatewayConfigError(f"sha256 of key {key.name!r} is not 64 lower-case hex digits.")
        if key.priority not in PRIORITIES:
            raise GatewayConfigError(
                f"Key {key.name!r} has priority {key.priority!r}.", f"One of {PRIORITIES}."
            )


def _check_upstreams(config: GatewayConfig) -> None:
    names = [replica.name for replica in config.replicas] + [provider.name for provider in config.providers]
    _check_names("upstreams", names)
    models = {model.name for model in config.models}
    for replica in config.replicas:
        where = f"replica {replica.name!r}"
        if replica.model not in models:
            raise GatewayConfigError(f"{where} serves {replica.model!r}, which no [[models]] entry names.")
        if replica.state not in REPLICA_STATES:
            raise GatewayConfigError(f"{where} has state {replica.state!r}.", f"One of {REPLICA_STATES}.")
        _check_url(replica.url, where)
    for provider in config.providers:
        _check_url(provider.url, f"provider {provider.name!r}")


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and all(c in "0123456789abcdef" for c in text)


def _check_names(what: str, names: list[str]) -> None:
    """Names stand in headers, labels of metrics and logs, and limits and load are kept by them."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise GatewayConfigError(f"Two {what} are called {name!r}.", "Give each its own name.")
        seen.add(name)
        if not name or not name.isprintable():
            raise GatewayConfigError(
                f"{name!r} among the {what} is no name.", "Use characters that can be printed."
            )


def _check_url(url: str, where: str) -> None:
    try:
        split_url(url)
    except ValueError as error:
        raise GatewayConfigError(
            f"{where} has the URL {url!r}.", "Write http://HOST:PORT or https://HOST."
        ) from error

"""The gateway's configuration: TOML text to frozen values, every mistake named with its place.

The file is written by the controller or by hand and read again whenever it changes. Nothing here opens a file:
`reload.py` reads, this module judges, so that a bad file can be refused while the old values stay in use.
"""

import dataclasses
import difflib
import tomllib
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from longspan.errors import GatewayConfigError
from longspan.gateway.wire import split_url

T = TypeVar("T")

REPLICA_STATES = ("ready", "draining", "out")
PRIORITIES = ("high", "normal", "low")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
AFFINITIES = ("auto", "session", "prefix", "none")


@dataclass(frozen=True, slots=True)
class KeyRule:
    """A client key (only its SHA-256) and what it may do. None means no limit."""

    name: str
    sha256: str
    local_only: bool = False
    priority: str = "normal"
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_parallel: int | None = None
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model name that clients may ask for, with other names for the same model."""

    name: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine group behind one URL.

    max_running: sequences that the engine runs at once (vLLM's --max-num-seqs); learned from its metrics if absent.
    weight: share of traffic relative to the other replicas of the model.
    usd_per_hour: what it costs to have, busy or not (hire, or power and write-off); money saved is counted against it.
    """

    name: str
    url: str
    model: str
    upstream_model: str | None = None
    upstream_key_file: str | None = None
    state: str = "ready"
    reason: str = ""
    weight: float = 1.0
    max_running: int | None = None
    usd_per_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class Provider:
    """An outside OpenAI-compatible service. `models` maps our model names to the provider's."""

    name: str
    url: str
    models: dict[str, str]
    key_env: str | None = None
    key_file: str | None = None
    prompt_usd_per_million_tokens: float = 0.0
    completion_usd_per_million_tokens: float = 0.0
    spend_cap_usd_per_hour: float | None = None
    allow_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines of one request in seconds."""

    connect_seconds: float = 3.0
    ttft_seconds: float = 120.0
    idle_seconds: float = 120.0
    total_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class Queue:
    """How much may run and wait. `max_concurrent` is a cap over the whole gateway, None for none.

    wait_seconds: for a replica to come back. busy_wait_seconds: for a free place at one that works.
    """

    max_concurrent: int | None = None
    max_waiting: int = 1000
    wait_seconds: float = 15.0
    busy_wait_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Routing:
    """How a replica is chosen. `auto`: session header, else long shared prefixes, else load.

    continue_streams: a stream that is cut after content goes on at a sibling (`continuation.py`). Off, because the
    rest is sampled anew: the answer is no longer one that a single engine gave.
    """

    affinity: str = "auto"
    session_headers: tuple[str, ...] = ("x-session-id",)
    ramp_seconds: float = 0.0
    continue_streams: bool = False


@dataclass(frozen=True, slots=True)
class BreakerRule:
    """When a failing replica is left alone, and for how long at first."""

    failures: int = 5
    open_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Health:
    """Probing of replicas. `stall_seconds`: silent with work outstanding this long is convicted."""

    interval_seconds: float = 2.0
    timeout_seconds: float = 2.0
    suspect_seconds: float = 3.0
    stall_seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class Overflow:
    """When a request leaves for a provider: predicted or real wait above `threshold_seconds`."""

    threshold_seconds: float = 5.0
    hysteresis: float = 0.8


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate and key files of the listener."""

    cert_file: str
    key_file: str


@dataclass(frozen=True, slots=True)
class Admin:
    """The admin API and metrics: own address, own key (its SHA-256)."""

    listen: str
    sha256: str
    public_metrics: bool = False


@dataclass(frozen=True, slots=True)
class Tracing:
    """Where OpenTelemetry spans go (OTLP over HTTP) and the share of requests that get one.

    A request that comes with a `traceparent` is recorded if its caller records it, whatever the share.
    """

    endpoint: str
    service_name: str = "longspan-gateway"
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Everything the gateway is told. Relative paths mean the directory of the file."""

    listen: str
    log: str | None = None
    ledger: str | None = None
    workers: int = 1
    drain_seconds: float = 60.0
    max_body_bytes: int = 128 * 2**20
    log_requests: bool = False
    ca_file: str | None = None
    keys: tuple[KeyRule, ...] = ()
    models: tuple[ModelEntry, ...] = ()
    replicas: tuple[Replica, ...] = ()
    providers: tuple[Provider, ...] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)
    queue: Queue = field(default_factory=Queue)
    routing: Routing = field(default_factory=Routing)
    breaker: BreakerRule = field(default_factory=BreakerRule)
    health: Health = field(default_factory=Health)
    overflow: Overflow = field(default_factory=Overflow)
    tls: Tls | None = None
    admin: Admin | None = None
    tracing: Tracing | None = None

    def resolve(self, name: str) -> str | None:
        """The model behind a name or alias, or None."""
        for model in self.models:
            if name == model.name or name in model.aliases:
                return model.name
        if any(name in provider.models for provider in self.providers):
            return name
        return None


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


def split_address(listen: str) -> tuple[str, int]:
    """`host:port` (an IPv6 host in brackets) to its parts.

    Raises:
        GatewayConfigError: no port, or not a number from 0 to 65535.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise GatewayConfigError(f"listen = {listen!r} is not HOST:PORT.", 'Write it like "127.0.0.1:8000".')
    return host.strip("[]"), int(port)


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
    for key in config.keys:
        if len(key.sha256) != 64 or any(c not in "0123456789abcdef" for c in key.sha256):
            raise GatewayConfigError(f"sha256 of key {key.name!r} is not 64 lower-case hex digits.")
        if key.priority not in PRIORITIES:
            raise GatewayConfigError(
                f"Key {key.name!r} has priority {key.priority!r}.", f"One of {PRIORITIES}."
            )


def _check_upstreams(config: GatewayConfig) -> None:
    names = [replica.name for replica in config.replicas] + [provider.name for provider in config.providers]
    for name in names:
        if names.count(name) > 1:
            raise GatewayConfigError(f"Two upstreams are called {name!r}.", "Give each its own name.")
    models = {model.name for model in config.models}
    for replica in config.replicas:
        where = f"replica {replica.name!r}"
        if replica.model not in models:
            raise GatewayConfigError(f"{where} serves {replica.model!r}, which no [[models]] entry names.")
        if replica.state not in REPLICA_STATES:
            raise GatewayConfigError(f"{where} has state {replica.state!r}.", f"One of {REPLICA_STATES}.")
        if replica.weight < 0 or replica.usd_per_hour < 0:
            raise GatewayConfigError(f"{where} has a negative weight or price.")
        _check_url(replica.url, where)
    for provider in config.providers:
        _check_url(provider.url, f"provider {provider.name!r}")


def _check_url(url: str, where: str) -> None:
    try:
        split_url(url)
    except ValueError as error:
        raise GatewayConfigError(
            f"{where} has the URL {url!r}.", "Write http://HOST:PORT or https://HOST."
        ) from error

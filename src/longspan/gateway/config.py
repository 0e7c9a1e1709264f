"""The gateway's configuration as frozen values: what can be said in its file, and what holds where nothing is said."""

from dataclasses import dataclass, field

from longspan.errors import GatewayConfigError

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
    """Another OpenAI-compatible service: an outside one, or another cluster of ours. The first in the file that can take a request has it.

    models: our model names -> the provider's. own: requests that must stay local may go there.
    """

    name: str
    url: str
    models: dict[str, str]
    key_env: str | None = None
    key_file: str | None = None
    prompt_usd_per_million_tokens: float = 0.0
    completion_usd_per_million_tokens: float = 0.0
    spend_cap_usd_per_hour: float | None = None
    allow_fields: tuple[str, ...] = ()
    own: bool = False


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


def split_address(listen: str) -> tuple[str, int]:
    """`host:port` (an IPv6 host in brackets) to its parts.

    Raises:
        GatewayConfigError: no port, or not a number from 0 to 65535.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise GatewayConfigError(f"listen = {listen!r} is not HOST:PORT.", 'Write it like "127.0.0.1:8000".')
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

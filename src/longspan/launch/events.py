"""What happens to a deployment: the events that its state machine (`launch.steps`) takes in."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AgentJoined:
    """An agent answers for the first time."""

    node: str


@dataclass(frozen=True, slots=True)
class AgentSilent:
    """No beat from an agent for `seconds`."""

    node: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StartFailed:
    """An agent could not be started."""

    node: str
    error: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a `Call` or an `Ask`; `error` is empty on success."""

    call: str
    value: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Exited:
    """A process of an agent's ended. `said`: the last lines of its log, which the machine adds, for the words of the failure."""

    node: str
    process: str
    code: int
    said: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lines:
    """New lines in the log of an agent's process."""

    node: str
    process: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Suspected:
    """Something speaks against a node or a replica's engine, by its name: `reason`; empty once nothing does any more."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wished:
    """The operator wants a replica or node out of traffic ("drain": what runs there may end; "isolate"), or back ("restore")."""

    subject: str
    wish: str


@dataclass(frozen=True, slots=True)
class Scaled:
    """The operator, or the queue, wants another number of replicas."""

    replicas: int


@dataclass(frozen=True, slots=True)
class Changed:
    """The operator wants another specification, one replica at a time (`launch.rolling`).

    Attributes:
        spec: the whole of it, as `DeploymentSpec.to_json` has it.
        watch_seconds: for how long the first replica is watched in traffic.
        outage: that nobody serves meanwhile is accepted.
    """

    spec: dict[str, Any]
    watch_seconds: float
    outage: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """What the gateway counts while a changed replica is watched: replica -> requests, failures, seconds to the first token."""

    figures: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Drained:
    """The gateway sends a replica nothing new, and has none of its requests left."""

    replica: str


@dataclass(frozen=True, slots=True)
class Struck:
    """A drill breaks something: the node's agent is told what to signal."""

    node: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DownAsked:
    """The operator wants it gone."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = (
    AgentJoined
    | AgentSilent
    | StartFailed
    | Answered
    | Exited
    | Lines
    | Suspected
    | Wished
    | Scaled
    | Changed
    | Compared
    | Drained
    | Struck
    | DownAsked
    | Tick
)

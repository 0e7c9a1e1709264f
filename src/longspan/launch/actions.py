"""What is to be done for a deployment: the actions that its state machine (`launch.steps`) gives out."""

from dataclasses import dataclass, field
from typing import Any, Literal

from longspan.launch.commands import Process


@dataclass(frozen=True, slots=True)
class StartAgents:
    """Start the agents of all nodes and the front agent."""


@dataclass(frozen=True, slots=True)
class StartAgent:
    """Start another agent on a node whose last one is gone."""

    node: str


@dataclass(frozen=True, slots=True)
class Start:
    """Let a node's agent start a process."""

    node: str
    process: Process


@dataclass(frozen=True, slots=True)
class Call:
    """Let a node's agent run one of its functions; the answer comes as `Answered`."""

    call: str
    node: str
    what: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """Let the controller ask a replica, or the endpoint itself; the answer comes as `Answered`."""

    call: str
    what: Literal["first_token", "evidence"]
    arguments: dict[str, Any] = field(default_factory=dict)
    replica: str = "r0"


@dataclass(frozen=True, slots=True)
class SetGateway:
    """Write the gateway's configuration: a replica's state and why; one that is gone does not stand there any more."""

    state: Literal["ready", "draining", "out", "gone"]
    reason: str = ""
    replica: str = "r0"


@dataclass(frozen=True, slots=True)
class StopAll:
    """Let a node's agent end everything it started, then itself. Answered as `stopped:<node>`."""

    node: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """End what a node's agent left that does not answer any more. Answered as `call`."""

    node: str
    call: str


Action = StartAgents | StartAgent | Start | Call | Ask | SetGateway | StopAll | Sweep


def call_id(what: str, node: str, epoch: int = 1) -> str:
    """The name of a call, by which its answer is known; those of a later group, host or drill have its number."""
    return f"{what}:{node}" + (f"#{epoch}" if epoch > 1 else "")


def call_of(call: str) -> tuple[str, str]:
    """What was asked, and of which node."""
    what, _, rest = call.partition(":")
    return what, rest.partition("#")[0]


def call_to(node: str, what: str, arguments: dict[str, Any], epoch: int = 1) -> Call:
    """A call with its name."""
    return Call(call_id(what, node, epoch), node, what, arguments)

"""What agents and the controller say to each other, as plain JSON documents. Pure.

Agent -> controller  POST /v1/agents/NAME/events    {"instance": …, "events": [event, …]}  once a second at least
Agent <- controller  GET  /v1/agents/NAME/commands?after=SEQ   long-poll; {"commands": [command, …]}
"""

from typing import Any

from longspan.launch.steps import Answered, Call, Event, Exited, Lines, Start, StopAll

BEAT_SECONDS = 1.0
LONG_POLL_SECONDS = 10.0
# An agent that has not reached the controller for so long ends its own processes: it cannot know whether its
# ranks have been replaced. Longer than the controller's own patience before it replaces them.
LEASE_SECONDS = 30.0
MAX_LINES = 500  # of one process in one message; the rest follows in the next
MAX_LINE_CHARACTERS = 4000


class ProtocolError(ValueError):
    """A message is not of the protocol."""


def event_from_json(node: str, document: Any) -> Event:
    """One event of an agent's message. What comes over the network is checked here, once.

    Raises:
        ProtocolError: unknown kind or missing field.
    """
    try:
        match document["kind"]:
            case "answered":
                return Answered(str(document["call"]), document.get("value"), str(document.get("error", "")))
            case "exited":
                return Exited(node, str(document["process"]), int(document["code"]))
            case "lines":
                lines = tuple(str(line)[:MAX_LINE_CHARACTERS] for line in document["lines"][:MAX_LINES])
                return Lines(node, str(document["process"]), lines)
            case kind:
                raise ProtocolError(f"unknown event {kind!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not an event: {error}") from error


def command_to_json(action: Start | Call | StopAll) -> dict[str, Any]:
    """The command that makes an agent carry out an action."""
    match action:
        case Start(_, process):
            return {"kind": "start", "process": process.to_json()}
        case Call(call, _, what, arguments):
            return {"kind": "call", "call": call, "what": what, "arguments": arguments}
        case StopAll(node):
            return {"kind": "stop_all", "call": f"stopped:{node}"}

"""What agents and the controller say to each other, as plain JSON documents. Pure.

Agent -> controller  POST /v1/agents/NAME/events    {"instance": …, "first": N, "events": [event, …]}  once a second at
                     least; N counts the events before these, so that a batch sent twice is taken once
Agent <- controller  GET  /v1/agents/NAME/commands?after=SEQ   long-poll; {"commands": [command, …]}
"""

from typing import Any

from longspan.launch.actions import Call, Start, StopAll
from longspan.launch.events import Answered, Event, Exited, Lines
from longspan.launch.words import EVENT_MARK

BEAT_SECONDS = 1.0
LONG_POLL_SECONDS = 10.0
# An agent that has not reached the controller for so long ends its own processes: it cannot know whether its
# ranks have been replaced. Shorter than the controller's patience with a silent agent (`steps.SILENT_SECONDS`).
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
                if not isinstance(document["lines"], list):
                    raise ProtocolError("lines is no list")
                lines = tuple(cut(str(line)) for line in document["lines"][:MAX_LINES])
                return Lines(node, str(document["process"]), lines)
            case kind:
                raise ProtocolError(f"unknown event {kind!r}")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"not an event: {error}") from error


def events_from_json(node: str, document: Any) -> tuple[str, int, list[Event]]:
    """An agent's message: its instance, the number of its first event, its events.

    Raises:
        ProtocolError: it is not of that form.
    """
    try:
        number, items = int(document["first"]), document["events"]
        if not isinstance(items, list) or number < 0:
            raise ProtocolError("events is no list, or first is negative")
        return str(document["instance"]), number, [event_from_json(node, item) for item in items]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"not an agent's message: {error}") from error


def cut(line: str) -> str:
    """A line of a log, bounded; an event of ours stays whole, since half a document is none."""
    return line if line.startswith(EVENT_MARK) else line[:MAX_LINE_CHARACTERS]


def command_to_json(action: Start | Call | StopAll) -> dict[str, Any]:
    """The command that makes an agent carry out an action."""
    match action:
        case Start(_, process):
            return {"kind": "start", "process": process.to_json()}
        case Call(call, _, what, arguments):
            return {"kind": "call", "call": call, "what": what, "arguments": arguments}
        case StopAll(node):
            return {"kind": "stop_all", "call": f"stopped:{node}"}

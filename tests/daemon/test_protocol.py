"""What agents and controller say to each other: round trips, and nothing else gets through."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.daemon.protocol import (
    MAX_LINE_CHARACTERS,
    MAX_LINES,
    ProtocolError,
    command_to_json,
    event_from_json,
    events_from_json,
)
from longspan.launch.actions import Call, Start, StopAll
from longspan.launch.commands import Process
from longspan.launch.events import Answered, Exited, Lines
from longspan.launch.words import EVENT_MARK

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["kind", "call", "value", "error", "process", "code", "lines", "instance", "first", "events"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)
kinds = st.sampled_from(["answered", "exited", "lines", "start", None, 3])


@given(json_values, kinds)
def test_any_message_is_an_event_or_a_protocol_error(document: Any, kind: Any) -> None:
    """No document makes the reader fail in another way than the one that is answered with 400."""
    if isinstance(document, dict):
        document["kind"] = kind
    try:
        event = event_from_json("a", document)
    except ProtocolError:
        return
    assert isinstance(event, Answered | Exited | Lines)


@given(json_values)
def test_any_batch_is_read_or_refused(document: Any) -> None:
    """The envelope is checked like its events."""
    try:
        _, number, events = events_from_json("a", document)
    except ProtocolError:
        return
    assert number >= 0
    assert all(isinstance(event, Answered | Exited | Lines) for event in events)


@pytest.mark.parametrize(
    "document",
    [
        None, [], "", 3, {}, {"kind": "unknown"}, {"kind": "answered"}, {"kind": "exited", "process": "ray"},
        {"kind": "exited", "process": "ray", "code": "x"}, {"kind": "exited", "process": "ray", "code": float("inf")},
        {"kind": "exited", "process": "ray", "code": None}, {"kind": "lines", "process": "ray"},
        {"kind": "lines", "process": "ray", "lines": "text"}, {"kind": "lines", "process": "ray", "lines": 3},
        {"kind": "lines", "lines": []},
    ],
)  # fmt: skip
def test_bad_events(document: Any) -> None:
    """A missing or wrong field is a ProtocolError."""
    with pytest.raises(ProtocolError):
        event_from_json("a", document)


@given(st.text(), json_values, st.text())
def test_answers_come_through(call: str, value: Any, error: str) -> None:
    """An answer is what the agent sent, whatever its value."""
    sent = {"kind": "answered", "call": call, "value": value, "error": error}
    assert event_from_json("a", sent) == Answered(call, value, error)


def test_lines_are_bounded_and_events_whole() -> None:
    """Long lines are cut and long batches too, but half an event would be none."""
    event = EVENT_MARK + json.dumps({"event": "holders", "holders": ["x" * 100] * 64})
    found = event_from_json(
        "a", {"kind": "lines", "process": "p", "lines": ["y" * 9000, event, *["z"] * 1000]}
    )
    assert isinstance(found, Lines)
    assert len(found.lines) == MAX_LINES
    assert len(found.lines[0]) == MAX_LINE_CHARACTERS
    assert found.lines[1] == event


@given(
    st.text(),
    st.lists(st.text(), min_size=1).map(tuple),
    st.dictionaries(st.text(), st.text()),
    st.text(),
    st.dictionaries(st.text(), json_values.filter(lambda value: value == value)),
)
def test_commands_survive_the_wire(
    name: str, argv: tuple[str, ...], env: dict[str, str], stdin: str, arguments: dict[str, Any]
) -> None:
    """What an agent reads is what the state machine decided."""
    start = json.loads(json.dumps(command_to_json(Start("a", Process(name, argv, env, stdin)))))
    assert start == {
        "kind": "start",
        "process": {"name": name, "argv": list(argv), "env": env, "stdin": stdin},
    }
    assert command_to_json(Call("ports:a", "a", "ports", arguments)) == {
        "kind": "call", "call": "ports:a", "what": "ports", "arguments": arguments,
    }  # fmt: skip
    assert command_to_json(StopAll("a")) == {"kind": "stop_all", "call": "stopped:a"}

"""The record of a deployment's events as JSON documents, complete enough that another machine can be brought to the same state.

`Steps` depends on nothing but its specification and the events with their times, so the record of those is its state. Pure.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from longspan import finding
from longspan.launch.actions import call_of
from longspan.launch.events import Answered, Event
from longspan.launch.logprobs import TokenLogprobs
from longspan.launch.proof import Layer
from longspan.launch.steps import Steps
from longspan.launch.verdict import Evidence

_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}


def to_json(event: Event, now: float) -> dict[str, Any]:
    """An event and the machine's time at which it took it."""
    return {"event": type(event).__name__, "now": now, **dataclasses.asdict(event)}


def from_json(document: Mapping[str, Any]) -> tuple[Event, float]:
    """The inverse of `to_json`, after a round through JSON.

    Raises:
        LookupError, TypeError, ValueError: it is no event.
    """
    kind = _KINDS[document["event"]]
    values = {field.name: document[field.name] for field in dataclasses.fields(kind)}
    for name in {"lines", "said"} & values.keys():
        values[name] = tuple(values[name])
    event: Event = kind(**values)
    if isinstance(event, Answered) and call_of(event.call)[0] == "evidence" and not event.error:
        event = dataclasses.replace(event, value=_evidence(event.value))
    return event, float(document["now"])


def _evidence(value: Any) -> Any:
    """The only answer that is no JSON: the controller makes it itself. What is of another form is kept as it is."""
    if not isinstance(value, Mapping) or "completion" not in value:
        return value
    layer = value["completion"]
    findings = tuple(
        finding.Finding(**{**one, "evidence": tuple(finding.Evidence(**e) for e in one["evidence"])})
        for one in layer["findings"]
    )
    texts = {
        name: tuple(TokenLogprobs.from_json(one) for one in value[name])
        for name in ("deployed", "generated", "scored")
    }
    return Evidence(
        Layer(**{**layer, "findings": findings}), **texts,
        deployed_error=value["deployed_error"], paths_error=value["paths_error"],
    )  # fmt: skip


def step(machine: Steps, event: Event, now: float) -> tuple[list[Any], Event | None, BaseException | None]:
    """One event through the machine. An error of ours ends the deployment: nothing may be left running over it.

    Returns:
        the actions; the event as it must be recorded, None where it changed nothing but the clock; the error.
    """
    last = machine.history[-1] if machine.history else None
    try:
        actions = machine.handle(event, now)
    except Exception as error:  # noqa: BLE001 - ours to mend, whatever it is
        what = f"Longspan failed over {type(event).__name__}: {type(error).__name__}: {error}"
        remedy = "This is an error in Longspan; the traceback stands in controller.log."
        return machine.fail("launch", what, remedy), event, error
    if machine.history and machine.history[-1] is not last:
        return actions, machine.history[-1][1], None
    return actions, None, None

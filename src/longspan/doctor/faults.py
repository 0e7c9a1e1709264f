"""Which matched lines are still faults: not refuted by a server that came up, not a wait that ended, not a stop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from longspan.doctor.rules.rule import Mark, Rule
from longspan.doctor.scene import Scene, rule_of
from longspan.doctor.timeline import Event

Outcome = Literal["serves", "stopped", "failed", "open"]
# A server that still makes tokens this long after an error has survived it.
SURVIVED_SECONDS = 20.0
# Faults that stay faults on a server that goes on: the kernel's word about hardware and killed processes.
STICKY = frozenset({"gpu-ecc", "kernel-oom", "container-oom", "node-marked-dead"})


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of one attempt.

    Attributes:
        faults: events that still count, in order.
        outcome: how the attempt stands at the end of the log.
        ready: the server came up at some time.
        stopped: someone stopped it.
    """

    faults: tuple[Event, ...]
    outcome: Outcome
    ready: bool
    stopped: bool


class _Timeline:
    """Positions and times of the good news in one attempt."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.place = {id(e): i for i, e in enumerate(events)}
        self.events = events

    def after(self, event: Event, *means: str) -> list[Event]:
        """The marks with these meanings that come after an event."""
        at = self.place[id(event)]
        return [e for e in self.events[at + 1 :] if isinstance(e.rule, Mark) and e.rule.means in means]

    def progress_after(self, event: Event, phase: int) -> bool:
        """Whether the launch went beyond a phase after the event."""
        at = self.place[id(event)]
        return any(isinstance(e.rule, Mark) and e.rule.phase > phase for e in self.events[at + 1 :])


def remaining(scene: Scene) -> Remaining:
    """Sorts the faults of one attempt out of its events."""
    line = _Timeline(scene.events)
    ready = any(True for _ in scene.marks("ready", "serving", "answered"))
    stop = _stop(scene, line)
    faults = tuple(
        e
        for e in scene.events
        if (rule := rule_of(e)) is not None and _counts(e, rule, scene, line, stop, ready)
    )
    hard = [e for e in faults if (r := rule_of(e)) is not None and r.kind != "wait"]
    if ready and hard and all(_weak(e) for e in hard):
        faults, hard = (), []
    if hard:
        outcome: Outcome = "failed"
    elif stop is not None:
        outcome = "stopped"
    else:
        outcome = "serves" if ready else "open"
    return Remaining(faults, outcome, ready, stop is not None)


def _weak(event: Event) -> bool:
    """A traceback or a 500 alone on a server that is up is one request's trouble, not the server's."""
    return event.rule.id in ("traceback", "server-error")


def _stop(scene: Scene, line: _Timeline) -> Event | None:
    """The first stop that no failure preceded: what comes after it is a consequence of the stop."""
    for event in scene.marks("stop"):
        at = line.place[id(event)]
        before = [
            e
            for e in scene.events[:at]
            if (r := rule_of(e)) is not None and r.kind in ("root", "symptom", "wrapper")
        ]
        if all(_believed(e) is False or _healed(e, line) for e in before):
            return event
    return None


def _believed(event: Event) -> bool:
    """Errors are believed on lines of any level but INFO, unless the rule says otherwise."""
    rule, level = event.rule, event.hit.head.level
    return not isinstance(rule, Rule) or rule.any_level or level not in ("INFO", "DEBUG")


def _healed(event: Event, line: _Timeline) -> bool:
    """Whether good news after the event shows that the server got over it."""
    rule = event.rule
    if not isinstance(rule, Rule):
        return True
    if rule.kind == "wait":
        return line.progress_after(event, rule.phase) or (
            rule.phase == 0 and bool(line.after(event, "progress", "world"))
        )
    if (
        event.hit.head.level == "WARNING"
        and not rule.any_level
        and line.progress_after(event, max(rule.phase, 4))
    ):
        return True
    good = line.after(event, "ready", "serving", "answered")
    if not good:
        return False
    at = line.place[id(event)]
    came_up_before = any(
        isinstance(e.rule, Mark) and e.rule.means in ("ready", "serving") for e in line.events[:at]
    )
    if not came_up_before:
        return True
    if any(e.rule.id == "startup-complete" for e in good):
        return True
    tokens = [e for e in good if e.rule.id == "throughput"]
    if event.when_seconds is not None:
        when = event.when_seconds
        return any(e.when_seconds is not None and e.when_seconds - when > SURVIVED_SECONDS for e in tokens)
    return len(tokens) > 1


def _counts(event: Event, rule: Rule, scene: Scene, line: _Timeline, stop: Event | None, ready: bool) -> bool:
    if not _believed(event):
        return False
    if stop is not None and line.place[id(event)] > line.place[id(stop)]:
        return False
    if rule.launch_only and ready:
        return False
    if rule.id in STICKY:
        return not (rule.id in ("node-marked-dead", "kernel-oom") and _healed(event, line))
    return not _healed(event, line)

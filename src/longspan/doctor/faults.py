"""Which matched lines are still faults: not refuted by a server that came up, not a wait that ended, not a stop."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from longspan.doctor.rules.rule import Mark, Rule
from longspan.doctor.scene import Scene, rule_of
from longspan.doctor.timeline import Event

Outcome = Literal["serves", "stopped", "failed", "open"]
# A server that still makes tokens this long after an error has survived it.
SURVIVED_SECONDS = 20.0
# How long the traceback of a tolerated exception is.
TOLERATED_LINES = 40
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
    """Positions and times of the good news in one attempt, looked up in logarithmic time: logs hold thousands of hits."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.place = {id(e): i for i, e in enumerate(events)}
        self.events = events
        self._means: dict[str, list[int]] = {}
        for i, event in enumerate(events):
            if isinstance(event.rule, Mark):
                self._means.setdefault(event.rule.means, []).append(i)
        # The furthest phase from each position on.
        self._phase = [0] * (len(events) + 1)
        for i in range(len(events) - 1, -1, -1):
            rule = events[i].rule
            self._phase[i] = max(self._phase[i + 1], rule.phase if isinstance(rule, Mark) else 0)
        self._tolerated = [events[i].hit for i in self._means.get("tolerated", ())]

    def after(self, event: Event, *means: str) -> list[Event]:
        """The marks with these meanings that come after an event."""
        at = self.place[id(event)]
        places = [
            i for m in means for i in self._means.get(m, ())[bisect_right(self._means.get(m, ()), at) :]
        ]
        return [self.events[i] for i in places]

    def before(self, event: Event, *means: str) -> Event | None:
        """The last mark with one of these meanings before an event."""
        at = self.place[id(event)]
        last = -1
        for m in means:
            places = self._means.get(m, ())
            if (k := bisect_right(places, at)) > 0:
                last = max(last, places[k - 1])
        return self.events[last] if last >= 0 else None

    def idle_before(self, event: Event) -> bool:
        """Whether the last statistics before the event say that nothing runs."""
        said = self.before(event, "serving", "stalled", "idle")
        return said is not None and said.rule.id == "throughput-idle"

    def tolerated(self, event: Event) -> bool:
        """Whether the event stands in the traceback of something that is done without."""
        hit = event.hit
        return any(
            t.file == hit.file and t.head.pid == hit.head.pid and 0 <= hit.line - t.line <= TOLERATED_LINES
            for t in self._tolerated
        )

    def progress_after(self, event: Event, phase: int) -> bool:
        """Whether the launch went beyond a phase after the event."""
        return self._phase[self.place[id(event)] + 1] > phase


def remaining(scene: Scene) -> Remaining:
    """Sorts the faults of one attempt out of its events."""
    line = _Timeline(scene.events)
    ready = any(True for _ in scene.marks("ready", "serving", "answered"))
    stop = _stop(scene, line)
    faults = tuple(
        e for e in scene.events if (rule := rule_of(e)) is not None and _counts(e, rule, line, stop, ready)
    )
    hard = [e for e in faults if (r := rule_of(e)) is not None and r.kind != "wait"]
    if ready and hard and all(r.kind != "root" for e in hard if (r := rule_of(e))):
        counted = {id(e) for e in faults}
        faults = tuple(e for e in scene.events if id(e) in counted or _misplaced(e, line))
    if ready and hard and all(_weak(e) for e in hard):
        faults, hard = (), []
    if hard:
        outcome: Outcome = "failed"
    elif stop is not None:
        outcome = "stopped"
    else:
        outcome = "serves" if ready else "open"
    return Remaining(faults, outcome, ready, stop is not None)


def _misplaced(event: Event, line: _Timeline) -> bool:
    """An error whose line carries no time stands, in merged logs, wherever its neighbours' clocks put it: that a server came
    up "after" it refutes nothing where the server failed and nothing else says why."""
    rule = event.rule
    return (
        isinstance(rule, Rule)
        and rule.kind == "root"
        and not rule.launch_only
        and event.hit.head.time_seconds is None
        and event.hit.head.level != "WARNING"
        and bool(event.hit.node)
        and _believed(event)
        and not line.tolerated(event)
    )


def _weak(event: Event) -> bool:
    """A traceback or a 500 alone on a server that is up is one request's trouble, not the server's."""
    return event.rule.id in ("traceback", "exception", "server-error")


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
    came_up_before = line.before(event, "ready", "serving") is not None
    if not came_up_before:
        return True
    if any(e.rule.id == "startup-complete" for e in good):
        return True
    tokens = [e for e in good if e.rule.id == "throughput"]
    if event.when_seconds is not None:
        when = event.when_seconds
        return any(e.when_seconds is not None and e.when_seconds - when > SURVIVED_SECONDS for e in tokens)
    return len(tokens) > 1


def _counts(event: Event, rule: Rule, line: _Timeline, stop: Event | None, ready: bool) -> bool:
    if not _believed(event):
        return False
    if line.tolerated(event):
        return False
    if rule.kind == "generic" and event.hit.head.level == "WARNING":
        return False  # a warning that mentions an exception reports none
    if stop is not None and line.place[id(event)] > line.place[id(stop)]:
        return False
    if rule.launch_only and ready:
        return False
    if rule.id == "shm-broadcast" and line.idle_before(event):
        return False  # an idle engine writes this too: its workers wait for work
    if rule.id in STICKY:
        return not (rule.id in ("node-marked-dead", "kernel-oom") and _healed(event, line))
    return not _healed(event, line)

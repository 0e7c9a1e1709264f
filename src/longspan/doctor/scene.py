"""One launch within the logs: its events and what the decisions ask about them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from longspan.doctor.collectives import Comparison
from longspan.doctor.rules.rule import Mark, Rule
from longspan.doctor.timeline import Event

TRACEBACK_LINES = 80


@dataclass(frozen=True, slots=True)
class Guess:
    """What one hit points to.

    Attributes:
        weight: 0 to 1.
        also: other causes that it could be.
        note: what the surroundings showed, for the summary.
    """

    cause: str
    weight: float
    also: tuple[str, ...] = ()
    note: str = ""
    remedy: str = ""


@dataclass(slots=True)
class Scene:
    """The events of one attempt in their order."""

    events: Sequence[Event]
    frames: list[Event] = field(default_factory=list)
    comparison: Comparison | None = None
    _by_id: dict[str, list[Event]] = field(default_factory=dict)
    _places: dict[int, int] = field(default_factory=dict)
    _phases: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        for place, event in enumerate(self.events):
            self._by_id.setdefault(event.rule.id, []).append(event)
            self._places[id(event)] = place
            phase = event.rule.phase if isinstance(event.rule, Mark) else 0
            self._phases.append(max(self._phases[-1], phase))
        self.frames = [
            e for e in self.events if isinstance(e.rule, Mark) and e.rule.means.startswith("frame")
        ]

    def of(self, *ids: str) -> list[Event]:
        """All events of these rules or marks, rule by rule."""
        return [event for i in ids for event in self._by_id.get(i, ())]

    def marks(self, *means: str) -> Iterable[Event]:
        """The marks with one of these meanings, in order."""
        return (e for e in self.events if isinstance(e.rule, Mark) and e.rule.means in means)

    def phase_before(self, event: Event | None = None) -> int:
        """The furthest phase that any rank had reached before this event (or at all)."""
        if event is None:
            return self._phases[-1]
        return self._phases[self._places[id(event)]]

    def world(self) -> int:
        """The world size that the log names, or 0."""
        for event in self.of("world", "rank-assigned", "init-start"):
            if value := event.hit.groups.get("world"):
                return int(value[:9])
        return 0

    def own_addresses(self) -> list[str]:
        """The addresses that NCCL said it uses."""
        return [a for e in self.of("nccl-bootstrap") if (a := e.hit.groups.get("addr"))]

    def nodes(self) -> set[str]:
        """Every node that the log names."""
        return {e.hit.node for e in self.events if e.hit.node}

    def frames_above(self, event: Event) -> list[str]:
        """The meanings of the traceback frames that stand just above an exception, nearest first."""
        hit = event.hit
        found: list[tuple[int, str]] = []
        for other in self.frames:
            rule, near = other.rule, other.hit
            assert isinstance(rule, Mark)
            distance = abs(hit.line - near.line)
            same = (
                near.file == hit.file
                and near.head.pid == hit.head.pid
                and near.head.process == hit.head.process
            )
            if same and distance <= TRACEBACK_LINES and distance > 0:
                found.append((distance, rule.means))
        return [means for _, means in sorted(found)]


def rule_of(event: Event) -> Rule | None:
    """The event's rule, or None for a mark."""
    return event.rule if isinstance(event.rule, Rule) else None

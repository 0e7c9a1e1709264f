"""Puts the events of all nodes into one order: corrects clocks that differ and finds where a new attempt begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from longspan.doctor.rules.rule import Mark, Rule
from longspan.doctor.scan import Hit, Record

# Lines that all nodes write at almost the same moment, since a collective stands before or after them.
SYNC_MARKS = ("world", "nccl-starts", "rank-assigned", "load-start")
SKEW_MINIMUM_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Event:
    """One hit with its place in the common order.

    Attributes:
        when_seconds: corrected time, or None where the log has no times.
        attempt: counts the launches within the log from 0.
    """

    hit: Hit
    when_seconds: float | None
    attempt: int = 0

    @property
    def rule(self) -> Rule | Mark:
        """The rule or mark that matched."""
        return self.hit.rule


def skews(hits: Sequence[Hit]) -> dict[str, float]:
    """How many seconds each node's clock is ahead of the first node's, from the lines that all nodes write at once."""
    first: dict[tuple[str, str], float] = {}
    for hit in hits:
        if hit.rule.id in SYNC_MARKS and hit.head.time_seconds is not None:
            first.setdefault((hit.rule.id, hit.node), hit.head.time_seconds)
    nodes = list(dict.fromkeys(node for _, node in first))
    if len(nodes) < 2:
        return {}
    reference = _driver(hits, nodes)
    result: dict[str, float] = {}
    for node in nodes:
        gaps = [
            first[(m, node)] - first[(m, reference)]
            for m in SYNC_MARKS
            if (m, node) in first and (m, reference) in first
        ]
        if gaps and abs(median(gaps)) >= SKEW_MINIMUM_SECONDS:
            result[node] = median(gaps)
    return result


def _driver(hits: Sequence[Hit], nodes: Sequence[str]) -> str:
    """The node whose clock the driver's own lines have: that of rank 0, where the engine runs."""
    worlds = [
        h
        for h in hits
        if h.rule.id in ("world", "rank-assigned") and h.groups.get("rank") == "0" and h.node in nodes
    ]
    return worlds[0].node if worlds else nodes[0]


def order(record: Record) -> list[Event]:
    """All hits in the order in which they happened, as far as the log lets one know.

    One file that runs forward keeps its own order. Newest-first exports are turned round. Several nodes or files are
    merged by corrected time; a line without a time stays behind the line above it.
    """
    hits = list(record.hits)
    if record.newest_first:
        hits = _turned(hits)
    skew = skews(hits)
    merged = len(record.files) > 1 or bool(skew) or len({h.section for h in hits if h.section}) > 1
    events: list[tuple[float, int, Event]] = []
    latest = float("-inf")
    for place, hit in enumerate(hits):
        when = None if hit.time_seconds is None else hit.time_seconds - skew.get(hit.clock_node, 0.0)
        latest = when if when is not None else latest
        events.append((latest if merged else 0.0, place, Event(hit, when)))
    if merged:
        events.sort(key=lambda item: item[:2])
    return _attempts([event for _, _, event in events])


def _turned(hits: list[Hit]) -> list[Hit]:
    """Reverses the order; lines of one traceback (same second) stay as they are only if they were written forward."""
    return hits[::-1]


def _attempts(events: list[Event]) -> list[Event]:
    """Numbers the launches: one begins at a start line that follows a failure or a stop."""
    number, ended, result = 0, None, []
    for event in events:
        rule = event.rule
        if isinstance(rule, Mark):
            if rule.means == "stop" and ended is None:
                ended = event
            elif rule.means == "start" and ended is not None and _after(event, ended):
                number, ended = number + 1, None
        elif (
            rule.kind in ("root", "symptom", "generic", "wrapper")
            and ended is None
            and rule.id != "server-error"
        ):
            ended = event
        result.append(Event(event.hit, event.when_seconds, number))
    return result


def _after(later: Event, earlier: Event) -> bool:
    if later.when_seconds is None or earlier.when_seconds is None:
        return True
    return later.when_seconds >= earlier.when_seconds


@dataclass(frozen=True, slots=True)
class Moment:
    """When a node first reached something, or first failed.

    Attributes:
        clock: time of day as the node's own log has it, corrected for skew; empty where the log has no times.
    """

    clock: str
    node: str
    what: str
    file: str
    line: int

    def to_json(self) -> dict[str, object]:
        """The form that `--json` prints."""
        return {
            "clock": self.clock,
            "node": self.node,
            "what": self.what,
            "file": self.file,
            "line": self.line,
        }


MOMENTS = 80


def moments(events: Sequence[Event], phases: Sequence[str]) -> list[Moment]:
    """The phases that each node reached, and its first error, in the common order."""
    seen: set[tuple[str, str]] = set()
    result: list[Moment] = []
    for event in events:
        rule = event.rule
        if isinstance(rule, Mark):
            what = (
                phases[rule.phase]
                if rule.phase
                else {"stop": "stop asked", "start": "start"}.get(rule.means, "")
            )
        else:
            what = f"first error: {rule.id}" if rule.kind != "wait" else ""
        key = (event.hit.node, "first error" if what.startswith("first error") else what)
        if not what or key in seen:
            continue
        seen.add(key)
        seconds = event.when_seconds
        clock = (
            ""
            if seconds is None
            else f"{int(seconds) // 3600 % 24:02d}:{int(seconds) // 60 % 60:02d}:{int(seconds) % 60:02d}"
        )
        result.append(Moment(clock, event.hit.node, what, event.hit.file, event.hit.line))
    return result[:MOMENTS]

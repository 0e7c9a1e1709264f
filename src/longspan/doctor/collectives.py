"""Compares what the ranks' watchdogs say: different work is a desync, a silent rank died, equal work is the fabric."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from longspan.doctor.scan import Hit

_PG = re.compile(r"\[PG (?:ID )?(\w+)(?: PG GUID (\w+))?")
DIGITS_LIMIT = 20
Verdict = Literal["desync", "peer-died", "equal", "one-rank", "none"]


@dataclass(frozen=True, slots=True)
class Work:
    """The collective that one rank waited for.

    Attributes:
        group: the process group's number as torch prints it, or empty.
        elements: number of input elements, -1 if not printed.
    """

    rank: int
    sequence: int
    operation: str
    elements: int
    group: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict, the ranks that spoke, and those that did not."""

    verdict: Verdict
    works: tuple[Work, ...] = ()
    missing: tuple[int, ...] = ()
    differing: str = ""


def works_of(hits: Iterable[Hit]) -> list[Work]:
    """The first work of each rank; the watchdog repeats itself."""
    found: dict[int, Work] = {}
    groups: dict[int, str] = {}
    for hit in hits:
        rank = hit.head.rank
        if rank < 0:
            continue
        if match := _PG.search(hit.text):
            groups.setdefault(rank, f"{match[1]}/{match[2] or ''}")
        sequence = hit.groups.get("seq") or hit.groups.get("seq2")
        if sequence is None:
            continue
        numel = hit.groups.get("numel")
        # No counter has more digits than that; int() refuses thousands of them.
        elements = int(numel[:DIGITS_LIMIT]) if numel else -1
        work = Work(rank, int(sequence[:DIGITS_LIMIT]), hit.groups.get("op") or "", elements, "")
        known = found.get(rank)
        if known is None or (not known.operation and work.operation):
            found[rank] = work
    # Where only one group is named, a rank whose second line is lost waits in that one.
    only = next(iter(groups.values())) if len(set(groups.values())) == 1 else ""
    return [
        Work(w.rank, w.sequence, w.operation, w.elements, groups.get(w.rank, only)) for w in found.values()
    ]


def compare(works: Sequence[Work], world: int) -> Comparison:
    """Compares the works of all ranks that spoke.

    Ranks of different process groups are not compared. A missing rank is only counted where most ranks spoke: one
    node's log never holds the other's ranks.

    Args:
        works: one per rank.
        world: number of ranks, 0 if unknown.
    """
    if not works:
        return Comparison("none")
    ranks = {w.rank for w in works}
    by_group: dict[str, list[Work]] = {}
    for work in works:
        by_group.setdefault(work.group, []).append(work)
    for members in by_group.values():
        what: dict[str, set[int] | set[str]] = {
            "SeqNum": {w.sequence for w in members},
            "OpType": {w.operation for w in members if w.operation},
            "NumelIn": {w.elements for w in members if w.elements >= 0},
        }
        for name, values in what.items():
            if len(values) > 1 and not _point_to_point(members):
                return Comparison(
                    "desync", tuple(works), (), f"{name} {', '.join(sorted(str(v) for v in values))}"
                )
    expected = world or (max(ranks) + 1)
    missing = tuple(r for r in range(expected) if r not in ranks)
    if len(ranks) == 1:
        return Comparison("one-rank", tuple(works), missing)
    if missing and len(missing) <= len(ranks) // 2:
        return Comparison("peer-died", tuple(works), missing)
    return Comparison("equal", tuple(works), missing)


def _point_to_point(works: Sequence[Work]) -> bool:
    """SEND and RECV carry numbers of their own per pair."""
    return any(w.operation in ("SEND", "RECV", "COALESCED") for w in works)

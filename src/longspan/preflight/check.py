"""A check: what it asks, why, and a pure function from the scene to findings."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from longspan.finding import Evidence, Finding, Severity
from longspan.preflight.facts import NodeFacts
from longspan.preflight.scene import Scene


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check saw.

    Attributes:
        skipped: why it could not judge; empty where it did.
        seen: what it saw where all is well, in a few words.
    """

    findings: tuple[Finding, ...] = ()
    skipped: str = ""
    seen: str = ""

    @property
    def state(self) -> str:
        """ "ok", "skipped", or the worst severity found."""
        for severity in ("error", "warning", "info"):
            if any(finding.severity == severity for finding in self.findings):
                return severity
        return "skipped" if self.skipped else "ok"


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        id: stable, for machines; findings carry it as their cause unless they know better.
        group: checks that people read together.
        rule: when it passes.
        why: what goes wrong otherwise.
        command: what a person would run to see the same.
        source: where the knowledge comes from.
    """

    id: str
    group: str
    rule: str
    why: str
    command: str
    source: str
    judge: Callable[[Scene], Outcome]


def finding(
    subject: str,
    severity: Severity,
    cause: str,
    summary: str,
    remedy: str,
    *,
    evidence: str = "",
    where: str = "",
    undo: str = "",
    source: str = "",
) -> Finding:
    """A finding with one piece of evidence.

    Args:
        where: the file or command that said `evidence`.
    """
    found = (Evidence(where, 0, evidence),) if evidence else ()
    return Finding(subject, severity, cause, summary, found, remedy, undo, source)


def unknown(nodes: Sequence[NodeFacts], probe: str) -> str:
    """Why a probe gave nothing anywhere: the reasons, each with the nodes; empty if it did somewhere."""
    if not nodes:
        return "no node answered"
    if any(probe not in node.unknown for node in nodes):
        return ""
    reasons = Counter(node.unknown[probe] for node in nodes)
    return "; ".join(reasons)


def majority(values: Mapping[str, str]) -> str:
    """The value that most nodes have; of equally frequent ones the first node's."""
    counts = Counter(values.values())
    most = max(counts.values())
    return next(value for value in values.values() if counts[value] == most)


def minority(values: Mapping[str, str]) -> dict[str, str]:
    """The nodes whose value is not the majority's, and their value; empty when all are equal."""
    if len(set(values.values())) < 2:
        return {}
    common = majority(values)
    return {name: value for name, value in values.items() if value != common}


def together(names: Sequence[str]) -> str:
    """ "h1", "h1 and h2", "h1, h2 and 3 more"."""
    if len(names) <= 1:
        return "".join(names)
    if len(names) <= 4:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(names[:3])} and {len(names) - 3} more"

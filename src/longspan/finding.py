"""Finding: one thing noticed. Pre-flight, doctor, audit and alarms all speak it."""

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where it was seen. `line` counts from 1; 0 where the source has no lines (a command's output, a counter)."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing noticed, with what a person needs to act on it.

    Attributes:
        subject: what it is about: a node, rank, replica, file or setting.
        cause: the stable id of the cause, for machines and tests.
        summary: one sentence for people.
        confidence: 0 to 1.
        undo: how to take the remedy back; empty where there is nothing to undo.
        source: where the knowledge comes from (issue, documentation, measurement).
    """

    subject: str
    severity: Severity
    cause: str
    summary: str
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""
    undo: str = ""
    source: str = ""
    confidence: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """The form that `--json` prints."""
        return {
            "subject": self.subject,
            "severity": self.severity,
            "cause": self.cause,
            "confidence": self.confidence,
            "summary": self.summary,
            "evidence": [{"file": e.file, "line": e.line, "text": e.text} for e in self.evidence],
            "remedy": self.remedy,
            "undo": self.undo,
            "source": self.source,
        }

"""Why a deployment failed, and the lines of a log that say so."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from longspan.launch.phases import strip_colour

FailureKind = Literal["host", "ray", "capacity", "launch", "proof", "port"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the deployment failed. `kind` chooses the error class and exit code."""

    kind: FailureKind
    phase: str
    what: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """For the status document."""
        return {"kind": self.kind, "phase": self.phase, "what": self.what, "remedy": self.remedy}


_PREFIX = re.compile(r"^(?:\([^)]*\) ?)+")
_EXCEPTION = re.compile(
    r"^(?:\([^)]*\) ?)*(?:[\w.]+\.)?\w*(?:Error|Exception|Exit)\b: \S|\bERROR\b.*\b\w+(?:Error|Exception)\b: "
)

# Wrappers around what went wrong, and warnings that only mention an exception.
_NOT_THE_CAUSE = re.compile(
    r" WARNING |RayTaskError|RayActorError|EngineDeadError|Engine core initialization failed"
)


def cause(tail: Sequence[str]) -> str:
    """The lines of a log that most likely say why: the first exception's, not the last wrapper's."""
    lines = [strip_colour(line).rstrip() for line in tail]
    for index, line in enumerate(lines):
        if _EXCEPTION.search(line) and not _NOT_THE_CAUSE.search(line):
            # pydantic says what is wrong in the line below, indented.
            below = lines[index + 1] if index + 1 < len(lines) else ""
            below = _PREFIX.sub("", below)
            more = below.strip() if below[:1].isspace() else ""
            return f"Its log says: {_PREFIX.sub('', line)} {more}".rstrip()[:600]
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f"Its last line: {last.strip()[:400]}" if last else "It wrote no log."

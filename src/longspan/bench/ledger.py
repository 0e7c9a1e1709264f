"""Where the missing per cent of a scaling efficiency went: a ledger that sums to 100 exactly. Pure.

Each cause says which share of the base's throughput a GPU it leaves. The lines are taken one after the other, each from what those above it
left, so that two large causes never take the same per cent twice; what no cause took is "unexplained". A cause without data has no line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Basis = Literal["observed", "predicted", "rest"]
# Lines are whole hundredths of a per cent: those that are shown sum to 100, not only those behind them.
WHOLE = 10_000


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of lost throughput.

    Attributes:
        name: for people. basis: "observed" in the runs, or "predicted" by the plan's model.
        kept: throughput a GPU with it / without it, compared with the base; above 1 is a gain. None: there is no data.
        why: where the figure comes from; where there is none, why.
    """

    name: str
    basis: Basis
    kept: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Line:
    """One line; `hundredths` of a per cent of the base's throughput a GPU, negative for a gain."""

    name: str
    basis: Basis
    hundredths: int
    why: str

    @property
    def percent(self) -> float:
        """In per cent."""
        return self.hundredths / 100

    def to_json(self) -> dict[str, Any]:
        """The form in documents."""
        return {"name": self.name, "basis": self.basis, "percent": self.percent, "why": self.why}


@dataclass(frozen=True, slots=True)
class Ledger:
    """`efficiency`, every line and the rest: their hundredths sum to `WHOLE`.

    Attributes:
        efficiency_hundredths: of a per cent. lines: known causes. unexplained: what is left. absent: causes without data.
    """

    efficiency_hundredths: int
    lines: tuple[Line, ...]
    unexplained: Line
    absent: tuple[Cause, ...]


def ledger(efficiency: float, causes: Sequence[Cause]) -> Ledger:
    """The ledger of one measured efficiency (1 is all), causes in the order in which they are taken."""
    left = 1.0
    lines = []
    for cause in causes:
        if cause.kept is None:
            continue
        lost = left * (1 - cause.kept)
        left -= lost
        lines.append(Line(cause.name, cause.basis, round(WHOLE * lost), cause.why))
    reached = round(WHOLE * efficiency)
    rest = WHOLE - reached - sum(line.hundredths for line in lines)
    why = "no line above explains it" if rest >= 0 else "the lines above explain more than is missing"
    return Ledger(
        reached,
        tuple(lines),
        Line("unexplained", "rest", rest, why),
        tuple(cause for cause in causes if cause.kept is None),
    )


def kept(share: float, base_share: float) -> float:
    """What is left of the throughput when `share` of it (or of the time) is lost, against a base that loses `base_share`."""
    return (1 - share) / max(1 - base_share, 1e-9)

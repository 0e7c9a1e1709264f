"""What one rule is: a text of the field, what it means, and what to ask before one believes it."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["root", "symptom", "generic", "wait", "wrapper"]
"""How much a text says by itself.

root: it names its cause. symptom: it names a cause that something else may have brought about (a watchdog, a closed
connection, a dead node). generic: it says that something broke and not what. wait: something is not there yet; it
is a fault only if it never came. wrapper: it only repeats that another process failed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One text that logs carry.

    Attributes:
        id: stable name of the rule.
        cause: id in `causes.CAUSES`; empty for a wrapper.
        words: index keys, lower case, separated by spaces: the pattern is tried only on lines that have one of them
            as a whole word (letters, digits and _ make a word). "*error" stands for any word that ends in "error" or "exception".
        pattern: regular expression, searched in the line's text without colours.
        example: a line it must match; the table is its own test.
        source: where the text or its meaning is known from.
        weight: how sure this text alone makes one, 0 to 1 (calibrated on labelled logs).
        phase: for `wait`: progress beyond this phase (see `marks.PHASES`) shows that the wait ended.
        launch_only: a server that came up refutes it.
        any_level: believed on INFO lines too.
        also: other causes that write the same text, with the probe that tells them apart in `question`.
        decide: name of a function in `deciders.DECIDERS` that reads the surroundings to choose among causes.
        versions: where the text occurs, if not everywhere.
        remedy: a more exact remedy than the cause's own.
    """

    id: str
    cause: str
    words: str
    pattern: str
    example: str
    kind: Kind = "root"
    source: str = ""
    weight: float = 0.9
    phase: int = 0
    launch_only: bool = False
    any_level: bool = False
    also: tuple[str, ...] = ()
    question: str = ""
    decide: str = ""
    versions: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line that is no fault but tells where the launch stands.

    Attributes:
        means: "start", "progress", "ready", "serving", "stalled", "stop", "frame", "init-start", "init-done",
            "world", "section" or "kill" (an order to end something by hand).
        phase: for progress: number in `marks.PHASES`.
    """

    id: str
    means: str
    words: str
    pattern: str
    example: str
    phase: int = 0

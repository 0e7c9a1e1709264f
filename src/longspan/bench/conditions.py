"""The conditions lock: what was true while it was measured, and which of it must be equal for a comparison to mean anything.

A lock is flat: "engine/version" -> value, as everything in it came from the same run. Names begin with their subject:
model, engine, layout, node, gateway, load, cache, client or endpoint. A value is a text or a number; None says that it
is not known, openly. What is expected in general (the planner's estimate, a link's nominal rate) never stands in a lock:
it has a place of its own in a report, so that nobody takes it for an observation.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from longspan.bench.load import LoadSpec

Value = str | float | int | bool | None
Lock = Mapping[str, Any]
Weight = Literal["blocks", "told", "ignored"]

# (pattern, weight, tolerance, why). The first that fits counts. A tolerance is a difference of two numbers.
_RULES: tuple[tuple[str, Weight, float, str], ...] = (
    ("load/prompts_hash", "blocks", 0, "other prompts have other lengths, and may be in the prefix cache"),
    ("load/seed*", "told", 0, "another sample of the same load"),
    ("load/salt", "told", 0, "other texts of the same lengths"),
    ("load/requests", "told", 0, "another length of the run"),
    ("load/duration_seconds", "told", 0, "another length of the run"),
    ("load/*", "blocks", 0, "another load is another question"),
    ("cache/prefix_hit_share", "blocks", 0.1, "cached prompt tokens cost no prefill: TTFT falls many times over"),
    ("cache/*", "blocks", 0, "a warm cache answers faster than a cold one"),
    ("model/served_name", "told", 0, "a name only"),
    ("model/*", "blocks", 0, "another model or checkpoint does other work"),
    ("engine/id", "ignored", 0, "a process"),
    ("engine/started*", "ignored", 0, "a process"),
    ("engine/*", "blocks", 0, "another engine, or the same one with other arguments"),
    ("layout/*", "blocks", 0, "another split, or other GPUs"),
    ("node/*/gpu_temperature*", "told", 0, "it changes all the time"),
    ("node/*/host_name", "told", 0, "a name only"),
    ("node/*/address", "told", 0, "a name only"),
    ("node/*/kernel", "told", 0, "rarely matters to a GPU"),
    ("node/*", "blocks", 0, "GPUs, driver, NCCL and network decide how fast the ranks are"),
    ("gateway/*", "blocks", 0, "the front door adds, holds or spills requests"),
    ("client/host*", "blocks", 0, "the way from the client to the endpoint is part of every latency"),
    ("client/*", "told", 0, "the client measures its own error"),
    ("endpoint/*", "told", 0, "where it was measured"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """One condition that is not the same on both sides.

    Attributes:
        name: of the condition. a, b: values; None is unknown. weight: whether it forbids a comparison. why: it matters.
    """

    name: str
    a: Value
    b: Value
    weight: Weight
    why: str

    @property
    def is_unknown(self) -> bool:
        """Whether one side does not know it, so that it may differ or not."""
        return self.a is None or self.b is None

    def __str__(self) -> str:
        return f"{self.name}: A has {_shown(self.a)}, B has {_shown(self.b)}"

    def to_json(self) -> dict[str, Any]:
        """The form in documents."""
        return {"name": self.name, "a": self.a, "b": self.b, "weight": self.weight, "why": self.why}


def _shown(value: Value) -> str:
    if value is None:
        return "nothing known"
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "…"


def rule(name: str) -> tuple[Weight, float, str]:
    """Weight, tolerance and reason of a condition; one that no rule knows forbids a comparison."""
    for pattern, weight, tolerance, why in _RULES:
        if fnmatchcase(name, pattern):
            return weight, tolerance, why
    return "blocks", 0.0, "nobody knows whether it matters"


def differences(a: Lock, b: Lock) -> list[Difference]:
    """What is not the same, what forbids a comparison first. What neither side knows is in `unknown`."""
    found = []
    for name in sorted(a.keys() | b.keys()):
        weight, tolerance, why = rule(name)
        left, right = a.get(name), b.get(name)
        if weight == "ignored" or _same(left, right, tolerance):
            continue
        found.append(Difference(name, left, right, weight, why))
    return sorted(found, key=lambda one: (one.weight != "blocks", one.is_unknown, one.name))


def _same(a: Value, b: Value, tolerance: float) -> bool:
    numbers = [value for value in (a, b) if isinstance(value, int | float) and not isinstance(value, bool)]
    if tolerance and len(numbers) == 2:
        return abs(numbers[0] - numbers[1]) <= tolerance
    return a == b


def unknown(*locks: Lock) -> list[str]:
    """The conditions that no side knows."""
    names = {name for lock in locks for name in lock}
    return sorted(name for name in names if all(lock.get(name) is None for lock in locks))


def is_allowed(name: str, allowed: Iterable[str]) -> bool:
    """Whether a condition is among those that may differ: by its name, by a part of its path, or by a pattern."""
    return any(
        name == one or name.startswith(f"{one.rstrip('/')}/") or fnmatchcase(name, one) for one in allowed
    )


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether two measurements may be compared.

    Attributes:
        forbidding: differences that matter and were not allowed; none: go on.
        under_test: those that were allowed: the thing that the comparison is about.
        told: differences that do not matter, and those where one side does not know.
        unused: allowed names that differ in nothing.
    """

    forbidding: tuple[Difference, ...]
    under_test: tuple[Difference, ...]
    told: tuple[Difference, ...]
    unused: tuple[str, ...]
    neither_knows: tuple[str, ...]


def permission(a: Lock, b: Lock, allowed: Sequence[str] = (), is_strict: bool = False) -> Permission:
    """Judges two locks.

    Args:
        allowed: names of conditions that may differ ("engine/version", or "layout" for all below it).
        is_strict: what one side does not know forbids too.
    """
    forbidding, under_test, told = [], [], []
    for one in differences(a, b):
        if is_allowed(one.name, allowed):
            under_test.append(one)
        elif one.weight == "blocks" and (is_strict or not one.is_unknown):
            forbidding.append(one)
        else:
            told.append(one)
    unused = tuple(name for name in allowed if not any(is_allowed(one.name, [name]) for one in under_test))
    return Permission(tuple(forbidding), tuple(under_test), tuple(told), unused, tuple(unknown(a, b)))


def digest(texts: Iterable[str]) -> str:
    """A short name for a set of prompts in their order: the first 16 hex digits of SHA-256 over length and text."""
    found = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        found.update(len(data).to_bytes(8, "big") + data)
    return found.hexdigest()[:16]


def lock_digest(lock: Lock) -> str:
    """Two runs of the same digest had the same conditions."""
    return hashlib.sha256(json.dumps(dict(lock), sort_keys=True, default=str).encode()).hexdigest()[:16]


def of_load(spec: LoadSpec) -> dict[str, Any]:
    """What was asked for: load/prompt/mean, load/concurrency, … The body's further fields are one value: a field that only one
    side gave is a difference, nothing unknown."""
    found = {"load/extra": json.dumps(spec.extra, sort_keys=True)}
    for name, value in asdict(spec).items():
        if name == "extra":
            continue
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        found |= {f"load/{name}/{part}".rstrip("/"): one for part, one in inner}
    return found


def merged(*parts: Lock) -> dict[str, Any]:
    """One lock of several sources; of two values for a name the first that is known counts."""
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if found.get(name) is None:
                found[name] = value
    return dict(sorted(found.items()))

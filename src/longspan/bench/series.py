"""Runs on different numbers of GPUs as one series: how each was split, whether they may stand beside each other, and by which law. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from longspan.bench.conditions import Difference, Lock, is_allowed, permission, rule
from longspan.bench.result import Result
from longspan.errors import ConditionsError, InputError

Law = Literal["weak", "strong"]
# What another number of GPUs changes by itself: it is what is under test.
UNDER_TEST = (
    "layout", "engine/argument/tensor-parallel-size", "engine/argument/pipeline-parallel-size",
    "engine/argument/data-parallel-size", "engine/argument/distributed-executor-backend", "engine/count",
    "engine/cache/num_gpu_blocks", "engine/cache/num_cpu_blocks",
)  # fmt: skip
# What makes a load strong or weak; judged by `law_of`, not by the lock.
_STRENGTH = ("load/concurrency", "load/pattern/rate", "load/pattern/rate_end", "load/requests")
# Versions that must be the same on nodes that the base did not have.
_OF_EVERY_NODE = ("vllm", "torch", "ray", "nccl", "driver")
# Clients are whole, and rates are typed: loads nearer than this are the same.
_SAME_LOAD = 0.01


@dataclass(frozen=True, slots=True)
class Split:
    """How many GPUs a run had, and how they were split; tp 0: only the number is known."""

    gpus: int
    tp: int = 0
    pp: int = 1
    replicas: int = 1

    def __str__(self) -> str:
        if not self.tp:
            return "-"
        parts = [f"TP{self.tp}", *([f"PP{self.pp}"] if self.pp > 1 else [])]
        return (f"{self.replicas} x " if self.replicas > 1 else "") + " ".join(parts)


def parse_split(text: str) -> Split:
    """Reads "4" (GPUs only), "tp4", "tp2pp2" or "3xtp2pp2" (three replicas of it).

    Raises:
        InputError: it is none of these.
    """
    found = re.fullmatch(
        r"(?:(?P<r>\d{1,4})x)?tp(?P<t>\d{1,4})(?:pp(?P<p>\d{1,4}))?|(?P<n>\d{1,5})", text.lower(), re.ASCII
    )
    sizes = {name: int(size) for name, size in found.groupdict().items() if size} if found else {}
    if not sizes or 0 in sizes.values():
        raise InputError(
            f"{text!r} is no number of GPUs.", "Write RESULT=4, or its split: RESULT=tp4, RESULT=3xtp2pp2."
        )
    if "n" in sizes:
        return Split(sizes["n"])
    tp, pp, replicas = sizes["t"], sizes.get("p", 1), sizes.get("r", 1)
    return Split(tp * pp * replicas, tp, pp, replicas)


def split_of(result: Result) -> Split | None:
    """The split as the run's conditions tell it; None where they do not."""
    sizes = [result.conditions.get(f"layout/{name}") for name in ("tp", "pp")]
    replicas = result.conditions.get("layout/replicas") or 1
    if not all(isinstance(size, int) and size > 0 for size in (*sizes, replicas)):
        return None
    tp, pp = sizes
    assert tp is not None
    assert pp is not None
    return Split(tp * pp * replicas, tp, pp, replicas)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a series: its result and its split."""

    result: Result
    split: Split

    @property
    def is_open(self) -> bool:
        """Whether the load did not wait for answers."""
        kind: str = (self.result.load.get("pattern") or {}).get("kind", "closed")
        return kind != "closed"


def ordered(runs: Sequence[Measured]) -> list[Measured]:
    """By GPUs.

    Raises:
        InputError: fewer than two numbers of GPUs, or two runs of the same one.
    """
    found = sorted(runs, key=lambda one: one.split.gpus)
    counts = [one.split.gpus for one in found]
    if len(found) < 2:
        raise InputError("Scaling needs runs of at least two numbers of GPUs.", "Name a run of another one.")
    if twice := next((count for count in counts if counts.count(count) > 1), None):
        names = ", ".join(one.result.result_id for one in found if one.split.gpus == twice)
        raise InputError(
            f"Two of the runs had {twice} GPUs: {names}.",
            "Name one of them; `longspan bench compare` says which is better.",
        )
    return found


def law_of(runs: Sequence[Measured]) -> Law:
    """Weak or strong, from the loads.

    Raises:
        ConditionsError: the load is neither the same everywhere nor the same a GPU; every one is named.
    """
    base, *others = runs
    if unsaid := [one.result.result_id for one in runs if not any(_strength(one)) and not _is_trace(one)]:
        raise ConditionsError(
            f"It is not known with which load {', '.join(unsaid)} was measured, so the law cannot be told.",
            "Measure with `longspan bench`; results of other tools do not tell it.",
        )
    is_strong = all(_grew(one, base, 1.0) for one in others)
    is_weak = all(_grew(one, base, one.split.gpus / base.split.gpus) for one in others)
    if is_strong or is_weak:
        return "strong" if is_strong else "weak"
    named = "".join(f"\n  {one.result.result_id}: {_load_words(one)}" for one in runs)
    raise ConditionsError(
        f"The load is neither the same in all runs (strong scaling) nor the same a GPU (weak):{named}",
        "Measure again with one --concurrency or --rate for all, or with one that grows as the GPUs do.",
    )


def _is_trace(run: Measured) -> bool:
    return (run.result.load.get("pattern") or {}).get("kind") == "trace"


def _strength(run: Measured) -> tuple[float, ...]:
    load = run.result.load
    pattern = load.get("pattern") or {}
    return tuple(
        float(value or 0) for value in (load.get("concurrency"), pattern.get("rate"), pattern.get("rate_end"))
    )


def _grew(one: Measured, base: Measured, factor: float) -> bool:
    pairs = zip(_strength(one), _strength(base), strict=True)
    return all(abs(value - factor * first) <= _SAME_LOAD * factor * first for value, first in pairs)


def _load_words(run: Measured) -> str:
    clients, rate, _ = _strength(run)
    load, unit = (rate, "requests/s") if rate else (clients, "clients")
    return f"load {load:g} {unit} on {run.split.gpus} GPUs, {load / run.split.gpus:.4g} a GPU"


def refused(
    runs: Sequence[Measured], allowed: Sequence[str]
) -> tuple[list[tuple[str, Difference]], list[str]]:
    """Differences from the base that forbid a comparison, with the run; and what no side knows though it must be equal."""
    base, *others = runs
    forbidding, unknown = [], set[str]()
    for one in others:
        locks = base.result.conditions, one.result.conditions
        found = permission(*locks, [*UNDER_TEST, *_STRENGTH, *allowed])
        seen = [*found.forbidding, *_of_new_nodes(*locks, allowed)]
        forbidding += [(one.result.result_id, difference) for difference in seen]
        unknown |= {
            difference.name
            for difference in found.told
            if difference.weight == "blocks" and not _is_of_one_side(difference.name, *locks)
        }
        unknown |= {name for name in found.neither_knows if name.startswith(("model/", "engine/"))}
    return forbidding, sorted(unknown)


def _nodes(lock: Lock) -> set[str]:
    return {name.split("/")[1] for name in lock if name.startswith("node/") and name.count("/") == 2}


def _is_of_one_side(name: str, a: Lock, b: Lock) -> bool:
    """Whether it belongs to a node that only one of the runs had."""
    return (
        name.count("/") == 2 and name.startswith("node/") and name.split("/")[1] not in _nodes(a) & _nodes(b)
    )


def _of_new_nodes(a: Lock, b: Lock, allowed: Sequence[str]) -> list[Difference]:
    """Versions on nodes that only the second run had which no node of the first had."""
    found = []
    for node in sorted(_nodes(b) - _nodes(a)):
        for what in _OF_EVERY_NODE:
            name = f"node/{node}/{what}"
            there = {a[f"node/{one}/{what}"] for one in _nodes(a) if a.get(f"node/{one}/{what}") is not None}
            if there and b.get(name) is not None and b[name] not in there and not is_allowed(name, allowed):
                found.append(
                    Difference(name, ", ".join(sorted(map(str, there))), b[name], "blocks", rule(name)[2])
                )
    return found

"""Two endpoints measured in turn: A B B A, so that whatever drifts slowly falls on both alike. The runner is injected."""

from collections.abc import Callable, Sequence
from typing import Literal

from longspan.bench.blocks import Block
from longspan.bench.cut import whole
from longspan.bench.result import Result
from longspan.workload import Objective

Side = Literal["a", "b"]
# Measures one block of a side; the number is the pair's, which seeds both sides alike.
Runner = Callable[[Side, int], Result]


def order(pairs: int) -> list[tuple[Side, int]]:
    """The order of blocks: AB BA AB BA …; over an even number of pairs a linear drift cancels out.

    Returns:
        (side, pair) for each block.
    """
    found: list[tuple[Side, int]] = []
    for pair in range(pairs):
        first, second = ("a", "b") if pair % 2 == 0 else ("b", "a")
        found += [(first, pair), (second, pair)]  # type: ignore[list-item]
    return found


def measure(runner: Runner, pairs: int) -> tuple[list[Result], list[Result]]:
    """Runs all blocks.

    Returns:
        results of A and of B, of which the i-th ran one right after the other.
    """
    found: dict[Side, list[Result]] = {"a": [], "b": []}
    for side, pair in order(pairs):
        found[side].append(runner(side, pair))
    return found["a"], found["b"]


def blocks(results: list[Result], objectives: Sequence[Objective]) -> list[Block]:
    """Each run as one block."""
    return [whole(result, objectives) for result in results]

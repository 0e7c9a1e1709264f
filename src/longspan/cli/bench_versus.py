"""`longspan bench versus`: two endpoints measured in turn, A B B A, and a verdict that drift cannot make."""

import json
from pathlib import Path
from random import Random
from typing import Any

import click

from longspan.bench.blocks import METRICS
from longspan.bench.compare import compare, deciding
from longspan.bench.conditions import permission
from longspan.bench.interleave import Side, blocks, order
from longspan.bench.result import Result
from longspan.bench.store import save
from longspan.cli import bench_measure
from longspan.cli.bench_compare import EXIT, document, refuse, show, soundness
from longspan.cli.bench_measure import Bench
from longspan.cli.bench_options import load_options, verdict_options
from longspan.cli.bench_store import store_option
from longspan.errors import InputError, UndecidedError


@click.command("versus")
@click.argument("a")
@click.argument("b")
@load_options
@click.option("--pairs", type=click.IntRange(2), default=4, show_default=True, help="Blocks of each side.")
@verdict_options
@store_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    a: str,
    b: str,
    pairs: int,
    allow: tuple[str, ...],
    strict: bool,
    unsound: bool,
    margin: float,
    store: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Say whether the endpoint B is better than A, both under the same load now.

    Each block is one run of the load, so `-n` and `-d` are of a block. Both sides of a pair get the same prompts in the same order; the
    sides change places from pair to pair, so that whatever drifts falls on both alike. Exit codes are those of `bench compare`.
    """
    if pairs % 2:
        raise InputError(f"--pairs {pairs} is odd.", "Over an even number of pairs a drift cancels out.")
    sides: dict[Side, Bench] = {
        "a": bench_measure.prepare(a, dict(options)),
        "b": bench_measure.prepare(b, dict(options)),
    }
    # Before an hour of load: what is known of both already.
    refuse(permission(sides["a"].around, sides["b"].around, allow, strict))
    results = _measure(sides, pairs, store)
    both = results["a"], results["b"]
    caveats = [text for pair in zip(*both, strict=True) for text in soundness(pair, unsound)]
    allowed = permission(both[0][0].conditions, both[1][0].conditions, allow, strict)
    refuse(allowed)
    objectives = sides["a"].objectives
    cut = [blocks(one, objectives) for one in both]
    decide = (*deciding([*cut[0], *cut[1]]), *(["goodput"] if objectives else []))
    verdict = compare(
        *cut, is_paired=True, uniform=Random(options["seed"]).random, decide=decide,  # noqa: S311
        shown=[name for name in METRICS if name != "goodput" or objectives], margin=margin / 100,
        caveats=tuple(dict.fromkeys(caveats)),
    )  # fmt: skip
    if as_json:
        found = document((both[0][0], both[1][0]), verdict, allowed, options["seed"])
        runs = {side: [one.result_id for one in results[side]] for side in results}
        click.echo(json.dumps({**found, "runs": runs}, allow_nan=False))
    else:
        show(verdict, allowed)
    ctx.exit(EXIT[verdict.outcome])


def _measure(sides: dict[Side, Bench], pairs: int, store: Path) -> dict[Side, list[Result]]:
    """All blocks in their order, each kept as soon as it is there."""
    found: dict[Side, list[Result]] = {"a": [], "b": []}
    same = sides["a"].target == sides["b"].target
    for number, (side, pair) in enumerate(order(pairs), 1):
        spec = sides[side].spec
        # The same texts for both, but for an endpoint against itself, whose prefix cache would know them.
        salt = spec.salt + 2 * pair + (1 if same and side == "b" else 0)
        bench = bench_measure.with_load(sides[side], seed=spec.seed + pair, salt=salt)
        click.echo(f"block {number} of {2 * pairs}: {side.upper()}", err=True)
        result = bench_measure.measure(bench)
        save(store, result)
        if result.interrupted:
            raise UndecidedError(
                f"Interrupted in block {number} of {2 * pairs}: the pairs are not whole, so there is no verdict.",
                f"`longspan bench list` has the {number} runs that were made.",
            )
        found[side].append(result)
    return found

"""`longspan bench compare`: is B better than A, worse, or can it not be told; for people and for CI."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import click

from longspan.bench.blocks import METRICS
from longspan.bench.compare import Judged, Verdict, compare, deciding, in_percent, label
from longspan.bench.conditions import Permission, permission
from longspan.bench.cut import cut
from longspan.bench.result import Result
from longspan.bench.store import find
from longspan.cli.bench_options import verdict_options
from longspan.cli.bench_store import store_option
from longspan.errors import ConditionsError, InputError, UndecidedError, UnsoundRunError, WorseError
from longspan.workload import parse_objectives

EXIT = {"better": 0, "same": 0, "worse": WorseError.exit_code, "cannot tell": UndecidedError.exit_code}
_COLOURS = {"better": "green", "same": "green", "worse": "red", "cannot tell": "yellow"}
_TURN = "A and B did not run in turn: whatever else changed between the two runs counts as B's doing."


@click.command("compare")
@click.argument("a")
@click.argument("b")
@verdict_options
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="Decide by this; may be given again."
)
@click.option("--slo", default="", help='Objectives of goodput, e.g. "ttft=500ms, e2el=10s".')
@click.option("--seed", type=int, default=0, show_default=True, help="Of the resampling.")
@store_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def command(
    ctx: click.Context,
    a: str,
    b: str,
    allow: tuple[str, ...],
    strict: bool,
    unsound: bool,
    metrics: tuple[str, ...],
    slo: str,
    margin: float,
    seed: int,
    store: Path,
    as_json: bool,
) -> None:
    """Say whether B is better than A.

    A and B are stored results or their files. Ends with 0 when B is better or the same within the margin, with 93 when
    it is worse, with 94 when that cannot be told yet, and refuses with 95 when the conditions differ in what matters.
    """
    wanted = parse_objectives(slo) if slo else ()
    if wrong := [name for name in metrics if name not in METRICS]:
        raise InputError(f"{wrong[0]!r} is no metric of a comparison.", f"One of: {', '.join(METRICS)}.")
    if "://" in a or "://" in b:
        raise InputError(
            "compare is for results that are there already.",
            f"`longspan bench versus {a} {b}` measures two endpoints in turn.",
        )
    sides = find(a, store), find(b, store)
    caveats = soundness(sides, unsound)
    allowed = permission(sides[0].conditions, sides[1].conditions, allow, strict)
    refuse(allowed)
    blocks = [cut(side, wanted) for side in sides]
    decide = metrics or (*deciding([*blocks[0], *blocks[1]]), *(["goodput"] if wanted else []))
    shown = [name for name in METRICS if name != "goodput" or wanted]
    verdict = compare(
        *blocks, is_paired=False, uniform=Random(seed).random, decide=decide, shown=shown,  # noqa: S311
        margin=margin / 100, caveats=(*caveats, _TURN),
    )  # fmt: skip
    if as_json:
        click.echo(json.dumps(document(sides, verdict, allowed, seed), allow_nan=False))
    else:
        show(verdict, allowed)
    ctx.exit(EXIT[verdict.outcome])


def soundness(sides: Sequence[Result], is_accepted: bool) -> list[str]:
    """Caveats of the two runs.

    Raises:
        UnsoundRunError: a run measured its client, or its token counts differ.
    """
    caveats = []
    for name, side in zip("AB", sides, strict=True):
        trouble = (
            [f"{name} is CLIENT-LIMITED: {'; '.join(side.client.reasons)}"] if side.client.limited else []
        )
        if side.engine and side.engine.audit.verdict == "differ":
            trouble.append(f"the token counts of {name} differ: {side.engine.audit.reason}")
        if trouble and not is_accepted:
            raise UnsoundRunError(
                f"A comparison would not be about the servers: {'. '.join(trouble)}.",
                "Measure again, or give --unsound.",
            )
        caveats += trouble
        if side.interrupted:
            caveats.append(f"{name} ended early: {side.interrupted}")
    return caveats


def refuse(allowed: Permission) -> None:
    """Raises ConditionsError that names every difference which was not allowed."""
    if not allowed.forbidding:
        return
    named = "".join(f"\n  {one} ({one.why})" for one in allowed.forbidding)
    flags = " ".join(f"--allow {one.name}" for one in allowed.forbidding[:3])
    raise ConditionsError(
        f"A and B were not measured under the same conditions:{named}",
        f"Measure under the same, or say that this is what you are testing: {flags}",
    )


def document(sides: Sequence[Result], verdict: Verdict, allowed: Permission, seed: int) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "schema": "longspan.bench.compare/1",
        "a": sides[0].result_id,
        "b": sides[1].result_id,
        "seed": seed,
        **verdict.to_json(),
        "under_test": [one.to_json() for one in allowed.under_test],
        "other_differences": [one.to_json() for one in allowed.told],
        "allowed_but_equal": list(allowed.unused),
        "known_by_neither": list(allowed.neither_knows),
    }


def show(verdict: Verdict, allowed: Permission) -> None:
    """The answer, then the figures that it rests on, then what a reader must know."""
    click.echo(click.style(verdict.sentence, fg=_COLOURS[verdict.outcome], bold=True) + "\n")
    click.echo(f"  {'':2}{'':30}{'A':>14}{'B':>14}{'change':>14}  {'95 % of it':<32}{'seen from'}")
    for one in verdict.judged:
        click.echo(_row(one))
    click.echo("\n  * decides; the verdict allows for their number, the interval shown does not.")
    for difference in allowed.under_test:
        click.echo(f"  under test: {difference}")
    for name in allowed.unused:
        click.echo(f"  allowed, but the same on both sides: {name}")
    for difference in allowed.told:
        click.echo(f"  also different: {difference}")
    if allowed.neither_knows:
        click.echo(f"  known of neither side: {', '.join(allowed.neither_knows)}")
    for caveat in verdict.caveats:
        click.echo(f"  note: {caveat}")


def _row(one: Judged) -> str:
    effect = one.effect
    metric = effect.metric
    values = "".join(f"{_value(value, metric.unit):>14}" for value in (effect.a, effect.b))
    front = f"  {'*' if one.decides else '':2}{label(metric):30}{values}"
    if effect.change is None:
        return f"{front}  {effect.note}"
    change = f"{in_percent(metric, effect.change):>14}"
    if effect.error == float("inf"):
        return f"{front}{change}  {effect.note}"
    interval = f"{in_percent(metric, one.low)} to {in_percent(metric, one.high)}"
    return f"{front}{change}  {interval:<32}{one.smallest_seen * 100:.1f} %"


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "s":
        return f"{value * 1000:,.1f} ms" if value < 10 else f"{value:,.1f} s"
    return f"{value:,.1f} {'tok/s' if unit == 'tokens/s' else 'req/s'}" if unit else f"{value * 100:.2f} %"

"""Scaling efficiency for people: sentences, tables, one page with plots; and as a document. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from longspan.bench.ledger import Line
from longspan.bench.plots import plot
from longspan.bench.report import page, table_line
from longspan.bench.scaling import Point, Scaling

SCHEMA = "longspan.bench.scaling/1"
# The quantity of `Beside` that is throughput.
OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Beside:
    """A plan's estimate beside what was measured, of one replica.

    Attributes:
        quantity: `OUTPUT`, "TTFT mean" or "TPOT mean". unit: of all figures. p50, p10, p90: the estimate.
        measured: None where the run does not tell it.
    """

    quantity: str
    unit: str
    p50: float
    p10: float
    p90: float
    measured: float | None

    @property
    def verdict(self) -> str:
        """Whether the measurement lies in the interval; "" without one."""
        if self.measured is None:
            return ""
        return "below" if self.measured < self.p10 else "above" if self.measured > self.p90 else "inside"


@dataclass(frozen=True, slots=True)
class Report:
    """All that is told. `beside`: per point; empty where there are no estimates, and `why_no_plan` says why.

    Attributes:
        unknown: conditions that must be equal and are not known.
    """

    found: Scaling
    beside: tuple[tuple[Beside, ...], ...]
    why_no_plan: str
    unknown: tuple[str, ...]
    caveats: tuple[str, ...]

    @property
    def unit(self) -> str:
        """Of T."""
        return "req/s in time" if self.found.metric.startswith("goodput") else "output tok/s"


def sentences(report: Report) -> list[str]:
    """The answer."""
    found = report.found
    base, last = found.points[0], found.points[-1]
    law = "the load grew with the GPUs" if found.law == "weak" else "the same load"
    grown = last.efficiency * last.run.split.gpus / base.run.split.gpus
    less = f"{last.efficiency:.1%} of the throughput a GPU is left{_between(last)}"
    return [
        f"From {base.run.split.gpus} to {last.run.split.gpus} GPUs ({found.law} scaling: {law}): {grown:.2f} times the throughput; {less}."
    ]


def planned_efficiency(report: Report) -> list[float | None]:
    """Of each run, what the plan's estimates of output throughput make of it; None without both estimates, and of goodput."""
    each = [_planned_each(report, number) for number in range(len(report.found.points))]
    base = None if report.found.metric.startswith("goodput") else each[0]
    return [one / base if one and base else None for one in each]


def _planned_each(report: Report, number: int) -> float | None:
    """Output tokens per second and GPU that the plan expects; of one replica, as all are alike."""
    split = report.found.points[number].run.split
    compared = report.beside[number] if report.beside else ()
    return next((one.p50 / (split.tp * split.pp) for one in compared if one.quantity == OUTPUT), None)


def _between(point: Point) -> str:
    return "" if point.low is None or point.high is None else f" (95 %: {point.low:.1%} to {point.high:.1%})"


def notes(report: Report) -> list[str]:
    """What a reader must know."""
    found = [*report.found.notes, *report.caveats]
    if report.unknown:
        found.append(f"Not known of every run, though it should be the same: {', '.join(report.unknown)}.")
    if report.why_no_plan:
        found.append(f"No plan's estimate: {report.why_no_plan}")
    return found


def points_table(report: Report) -> list[list[str]]:
    """One row a run, the head first."""
    rows = [["GPUs", "split", report.unit, "a GPU", "times", "efficiency", "95 % of it", "plan", "result"]]
    base = report.found.points[0]
    for one, planned in zip(report.found.points, planned_efficiency(report), strict=True):
        value = one.throughput.value or 0.0
        ratio = one.run.split.gpus / base.run.split.gpus
        rows.append([
            str(one.run.split.gpus), str(one.run.split), f"{value:,.4g}", f"{value / one.run.split.gpus:,.4g}",
            f"{one.efficiency * ratio:.2f}", f"{one.efficiency:.1%}",
            "" if one.low is None or one.high is None else f"{one.low:.1%} to {one.high:.1%}",
            "" if planned is None else f"{planned:.1%}", one.run.result.result_id,
        ])  # fmt: skip
    return rows


def ledger_table(point: Point) -> list[list[str]]:
    """Where the per cent of a point went; the second column sums to 100."""
    book = point.ledger
    rows = [["of the base's throughput a GPU", "%", "", "from"]]
    rows.append(["left", f"{book.efficiency_hundredths / 100:.2f}", "observed", "measured throughput"])
    rows += [_line(one) for one in (*book.lines, book.unexplained)]
    return rows


def _line(one: Line) -> list[str]:
    return [one.name, f"{one.percent:.2f}", "" if one.basis == "rest" else one.basis, one.why]


def absent(point: Point) -> list[str]:
    """The causes that have no line, with the reason."""
    return [f"{cause.name}: not measured ({cause.why})" if cause.basis == "observed" else
            f"{cause.name}: not estimated ({cause.why})" for cause in point.ledger.absent]  # fmt: skip


def plan_table(report: Report) -> list[list[str]]:
    """Estimates beside measurements, one row a run and quantity; the head only where there are none."""
    rows = [["GPUs", "of one replica", "plan", "p10 to p90", "measured", "in it"]]
    for point, compared in zip(report.found.points, report.beside, strict=False):
        rows += [
            [str(point.run.split.gpus), f"{one.quantity} ({one.unit})", f"{one.p50:,.4g}", f"{one.p10:,.4g} to {one.p90:,.4g}",
             "-" if one.measured is None else f"{one.measured:,.4g}", one.verdict]
            for one in compared
        ]  # fmt: skip
    return rows


def document(report: Report) -> dict[str, Any]:
    """What `--json` prints; docs/bench-scaling.md describes it."""
    found = report.found
    points = []
    planned = planned_efficiency(report)
    for number, one in enumerate(found.points):
        split = one.run.split
        points.append({
            "result_id": one.run.result.result_id, "gpus": split.gpus, "tp": split.tp or None,
            "pp": split.pp if split.tp else None, "replicas": split.replicas if split.tp else None,
            "throughput": one.throughput.value, "efficiency": one.efficiency, "low": one.low, "high": one.high,
            "planned_efficiency": planned[number],
            "ledger": {
                "efficiency_percent": one.ledger.efficiency_hundredths / 100,
                "lines": [line.to_json() for line in (*one.ledger.lines, one.ledger.unexplained)],
                "absent": [{"name": cause.name, "basis": cause.basis, "why": cause.why} for cause in one.ledger.absent],
            } if number else None,
            "plan": [
                {"quantity": b.quantity, "unit": b.unit, "p10": b.p10, "p50": b.p50, "p90": b.p90, "measured": b.measured,
                 "verdict": b.verdict or None}
                for b in (report.beside[number] if report.beside else ())
            ],
        })  # fmt: skip
    return {
        "schema": SCHEMA, "law": found.law, "metric": found.metric, "base_gpus": found.points[0].run.split.gpus,
        "points": points, "unknown": list(report.unknown), "notes": notes(report),
    }  # fmt: skip


def lines(report: Report) -> list[str]:
    """For a terminal."""
    found = [*sentences(report), "", *_aligned(points_table(report))]
    for point in report.found.points[1:]:
        found += ["", f"{point.run.split.gpus} GPUs: where 100 % went", *_aligned(ledger_table(point))]
        found += [f"  {text}" for text in absent(point)]
    if len(plan := plan_table(report)) > 1:
        found += ["", "The plan's estimate beside the measurement", *_aligned(plan)]
    return [*found, "", *(f"note: {text}" for text in notes(report))]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of the same width: numbers to the right, the last column as it is."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    found = []
    for row in rows:
        cells = [
            cell.ljust(width) if at == 0 or at == len(row) - 1 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        found.append("  " + "  ".join(cells).rstrip())
    return found


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = rows
    return [table_line(head), table_line(["---"] * len(head)), *(table_line(row) for row in rest), ""]


def markdown(report: Report) -> str:
    """To paste."""
    found = [*sentences(report), "", *_markdown(points_table(report))]
    for point in report.found.points[1:]:
        found += [f"{point.run.split.gpus} GPUs: where 100 % went", "", *_markdown(ledger_table(point))]
        found += [*(f"- {text}" for text in absent(point)), ""]
    if len(plan := plan_table(report)) > 1:
        found += ["The plan's estimate beside the measurement", "", *_markdown(plan)]
    return "\n".join([*found, *(f"- {text}" for text in notes(report))]) + "\n"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = rows
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rest)
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'


def _list(texts: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>" if texts else ""


def html(report: Report) -> str:
    """The whole page: no script, no request to anywhere."""
    points = report.found.points
    gpus = [float(one.run.split.gpus) for one in points]
    plots = [
        plot("Efficiency over GPUs", "GPUs", "% of the base's throughput a GPU",
             [(at, 100 * one.efficiency) for at, one in zip(gpus, points, strict=True)], is_line=True),
        plot("Throughput over GPUs", "GPUs", report.unit,
             [(at, one.throughput.value or 0.0) for at, one in zip(gpus, points, strict=True)], is_line=True),
    ]  # fmt: skip
    books = "".join(
        f"<h2>{point.run.split.gpus} GPUs: where 100 % went</h2>{_table(ledger_table(point))}{_list(absent(point))}"
        for point in points[1:]
    )
    plan = plan_table(report)
    beside = f"<h2>The plan's estimate beside the measurement</h2>{_table(plan)}" if len(plan) > 1 else ""
    said = "".join(f"<p>{escape(text)}</p>" for text in sentences(report))
    return page(
        f"Scaling of {points[0].run.result.model}",
        f'{said}<div class="plots">{"".join(plots)}</div><h2>Runs</h2>{_table(points_table(report))}{books}{beside}'
        f"<h2>Notes</h2>{_list(notes(report))}",
    )

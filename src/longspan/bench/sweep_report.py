"""A sweep for people: what was found in a sentence, a table, and one page with plots. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from longspan.bench.plots import plot
from longspan.bench.report import page, table_line
from longspan.bench.result import Result
from longspan.bench.sweep import Highest, Point, holds, knee

COLUMNS = (
    ("output tok/s", "output_window_tokens_per_second", 1.0),
    ("TTFT p50 ms", "ttft_scheduled_p50_seconds", 1000.0),
    ("TTFT p95 ms", "ttft_scheduled_p95_seconds", 1000.0),
    ("TTFT p99 ms", "ttft_scheduled_p99_seconds", 1000.0),
    ("TPOT p50 ms", "tpot_p50_seconds", 1000.0),
    ("E2EL p95 ms", "e2el_scheduled_p95_seconds", 1000.0),
)


@dataclass(frozen=True, slots=True)
class Sweep:
    """All of one sweep.

    Attributes:
        over: "concurrency" or "rate". share: of requests that must be good; None without objectives.
        runs: (load, its run), in the order in which they were made.
        highest: the answer of the search; None without objectives.
    """

    over: str
    share: float | None
    runs: tuple[tuple[float, Result], ...]
    highest: Highest | None
    interrupted: str = ""

    @property
    def unit(self) -> str:
        """Of a load."""
        return "clients" if self.over == "concurrency" else "requests/s"

    @property
    def points(self) -> list[Point]:
        """By load."""
        return sorted((point_of(load, result) for load, result in self.runs), key=lambda one: one.load)

    def to_json(self) -> dict[str, Any]:
        """The schema is documented in docs/bench.md."""
        found = knee(self.points)
        return {
            "schema": "longspan.bench.sweep/1", "over": self.over, "share": self.share, "interrupted": self.interrupted,
            "knee": found.load if found else None,
            "highest_that_holds": self.highest.holds if self.highest else None,
            "lowest_that_does_not": self.highest.fails if self.highest else None,
            "client_limited_from": self.highest.limited if self.highest else None,
            "points": [
                {
                    "load": load, "result_id": result.result_id, "client_limited": result.client.limited,
                    "good": point_of(load, result).good, "count": point_of(load, result).count,
                    "holds": holds(point_of(load, result), self.share) if self.share else None,
                    **{name: value(result, name) for _, name, _ in COLUMNS},
                }
                for load, result in sorted(self.runs, key=lambda pair: pair[0])
            ],
        }  # fmt: skip


def value(result: Result, name: str) -> float | None:
    """A figure, None where it is withheld or there is none."""
    figure = result.summary.get(name)
    return figure.value if figure else None


def point_of(load: float, result: Result) -> Point:
    """A run as a point of the search. A client that was the limit says nothing of the server, nor does a run that was cut off: its
    slowest requests are missing."""
    attained = result.summary.get("slo_attainment")
    count = attained.count if attained else 0
    share = (attained.value or 0.0) if attained else 0.0
    return Point(
        load, value(result, "output_window_tokens_per_second") or 0.0, value(result, "e2el_scheduled_p50_seconds") or 0.0,
        round(share * count), count, is_judged=not result.client.limited and not result.interrupted,
    )  # fmt: skip


def sentences(sweep: Sweep) -> list[str]:
    """What was found."""
    found = []
    if sweep.highest:
        found.append(sweep.highest.sentence(sweep.unit))
    at = knee(sweep.points)
    if at:
        found.append(
            f"The knee is at {at.load:g} {sweep.unit}: {at.throughput:.4g} output tok/s; beyond it latency grows faster than"
            " throughput."
        )
    elif len(sweep.points) >= 3:
        found.append("There is no knee: throughput grew in proportion to the load up to the last one.")
    limited = [f"{load:g}" for load, result in sweep.runs if result.client.limited]
    if limited:
        found.append(
            f"At {', '.join(limited)} {sweep.unit} the client was the limit; these points say nothing of the server."
        )
    if sweep.interrupted:
        found.append(f"Interrupted ({sweep.interrupted}): the loads above were measured.")
    return found


def table(sweep: Sweep) -> list[list[str]]:
    """Rows, the head first."""
    head = [
        sweep.unit,
        *(title for title, _, _ in COLUMNS),
        *(["good", f"holds {sweep.share:.0%}"] if sweep.share else []),
    ]
    rows = [head]
    for load, result in sorted(sweep.runs, key=lambda pair: pair[0]):
        cells = [f"{load:g}"]
        for _, name, scale in COLUMNS:
            seen = value(result, name)
            cells.append("-" if seen is None else f"{seen * scale:.4g}")
        if sweep.share:
            point = point_of(load, result)
            verdict = {True: "yes", False: "no", None: "cannot tell"}[holds(point, sweep.share)]
            why = "client-limited" if result.client.limited else "cut off" if result.interrupted else verdict
            cells += [f"{point.good} of {point.count}", why]
        rows.append(cells)
    return rows


def markdown(sweep: Sweep) -> str:
    """To paste."""
    head, *rows = table(sweep)
    lines = [
        *sentences(sweep),
        "",
        table_line(head),
        table_line(["---"] * len(head)),
        *(table_line(row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _cells(row: Sequence[str]) -> str:
    return "".join(f'<td class="number">{escape(cell)}</td>' for cell in row)


def html(sweep: Sweep) -> str:
    """The whole page: no script, no request to anywhere."""
    head, *rows = table(sweep)
    first = sweep.runs[0][1] if sweep.runs else None
    points = sweep.points
    plots = [
        plot("Output over load", sweep.unit, "tok/s", [(p.load, p.throughput) for p in points], is_line=True),
        plot(
            "Latency (E2EL p50) over load", sweep.unit, "s", [(p.load, p.latency_seconds) for p in points], is_line=True
        ),
        plot(
            "Latency over output", "output tok/s", "E2EL p50, s", [(p.throughput, p.latency_seconds) for p in points],
            is_line=False,
        ),
    ]  # fmt: skip
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    said = "".join(f"<p>{escape(text)}</p>" for text in sentences(sweep))
    where = escape(first.url) if first else ""
    return page(
        f"Sweep over {sweep.over}" + (f": {first.model}" if first else ""),
        f'<p>{where}</p>{said}<div class="plots">{"".join(plots)}</div>'
        f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>',
    )

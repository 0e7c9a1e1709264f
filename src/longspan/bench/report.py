"""A result for people: one HTML file that needs nothing else, and Markdown to paste. Pure."""

from collections.abc import Sequence
from html import escape
from math import isfinite

from longspan.bench.cut import measured
from longspan.bench.plots import cumulative, plot
from longspan.bench.result import Figure, Result

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --back: #fff; --faint: #d8dde3; --line: #0b62c4; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e7eb; --back: #14171b; --faint: #39414a; --line: #6cb2ff; --bad: #ff8a80; }
}
body { margin: 0 auto; max-width: 76rem; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; color: var(--text);
  background: var(--back); overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.plots { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; } figcaption { font-weight: 600; } small { font-weight: 400; }
svg { width: 100%; height: auto; } svg text { font-size: 13px; fill: var(--text); }
.grid { stroke: var(--faint); } .line { fill: none; stroke: var(--line); stroke-width: 2; } .dot { fill: var(--line); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; }
th, td { overflow-wrap: normal; padding: .25rem .75rem .25rem 0; text-align: left; border-bottom: 1px solid var(--faint); }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bad { color: var(--bad); font-weight: 600; }
"""


def amount(value: float | None, unit: str) -> str:
    """A figure's value with its unit; "-" where there is none, "no end" where failures lie in it."""
    if value is None:
        return "-"
    if not isfinite(value):
        return "no end"
    if unit == "s":
        return f"{value * 1000:,.1f} ms" if abs(value) < 10 else f"{value:,.1f} s"
    return f"{value:,.4g}" if unit == "1" else f"{value:,.1f} {unit}"


def _interval(figure: Figure) -> str:
    if figure.low is None and figure.high is None:
        return ""
    return f"{amount(figure.low, figure.unit)} to {amount(figure.high, figure.unit)}"


def rows(result: Result) -> list[tuple[str, str, str, str]]:
    """(name, value, 95 % interval, note) of every figure, in the order of the result."""
    return [
        (name, amount(figure.value, figure.unit), _interval(figure), figure.note)
        for name, figure in result.summary.items()
    ]


def warnings(result: Result) -> list[str]:
    """What must be read before any figure."""
    found = []
    if result.client.limited:
        found.append(f"CLIENT-LIMITED: {'; '.join(result.client.reasons)}")
    if result.interrupted:
        found.append(f"The run ended early: {result.interrupted}")
    if result.engine and result.engine.audit.verdict == "differ":
        found.append(f"Token counts differ: {result.engine.audit.reason}")
    return found


def html(result: Result) -> str:
    """The whole page: no script, no request to anywhere."""
    cautions = "".join(f'<p class="bad">{escape(text)}</p>' for text in warnings(result))
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.notes)
    figures = "".join(
        f'<tr><td>{escape(name).replace("_", "_<wbr>")}</td><td class="number">{escape(value)}</td><td class="number">{escape(interval)}</td>'
        f"<td>{escape(note)}</td></tr>"
        for name, value, interval, note in rows(result)
    )
    conditions = "".join(
        f"<tr><td>{escape(name)}</td><td>{'unknown' if value is None else escape(str(value))}</td></tr>"
        for name, value in sorted(result.conditions.items())
    )
    return page(
        f"Load test {result.result_id}",
        f"<p>{escape(result.model)} at {escape(result.url or 'an unknown address')}, {len(result.requests):,} requests</p>"
        f'{cautions}<h2>Latency</h2><div class="plots">{"".join(_plots(result))}</div>'
        f'<h2>Figures</h2><div class="scroll"><table><thead><tr><th>Figure</th><th>Value</th><th>95 % interval</th>'
        f"<th>Note</th></tr></thead><tbody>{figures}</tbody></table></div>"
        f'<h2>Conditions</h2><div class="scroll"><table><tbody>{conditions}</tbody></table></div>'
        f"<h2>Notes</h2><ul>{notes}</ul>",
    )


def page(title: str, body: str) -> str:
    """One page that needs nothing else. title: text; body: HTML."""
    head = escape(title)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{head}</title><style>{STYLE}</style></head><body><h1>{head}</h1>{body}</body></html>\n"
    )


def _plots(result: Result) -> list[str]:
    records = measured(result)
    found = []
    for name, values in (
        ("Time to first token", [one.ttft_seconds(True) for one in records if one.ok]),
        ("End-to-end latency", [one.e2el_seconds(True) for one in records if one.ok]),
    ):
        known = [value * 1000 for value in values if value is not None]
        lost = [float("inf")] * sum(one.failed for one in records)
        found.append(
            plot(name, "ms", "share of requests at or below", cumulative([*known, *lost]), is_line=True)
        )
    over_time = [
        (one.sent_seconds, ttft * 1000)
        for one in records
        if one.ok and one.sent_seconds is not None and (ttft := one.ttft_seconds(True)) is not None
    ]
    step = max(len(over_time) // 2000, 1)
    found.append(plot("Time to first token over the run", "s", "ms", over_time[::step], is_line=False))
    return found


def markdown(result: Result) -> str:
    """The figures as a table to paste, warnings first."""
    lines = [f"### Load test {_cell(result.result_id)}: {_cell(result.model)}", ""]
    lines += [f"**{_cell(text)}**\n" for text in warnings(result)]
    lines += ["| Figure | Value | 95 % interval | Note |", "|---|---:|---:|---|"]
    lines += [table_line(row) for row in rows(result)]
    lines += ["", *(f"- {_cell(note)}" for note in result.notes)]
    return "\n".join(lines) + "\n"


def table_line(cells: Sequence[str]) -> str:
    """One line of a table in Markdown."""
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")

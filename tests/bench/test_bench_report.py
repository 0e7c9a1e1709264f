"""The page and the Markdown of a result."""

from html.parser import HTMLParser
from math import inf
from pathlib import Path

from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bench_made import made
from longspan.bench import store
from longspan.bench.plots import cumulative, plot, ticks
from longspan.bench.report import html, markdown
from longspan.bench.result import ClientQuality, Figure
from longspan.bench.summary import summarise
from longspan.cli import bench_list, bench_report

EVIL = '<script src="http://x/">|'


class Seen(HTMLParser):
    """Every tag and the attributes that could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keeps them."""
        self.tags.append(tag)
        self.loads += [name for name, _ in attrs if name in ("src", "href", "srcset", "data")]


def test_the_page_needs_nothing_else_and_takes_no_markup_from_a_result() -> None:
    """No script, no link, no address in the style; hostile names are text."""
    own = made(1, count=50, model=EVIL, notes=(EVIL,), conditions={"engine/version": EVIL, "node/nic": None})
    page = html(own)
    seen = Seen()
    seen.feed(page)
    assert seen.loads == []
    assert not {"script", "link", "img", "iframe"} & set(seen.tags)
    assert "url(" not in page
    assert seen.tags.count("svg") == 3
    assert "unknown" in page


def test_a_warning_stands_before_the_figures() -> None:
    """CLIENT-LIMITED and an early end come before the first plot and the first row."""
    own = made(
        1, count=50, client=ClientQuality(limited=True, reasons=("a core is full",)), interrupted="Ctrl-C"
    )
    for text, figures in ((html(own), "<svg"), (markdown(own), "| Figure")):
        assert text.index("CLIENT-LIMITED: a core is full") < text.index(figures)
        assert text.index("Ctrl-C") < text.index(figures)


def test_markdown_rows_have_four_cells_whatever_is_in_them() -> None:
    """A bar in a note does not make a fifth column; an infinite percentile is said in words."""
    own = made(
        1, count=50, summary={"ttft_p99": Figure(inf, "s", 0.1, None, 50, EVIL), "n": Figure(None, "1")}
    )
    table = [line for line in markdown(own).splitlines() if line.startswith("|")]
    assert [line.replace("\\|", "").count("|") for line in table] == [5] * 4
    assert "no end" in table[2]


def test_a_result_without_requests_has_a_page() -> None:
    """Nothing measured is said, and nothing divides by zero."""
    assert html(made(1, count=0)).count("Nothing was measured.") == 3


@given(st.lists(st.floats(0, 100) | st.just(inf), max_size=500))
def test_the_cumulative_curve_rises_to_the_share_that_succeeded(values: list[float]) -> None:
    """Both coordinates rise; the last share is that of the finite values."""
    points = cumulative(values)
    assert points == sorted(points)
    finite = sum(value != inf for value in values)
    assert not finite or points[-1][1] == finite / len(values)


@given(st.floats(1e-6, 1e9))
def test_ticks_lie_within_and_are_few(high: float) -> None:
    """Three to eight ticks, ascending, from 0 to not beyond the end."""
    found = ticks(0, high)
    assert 3 <= len(found) <= 8
    assert found == sorted(found)
    assert found[-1] <= high * 1.001
    assert "<svg" in plot("t", "x", "y", [(high, high)], is_line=False)


def test_the_verbs_write_and_list(tmp_path: Path) -> None:
    """A stored result is listed, and becomes a page and Markdown by its name."""
    own = made(1, count=300)
    store.save(tmp_path / "s", made(1, count=300, summary=summarise(own.requests).figures))
    options = ["--store", str(tmp_path / "s")]
    assert CliRunner().invoke(bench_list.command, options).output.startswith("r1  1970-01-01 00:00 UTC")
    assert CliRunner().invoke(bench_list.command, ["--store", str(tmp_path / "none")]).exit_code == 0
    assert "| ttft_scheduled_p50" in CliRunner().invoke(bench_report.command, ["r1", *options]).output
    CliRunner().invoke(bench_report.command, ["r1", "--html", str(tmp_path / "r.html"), *options])
    assert "<svg" in (tmp_path / "r.html").read_text()

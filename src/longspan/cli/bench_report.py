"""`longspan bench report`: a stored result as one HTML file, or as Markdown."""

from pathlib import Path

import click

from longspan.bench.report import html, markdown
from longspan.bench.store import find
from longspan.cli.bench_store import store_option
from longspan.errors import ResultError


@click.command("report")
@click.argument("result")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write the page to this file.")
@store_option
def command(result: str, page: Path | None, store: Path) -> None:
    """Write RESULT, a stored result or its file, as Markdown to standard output, or as a page that needs nothing else."""
    found = find(result, store)
    if page is None:
        click.echo(markdown(found), nl=False)
        return
    write_page(page, html(found))


def write_page(path: Path, text: str) -> None:
    """Writes it and says where.

    Raises:
        ResultError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResultError(f"The page cannot be written: {error}.", "Name another file.") from error
    click.echo(f"{path}", err=True)

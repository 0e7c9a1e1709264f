"""`longspan bench list`: the stored results."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from longspan.bench.store import listed
from longspan.cli.bench_store import store_option


@click.command("list")
@store_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(store: Path, as_json: bool) -> None:
    """List the stored results, the newest first; runs with the same digest had the same conditions."""
    rows = listed(store)
    if as_json:
        click.echo(json.dumps({"store": str(store), "results": [asdict(row) for row in rows]}))
        return
    if not rows:
        click.echo(f"No results in {store}.", err=True)
    for row in rows:
        when = f"{datetime.fromtimestamp(row.started_unix_seconds, UTC):%Y-%m-%d %H:%M} UTC"
        click.echo(f"{row.result_id}  {when}  {row.conditions_digest}  {row.model}  {row.url}")

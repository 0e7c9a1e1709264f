"""Where `longspan bench` keeps results, and the option that names another place."""

import os
from pathlib import Path

import click


def default_store() -> Path:
    """`$XDG_DATA_HOME/longspan/bench.sqlite`, by default below `~/.local/share`."""
    root = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(root) / "longspan" / "bench.sqlite"


store_option = click.option(
    "--store",
    type=click.Path(path_type=Path, dir_okay=False),
    default=default_store,
    help="The file of stored results.  [default: ~/.local/share/longspan/bench.sqlite]",
)

"""`longspan gateway`: the front door alone, in front of any OpenAI-compatible upstreams."""

from pathlib import Path

import click


@click.command(
    name="gateway", short_help="The front door alone, in front of any OpenAI-compatible upstreams."
)
@click.option(
    "--config", "config", type=click.Path(path_type=Path), required=True, help="TOML file; hot-reloaded."
)
def command(config: Path) -> None:
    """Run the gateway in the foreground until SIGTERM, which lets running streams finish."""
    from longspan.gateway.app import main

    main(config)

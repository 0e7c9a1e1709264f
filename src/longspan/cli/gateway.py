"""`longspan gateway`: the front door alone, and questions to its ledger: `why`, `usage`, `replay`; `key` makes one."""

import hashlib
import json
import secrets
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longspan.errors import InputError

if TYPE_CHECKING:
    from longspan.gateway.config import GatewayConfig

DAY_SECONDS = 86400.0
CONFIG = click.option(
    "--config", "config", type=click.Path(path_type=Path), required=True, help="The gateway's TOML file."
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
DAYS = click.option("--days", type=click.FloatRange(min=0, min_open=True), default=7.0, show_default=True)


@click.group(name="gateway", invoke_without_command=True)
@click.option(
    "--config", "config", type=click.Path(path_type=Path), help="TOML file; read again when it changes."
)
@click.pass_context
def command(ctx: click.Context, config: Path | None) -> None:
    """Run the gateway in the foreground until SIGTERM, which lets running streams finish."""
    if ctx.invoked_subcommand is not None:
        return
    if config is None:
        raise click.UsageError("Missing option '--config'.")
    from longspan.gateway.app import main

    main(config)


def _ledger(config: Path) -> tuple["GatewayConfig", Path]:
    from longspan.gateway.settings import read_config

    read = read_config(config)
    if read.ledger is None:
        raise InputError(f"{config} names no ledger, so nothing was recorded.", 'Add ledger = "ledger.db".')
    return read, config.parent / read.ledger


def _print(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


@command.command()
@click.argument("request_id")
@CONFIG
@AS_JSON
def why(request_id: str, config: Path, as_json: bool) -> None:
    """Explain one request: candidates, prediction against reality, every attempt, cost."""
    from longspan.gateway import store
    from longspan.gateway.ledger import explain

    row = store.find_request(_ledger(config)[1], request_id)
    if row is None:
        raise InputError(
            f"No request {request_id!r} in the ledger.", "The id is in the answer's x-request-id header."
        )
    if as_json:
        _print(row.document())
    else:
        click.echo("\n".join(explain(row)))


@command.command()
@CONFIG
@click.option(
    "--by", type=click.Choice(["key", "model", "target", "outcome"]), default="key", show_default=True
)
@DAYS
@AS_JSON
def usage(config: Path, by: str, days: float, as_json: bool) -> None:
    """Requests, tokens and money of the last days."""
    from longspan.gateway import store

    now = time.time()
    path = _ledger(config)[1]
    found = store.sums(path, by, now - days * DAY_SECONDS, now + 1)
    whole = store.balance(path, now - days * DAY_SECONDS, now + 1)
    if as_json:
        _print(
            {"by": by, "days": days, "groups": [asdict(group) for group in found], "balance": asdict(whole)}
        )
        return
    click.echo(
        f"{by:<24} {'requests':>9} {'failed':>7} {'prompt tok':>12} {'answer tok':>12} {'USD outside':>12} "
        f"{'USD avoided':>12}"
    )
    for group in found:
        click.echo(
            f"{group.group or '(none)':<24} {group.requests:>9} {group.failures:>7} {group.prompt_tokens:>12} "
            f"{group.completion_tokens:>12} {group.usd:>12.4f} {group.avoided_usd:>12.4f}"
        )
    share = whole.outside / whole.requests if whole.requests else 0.0
    click.echo(
        f"{share:.1%} of {whole.requests} requests went outside for {whole.outside_usd:.4f} USD; the others would have "
        f"cost {whole.avoided_usd:.4f} USD there."
    )


@command.command()
@CONFIG
@click.option("--threshold", type=click.FloatRange(min=0), required=True, help="Seconds of queue.")
@click.option("--usd-per-million", type=float, default=0.0, help="Outside price where the ledger has none.")
@DAYS
@AS_JSON
def replay(config: Path, threshold: float, usd_per_million: float, days: float, as_json: bool) -> None:
    """What another overflow threshold would have cost on the last days' requests."""
    from longspan.gateway import ledger, store

    now = time.time()
    rows = list(store.read_rows(_ledger(config)[1], now - days * DAY_SECONDS, now + 1))
    known = ledger.outside_price(rows)
    price = known if known is not None else usd_per_million / 1e6
    result = ledger.replay(rows, threshold, price)
    if as_json:
        _print({**asdict(result), "usd_per_completion_token": price, "price_from_ledger": known is not None})
        return
    source = "the ledger's own outside price" if known is not None else "the price given"
    click.echo(
        f"{result.requests} requests in {days:g} days. At {threshold:g} s: {result.outside_now} outside "
        f"for {result.usd_now:.4f} USD; as it was: {result.outside_then} outside for {result.usd_then:.4f} USD "
        f"(estimate from {source})."
    )


@command.command()
@click.option("--name", required=True, help="A name for the [[keys]] entry.")
def key(name: str) -> None:
    """Make a client key: the key on stdout, its [[keys]] entry on stderr."""
    secret = "lsp_" + secrets.token_urlsafe(32)
    click.echo(secret)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    sys.stderr.write(f'[[keys]]\nname = "{name}"\nsha256 = "{digest}"\n')

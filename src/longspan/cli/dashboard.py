"""`longspan dashboard`: the web page of one deployment, as a process of its own that outlives the controller."""

import asyncio
import contextlib
import ipaddress
import json
import secrets
import signal
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from longspan.cli.keys import MIN_CHARACTERS
from longspan.daemon.places import Places, own_files, write_private
from longspan.errors import DashboardKeyError, InputError, NoDeploymentError, StateError


@click.command("dashboard")
@click.option("--name", default="default", show_default=True, help="The deployment's name.")
@click.option(
    "--listen", default="127.0.0.1:8266", show_default=True, help="HOST:PORT; port 0 takes a free one."
)
@click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    help="A file with the key that opens the page, instead of one made here.",
)
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate chain (PEM), to serve https.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its private key (PEM).")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on standard output: where, and which key."
)
def command(
    name: str, listen: str, key_file: Path | None, tls_cert: Path | None, tls_key: Path | None, as_json: bool
) -> int:
    """Serve the live page in the foreground until Ctrl-C: nodes, GPUs, replicas, latency, cost, alarms, a day of history."""
    places = Places.of(name)
    if not places.root.is_dir():
        raise NoDeploymentError(
            f"There is no deployment called {name!r} on this machine.", "`longspan up` starts one."
        )
    host, port = _address(listen)
    if (tls_cert is None) != (tls_key is None):
        raise InputError("--tls-cert and --tls-key belong together.", "Give both, or neither.")
    tls = _tls(tls_cert, tls_key) if tls_cert and tls_key else None
    key_path = key_file or places.root / "dashboard-key"
    with own_files(places.root):
        key = _key(key_path, make=key_file is None)
    if tls is None and not _loopback(host):
        click.echo(
            f"warning: {host} is no loopback address and the page is plain http: whoever is in between can read the key.\n"
            "  Give --tls-cert and --tls-key, or stay on 127.0.0.1 and use `ssh -L`.",
            err=True,
        )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(places, name, (host, port), key, key_path, tls, as_json))
    return 0


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InputError(f"--listen {listen} is not HOST:PORT.", "Write it like 127.0.0.1:8266.")
    return host.strip("[]"), int(port)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{certificate} with {key} cannot be used: {error}.") from error
    return context


def _key(path: Path, *, make: bool) -> str:
    """The key that opens the page; made on the first call. It is not the operator's, which is new at every start."""
    if make and not path.exists():
        write_private(path, f"lsp_{secrets.token_urlsafe(32)}")
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no plain text"
        raise DashboardKeyError(f"The dashboard's key {path} cannot be read: {reason}.") from error
    if len(key) < MIN_CHARACTERS or not key.isprintable() or " " in key:
        raise DashboardKeyError(
            f"{path} holds no key: one line of at least {MIN_CHARACTERS} characters without blanks.",
            "Remove the file, and one is made; or give another with --key-file.",
        )
    return key


async def _serve(
    places: Places,
    name: str,
    address: tuple[str, int],
    key: str,
    key_path: Path,
    tls: ssl.SSLContext | None,
    as_json: bool,
) -> None:
    from longspan.dashboard import app
    from longspan.dashboard.hub import Hub
    from longspan.dashboard.sessions import digest
    from longspan.dashboard.source import ControllerSource, Door
    from longspan.monitor.history import History

    def find() -> Door | None:
        record = places.running()
        return Door(record["url"], record["key"]) if record else None

    history, no_history = None, ""
    try:
        history = History(places.root / "history.sqlite3")
    except StateError as error:  # the live page is worth having without
        no_history = str(error)
    hub = Hub(ControllerSource(find), history, no_history)
    page = app.Dashboard(name, hub, digest(key), _log, https=tls is not None)
    try:
        runner, port = await app.start(page, *address, tls)
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        url = f"{'https' if tls else 'http'}://{host}:{port}/"
        if as_json:
            click.echo(json.dumps({"url": url, "key_file": str(key_path)}))
        else:
            click.echo(f"  dashboard  {url}\n  key        in {key_path}\n  end it     with Ctrl-C")
        sys.stdout.flush()
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        looking = asyncio.create_task(hub.run())
        waiting = asyncio.create_task(ended.wait())
        await asyncio.wait({looking, waiting}, return_when=asyncio.FIRST_COMPLETED)
        for task in (looking, waiting):
            task.cancel()
        await runner.cleanup()
        if looking.done() and not looking.cancelled():
            looking.result()  # it ends by itself only with an error
    finally:
        await hub.close()


def _log(text: str) -> None:
    click.echo(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} dashboard: {text}", err=True)

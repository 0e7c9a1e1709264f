"""The configuration file as it lives: read, judged with its secrets, watched, read again."""

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from longspan.errors import GatewayConfigError, LongspanError
from longspan.gateway.config import GatewayConfig, KeyRule, Provider, Replica
from longspan.gateway.configfile import parse_config
from longspan.gateway.log import Log
from longspan.gateway.server import upstreams

RELOAD_SECONDS = 0.25


def read_config(path: Path) -> GatewayConfig:
    """Reads and judges the file.

    Raises:
        GatewayConfigError: it cannot be read, or is bad.
    """
    try:
        return parse_config(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise GatewayConfigError(f"The gateway's configuration {path} cannot be read: {error}.") from error


def with_keys(config: GatewayConfig, own_keys: tuple[KeyRule, ...]) -> GatewayConfig:
    """The configuration with the ledger's keys added; the file wins where a name is in both."""
    names = {key.name for key in config.keys}
    return replace(config, keys=(*config.keys, *(key for key in own_keys if key.name not in names)))


def read_secrets(config: GatewayConfig, directory: Path) -> dict[str, bytes]:
    """The keys for upstreams, by upstream.

    Raises:
        GatewayConfigError: a file or variable that should hold one is not there.
    """
    found: dict[str, bytes] = {}
    for upstream in upstreams(config):
        secret = _secret(upstream, directory)
        if secret is not None:
            found[upstream.name] = secret
    return found


def _secret(upstream: Replica | Provider, directory: Path) -> bytes | None:
    file = upstream.upstream_key_file if isinstance(upstream, Replica) else upstream.key_file
    if file:
        path = directory / file
        try:
            return path.read_bytes().strip()
        except OSError as error:
            text = f"The key file {path} of {upstream.name!r} cannot be read: {error.strerror}."
            raise GatewayConfigError(text, "Create it with mode 0600.") from error
    variable = None if isinstance(upstream, Replica) else upstream.key_env
    if variable:
        if variable not in os.environ:
            raise GatewayConfigError(f"{variable}, the key of {upstream.name!r}, is not in the environment.")
        return os.environ[variable].strip().encode()
    return None


def upstream_tls(config: GatewayConfig, directory: Path) -> ssl.SSLContext | None:
    """Trust for https upstreams: the system's, or the named CA file's. None if there is no such upstream."""
    if not any(upstream.url.startswith("https://") for upstream in upstreams(config)):
        return None
    try:
        return ssl.create_default_context(cafile=str(directory / config.ca_file) if config.ca_file else None)
    except OSError as error:
        raise GatewayConfigError(f"ca_file {config.ca_file} cannot be used: {error}.") from error


def listener_tls(config: GatewayConfig, directory: Path) -> ssl.SSLContext | None:
    """The listener's certificate.

    Raises:
        GatewayConfigError: it cannot be used.
    """
    if config.tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(directory / config.tls.cert_file, directory / config.tls.key_file)
    except OSError as error:
        raise GatewayConfigError(f"The listener's certificate cannot be used: {error}.") from error
    return context


async def watch_file(
    path: Path, seen: object, poke: asyncio.Event, apply: Callable[[GatewayConfig], None], log: Log
) -> None:
    """Reads the file when it changes or on SIGHUP; a bad one is refused, and the old one stays in use.

    seen: `stamp_of` the file just before it was read the first time.
    """
    while True:
        await asyncio.sleep(RELOAD_SECONDS)
        stamp = stamp_of(path)
        if not poke.is_set() and stamp == seen:
            continue
        if poke.is_set():
            log.reopen()
        poke.clear()
        seen = stamp
        try:
            config = read_config(path)
            apply(config)
            log.write("config_loaded", path=str(path), replicas=len(config.replicas))
        except (LongspanError, OSError) as error:
            log.write("config_refused", path=str(path), reason=str(error))


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file does; also when it is replaced within one clock tick."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size

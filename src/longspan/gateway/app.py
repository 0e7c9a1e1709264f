"""The gateway process: composes configuration, brain and data plane, in one process or with workers."""

import asyncio
import gc
import json
import signal
import ssl
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from longspan.errors import GatewayConfigError
from longspan.gateway.brain import Brain
from longspan.gateway.config import LOOPBACK, GatewayConfig, join_address, split_address
from longspan.gateway.configfile import parse_config
from longspan.gateway.listener import open_listener
from longspan.gateway.log import Log
from longspan.gateway.server import Gateway
from longspan.gateway.settings import (
    listener_tls,
    read_config,
    read_secrets,
    stamp_of,
    upstream_tls,
    watch_file,
    with_keys,
)
from longspan.gateway.ticket import Action
from longspan.gateway.tracing import Tracer
from longspan.gateway.workers import Workers


class App:
    """What both shapes of the process share: brain, reload, admin, signals."""

    def __init__(self, path: Path, config: GatewayConfig, stamp: object) -> None:
        self._stamp = stamp
        self.path, self.directory = path, path.parent
        self.file_config = config
        self._host, _ = split_address(config.listen)
        # The text of the file as it was when it was last found good, and what was read with it.
        self._taken: tuple[str, dict[str, bytes], ssl.SSLContext | None] = ("", {}, None)
        self.log = Log(self.directory / config.log if config.log else None, time.time)
        self.stop, self.poke = asyncio.Event(), asyncio.Event()
        self.stop_listening: Callable[[], None] = _nothing
        self.gateway: Gateway | None = None
        self.workers: Workers | None = None
        self.brain = Brain(config, self.directory, self.log, self._deliver)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop.set)
        loop.add_signal_handler(signal.SIGINT, self.stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.poke.set)

    def _deliver(self, action: Action) -> None:
        if self.gateway is not None:
            self.gateway.act(action)
        elif self.workers is not None:
            self.workers.deliver(action)

    def apply(self, config: GatewayConfig) -> None:
        """Takes a configuration; what can fail is read first, so that a bad one changes nothing."""
        old = self.file_config
        if not config.keys and config.ledger is None and self._host not in LOOPBACK:
            text = f"The gateway listens on {self._host}, beyond this machine, until it is started again."
            raise GatewayConfigError(text, "Keep [[keys]] until then.")
        secrets = read_secrets(config, self.directory)
        tls = upstream_tls(config, self.directory)
        text = self._judged(config) if self.workers is not None else ""
        tracer = self.brain.tracer_for(config)
        for name in ("listen", "workers", "log", "ledger", "admin"):
            if getattr(config, name) != getattr(old, name):
                self.log.write("config_needs_restart", setting=name)
        self.file_config, self._taken = config, (text, secrets, tls)
        self._hand_on(tracer)

    def apply_again(self) -> None:
        """After a change of our own keys. Nothing is read again: a key must end whatever the files say by now."""
        self._hand_on(self.brain.tracer)

    def _hand_on(self, tracer: Tracer | None) -> None:
        text, secrets, tls = self._taken
        joined = with_keys(self.file_config, self.brain.own_keys)
        if self.gateway is not None:
            self.gateway.configure(joined, secrets, tls)
            self.brain.pools.update(self.gateway.pools)
        else:
            self.brain.open_pools(joined, tls)
            assert self.workers is not None
            self.workers.configure(text, self.brain.own_keys, secrets)
        self.brain.configure(joined, secrets, tracer)

    def _judged(self, config: GatewayConfig) -> str:
        """The text of a configuration, which workers parse again.

        Raises:
            GatewayConfigError: the file is no longer what was read.
        """
        text = self.path.read_text()
        if parse_config(text) != config:
            raise GatewayConfigError("The file changed while it was read; it is read again.")
        return text

    async def run(self, address: str, *more: Coroutine[Any, Any, None]) -> None:
        """Announces itself and lives until told to stop."""
        loop = asyncio.get_running_loop()
        jobs = [
            self.brain.run_clock(),
            watch_file(self.path, self._stamp, self.poke, self.apply, self.log),
            *more,
        ]
        tasks = [loop.create_task(job) for job in jobs]
        admin = None
        if self.file_config.admin is not None:
            from longspan.gateway.admin import start_admin

            admin = await start_admin(self, self.file_config.admin)
        told = {"event": "listening", "address": address}
        if admin is not None:
            told["admin"] = join_address(*admin.addresses[0][:2])
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        self.log.write("listening", address=address)
        try:
            await self.stop.wait()
            self.brain.draining = True
            self.stop_listening()
            await self._drain()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if admin is not None:
                await admin.cleanup()
            await self.brain.close()

    async def _drain(self) -> None:
        seconds = self.file_config.drain_seconds
        if self.gateway is not None:
            await self.gateway.drain(seconds)
        elif self.workers is not None:
            await self.workers.stop(seconds)


async def serve(path: Path) -> None:
    """Runs a gateway until SIGTERM or SIGINT.

    Raises:
        GatewayConfigError, PortError, GatewayError: before it listens.
    """
    stamp = stamp_of(path)
    config = read_config(path)
    host, port = split_address(config.listen)
    listener = open_listener(host, port, reuse_port=config.workers > 1)
    bound = listener.getsockname()
    address = join_address(*bound[:2])
    app = App(path, config, stamp)
    if config.workers > 1:
        app.workers = Workers(config.workers, host, bound[1], path.parent, app.log)
        app.workers.brain = app.brain
        app.apply(config)
        await app.workers.start()
        await app.run(address, app.workers.tell_ready())
        listener.close()
        return
    app.gateway = Gateway(config, app.log, app.brain)
    app.apply(config)
    loop = asyncio.get_running_loop()
    tls = listener_tls(config, path.parent)
    server = await loop.create_server(app.gateway.connection, sock=listener, backlog=4096, ssl=tls)
    app.stop_listening = server.close
    await app.run(address, app.gateway.run_clock())


def _nothing() -> None:
    return None


def main(path: Path) -> None:
    """Runs a gateway in this process; returns after a drain."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # requests make garbage by reference counts, hardly by cycles
    uvloop.run(serve(path))

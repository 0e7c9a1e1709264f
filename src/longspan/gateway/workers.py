"""Several workers on one port: the parent owns the port and the truth, workers own connections.

The kernel spreads connections over the workers' SO_REUSEPORT sockets. A worker that dies gives back every permit it
held and is started again; when the parent dies, workers finish what they have and end.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from longspan.gateway.brain import Brain
from longspan.gateway.config import GatewayConfig, KeyRule
from longspan.gateway.configfile import parse_config
from longspan.gateway.ledger import Entry
from longspan.gateway.listener import open_listener
from longspan.gateway.log import Log
from longspan.gateway.peer import Message, Peer, RemoteLink, pack_action, unpack_action
from longspan.gateway.server import ID_BITS, Gateway
from longspan.gateway.settings import listener_tls, upstream_tls, with_keys
from longspan.gateway.ticket import Action, Ask

RESTART_SECONDS = 0.5


class Workers:
    """The parent's side."""

    def __init__(self, count: int, host: str, port: int, directory: Path, log: Log) -> None:
        self._count, self._host, self._port = count, host, port
        self._directory, self._log = directory, log
        self._peers: dict[int, Peer] = {}
        self._live: dict[int, set[int]] = {}
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._said: tuple[str, list[dict[str, Any]], dict[str, bytes]] = ("", [], {})
        self._ready = False
        self._stopping = False
        self._generation = 0
        self.listening = asyncio.Event()
        self._listening: set[int] = set()
        self.brain: Brain = None  # type: ignore[assignment]  # set by the composer before `start`

    def deliver(self, action: Action) -> None:
        """Sends an action to the worker that holds the request."""
        peer = self._peers.get(action.id >> ID_BITS)
        if peer is not None:
            peer.send(*pack_action(action))

    def configure(self, text: str, own_keys: tuple[KeyRule, ...], secrets: dict[str, bytes]) -> None:
        """Hands a judged configuration to all workers."""
        keys = [{name: getattr(key, name) for name in KeyRule.__dataclass_fields__} for key in own_keys]
        self._said = (text, keys, secrets)
        for peer in self._peers.values():
            peer.send("config", *self._said)

    async def start(self) -> None:
        """Starts all workers and waits until they listen."""
        for _ in range(self._count):
            await self._spawn()
        await self.listening.wait()

    async def _spawn(self) -> None:
        self._generation += 1
        number = self._generation
        ours, theirs = socket.socketpair()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "longspan.gateway.workers", str(theirs.fileno()), str(number), self._host,
            str(self._port), str(self._directory), pass_fds=(theirs.fileno(),),
        )  # fmt: skip
        theirs.close()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        self._live[number] = set()
        _, peer = await loop.create_connection(
            lambda: Peer(lambda message: self._receive(number, message), lambda: self._lost(number)),
            sock=ours,
        )
        self._peers[number], self._processes[number] = peer, process
        peer.send("config", *self._said)
        peer.send("ready", self._ready)

    def _receive(self, number: int, message: Message) -> None:
        kind, *rest = message
        live = self._live[number]
        if kind == "arrive":
            live.add(rest[0])
            self.brain.arrive(Ask(*rest))
        elif kind == "over":
            live.discard(rest[0])
            self.brain.over(rest[0], Entry(*rest[1:]))
        elif kind == "listening":
            self._listening.add(number)
            if len(self._listening) >= self._count:
                self.listening.set()
        elif kind == "log":
            self._log.write(rest[0], worker=number, **rest[1])
        else:
            assert kind in ("content", "own", "failed", "broken", "slow", "moved", "refused")
            getattr(self.brain, kind)(*rest)

    def _lost(self, number: int) -> None:
        """A worker is gone: its clients are, too."""
        self._peers.pop(number, None)
        for request in self._live.pop(number, ()):
            ticket = self.brain.dispatcher.tickets.get(request)
            if ticket is not None:
                entry = Entry(str(request), ticket.ask.key, ticket.ask.model, ticket.where or "", False, "client_gone",
                              499, ticket.ask.stream, time.time(), 0.0, None)  # fmt: skip
                self.brain.over(request, entry)
        if not self._stopping:
            self._log.write("worker_lost", worker=number)
            task = asyncio.get_running_loop().create_task(self._again())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _again(self) -> None:
        await asyncio.sleep(RESTART_SECONDS)
        if not self._stopping:
            await self._spawn()

    async def tell_ready(self) -> None:
        """Keeps the workers' answer to /ready true."""
        while True:
            ready = self.brain.ready()
            if ready != self._ready:
                self._ready = ready
                for peer in self._peers.values():
                    peer.send("ready", ready)
            await asyncio.sleep(0.1)

    async def stop(self, seconds: float) -> None:
        """Drains all workers."""
        self._stopping = True
        for peer in self._peers.values():
            peer.send("drain")
        for process in self._processes.values():
            try:
                async with asyncio.timeout(seconds + 2.0):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


async def _work(fd: int, number: int, host: str, port: int, directory: Path) -> None:
    """A worker's life."""
    loop = asyncio.get_running_loop()
    link = RemoteLink()
    stop = asyncio.Event()
    first: asyncio.Future[Message] = loop.create_future()
    gateway: Gateway | None = None

    def receive(message: Message) -> None:
        kind = message[0]
        if kind == "action" and gateway is not None:
            gateway.act(unpack_action(message))
        elif kind == "config" and gateway is None:
            first.set_result(message)
        elif kind == "config" and gateway is not None:
            _configure(gateway, message, directory)
        elif kind == "ready":
            link.is_ready = message[1]
        elif kind == "drain":
            stop.set()

    pair = socket.socket(fileno=fd)
    pair.setblocking(False)
    _, peer = await loop.create_connection(lambda: Peer(receive, stop.set), sock=pair)
    link.peer = peer
    config = _read(await first)
    gateway = Gateway(config, Log(None, time.time), link, number)
    _configure(gateway, first.result(), directory)
    listener = open_listener(host, port, reuse_port=True, owned=True)
    server = await loop.create_server(
        gateway.connection, sock=listener, backlog=4096, ssl=listener_tls(config, directory)
    )
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # the parent decides
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    clock = loop.create_task(gateway.run_clock())
    peer.send("listening")
    await stop.wait()
    server.close()
    await gateway.drain(gateway.config.drain_seconds)
    clock.cancel()
    await asyncio.sleep(0.05)  # the last messages to the brain


def _read(message: Message) -> GatewayConfig:
    keys = tuple(KeyRule(**{**key, "models": tuple(key["models"])}) for key in message[2])
    return with_keys(parse_config(message[1]), keys)


def _configure(gateway: Gateway, message: Message, directory: Path) -> None:
    config = _read(message)
    gateway.configure(config, message[3], upstream_tls(config, directory))


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[1]), False)
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    uvloop.run(_work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), Path(sys.argv[5])))

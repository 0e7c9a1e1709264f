"""The gateway process: listener, upstream pools, dispatcher, configuration, and the clock that drives them."""

import asyncio
import contextlib
import json
import os
import random
import signal
import ssl
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import uvloop

from longspan.errors import GatewayConfigError, LongspanError
from longspan.gateway import front
from longspan.gateway.config import GatewayConfig, Provider, Replica, parse_config, split_address
from longspan.gateway.dialect import dialect_of
from longspan.gateway.downstream import Downstream, Handler
from longspan.gateway.listener import open_listener
from longspan.gateway.log import Log
from longspan.gateway.proxy import JSON_HEADER, Exchange
from longspan.gateway.routing import Dispatcher
from longspan.gateway.sse import Usage
from longspan.gateway.ticket import Action
from longspan.gateway.upstream import Pool
from longspan.gateway.watch import Watch
from longspan.gateway.wire import NOT_TO_ENGINE, Header, connection_tokens, find

SWEEP_SECONDS = 0.1
RELOAD_SECONDS = 0.25


class LocalLink:
    """The dispatcher in this process. Events go in at once; actions come out one after another, never nested."""

    def __init__(self, gateway: "Gateway", dispatcher: Dispatcher) -> None:
        self._gateway = gateway
        self.dispatcher = dispatcher
        self._actions: deque[Action] = deque()
        self._busy = False

    def perform(self, actions: list[Action]) -> None:
        """Carries out actions; those that arise meanwhile wait their turn."""
        if not actions:
            return
        self._actions.extend(actions)
        if self._busy:
            return
        self._busy = True
        try:
            while self._actions:
                action = self._actions.popleft()
                exchange = self._gateway.exchanges.get(action.id)
                if exchange is not None:
                    exchange.act(action)
        finally:
            self._busy = False

    def content(self, request: int, now: float) -> None:
        """First content of a request."""
        self.dispatcher.content(request, now)


class Gateway:
    """Everything that lives as long as the process."""

    def __init__(self, config: GatewayConfig, directory: Path, log: Log) -> None:
        self.config = config
        self.directory = directory
        self.log = log
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.exchanges: dict[int, Exchange] = {}
        self.clients: set[Downstream] = set()
        self.pools: dict[str, Pool] = {}
        self.providers: dict[str, Provider] = {}
        self.moved: dict[str, float] = {}
        self.draining = False
        self._next_id = 0
        self._id_prefix = os.urandom(4).hex()
        self._secrets: dict[str, bytes] = {}
        self._hashes: dict[str, Any] = {}
        self._bare_pools: list[Pool] = []
        self.dispatcher = Dispatcher(config, self.now(), random.Random().randrange)  # noqa: S311 - load spreading
        self.link = LocalLink(self, self.dispatcher)
        self.watch = Watch(self.dispatcher, self.pools, self._own_headers, self.link.perform)
        self.apply(config)

    # ---- configuration

    def apply(self, config: GatewayConfig) -> None:
        """Takes a configuration that was judged good. Secrets are read first: if one is missing, nothing changes."""
        secrets = {u.name: self._secret(u) for u in _upstreams(config)}
        tls = (
            ssl.create_default_context(cafile=config.ca_file)
            if config.ca_file
            else ssl.create_default_context()
        )
        self._secrets = {name: value for name, value in secrets.items() if value is not None}
        for upstream in _upstreams(config):
            pool = Pool(upstream.url, config.timeouts.connect_seconds, tls)
            old = self.pools.get(upstream.name)
            if old is None or (old.host, old.port, old.base_path, old.tls is None) != (
                pool.host, pool.port, pool.base_path, pool.tls is None,
            ):  # fmt: skip
                if old is not None:
                    old.close()
                self.pools[upstream.name] = pool
            else:
                old.connect_seconds = config.timeouts.connect_seconds
        self.config = config
        self.providers = {provider.name: provider for provider in config.providers}
        self._upstream_models = {r.name: r.upstream_model or r.model for r in config.replicas}
        self._hashes = {key.sha256: key for key in config.keys}
        self.link.perform(self.dispatcher.configure(config, self.now()))
        self.watch.follow(config)

    def _secret(self, upstream: Replica | Provider) -> bytes | None:
        """The key for an upstream.

        Raises:
            GatewayConfigError: the file or the variable that should hold it is not there.
        """
        file = upstream.upstream_key_file if isinstance(upstream, Replica) else upstream.key_file
        if file:
            path = self.directory / file
            try:
                return path.read_bytes().strip()
            except OSError as error:
                text = f"The key file {path} of {upstream.name!r} cannot be read: {error.strerror}."
                raise GatewayConfigError(text, "Create it with mode 0600.") from error
        variable = None if isinstance(upstream, Replica) else upstream.key_env
        if variable:
            if variable not in os.environ:
                raise GatewayConfigError(
                    f"{variable}, the key of {upstream.name!r}, is not in the environment."
                )
            return os.environ[variable].strip().encode()
        return None

    # ---- requests

    def serve(
        self, client: Downstream, method: bytes, target: bytes, headers: list[Header], raw: bytes
    ) -> Handler | None:
        """A whole request came."""
        path = front.path_of(target)
        request_id = self._request_id(headers)
        answer = self._answer(path, method, headers)
        if answer is None:
            assert path is not None
            key = front.key_of(self._hashes, headers)
            if key is None:
                text = "No valid key. Send `Authorization: Bearer lsp_…`."
                answer = front.refusal(dialect_of(path), 401, "invalid_api_key", text)
            elif path == "/v1/models" and method in (b"GET", b"HEAD"):
                answer = front.Answer(200, front.models_answer(self.config, key), (JSON_HEADER,))
            else:
                self._next_id += 1
                admitted = front.admit(self.config, key, self._next_id, path, headers, raw)
                if isinstance(admitted, front.Admitted):
                    method = b"GET" if method == b"HEAD" else method
                    ask, body, dialect = admitted.ask, admitted.body, admitted.dialect
                    exchange = Exchange(self, client, method, target, headers, body, dialect, ask, request_id)
                    self.exchanges[ask.id] = exchange
                    client.handler = exchange
                    self.link.perform(self.dispatcher.arrive(ask, exchange.started))
                    return client.handler
                answer = admitted
        client.answer(answer.status, [*answer.headers, (b"x-request-id", request_id.encode())], answer.body)
        return None

    def _answer(self, path: str | None, method: bytes, headers: list[Header]) -> front.Answer | None:
        """Answers that need no key."""
        if path is None:
            return front.refusal(dialect_of(""), 400, "bad_path", "The request path is not plain.")
        if path == "/health":
            return front.Answer(200, b'{"status":"alive"}', (JSON_HEADER,))
        if path == "/ready":
            ready = self.ready()
            return front.Answer(
                200 if ready else 503, b'{"ready":%b}' % (b"true" if ready else b"false"), (JSON_HEADER,)
            )
        return None

    def ready(self) -> bool:
        """Whether a load balancer should send traffic: not draining, and somebody can serve."""
        if self.draining:
            return False
        now = self.now()
        return bool(self.providers) or any(s.usable(now) for s in self.dispatcher.standings.values())

    def _request_id(self, headers: list[Header]) -> str:
        given = find(headers, b"x-request-id")
        if given and len(given) <= 64 and given.replace(b"-", b"").replace(b"_", b"").isalnum():
            return given.decode()
        return f"{self._id_prefix}-{self._next_id + 1:x}"

    def upstream_headers(self, exchange: Exchange) -> list[Header]:
        """The headers of an attempt."""
        name = exchange.target
        given = exchange._headers  # noqa: SLF001 - one room, and this runs once a request
        if exchange.outside:
            from longspan.gateway.outside import ALLOWED_HEADERS

            headers = [item for item in given if item[0] in ALLOWED_HEADERS]
        else:
            dropped = connection_tokens(given)
            headers = [item for item in given if item[0] not in NOT_TO_ENGINE and item[0] not in dropped]
            headers.append((b"x-request-id", exchange.request_id.encode()))
        headers.append((b"accept-encoding", b"identity"))
        secret = self._secrets.get(name)
        if secret is not None:
            headers.append((b"authorization", b"Bearer " + secret))
            if exchange.outside and exchange.dialect.name == "messages":
                headers.append((b"x-api-key", secret))
        elif not exchange.outside and not self._hashes:
            given_key = find(given, b"authorization")  # no keys here: the engine may ask for its own
            if given_key is not None:
                headers.append((b"authorization", given_key))
        return headers

    def _own_headers(self, name: str) -> list[Header]:
        secret = self._secrets.get(name)
        return [(b"authorization", b"Bearer " + secret)] if secret is not None else []

    def upstream_model(self, upstream: str, model: str) -> str | None:
        """The model's name at an upstream."""
        provider = self.providers.get(upstream)
        return provider.models.get(model) if provider is not None else self._upstream_models.get(upstream)

    def attempt_failed(self, exchange: Exchange, cause: str) -> None:
        """An attempt failed before content."""
        self.link.perform(self.dispatcher.failed(exchange.ask.id, cause, self.now()))

    def attempt_slow(self, exchange: Exchange) -> None:
        """An attempt passed the first-token deadline."""
        self.link.perform(self.dispatcher.slow(exchange.ask.id, self.now()))

    def over(self, exchange: Exchange, outcome: str, status: int, usage: Usage) -> None:
        """A request ended, in whatever way."""
        request = exchange.ask.id
        if self.exchanges.pop(request, None) is None:
            return
        now = self.now()
        tokens = usage.get("prompt", 0) + usage.get("completion", 0)
        usd = exchange.price(usage)
        dispatcher = self.dispatcher
        ticket = dispatcher.tickets.get(request)
        if outcome == "ok":
            actions = dispatcher.finish(request, ok=True, now=now, used_tokens=tokens, usd=usd)
        elif (
            outcome in ("client_gone", "client_error", "request_timeout")
            or ticket is None
            or ticket.where is None
        ):
            actions = dispatcher.cancel(request, now, tokens, usd)
        else:
            actions = dispatcher.finish(request, ok=False, now=now, used_tokens=tokens, usd=usd)
        self.log.write(
            "request", id=exchange.request_id, key=exchange.ask.key, model=exchange.ask.model, outcome=outcome,
            status=status, served_by=exchange.target, seconds=round(now - exchange.started, 4),
            ttft_seconds=round(exchange.first_at - exchange.started, 4) if exchange.first_at else None,
            prompt_tokens=usage.get("prompt", 0), completion_tokens=usage.get("completion", 0),
        )  # fmt: skip
        self.link.perform(actions)

    # ---- the clock

    async def run_clock(self) -> None:
        """Sweeps deadlines and lets the dispatcher look at the time."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = self.now()
            for name, at in self.moved.items():
                self.dispatcher.progress(name, at)
            self.moved.clear()
            for exchange in list(self.exchanges.values()):
                exchange.sweep(now)
            self.link.perform(self.dispatcher.tick(now))
            for pool in self.pools.values():
                pool.sweep()
            self.log.flush()

    async def watch_file(self, path: Path, poke: asyncio.Event) -> None:
        """Reads the configuration again when it changes or on SIGHUP; a bad one is refused and the old one stays."""
        seen = _stamp(path)
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(poke.wait(), RELOAD_SECONDS)
            stamp = _stamp(path)
            if not poke.is_set() and stamp == seen:
                continue
            poke.clear()
            seen = stamp
            try:
                config = read_config(path)
                if config.listen != self.config.listen or config.workers != self.config.workers:
                    self.log.write("config_ignored", reason="listen and workers change only with a restart")
                self.apply(config)
                self.log.write("config_loaded", path=str(path), replicas=len(config.replicas))
            except (LongspanError, ssl.SSLError, OSError) as error:
                self.log.write("config_refused", path=str(path), reason=str(error))

    async def drain(self) -> None:
        """Lets running requests finish, up to the configured time."""
        self.draining = True
        for client in list(self.clients):
            client.close_after()
        end = self.now() + self.config.drain_seconds
        while self.exchanges and self.now() < end:  # noqa: ASYNC110 - once in a life, no event worth its price
            await asyncio.sleep(0.05)
        self.log.write("drained", cut=len(self.exchanges))
        for client in list(self.clients):
            client.abort()


def _upstreams(config: GatewayConfig) -> list[Replica | Provider]:
    return [*config.replicas, *config.providers]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file does; also when it is replaced within one clock tick."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def read_config(path: Path) -> GatewayConfig:
    """Reads and judges the file.

    Raises:
        GatewayConfigError: it cannot be read, or is bad.
    """
    try:
        return parse_config(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise GatewayConfigError(f"The gateway's configuration {path} cannot be read: {error}.") from error


async def serve(path: Path) -> None:
    """Runs a gateway until SIGTERM or SIGINT."""
    config = read_config(path)
    host, port = split_address(config.listen)
    listener = open_listener(host, port)
    log = Log(path.parent / config.log if config.log else None, time.time)
    gateway = Gateway(config, path.parent, log)
    loop = asyncio.get_running_loop()
    stop, poke = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGHUP, poke.set)
    tls = None
    if config.tls is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(path.parent / config.tls.cert_file, path.parent / config.tls.key_file)
    server = await loop.create_server(
        lambda: Downstream(gateway.serve, gateway.config.max_body_bytes, gateway.clients),
        sock=listener, backlog=4096, ssl=tls,
    )  # fmt: skip
    tasks = [loop.create_task(gateway.run_clock()), loop.create_task(gateway.watch_file(path, poke))]
    bound = listener.getsockname()
    address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
    sys.stdout.write(json.dumps({"event": "listening", "address": address}) + "\n")
    sys.stdout.flush()
    log.write("listening", address=address)
    try:
        await stop.wait()
        server.close()
        await gateway.drain()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await gateway.watch.stop()
        for pool in gateway.pools.values():
            pool.close()
        log.flush()


def main(path: Path) -> None:
    """Runs a gateway in this process; returns after a drain."""
    uvloop.run(serve(path))

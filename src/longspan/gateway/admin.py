"""The admin API and /metrics: own port, own key. aiohttp serves it, for nothing here is on the data path."""

import asyncio
import csv
import hashlib
import hmac
import io
import json
import secrets
import sqlite3
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from aiohttp import web

from longspan.errors import LongspanError
from longspan.gateway import store
from longspan.gateway.adminspec import KEY_FIELDS, SPEC, bad_field
from longspan.gateway.config import Admin, KeyRule, split_address
from longspan.gateway.ledger import explain, outside_price, replay
from longspan.gateway.listener import open_listener

if TYPE_CHECKING:
    from longspan.gateway.app import App

DAY_SECONDS = 86400.0
STORE_SECONDS = 10.0
KEY_PREFIX = "lsp_"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def problem(status: int, message: str) -> web.Response:
    """An error in the same shape as the front door's."""
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


class AdminApi:
    """Handlers; each reads the live state or the ledger."""

    def __init__(self, app: "App", config: Admin) -> None:
        self._app = app
        self._config = config
        self._keys = asyncio.Lock()  # two keys of one name at once: the second finds the first

    def _allowed(self, request: web.Request) -> bool:
        if request.path == "/metrics" and self._config.public_metrics:
            return True
        if request.path in ("/health", "/openapi.json"):
            return True
        token = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        return hmac.compare_digest(digest, self._config.sha256)

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Asks for the key and turns errors into answers."""
        if not self._allowed(request):
            answer = problem(401, "The admin API asks for its own key: `Authorization: Bearer ...`.")
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        try:
            return await handler(request)
        except web.HTTPException as error:
            return problem(error.status, error.reason)
        except LongspanError as error:
            return problem(409, str(error))

    async def health(self, request: web.Request) -> web.Response:
        """Alive."""
        return web.json_response({"status": "alive"})

    async def spec(self, request: web.Request) -> web.Response:
        """The OpenAPI description of this API."""
        return web.json_response(SPEC)

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text."""
        brain = self._app.brain
        dispatcher = brain.dispatcher
        waiting = {model: room.size for model, room in dispatcher.fleet.rooms.items()}
        text = brain.figures.text(
            dispatcher.fleet.standings.values(), waiting, dispatcher.running, brain.now()
        )
        if brain.store is not None:
            text += f"# TYPE longspan_gateway_ledger_lost_total counter\nlongspan_gateway_ledger_lost_total {brain.store.lost}\n"
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def status(self, request: web.Request) -> web.Response:
        """Replicas, queues and money as the gateway sees them now."""
        return web.json_response(self.snapshot())

    def snapshot(self) -> dict[str, Any]:
        """The same as data."""
        brain = self._app.brain
        dispatcher, now = brain.dispatcher, brain.now()
        replicas = [
            {
                "name": s.name, "model": s.replica.model, "state": s.replica.state, "usable": s.usable(now),
                "why": s.why_not(now), "inflight": len(s.flight), "capacity": s.capacity,
                "queue_seconds": round(s.queue_only(), 3), "service_seconds": s.service_seconds,
                "ttft_seconds": s.ttft_seconds, "requests": s.requests, "failures": s.failures,
            }
            for s in dispatcher.fleet.standings.values()
        ]  # fmt: skip
        providers = [
            {"name": n, "usd_last_hour": round(s.spent_usd, 6), "usd_reserved": round(s.reserved_usd, 6),
             "cap_usd_per_hour": s.provider.spend_cap_usd_per_hour}
            for n, s in dispatcher.fleet.spending.items()
        ]  # fmt: skip
        queues: dict[str, float] = {}
        for model in {s.replica.model for s in dispatcher.fleet.standings.values()}:
            usable = [
                s for s in dispatcher.fleet.standings.values() if s.replica.model == model and s.usable(now)
            ]
            queues[model] = round(dispatcher.fleet.queue_seconds(model, usable), 3)
        totals = {"local": 0, "outside": 0}
        names = set(dispatcher.fleet.spending)
        for (_, target, _), number in brain.figures.requests.items():
            totals["outside" if target in names else "local"] += number
        return {
            "ready": brain.ready(), "running": dispatcher.running,
            "waiting": {model: room.size for model, room in dispatcher.fleet.rooms.items()}, "queue_seconds": queues,
            "requests": totals, "outside_share": totals["outside"] / max(1, sum(totals.values())),
            "money": brain.figures.money(),
            "replicas": replicas, "providers": providers,
        }  # fmt: skip

    async def list_keys(self, request: web.Request) -> web.Response:
        """Names and limits; never a key or its hash."""
        own = {key.name for key in self._app.brain.own_keys}
        keys = [
            {**_public(key), "source": "admin" if key.name in own else "file"}
            for key in self._app.brain.config.keys
        ]
        return web.json_response({"keys": keys})

    async def make_key(self, request: web.Request) -> web.Response:
        """Makes a key and shows it, this once."""
        brain = self._app.brain
        if brain.store is None:
            return problem(
                409, "Keys are kept in the ledger, and the configuration names none: set `ledger`."
            )
        try:
            fields = await request.json()
        except ValueError:
            return problem(400, "The body is not JSON.")
        wrong = bad_field(fields)
        if wrong:
            return problem(400, wrong)
        secret = KEY_PREFIX + secrets.token_urlsafe(32)
        values = {name: value for name, value in fields.items() if name in KEY_FIELDS and value is not None}
        values["models"] = tuple(values.get("models", ()))
        values.update({name: int(value) for name, value in values.items() if type(value) is float})
        rule = KeyRule(sha256=hashlib.sha256(secret.encode()).hexdigest(), **values)
        async with self._keys:
            if any(key.name == rule.name for key in brain.config.keys):
                return problem(409, f"There is a key named {rule.name!r}.")
            if wrong := await _kept(brain.store.save_key(rule, time.time())):
                return problem(503, f"The key could not be stored and is not made: {wrong}.")
            brain.add_key(rule)
            self._app.apply_again()
        brain.store.audit(time.time(), "admin", "key created", rule.name, json.dumps(_public(rule)))
        return web.json_response({"key": secret, **_public(rule)}, status=201)

    async def drop_key(self, request: web.Request) -> web.Response:
        """Revokes a key at once; running requests end normally."""
        name = request.match_info["name"]
        brain = self._app.brain
        if not brain.drop_key(name):
            return problem(
                404, f"No key named {name!r} was made here; keys of the file are changed in the file."
            )
        self._app.apply_again()
        if brain.store is not None:
            # First refused, then stored: what cannot be stored is refused all the same until a restart.
            if wrong := await _kept(brain.store.revoke_key(name, time.time())):
                return problem(
                    503,
                    f"{name!r} is refused from now on, but that could not be stored, so that a restart brings it back: {wrong}.",
                )
            brain.store.audit(time.time(), "admin", "key revoked", name)
        return web.Response(status=204)

    async def usage(self, request: web.Request) -> web.Response:
        """Totals of a span by key, model, target or outcome."""
        by = request.query.get("by", "key")
        if by not in store.GROUPS:
            return problem(400, f"by is one of {', '.join(store.GROUPS)}.")
        since, until = _span(request)
        found = await asyncio.to_thread(store.sums, self._ledger(), by, since, until)
        return web.json_response(
            {"by": by, "since": since, "until": until, "groups": [asdict(item) for item in found]}
        )

    async def why(self, request: web.Request) -> web.Response:
        """One request explained."""
        row = await asyncio.to_thread(store.find_request, self._ledger(), request.match_info["id"])
        if row is None:
            return problem(404, "No such request in the ledger; rows are written a moment late.")
        return web.json_response({"request": row.document(), "story": explain(row)})

    async def replay(self, request: web.Request) -> web.Response:
        """What another overflow threshold would have meant."""
        since, until = _span(request)
        threshold = _number(request, "threshold_seconds", 5.0)
        rows = await asyncio.to_thread(lambda: list(store.read_rows(self._ledger(), since, until)))
        price = outside_price(rows)
        if price is None:
            price = _number(request, "usd_per_million_completion_tokens", 0.0) / 1e6
        return web.json_response(asdict(replay(rows, threshold, price)))

    async def export(self, request: web.Request) -> web.StreamResponse:
        """The ledger's rows as CSV or JSON lines."""
        since, until = _span(request)
        kind = request.query.get("format", "jsonl")
        if kind not in ("jsonl", "csv"):
            return problem(400, "format is jsonl or csv.")
        rows = await asyncio.to_thread(lambda: list(store.read_rows(self._ledger(), since, until)))
        if kind == "jsonl":
            text = "".join(json.dumps(row.document()) + "\n" for row in rows)
            return web.Response(text=text, content_type="application/jsonl")
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow([name for name in store.COLUMNS.split(", ") if name != "attempts"])
        for row in rows:
            writer.writerow([*row.entry, row.held_seconds, row.predicted_seconds, row.avoided_usd])
        return web.Response(text=out.getvalue(), content_type="text/csv")

    async def audit(self, request: web.Request) -> web.Response:
        """The newest lines of the audit log."""
        lines = await asyncio.to_thread(store.read_audit, self._ledger(), 1000)
        return web.json_response({"lines": lines})

    def _ledger(self) -> Any:
        own = self._app.brain.store
        if own is None:
            raise web.HTTPConflict(reason="The configuration names no ledger.")
        return own.path


async def _kept(stored: "Future[None]") -> str:
    """Why something is not in the ledger; empty once it is."""
    try:
        async with asyncio.timeout(STORE_SECONDS):
            await asyncio.wrap_future(stored)
    except TimeoutError:
        return f"nothing was written within {STORE_SECONDS:.0f} s"
    except (sqlite3.Error, OverflowError, ValueError) as error:
        return str(error)
    return ""


def _public(rule: KeyRule) -> dict[str, Any]:
    values = asdict(replace(rule, sha256=""))
    del values["sha256"]
    values["models"] = list(rule.models)
    return values


def _number(request: web.Request, name: str, default: float) -> float:
    text = request.query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < 1e12:  # false for NaN, too
        raise web.HTTPBadRequest(reason=f"{name} is not a number of seconds or dollars from 0.")
    return value


def _span(request: web.Request) -> tuple[float, float]:
    now = time.time()
    return _number(request, "since", now - 7 * DAY_SECONDS), _number(request, "until", now + 1)


async def start_admin(app: "App", config: Admin) -> web.AppRunner:
    """Listens.

    Raises:
        PortError: the port is taken.
    """
    api = AdminApi(app, config)
    site_app = web.Application(middlewares=[api.guard])
    site_app.add_routes([
        web.get("/health", api.health), web.get("/openapi.json", api.spec), web.get("/metrics", api.metrics),
        web.get("/admin/status", api.status), web.get("/admin/keys", api.list_keys),
        web.post("/admin/keys", api.make_key), web.delete("/admin/keys/{name}", api.drop_key),
        web.get("/admin/usage", api.usage), web.get("/admin/requests/{id}", api.why),
        web.get("/admin/replay", api.replay), web.get("/admin/export", api.export), web.get("/admin/audit", api.audit),
    ])  # fmt: skip
    runner = web.AppRunner(site_app, access_log=None)
    await runner.setup()
    host, port = split_address(config.listen)
    await web.SockSite(runner, open_listener(host, port)).start()
    return runner

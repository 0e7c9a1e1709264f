"""The controller's eyes: takes the agents' telemetry, asks engines and gateway for their metrics, keeps alarms and events, and
answers `/v1/view`, `/metrics` and `/v1/sd`.

Nothing of it goes through the state machine: figures come every second and decide nothing about the deployment's life.
"""

import asyncio
import contextlib
import hmac
import json
import secrets
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from longspan.daemon.collected import Collected
from longspan.daemon.otlp_logs import OtlpLogs
from longspan.daemon.picture import Known, NodeSample, RankUse, picture, vanished
from longspan.daemon.places import Places, write_private
from longspan.daemon.webhook import Webhook
from longspan.deployment import DeploymentSpec
from longspan.errors import MonitorConfigError
from longspan.launch.events import Event, Lines
from longspan.monitor import exposition
from longspan.monitor.alarms import AlarmBook
from longspan.monitor.frontdoor import GatewayFigures
from longspan.monitor.metrics import EngineFigures
from longspan.monitor.objectives import Objectives, parse_objectives
from longspan.monitor.rankmemory import memory_line
from longspan.monitor.record import RecordError, from_json
from longspan.monitor.rules import RULES
from longspan.monitor.scrape import scrape
from longspan.monitor.view import ClusterView, EventView, NodeView

EVERY_SECONDS = 1.0
SCRAPE_SECONDS = 2.0  # rendering its metrics costs an engine's front end some milliseconds
MAX_EVENTS = 500
MAX_SAMPLE_BYTES = 2 << 20
MAX_LOG_LINES = 1000
Address = tuple[str, str]  # a URL and the key it asks for


class Telemetry:
    """See the module's text.

    Args:
        status: the status document. engines: replica -> where its front end is ("" while it has none).
        gateway: where the gateway's own metrics are; None where it offers none.
    """

    def __init__(
        self,
        spec: DeploymentSpec,
        places: Places,
        *,
        agent_key: str,
        operator_key: str,
        engine_key: str,
        status: Callable[[], dict[str, Any]],
        engines: Callable[[], Mapping[str, str]],
        gateway: Callable[[], Address | None] = lambda: None,
    ) -> None:
        self._spec, self._root = spec, places.root
        self._agent_key, self._operator_key, self._engine_key = agent_key, operator_key, engine_key
        self._status, self._engines, self._gateway = status, engines, gateway
        self._nodes = {node.name: node.address for node in spec.ray_nodes()}
        self._samples: dict[str, NodeSample] = {}
        self._figures: dict[str, EngineFigures] = {}
        self._front = GatewayFigures()
        self._memory: dict[tuple[str, int], RankUse] = {}
        self._book = AlarmBook(RULES)
        self._events: deque[EventView] = deque(maxlen=MAX_EVENTS)
        self._numbers = 0
        self._phases: dict[str, str] = {}
        self.objectives, self._objectives_text = Objectives(), ""
        # Nodes of a Ray that we only joined carry no way to reach them, and may be anywhere.
        here = {"front", *(node.name for node in spec.ray_nodes() if node.is_here and not spec.ray_address)}
        self._collected = Collected(places.root / "collected", here, places.logs)
        self._webhook = Webhook(spec.name, places.root / "webhook-url")
        self._otlp = OtlpLogs(spec.name, places.root / "otlp-logs-url")
        self._metrics_key = ""

    # ---- what comes in
    def note(self, event: Event) -> None:
        """A line of a log: kept under one directory, and read for what a rank says of its memory."""
        if not isinstance(event, Lines):
            return
        self._keep(event.node, event.process, event.lines)
        for line in event.lines:
            if found := memory_line(line):
                key = event.node, found.pid
                use = self._memory.get(key, RankUse())
                what = {f"{found.what}_bytes": found.size_bytes}
                # Under Ray the lines of all nodes come out of the launcher's log on one: pids tell the ranks apart.
                self._memory[key] = self._memory["", found.pid] = replace(use, **what)

    def _keep(self, node: str, process: str, lines: Sequence[str]) -> None:
        self._collected.add(node, process, lines)
        self._otlp.add(node, process, lines)

    async def post_sample(self, request: web.Request) -> web.Response:
        """An agent's sample."""
        authorise(request, self._agent_key)
        name = request.match_info["name"]
        if name not in self._nodes:
            raise web.HTTPNotFound(text="no node of this name\n")
        if (request.content_length or 0) > MAX_SAMPLE_BYTES:
            raise web.HTTPRequestEntityTooLarge(MAX_SAMPLE_BYTES, request.content_length or 0)
        try:
            document = await request.json()
            self.take(name, document, time.monotonic(), time.time())
        except (ValueError, LookupError, TypeError, RecordError) as error:
            raise web.HTTPBadRequest(text=f"not a sample: {error}\n") from error
        return web.json_response({})

    def take(self, name: str, document: Any, now: float, wall: float) -> None:
        """A sample that came at these times of the controller's two clocks."""
        if not isinstance(document, dict):
            raise TypeError("no object")
        lines = [str(line) for line in document.get("log") or ()][:MAX_LOG_LINES]
        self._keep(name, "agent", lines)
        view = from_json(NodeView, document["node"])
        half = float(document.get("round_trip_seconds") or 0.0) / 2
        before = self._samples.get(name)
        view = replace(view, missing=tuple(vanished(before.view, view))) if before else view
        self._samples[name] = NodeSample(view, now, float(document["at"]) + half - wall)

    # ---- what goes out
    def view(self) -> ClusterView:
        """The picture of now, with the alarms and events that stand."""
        known = Known(self._samples, self._figures, self._front, self._memory, self._nodes)
        found = picture(self._status(), known, now=time.monotonic(), wall=time.time())
        missing = (*found.unknown, *self._losses())
        return replace(found, alarms=self._book.alarms, events=tuple(self._events), unknown=missing)

    def _losses(self) -> list[str]:
        """What could not be kept or told since the start, in sentences."""
        counted = (
            (self._collected.lost, "log lines could not be kept: the disk is full or too slow."),
            (self._webhook.lost, "alarms could not be told to the webhook."),
            (self._otlp.lost, "log records could not be sent to the OpenTelemetry collector."),
        )
        return [f"{number} {text}" for number, text in counted if number]

    def alarms(self) -> list[dict[str, Any]]:
        """The alarms that stand, for the status document."""
        return [
            {"key": one.key, "since_unix_seconds": one.since_unix_seconds, **one.finding.to_json()}
            for one in self._book.alarms
        ]

    async def get_view(self, request: web.Request) -> web.Response:
        """The whole picture, for the operator."""
        authorise(request, self._operator_key)
        return web.json_response(self.view().to_json())

    async def get_metrics(self, request: web.Request) -> web.Response:
        """Nodes, GPUs, ports and replicas for Prometheus."""
        authorise(request, self._operator_key, self._metrics_key)
        return web.Response(text=exposition.render(self.view()), content_type="text/plain")

    async def get_engine_metrics(self, request: web.Request) -> web.Response:
        """The metrics of one engine or of the gateway as they are, so that Prometheus needs one address and one key."""
        authorise(request, self._operator_key, self._metrics_key)
        name = request.match_info["name"]
        address = self._addresses().get(name)
        if address is None:
            raise web.HTTPNotFound(text=f"nothing called {name} gives metrics\n")
        async with aiohttp.ClientSession() as session:
            text = await scrape(session, *address)
        if text is None:
            raise web.HTTPBadGateway(text=f"{name} does not answer\n")
        return web.Response(text=text, content_type="text/plain")

    def _addresses(self) -> dict[str, Address]:
        found = {name: (f"{url}/metrics", self._engine_key) for name, url in self._engines().items() if url}
        gateway = self._gateway()
        return {**found, "gateway": gateway} if gateway else found

    async def get_targets(self, request: web.Request) -> web.Response:
        """HTTP service discovery for Prometheus."""
        authorise(request, self._operator_key, self._metrics_key)
        return web.json_response(self.targets(request.host))

    def targets(self, host: str) -> list[dict[str, Any]]:
        """What there is to scrape at `host`, the controller, in the form of Prometheus' service discovery."""
        paths = {"nodes": "/metrics", **{name: f"/v1/metrics/{name}" for name in self._addresses()}}
        return [
            {"targets": [host], "labels": {"__metrics_path__": path, "deployment": self._spec.name, "part": name}}
            for name, path in paths.items()
        ]  # fmt: skip

    def routes(self) -> list[web.RouteDef]:
        """What the controller's application serves of it."""
        return [
            web.post("/v1/agents/{name}/telemetry", self.post_sample), web.get("/v1/view", self.get_view),
            web.get("/metrics", self.get_metrics), web.get("/v1/metrics/{name}", self.get_engine_metrics),
            web.get("/v1/sd", self.get_targets),
        ]  # fmt: skip

    # ---- life
    async def run(self, url: str) -> None:
        """For ever; `url` is the controller's own."""
        self._metrics_key = read_or_make_key(self._root / "metrics-key")
        deliveries = [asyncio.create_task(job) for job in (self._webhook.run(), self._otlp.run())]
        next_scrape, written = 0.0, None
        try:
            async with aiohttp.ClientSession() as session:
                while True:
                    began = time.monotonic()
                    try:
                        if began >= next_scrape:
                            next_scrape = began + SCRAPE_SECONDS
                            await self._scrape(session)
                        self._judge()
                        targets = json.dumps(self.targets(url.partition("://")[2]))
                        if targets != written:
                            with contextlib.suppress(OSError):
                                write_private(self._root / "prometheus-targets.json", targets)
                            written = targets
                    except Exception:  # noqa: BLE001 - ours to mend; the deployment goes on without a picture
                        traceback.print_exc()
                        await asyncio.sleep(10 * EVERY_SECONDS)
                    await asyncio.sleep(max(0.05, began + EVERY_SECONDS - time.monotonic()))
        finally:
            for delivery in deliveries:
                delivery.cancel()

    async def _scrape(self, session: aiohttp.ClientSession) -> None:
        addresses = self._addresses()
        texts = await asyncio.gather(*(scrape(session, *address) for address in addresses.values()))
        now = time.monotonic()
        for name, text in zip(addresses, texts, strict=True):
            if text is None:
                continue
            if name == "gateway":
                self._front.observe(text, now)
            else:
                self._figures.setdefault(name, EngineFigures()).observe(text, now)

    def _judge(self) -> None:
        """Lets the rules see the picture, and tells what changed."""
        self._read_objectives()
        view = self.view()
        changes = self._book.observe(view, self.objectives, time.monotonic())
        for change in changes:
            finding = change.alarm.finding
            what = "alarm" if change.raised else "over"
            self._event(what, finding.subject, finding.summary)
            print(f"{what}: {finding.severity} {finding.cause}: {finding.summary}", flush=True)
        self._webhook.add(changes)
        states = {view.name: view.phase, **{node.name: node.state for node in view.nodes}}
        # The one replica's phases are the deployment's, until traffic is kept from it.
        states |= {r.name: r.phase for r in view.replicas if len(view.replicas) > 1 or r.phase != view.phase}
        for name, state in states.items():
            before = self._phases.get(name)
            if state != before:
                self._event("state", name, f"{name}: {before} -> {state}" if before else f"{name}: {state}")
        for name in self._phases.keys() - states.keys():
            self._event("state", name, f"{name}: {self._phases[name]} is over")
        self._phases = states

    def _event(self, kind: str, subject: str, text: str) -> None:
        self._numbers += 1
        self._events.append(EventView(self._numbers, time.time(), kind, subject, text))

    def _read_objectives(self) -> None:
        """The file may change at any time; a bad one leaves the old values in force and is told once."""
        try:
            text = (self._root / "alarms.toml").read_text()
        except (OSError, UnicodeDecodeError):
            text = ""
        if text == self._objectives_text:
            return
        self._objectives_text = text
        try:
            self.objectives = parse_objectives(text)
        except MonitorConfigError as error:
            print(f"alarms.toml: {error}", flush=True)
            self._event("config", "alarms.toml", str(error))

    def close(self) -> None:
        """The last lines reach their files."""
        self._collected.close()
        with contextlib.suppress(OSError):
            (self._root / "prometheus-targets.json").unlink(missing_ok=True)


def authorise(request: web.Request, *keys: str) -> None:
    """Refuses whoever shows none of the keys."""
    given = request.headers.get("Authorization", "").encode()
    if not any(key and hmac.compare_digest(given, f"Bearer {key}".encode()) for key in keys):
        raise web.HTTPUnauthorized(text="wrong or missing key\n")


def read_or_make_key(path: Path) -> str:
    """The key for reading metrics, kept over restarts, since it stands in Prometheus' configuration; "" if the disk refuses."""
    with contextlib.suppress(OSError):
        if text := path.read_text().strip():
            return text
    key = secrets.token_urlsafe(32)
    try:
        write_private(path, key + "\n")
    except OSError:
        return ""
    return key

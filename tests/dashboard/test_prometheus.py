"""The shipped Prometheus and Grafana files in a real Prometheus: every query answers, every alert fires when it should and only then."""

import asyncio
import contextlib
import importlib.util
import json
import re
import runpy
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from dashboard import recorded
from longspan.dashboard import app
from longspan.dashboard.hub import Hub
from longspan.dashboard.sessions import digest
from longspan.dashboard.source import ControllerSource, Door

REPO = Path(__file__).parents[2]
RULES = REPO / "deploy" / "prometheus"
GRAFANA = sorted((REPO / "deploy" / "grafana").glob("*.json"))
INSTALL = "apt-get install --no-install-recommends prometheus"
KEY = "metrics-key-of-the-test"
PATIENCE_SECONDS = 90.0


def program(name: str) -> str:
    """A program of Debian's package; the test is skipped where it is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on this machine: {INSTALL}")
    return found


def panels(deployment: str = "good") -> list[tuple[str, str]]:
    """(dashboard and panel, query) of everything that Grafana would ask, the variable set to one deployment."""
    found = []
    for file in GRAFANA:
        document = json.loads(file.read_text())
        for panel in document["panels"]:
            queries = [target["expr"].replace("$deployment", deployment) for target in panel["targets"]]
            found += [
                (f"{file.stem}: {panel['title']} {number}", query) for number, query in enumerate(queries)
            ]
        for variable in document["templating"]["list"]:
            if variable["type"] == "query":
                name = re.fullmatch(r"label_values\(([a-z_:]+), ([a-z]+)\)", variable["query"]["query"])
                assert name, variable
                found.append((f"{file.stem}: ${variable['name']}", f"count by ({name[2]}) ({name[1]})"))
    return found


@contextlib.asynccontextmanager
async def controller(bad: bool) -> AsyncIterator[str]:
    """Answers as the controller does: metrics of nodes, gateway and one replica, asked for with the metrics' key."""
    began = time.monotonic()

    def shown(text: Callable[[], str]) -> Callable[[web.Request], Any]:
        async def handler(request: web.Request) -> web.Response:
            if request.headers.get("Authorization") != f"Bearer {KEY}":
                raise web.HTTPUnauthorized
            return web.Response(text=text(), content_type="text/plain")

        return handler

    async def targets(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            raise web.HTTPUnauthorized
        paths = {"nodes": "/metrics", "gateway": "/v1/metrics/gateway", "r0": "/v1/metrics/r0", **({"r1": "/v1/metrics/r1"} if bad else {})}  # fmt: skip
        name = "bad" if bad else "good"
        return web.json_response([
            {"targets": [request.host], "labels": {"__metrics_path__": path, "deployment": name, "part": part}} for part, path in paths.items()
        ])  # fmt: skip

    served = web.Application()
    served.add_routes([
        web.get("/metrics", shown(lambda: recorded.nodes(time.time(), bad=bad))),
        web.get("/v1/metrics/gateway", shown(lambda: recorded.gateway(time.monotonic() - began, bad=bad))),
        web.get("/v1/metrics/r0", shown(lambda: recorded.engine(time.monotonic() - began, bad=bad))),
        web.get("/v1/sd", targets),
    ])  # fmt: skip
    runner = web.AppRunner(served, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    # The dashboard stands in between, as in the shipped configuration.
    hub = Hub(
        ControllerSource(lambda: Door(f"http://127.0.0.1:{runner.addresses[0][1]}", "unused")), None, "none"
    )
    dashboard, port = await app.start(
        app.Dashboard("x", hub, digest("unused"), lambda _: None, https=False), "127.0.0.1", 0
    )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await dashboard.cleanup()
        await hub.close()
        await runner.cleanup()


@contextlib.asynccontextmanager
async def prometheus(directory: Path, deployments: list[str], key: str = KEY) -> AsyncIterator["Prometheus"]:
    """The shipped configuration, once a second, with these dashboards' addresses in place of the one that stands there."""
    text = (RULES / "prometheus.yml").read_text().replace(": 15s", ": 1s")
    entry = re.search(r"      - url: http://127\.0\.0\.1:8266/v1/sd\n(?:        .*\n)+", text)
    assert entry, "prometheus.yml no longer names the dashboard's address"
    text = text.replace(entry[0], "".join(entry[0].replace("127.0.0.1:8266", one) for one in deployments))
    (directory / "prometheus.yml").write_text(text)
    shutil.copy(RULES / "rules.yml", directory)
    (directory / "metrics-key").write_text(key)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = (directory / "prometheus.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        program("prometheus"), f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", stdout=log, stderr=log,
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            yield Prometheus(http, directory / "prometheus.log")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        log.close()


class Prometheus:
    """Its HTTP API."""

    def __init__(self, http: aiohttp.ClientSession, log: Path) -> None:
        self._http = http
        self._log = log

    async def get(self, path: str, **query: str) -> Any:
        """The data of an answer; None while it is not ready."""
        try:
            async with self._http.get(path, params=query) as answer:
                if answer.status == 503:
                    return None
                document = await answer.json()
        except aiohttp.ClientConnectionError:
            return None
        assert document["status"] == "success", (query, document)
        return document["data"]

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples that an expression gives now."""
        data = await self.get("/api/v1/query", query=expression)
        return data["result"] if data else []

    async def rules(self, kind: str) -> dict[str, str]:
        """Name -> query of the "recording" or "alerting" rules that it has loaded."""
        groups = (await self.get("/api/v1/rules"))["groups"]
        return {
            rule["name"]: rule["query"] for group in groups for rule in group["rules"] if rule["type"] == kind
        }

    async def all_answer(self, expressions: dict[str, str]) -> None:
        """Waits until every expression has given a number; fails with those that never do."""
        missing = dict(expressions)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while missing:
                    for name, expression in list(missing.items()):
                        if any(sample["value"][1] != "NaN" for sample in await self.query(expression)):
                            del missing[name]
                    await asyncio.sleep(0.5)
        except TimeoutError:
            targets = [
                (t["labels"], t["lastError"]) for t in (await self.get("/api/v1/targets"))["activeTargets"]
            ]
            raise AssertionError(
                f"nothing answers {missing}\n{targets}\n{self._log.read_text()[-1500:]}"
            ) from None


def test_every_query_of_rules_and_panels_answers(tmp_path: Path) -> None:
    """Panels and recording rules have values on a deployment that is well; each alert's condition holds on the bad one and on no good one."""
    program("prometheus")

    async def test() -> None:
        async with (
            controller(bad=False) as good,
            controller(bad=True) as bad,
            prometheus(tmp_path, [good, bad]) as found,
        ):
            await found.all_answer(
                {"it scrapes": 'up{deployment="good"} == 1', "and the bad": 'up{deployment="bad"} == 1'}
            )
            recording, alerts = await found.rules("recording"), await found.rules("alerting")
            assert len(recording) >= 10
            assert len(alerts) >= 15
            await found.all_answer(
                {**{name: f'{name}{{deployment="good"}}' for name in recording}, **dict(panels())}
            )
            for title, query in panels():
                assert await found.query(query), title
            await found.all_answer({name: of_deployment(query, "bad") for name, query in alerts.items()})
            wrong = {}
            for name, query in alerts.items():
                if seen := [
                    one["metric"]
                    for one in await found.query(query)
                    if one["metric"].get("deployment") == "good"
                ]:
                    wrong[name] = seen
            assert wrong == {}
            groups = (await found.get("/api/v1/rules"))["groups"]
            assert [rule for group in groups for rule in group["rules"] if rule.get("lastError")] == []

    asyncio.run(test())


def of_deployment(query: str, name: str) -> str:
    """An alert's condition, only where its result is of one deployment."""
    return f'({query}) and on (deployment) (count by (deployment) (up{{deployment="{name}"}}))'


def test_the_rules_are_what_promtool_takes(tmp_path: Path) -> None:
    """Prometheus' own check of the configuration and the rules, key file and all."""
    tool = program("promtool")
    for file in ("prometheus.yml", "rules.yml"):
        shutil.copy(RULES / file, tmp_path)
    (tmp_path / "metrics-key").write_text(KEY)
    done = subprocess.run(
        [tool, "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboards_are_current() -> None:
    """deploy/grafana is what scripts/grafana_dashboards.py writes; run it after a change."""
    script = runpy.run_path(str(REPO / "scripts" / "grafana_dashboards.py"))
    assert [file.stem for file in GRAFANA] == sorted(script["DASHBOARDS"])
    for file in GRAFANA:
        assert file.read_text() == script["render"](file.stem)


def test_the_lint_sees_a_dead_query(tmp_path: Path) -> None:
    """A query of a metric that nobody gives is reported by its name, so the test above can fail."""
    program("prometheus")

    async def test() -> None:
        async with controller(bad=False) as good, prometheus(tmp_path, [good]) as found:
            await found.all_answer({"it scrapes": "up == 1"})
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("dashboard.test_prometheus.PATIENCE_SECONDS", 2.0)
                with pytest.raises(AssertionError, match="ray_vllm_num_requests_swapped"):
                    await found.all_answer({"dead": "ray_vllm_num_requests_swapped"})

    asyncio.run(test())


def test_the_engines_names_are_those_of_the_installed_vllm() -> None:
    """Each of vLLM's metrics that a rule or panel asks for, and that the recorded engine gives, is declared by the vLLM that is installed."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed: make install")
    source = "".join(
        file.read_text() for file in sorted((Path(found.origin).parent / "v1" / "metrics").glob("*.py"))
    )
    texts = [
        (RULES / "rules.yml").read_text(),
        recorded.engine(1.0, bad=False),
        *(query for _, query in panels()),
    ]
    names = set(re.findall(r"vllm:([a-z0-9_]+)", "\n".join(texts)))
    assert len(names) > 20
    # prometheus_client adds these ends itself.
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
    undeclared = {
        name
        for name in plain
        if f'"vllm:{name}"' not in source and f'"vllm:{name.removesuffix("_total")}"' not in source
    }
    assert undeclared == set()

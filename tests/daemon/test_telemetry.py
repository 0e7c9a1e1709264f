"""The controller's picture: samples in, engines asked, alarms out; what it no longer knows is said."""

import asyncio
import contextlib
import io
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from longspan.daemon import telemetry
from longspan.daemon.collected import Collected
from longspan.daemon.picture import Known, NodeSample, RankUse, picture, vanished
from longspan.daemon.places import Places
from longspan.daemon.sampling import OwnLog, disks_of, report
from longspan.daemon.telemetry import Telemetry
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.launch.events import Exited, Lines
from longspan.monitor.frontdoor import GatewayFigures
from longspan.monitor.record import to_json
from longspan.monitor.view import ClusterView
from monitor.engine_text import engine
from monitor.scenes import GIB, gpu, node, port

SPEC = DeploymentSpec(
    "t", "i", "/m", "m", 1, 2, "ray", "cuda",
    (NodeSpec("n0", "10.0.0.1", 1), NodeSpec("n1", "10.0.0.2", 1, ssh="n1")), "127.0.0.1:0",
)  # fmt: skip


def status(**changes: Any) -> dict[str, Any]:
    """What of the status document the picture reads."""
    ranks = [
        {"rank": i, "tp_rank": 0, "pp_rank": i, "planned_node": f"n{i}", "pid": 70 + i, "gpu": [f"GPU-{i}-0"]}
        for i in (0, 1)
    ]
    return {
        "name": "t", "phase": "serving", "served_name": "m", "layout": {"device": "cuda"}, "endpoint": "http://x/v1",
        "nodes": [{"name": f"n{i}", "address": f"10.0.0.{i + 1}"} for i in (0, 1)],
        "replicas": [{"name": "r0", "phase": "serving", "reason": "", "ranks": ranks}], "failure": None, **changes,
    }  # fmt: skip


def sample(number: int, *, at: float = 1000.0, **changes: Any) -> dict[str, Any]:
    """An agent's message."""
    return {
        "node": to_json(replace(node(number, 1), **changes)),
        "at": at,
        "round_trip_seconds": 0.2,
        "log": [],
    }


@pytest.fixture
def eyes(tmp_path: Path) -> Telemetry:
    """A controller's telemetry without a controller."""
    return make(tmp_path)


def make(root: Path, **changes: Any) -> Telemetry:
    """The same with other sources."""
    plain: dict[str, Any] = {
        "spec": SPEC, "agent_key": "agent", "operator_key": "operator", "engine_key": "engine", "status": status, "engines": dict,
    }  # fmt: skip
    settings = {**plain, **changes}
    return Telemetry(settings.pop("spec"), Places(root), **settings)


def test_samples_become_nodes_with_age_and_skew(eyes: Telemetry) -> None:
    """A node is what its last sample says, under the deployment's name and address; its clock is compared over half a round trip."""
    now = time.monotonic()
    eyes.take("n0", sample(5, at=1000.0), now, 1002.5)
    first, second = eyes.view().nodes
    assert (first.name, first.address, first.state) == ("n0", "10.0.0.1", "up")
    assert first.clock_skew_seconds == pytest.approx(-2.4)
    assert (second.state, second.age_seconds) == ("unseen", None)
    assert "n1 has sent no telemetry yet." in eyes.view().unknown


def test_a_gpu_knows_its_rank_and_how_its_memory_is_divided(eyes: Telemetry) -> None:
    """Weights and KV come from the rank's own lines, found by its pid; what is left of the driver's figure is other."""
    eyes.take("n1", sample(1, gpus=(gpu(1, 0, weights_bytes=None, kv_bytes=None, other_bytes=None, replica=None, rank=None),)), time.monotonic(), 1.0)  # fmt: skip
    prefix = "(EngineFrontEnd pid=5) (RayWorkerProc pid=71, ip=10.0.0.2) INFO 12-01 00:00:00 [x.py:1] "
    eyes.note(
        Lines(
            "n0",
            "launcher",
            (f"{prefix}Model loading took 60.5 GiB memory and 3.1 seconds", "GiB of nothing"),
        )
    )
    assert eyes.view().nodes[1].gpus[0].other_bytes is None
    eyes.note(Lines("n0", "launcher", (f"{prefix}Available KV cache memory: 40.25 GiB",)))
    eyes.note(Exited("n0", "launcher", 0))
    found = eyes.view().nodes[1].gpus[0]
    assert (found.replica, found.rank) == ("r0", 1)
    assert (found.weights_bytes, found.kv_bytes) == (60.5 * GIB, 40.25 * GIB)
    assert found.other_bytes == 127 * GIB - 60.5 * GIB - 40.25 * GIB


def test_what_a_node_stops_telling_is_named_until_it_is_back(eyes: Telemetry) -> None:
    """A GPU or port that falls off the bus does not simply leave the picture."""
    whole = replace(node(0, 2), missing=())
    less = replace(whole, gpus=whole.gpus[:1], ports=whole.ports[:2])
    gone = tuple(vanished(whole, less))
    assert gone == ("GPU 1 (NVIDIA H200)", "port mlx5_1/1", "port mlx5_2/1", "port mlx5_3/1")
    assert tuple(vanished(replace(less, missing=gone), less)) == gone
    assert tuple(vanished(replace(less, missing=gone), whole)) == ()
    lost = replace(
        whole, gpus=(whole.gpus[0], replace(whole.gpus[1], memory_used_bytes=None, power_watts=None))
    )
    assert vanished(whole, lost) == ["memory of GPU 1 (NVIDIA H200)", "power of GPU 1 (NVIDIA H200)"]
    for ports in (whole.ports, (port("eth0"),)):
        eyes.take("n0", sample(0, ports=ports), time.monotonic(), 1.0)
    assert any("no longer tells port mlx5_0/1" in text for text in eyes.view().unknown)


def test_the_picture_says_what_it_no_longer_knows() -> None:
    """A node that vanished, an engine that answers no more: the last figures stay, with their age and a sentence."""
    known = Known({"n0": NodeSample(node(0, 1), 0.0), "n1": NodeSample(node(1, 1), 95.0)}, {}, GatewayFigures(), {("n0", 70): RankUse(1, 2)})  # fmt: skip
    view = picture(status(), known, now=100.0, wall=5.0)
    assert [n.state for n in view.nodes] == ["silent", "late"]
    assert view.nodes[0].gpus[0].memory_used_bytes == 127 * GIB
    assert view.unknown == (
        "n0 was last heard of 100 s ago: its figures are from then.", "r0 has given no metrics yet.",
    )  # fmt: skip


def test_a_head_without_ranks_is_a_node_too(tmp_path: Path) -> None:
    """Ray's head on a machine of its own is not among the status document's nodes, and still watched."""
    eyes = make(tmp_path, spec=replace(SPEC, ray_head=NodeSpec("head", "10.0.0.9", 0, ssh="head")))
    eyes.take("head", sample(0), time.monotonic(), 1000.0)
    first, *_ = eyes.view().nodes
    assert (first.name, first.address, first.state) == ("head", "10.0.0.9", "up")


def test_what_was_lost_is_said(eyes: Telemetry) -> None:
    """Lines, alarms and records that found no room are counted where people look, and nothing is said while there are none."""
    assert not [text for text in eyes.view().unknown if "could not" in text]
    eyes._collected.lost, eyes._webhook.lost, eyes._otlp.lost = 7, 2, 0
    assert eyes.view().unknown[-2:] == (
        "7 log lines could not be kept: the disk is full or too slow.",
        "2 alarms could not be told to the webhook.",
    )


@pytest.mark.parametrize(
    ("changes", "phase", "reason"),
    [
        ({}, "serving", ""),
        ({"replicas": [{"name": "a", "phase": "loading", "reason": None, "ranks": []}]}, "loading", ""),
    ],
)  # fmt: skip
def test_a_replica_has_phase_and_reason(changes: dict[str, Any], phase: str, reason: str) -> None:
    """From the status document."""
    view = picture(status(**changes), Known({}, {}, GatewayFigures(), {}), now=0.0, wall=0.0)
    assert (view.replicas[0].phase, view.replicas[0].reason) == (phase, reason)


# ---- over HTTP
def run(test: Coroutine[Any, Any, None]) -> None:
    """Runs a test's coroutine."""
    asyncio.run(test)


@contextlib.asynccontextmanager
async def served(*routes: web.RouteDef) -> AsyncIterator[str]:
    """A server on loopback; its address."""
    app = web.Application()
    app.router.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def until(check: Callable[[], Any]) -> Any:
    """The first true answer."""
    async with asyncio.timeout(20):
        while not (found := check()):  # noqa: ASYNC110 - what is waited for is nobody's event
            await asyncio.sleep(0.02)
    return found


async def ask(url: str, key: str, **more: Any) -> tuple[int, str]:
    """Status and text."""
    async with aiohttp.ClientSession() as session:
        method = "POST" if more else "GET"
        async with session.request(
            method, url, headers={"Authorization": f"Bearer {key}"}, **more
        ) as response:
            return response.status, await response.text()


def test_keys_open_only_their_own_doors(tmp_path: Path) -> None:
    """An agent may only send, Prometheus only read metrics, the operator sees all; the metrics key outlives a restart."""
    eyes = make(tmp_path)

    async def test() -> None:
        async with served(*eyes.routes()) as url:
            job = asyncio.create_task(eyes.run(url))
            metrics_key = await until(
                lambda: (tmp_path / "metrics-key").exists() and (tmp_path / "metrics-key").read_text().strip()
            )
            await until((tmp_path / "prometheus-targets.json").exists)
            post = f"{url}/v1/agents/n0/telemetry"
            assert (await ask(post, "agent", json=sample(0)))[0] == 200
            for key in ("operator", "wrong", "", metrics_key):
                assert (await ask(post, key, json=sample(0)))[0] == 401
            assert (await ask(f"{url}/v1/agents/front/telemetry", "agent", json=sample(0)))[0] == 404
            for body in ([], {}, {"node": {}, "at": 1}, {"node": sample(0)["node"], "at": "x"}):
                assert (await ask(post, "agent", json=body))[0] == 400
            assert (await ask(post, "agent", data=io.BytesIO(b" " * (telemetry.MAX_SAMPLE_BYTES + 1))))[
                0
            ] == 413
            for path in ("/v1/view", "/metrics", "/v1/sd"):
                assert (await ask(url + path, "operator"))[0] == 200
                assert (await ask(url + path, "agent"))[0] == 401
                assert (await ask(url + path, metrics_key))[0] == (401 if path == "/v1/view" else 200)
            assert (
                ClusterView.from_json(json.loads((await ask(f"{url}/v1/view", "operator"))[1])).nodes[0].state
                == "up"
            )
            assert (await ask(f"{url}/v1/metrics/r9", metrics_key))[0] == 404
            targets = json.loads((tmp_path / "prometheus-targets.json").read_text())
            assert targets[0]["targets"] == [url.removeprefix("http://")]
            assert targets == json.loads((await ask(f"{url}/v1/sd", metrics_key))[1])
            job.cancel()
            assert telemetry.read_or_make_key(tmp_path / "metrics-key") == metrics_key
            assert (tmp_path / "metrics-key").stat().st_mode & 0o777 == 0o600

    run(test())
    eyes.close()
    assert not (tmp_path / "prometheus-targets.json").exists()


def test_an_engine_is_asked_and_its_silence_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metrics come with its key; once it stops, its figures stay and grow old, an alarm comes, and the status tells it."""
    monkeypatch.setattr(telemetry, "EVERY_SECONDS", 0.05)
    monkeypatch.setattr(telemetry, "SCRAPE_SECONDS", 0.05)
    asked: list[str] = []
    answers = [200]
    where = {"r0": ""}
    state = status()

    async def metrics(request: web.Request) -> web.Response:
        asked.append(request.headers.get("Authorization", ""))
        tokens = 10.0 * len(asked)
        return web.Response(
            text=engine({"num_requests_running": 3, "generation_tokens_total": tokens}), status=answers[0]
        )

    async def test() -> None:
        async with served(web.get("/metrics", metrics)) as engine_url:
            where["r0"] = engine_url
            eyes = make(tmp_path, engines=lambda: where, status=lambda: state)
            job = asyncio.create_task(eyes.run("http://127.0.0.1:1"))
            await until(lambda: eyes.view().replicas[0].generation_tokens_per_second)
            assert set(asked) == {"Bearer engine"}
            async with served(*eyes.routes()) as url:
                assert "num_requests_running" in (await ask(f"{url}/v1/metrics/r0", "operator"))[1]
                answers[0] = 500
                assert (await ask(f"{url}/v1/metrics/r0", "operator"))[0] == 502
            state["replicas"][0].update(phase="suspected", reason="nothing has moved for 9 s")
            await until(eyes.alarms)
            assert eyes.alarms()[0]["cause"] == "replica-stalled"
            assert eyes.view().replicas[0].running == 3
            kinds = [(event.kind, event.subject) for event in eyes.view().events]
            assert ("alarm", "r0") in kinds
            assert ("state", "r0") in kinds
            numbers = [event.number for event in eyes.view().events]
            assert numbers == sorted(set(numbers))
            job.cancel()
            eyes.close()

    run(test())


def test_a_new_engine_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of Ray the engine has another address and its counters begin at 0: no rate is negative or made up, and what
    the new one does not tell is named."""
    monkeypatch.setattr(telemetry, "EVERY_SECONDS", 0.02)
    monkeypatch.setattr(telemetry, "SCRAPE_SECONDS", 0.02)
    where = {"r0": ""}
    rates: list[float | None] = []

    def text(tokens: float, **more: float) -> Callable[..., Coroutine[Any, Any, web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(
                text=engine({"generation_tokens_total": tokens, "num_requests_running": 1, **more})
            )

        return answer

    async def test() -> None:
        old, new = text(1e6, num_requests_waiting=2), text(40.0)
        async with served(web.get("/metrics", old)) as first, served(web.get("/metrics", new)) as second:
            eyes = make(tmp_path, engines=lambda: where)
            job = asyncio.create_task(eyes.run("http://127.0.0.1:1"))
            where["r0"] = first
            await until(lambda: eyes.view().replicas[0].waiting == 2)
            where["r0"] = ""
            await until(lambda: (eyes.view().replicas[0].age_seconds or 0) > 0.1)
            where["r0"] = second

            def renewed() -> bool:
                replica = eyes.view().replicas[0]
                rates.append(replica.generation_tokens_per_second)
                return replica.waiting is None

            await until(renewed)
            assert any("num_requests_waiting" in text for text in eyes.view().unknown)
            job.cancel()
            eyes.close()

    run(test())
    assert all(rate is None or 0 <= rate <= 40 / 0.1 for rate in rates)


def test_a_full_disk_does_not_blind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no file can be written, the picture goes on; only what needs a file (its key for Prometheus) is not there."""
    monkeypatch.setattr(telemetry, "EVERY_SECONDS", 0.02)
    (tmp_path / "file").write_text("")
    eyes = make(tmp_path / "file" / "t")

    async def test() -> None:
        async with served(*eyes.routes()) as url:
            job = asyncio.create_task(eyes.run(url))
            await until(lambda: eyes.view().events)
            eyes.take("n0", sample(0, at=time.time()), time.monotonic(), time.time())
            assert (await ask(f"{url}/v1/view", "operator"))[0] == 200
            assert (await ask(f"{url}/metrics", ""))[0] == 401
            assert not job.done()
            job.cancel()

    run(test())
    eyes.close()


def test_objectives_are_read_again_and_a_bad_file_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """alarms.toml may change while everything runs; one that cannot be read is told once, and the old values stay."""
    monkeypatch.setattr(telemetry, "EVERY_SECONDS", 0.02)
    eyes = make(tmp_path)
    file = tmp_path / "alarms.toml"

    async def test() -> None:
        job = asyncio.create_task(eyes.run("http://127.0.0.1:1"))
        file.write_text("clock_skew_seconds = 0.5")
        await until(lambda: eyes.objectives.clock_skew_seconds == 0.5)
        file.write_text("clock_skew = 0.5")
        await until(lambda: [e for e in eyes.view().events if e.kind == "config"])
        assert eyes.objectives.clock_skew_seconds == 0.5
        file.unlink()
        await until(lambda: eyes.objectives.clock_skew_seconds == 2.0)
        assert len([e for e in eyes.view().events if e.kind == "config"]) == 1
        job.cancel()

    run(test())
    eyes.close()


def test_the_agents_reports_arrive_and_lose_no_line_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples come again and again; while the controller refuses them, the agent's own lines wait for the next one."""
    monkeypatch.setattr("longspan.daemon.sampling.EVERY_SECONDS", 0.01)
    answers = [200, 500, 500]
    came: list[dict[str, Any]] = []
    log = tmp_path / "agent.log"
    log.write_text("first\nhal")

    async def take(request: web.Request) -> web.Response:
        came.append(await request.json())
        if len(came) == 1:
            with log.open("a") as file:
                file.write("f\n")
        return web.Response(status=answers.pop(0) if answers else 200)

    async def test() -> None:
        async with served(web.post("/t", take)) as url, aiohttp.ClientSession() as session:
            job = asyncio.create_task(report(session, f"{url}/t", str(tmp_path), str(tmp_path), set))
            await until(lambda: len(came) >= 6)
            job.cancel()

    run(test())
    assert [m["log"] for m in came[:5]] == [["first"], ["half"], ["half"], ["half"], []]
    assert came[0]["node"]["cpu_count"]
    assert came[0]["round_trip_seconds"] is None
    assert came[1]["round_trip_seconds"] > 0


def test_an_agent_without_a_node_stops_asking(tmp_path: Path) -> None:
    """The gateway's agent is no node: told so, it reads nothing any more."""

    async def test() -> None:
        async with served(*make(tmp_path / "d").routes()) as url, aiohttp.ClientSession() as session:
            session.headers["Authorization"] = "Bearer agent"
            async with asyncio.timeout(20):
                await report(session, f"{url}/v1/agents/front/telemetry", str(tmp_path), str(tmp_path), set)

    run(test())


def test_an_own_log_that_is_emptied_is_read_from_its_beginning(tmp_path: Path) -> None:
    """A line longer than a message is cut rather than waited for, and a missing file has no lines."""
    path = tmp_path / "agent.log"
    log = OwnLog(path)
    assert log.new_lines() == []
    path.write_text("one\ntwo\n")
    assert log.new_lines() == ["one", "two"]
    path.write_text("x\n")
    assert log.new_lines() == ["x"]
    assert disks_of("/nowhere", str(tmp_path))[0] == "/"


@pytest.mark.parametrize(
    ("changes", "here"),
    [({}, {"n0", "front"}), ({"ray_address": "10.0.0.9:6379"}, {"front"})],
)  # fmt: skip
def test_only_logs_that_lie_here_are_not_collected(
    tmp_path: Path, changes: dict[str, Any], here: set[str]
) -> None:
    """A node behind ssh, of Slurm or of a Ray that was joined writes elsewhere, whatever its entry lacks."""
    slurm = NodeSpec("n2", "10.0.0.3", 1, slurm="42")
    spec = replace(SPEC, nodes=(*SPEC.nodes, slurm), pp=3, **changes)
    eyes = make(tmp_path, spec=spec)
    for name in ("n0", "n1", "n2", "front"):
        eyes.note(Lines(name, "engine", (name,)))
    eyes.close()
    found = {path.name for path in (tmp_path / "collected").iterdir() if path.is_symlink()}
    assert found == here
    assert {path.parent.name for path in (tmp_path / "collected").glob("*/engine.log")} == {
        "n0",
        "n1",
        "n2",
    } - here


def test_logs_of_other_machines_are_collected_and_bounded(tmp_path: Path) -> None:
    """What their agents send lies under one directory beside links to this machine's own; a full log becomes NAME.log.1."""
    logs = tmp_path / "logs"
    (logs / "n0").mkdir(parents=True)
    (logs / "n0" / "engine.log").write_text("mine\n")
    (tmp_path / "collected").mkdir()
    (tmp_path / "collected" / "n1").symlink_to(logs / "n0")  # it was on this machine once
    collected = Collected(tmp_path / "collected", ["n0"], logs, limit_bytes=10)
    collected.add("n0", "engine", ["not twice"])
    collected.add("n1", "engine", ["12345678", "90"])
    collected.add("n1", "engine", ["next"])
    for node_name, process in (("..", "engine"), ("n1", "../x"), ("", "e"), ("n1", "a/b")):
        collected.add(node_name, process, ["evil"])
    collected.close()
    assert (tmp_path / "collected/n0/engine.log").read_text() == "mine\n"
    assert (tmp_path / "collected/n1/engine.log.1").read_text() == "12345678\n90\n"
    assert (tmp_path / "collected/n1/engine.log").read_text() == "next\n"
    assert sorted(p.name for p in (tmp_path / "collected").iterdir()) == ["n0", "n1"]


def test_a_disk_that_refuses_costs_lines_only(tmp_path: Path) -> None:
    """Nothing is raised where nothing can be written, and what was lost is counted."""
    (tmp_path / "file").write_text("")
    collected = Collected(tmp_path / "file" / "collected", [], tmp_path)
    collected.add("n1", "engine", ["a", "b"])
    collected.close()
    assert collected.lost == 2

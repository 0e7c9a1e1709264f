"""`longspan up` on this machine: the demo model over two Ray nodes, used as a user would use it."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from engine import seeing
from engine.running import Longspan
from longspan.daemon.protocol import LEASE_SECONDS
from longspan.errors import DeploymentExistsError, InputError, PortError
from longspan.monitor.view import ClusterView

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]
PORT = 18431


@pytest.fixture(scope="module")
def served(fresh: Longspan) -> tuple[Longspan, str]:
    """The demo model, served; with what `up` printed."""
    done = fresh.up("--listen", f"127.0.0.1:{PORT}")
    assert done.returncode == 0, done.stderr + done.stdout
    return fresh, done.stdout + done.stderr


@pytest.fixture(scope="module")
def client(served: tuple[Longspan, str]) -> openai.OpenAI:
    """The real OpenAI client with the deployment's key."""
    status = served[0].status()
    return openai.OpenAI(
        base_url=status["endpoint"], api_key=Path(status["api_key_file"]).read_text(), timeout=300
    )


def test_up_ends_with_all_phases_and_a_proof(served: tuple[Longspan, str]) -> None:
    """Every phase is done, every layer of the proof passed, and what was printed says so."""
    longspan, printed = served
    status = longspan.status()
    assert status["phase"] == "serving"
    assert [phase["state"] for phase in status["phases"]] == ["done"] * 8
    assert status["proof"]["verdict"] == "verified"
    assert {layer["name"]: layer["state"] for layer in status["proof"]["layers"]} == dict.fromkeys(
        ("digests", "completion", "paths", "reference"), "passed"
    )
    for word in ("endpoint", "curl", "openai", "longspan down", "shown once"):
        assert word in printed


def test_ranks_are_where_the_plan_says(served: tuple[Longspan, str]) -> None:
    """Each rank's own process lives on its node, in its bundle; the processes are real."""
    ranks = served[0].status()["ranks"]
    assert [(rank["pp_rank"], rank["address"]) for rank in ranks] == [(0, "127.0.0.2"), (1, "127.0.0.3")]
    assert [rank["bundle_address"] for rank in ranks] == ["127.0.0.2", "127.0.0.3"]
    for rank in ranks:
        assert b"RayWorkerProc" in Path(f"/proc/{rank['pid']}/cmdline").read_bytes()


def test_chat_answers_paris(client: openai.OpenAI) -> None:
    """The OpenAI client gets the right answer from the split model."""
    model = client.models.list().data[0].id
    messages: Any = [{"role": "user", "content": "What is the capital of France?"}]
    answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=20)
    assert answer.choices[0].message.content == "The capital of France is Paris."


def test_streams_many_at_once(client: openai.OpenAI) -> None:
    """Eight concurrent streams all end with a finish reason, their chunks joined to text."""
    model = client.models.list().data[0].id

    def stream(number: int) -> tuple[str, str | None]:
        text, reason = "", None
        prompt = f"Count from {number}: "
        for chunk in client.completions.create(model=model, prompt=prompt, max_tokens=16, stream=True):
            text += chunk.choices[0].text
            reason = chunk.choices[0].finish_reason or reason
        return text, reason

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(stream, range(8)))
    assert all(text and reason in {"length", "stop"} for text, reason in results)


def test_the_picture_knows_what_serves(served: tuple[Longspan, str], client: openai.OpenAI) -> None:
    """While it works, `top` knows nodes, ranks, requests, tokens and latencies of the real engine; `logs` knows its ranks."""
    longspan = served[0]
    model = client.models.list().data[0].id
    with client.completions.create(
        model=model, prompt="Once", max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
        deadline = time.monotonic() + 60
        while True:
            view = ClusterView.from_json(json.loads(longspan.run("top", "--json").stdout))
            (replica,) = view.replicas
            # Rates and latencies may still be those of the requests before this one; what runs now is not.
            seen = replica.running and replica.generation_tokens_per_second and replica.ttft
            if seen or time.monotonic() > deadline:
                break
            time.sleep(0.5)
    assert replica.running
    assert replica.generation_tokens_per_second
    assert replica.kv_tokens
    assert replica.ttft
    assert replica.ttft.mean_seconds
    assert {node.state for node in view.nodes} == {"up"}
    pids = {rank.rank: rank.pid for rank in replica.ranks}
    found = {p.rank: p for node in view.nodes for p in node.processes if p.rank is not None}
    assert {rank: process.pid for rank, process in found.items()} == pids
    assert all((process.rss_bytes or 0) > 100 << 20 for process in found.values())
    lines = longspan.run("logs", "r0", "--rank", "1", "-n", "5").stdout.splitlines()
    assert lines
    assert all(f"pid={pids[1]}" in line for line in lines)


def test_anthropic_client(served: tuple[Longspan, str], client: openai.OpenAI) -> None:
    """The Anthropic client speaks to the same endpoint (/v1/messages)."""
    status = served[0].status()
    base = status["endpoint"].removesuffix("/v1")
    key = Path(status["api_key_file"]).read_text()
    with anthropic.Anthropic(base_url=base, api_key=key, timeout=300) as speaker:
        message = speaker.messages.create(
            model=status["served_name"], max_tokens=20, extra_body={"temperature": 0},
            messages=[{"role": "user", "content": "What is the capital of France?"}],
        )  # fmt: skip
    assert "Paris" in str(message.content[0])


def test_wrong_key_and_wrong_model(served: tuple[Longspan, str], client: openai.OpenAI) -> None:
    """A wrong key is 401, an unknown model 404, both in OpenAI's form."""
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="lsp_wrong").models.list()
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="no-such-model", prompt="x")


def running_requests(longspan: Longspan) -> float:
    """What the engine itself says it is working on."""
    status = longspan.status()
    key = (Path(status["state_dir"]) / "engine-key").read_text()
    config = (Path(status["state_dir"]) / "gateway.toml").read_text()
    url = re.search(r'^url = "(.*)"$', config, re.MULTILINE)
    assert url
    metrics = httpx.get(f"{url[1]}/metrics", headers={"Authorization": f"Bearer {key}"}, timeout=30).text
    found = re.search(r"^vllm:num_requests_running\{.*\} (\S+)$", metrics, re.MULTILINE)
    assert found
    return float(found[1])


def test_a_client_that_leaves_frees_the_engine(served: tuple[Longspan, str], client: openai.OpenAI) -> None:
    """Closing a stream cancels the request inside the engine, long before its tokens are used up."""
    model = client.models.list().data[0].id
    stream = client.completions.create(
        model=model, prompt="Once", max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert running_requests(served[0]) == 1
    stream.close()
    deadline = time.monotonic() + 20
    while running_requests(served[0]) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert running_requests(served[0]) == 0


def test_printed_lines_work_as_pasted(served: tuple[Longspan, str]) -> None:
    """The curl line and the OpenAI line that `up` prints answer Paris when pasted into a shell."""
    printed = served[1]
    curl = next(line for line in printed.splitlines() if line.startswith("curl "))
    python = next(line for line in printed.splitlines() if line.startswith("python -c"))
    for line in (f"{curl} --silent --show-error", python.replace("python", sys.executable, 1)):
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=300, check=False)
        assert "Paris" in done.stdout, done.stdout + done.stderr


def test_up_again_changes_nothing(served: tuple[Longspan, str]) -> None:
    """A second `up` says so and leaves ranks, key and controller as they were."""
    longspan, _ = served
    before = longspan.status()
    done = longspan.up("--listen", f"127.0.0.1:{PORT}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"] == before["ranks"] == longspan.status()["ranks"]
    assert "lsp_" not in done.stdout + done.stderr


def test_another_up_is_refused(served: tuple[Longspan, str]) -> None:
    """Other settings under the same name, and another name on the same port, are refused with their exit codes."""
    longspan, _ = served
    other = longspan.up("--listen", f"127.0.0.1:{PORT}", "--", "--max-model-len", "512")
    assert other.returncode == DeploymentExistsError.exit_code, other.stderr
    taken = longspan.up("--name", "second", "--listen", f"127.0.0.1:{PORT}")
    assert taken.returncode == PortError.exit_code
    assert re.search(r"taken by .*pid \d+", taken.stderr)


def test_no_secret_is_to_be_seen(served: tuple[Longspan, str]) -> None:
    """Neither the client's nor the engine's key nor Ray's token stands in argv, logs, status or history."""
    longspan, _ = served
    status = longspan.status()
    root = Path(status["state_dir"])
    secrets = {(root / name).read_text().strip() for name in ("api-key", "engine-key")}
    start = json.loads((root / "resume.json").read_text())
    secrets |= {start[name] for name in ("ray_token", "agent_key", "operator_key", "engine_key")}
    secrets.add(json.loads((root / "controller.json").read_text())["key"])
    assert len(secrets) >= 5
    texts = [json.dumps(status), longspan.run("status").stdout, (root / "events.jsonl").read_text()]
    texts += [path.read_text(errors="replace") for path in root.glob("logs/**/*.log")]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            texts.append(path.read_text(errors="replace"))
    assert not [secret[:6] for secret in secrets for text in texts if secret in text]
    for name in ("api-key", "engine-key", "controller.json"):
        assert (root / name).stat().st_mode & 0o077 == 0


def asked(status: dict[str, Any]) -> httpx.Response:
    """A completion through the endpoint."""
    return httpx.post(
        f"{status['endpoint']}/completions",
        headers={"Authorization": f"Bearer {Path(status['api_key_file']).read_text().strip()}"},
        json={
            "model": status["served_name"],
            "prompt": "The capital of France is",
            "max_tokens": 4,
            "temperature": 0,
        },
        timeout=120,
    )


def test_traffic_by_hand_and_in_figures(served: tuple[Longspan, str]) -> None:
    """Isolated, the endpoint says by whom; restored, it answers; status counts what the gateway saw."""
    longspan, _ = served
    status = longspan.status()
    assert longspan.run("isolate", "r0").returncode == 0
    deadline = time.monotonic() + 30
    while (answer := asked(status)).status_code == 200 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert (answer.status_code, "isolated by the operator" in answer.text) == (503, True)
    assert longspan.run("restore", "r0").returncode == 0
    while (answer := asked(status)).status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert "Paris" in answer.text
    counted = longspan.status()["traffic"]["requests"]
    assert counted["local"] > 0
    assert counted["outside"] == 0


def test_prometheus_sees_all_of_it(served: tuple[Longspan, str], tmp_path: Path) -> None:
    """A real Prometheus over the real dashboard: every panel's and rule's query answers, but for what a CPU host cannot have."""
    longspan, _ = served
    status = longspan.status()
    files = (Path(status["api_key_file"]), Path(status["state_dir"]) / "metrics-key")
    client_key, metrics_key = (file.read_text().strip() for file in files)
    with seeing.dashboard(longspan) as (url, _):
        asyncio.run(seeing.every_query_answers(status, tmp_path, url, (client_key, metrics_key)))


def test_a_click_moves_the_traffic(served: tuple[Longspan, str], tmp_path: Path) -> None:
    """In a real browser: isolate takes the replica out of the real gateway, restore lets it back in."""
    longspan, _ = served
    status = longspan.status()
    with seeing.browser(tmp_path) as browser, seeing.dashboard(longspan) as (url, key):
        for action, code in (("Isolate", 503), ("Restore", 200)):
            asyncio.run(seeing.click(browser, url, key, action))
            deadline = time.monotonic() + 30
            while asked(status).status_code != code and time.monotonic() < deadline:
                time.sleep(0.2)
            assert asked(status).status_code == code
            assert bool(longspan.status()["held"]) == (action == "Isolate")


def test_an_engine_that_dies_comes_back(served: tuple[Longspan, str]) -> None:
    """A drill kills a rank: its whole group is ended and started again with new ranks under the same address, and no request
    is left without an answer: meanwhile the endpoint says why it has nobody to ask."""
    longspan, _ = served
    before = longspan.status()
    refused = longspan.run("drill", "kill-rank", "--json")
    assert (refused.returncode, "Say --yes" in refused.stderr) == (InputError.exit_code, True)
    done = longspan.run("drill", "kill-rank", "--yes", "--json", timeout_seconds=600)
    assert done.returncode == 0, done.stderr
    drilled = json.loads(done.stdout)
    assert drilled["restarts"] == 1
    assert drilled["detect_seconds"] < drilled["recover_seconds"]
    assert drilled["requests"]["hung"] == drilled["requests"]["cut"] == 0
    assert drilled["requests"]["refused"] > 0
    status = longspan.status()
    assert status["phase"] == "serving"
    reason = status["restarts"][0]["reason"]
    assert "rank's process on node-2 ended" in reason or "launcher on node-1 ended" in reason
    assert drilled["detect_seconds"] < 10
    assert status["endpoint"] == before["endpoint"]
    assert {rank["pid"] for rank in status["ranks"]}.isdisjoint({rank["pid"] for rank in before["ranks"]})
    assert status["proof"]["verdict"] == "verified"
    assert "Paris" in asked(before).text


def test_a_gateway_that_dies_comes_back(served: tuple[Longspan, str]) -> None:
    """On the address that clients know, and the engine does not notice."""
    longspan, _ = served
    before = longspan.status()
    done = longspan.run("drill", "kill-gateway", "--yes", "--json", timeout_seconds=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["restarts"] == 0
    assert longspan.status()["ranks"] == before["ranks"]
    assert "Paris" in asked(before).text


def test_a_controller_that_is_killed_is_replaced(served: tuple[Longspan, str]) -> None:
    """Longer than the agents' lease after it: nothing was restarted, no request was lost, and the next one is obeyed. Then
    its supervisor is killed, and it goes on by itself."""
    longspan, _ = served
    before = longspan.status()
    record = longspan.state / "longspan/default/controller.json"
    first = json.loads(record.read_text())
    over = threading.Event()

    def ask_on() -> list[int]:
        found = []
        while not over.is_set():
            found.append(asked(before).status_code)
            time.sleep(0.2)
        return found

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_on)
        os.kill(first["controller"]["pid"], signal.SIGKILL)
        killed = time.monotonic()
        try:
            while longspan.run("status", "--json").returncode:
                assert time.monotonic() < killed + 60
            print(f"answers again {time.monotonic() - killed:.1f} s after the controller was killed")
            time.sleep(LEASE_SECONDS + 5)
        finally:
            over.set()
        codes = asking.result()
    assert set(codes) == {200}, codes
    second = json.loads(record.read_text())
    assert second["controller"] != first["controller"]
    assert {**second, "controller": 0} == {**first, "controller": 0}
    status = longspan.status()
    assert len(status["restarts"]) == len(before["restarts"])
    for what in ("phase", "ranks", "endpoint", "proof", "lost", "findings", "held"):
        assert status[what] == before[what], what
    assert longspan.run("isolate", "r0").returncode == 0
    assert longspan.status()["held"] == {"r0": "isolate"}
    os.kill(second["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (third := json.loads(record.read_text()))["pid"] != second["controller"]["pid"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert third["controller"]["pid"] == third["pid"]
    assert longspan.run("restore", "r0").returncode == 0
    while (answer := asked(status)).status_code != 200:
        assert time.monotonic() < deadline
    assert "Paris" in answer.text

"""The agent against a controller that a test plays: what it starts, says and ends, and when it ends itself."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from fake_controller import agent, ended, fake_controller, until
from real import FAMILY, environment, family, running, wait_for

from longspan.daemon.agent import BATCH_CHARACTERS, Agent, AgentConfig, Watched
from longspan.daemon.protocol import MAX_LINE_CHARACTERS
from longspan.launch.run_dir import Paths


def run(test: Coroutine[Any, Any, None]) -> None:
    """Runs a test's coroutine."""
    asyncio.run(test)


def test_processes_are_started_read_and_told(tmp_path: Path) -> None:
    """Lines come in order and whole, the last one without its newline too, before the exit status; twice sent is once taken."""

    async def test() -> None:
        async with fake_controller() as controller, agent(controller, tmp_path):
            await until(lambda: controller.messages)
            assert controller.keys == {"Bearer the-key"}
            controller.answers = [500, 500]
            controller.start(
                "p", "sh", "-c", "echo one; printf '10%%\\r20%%\\r\\n'; printf 'no newline'; exit 3"
            )
            controller.start("q", str(tmp_path / "nowhere"))
            controller.start("r", "")
            controller.command(
                kind="call", call="ports:a", what="ports", arguments={"address": "127.0.0.1", "count": 3}
            )
            controller.command(kind="call", call="x:a", what="unknown", arguments={})
            await until(
                lambda: controller.exit_code("p") is not None and controller.exit_code("q") is not None
            )
            assert controller.lines("p") == ["one", "10%", "20%", "no newline"]
            assert controller.exit_code("p") == 3
            kinds = [e["kind"] for e in controller.taken if e.get("process") == "p"]
            assert kinds.index("exited") == len(kinds) - 1
            assert controller.exit_code("q") == 127
            assert "nowhere" in controller.lines("q")[0]
            await until(lambda: controller.exit_code("r") == 127)
            ports = await until(lambda: controller.answer("ports:a"))
            assert len(set(ports["value"])) == 3
            assert "unknown" in (await until(lambda: controller.answer("x:a")))["error"]
            numbers = [m["first"] for m in controller.messages]
            assert numbers == sorted(numbers)
            assert numbers[-1] <= len(controller.taken)
            assert len({m["instance"] for m in controller.messages}) == 1

    run(test())


def test_the_end_of_a_rank_is_told(tmp_path: Path) -> None:
    """A rank is a process of Ray's or vLLM's, no child of the agent: once it is known as one, its end is told once."""

    async def test() -> None:
        async with fake_controller() as controller, agent(controller, tmp_path):
            ours = "LONGSPAN_GROUP=m/2 sh -c 'echo $$; exec sleep 1000' & wait; sleep 1000"
            controller.start("p", "sh", "-c", ours)
            pid = int((await until(lambda: controller.lines("p")))[0])
            arguments = {"pids": [pid, 1], "mark": "m", "group": "m/2", "joined": False, "process": "rank.2"}
            controller.command(kind="call", call="ranks:a", what="ranks", arguments=arguments)
            assert (await until(lambda: controller.answer("ranks:a")))["value"] == {str(pid): []}
            os.kill(pid, signal.SIGKILL)
            await until(lambda: controller.exit_code("rank.2") == -1)
            seen = len(controller.messages)
            await until(lambda: len(controller.messages) > seen + 1)
            assert len([event for event in controller.taken if event.get("process") == "rank.2"]) == 1
            assert controller.exit_code("p") is None

    run(test())


def test_a_flood_is_taken_in_bounded_messages(tmp_path: Path) -> None:
    """Megabytes of long lines arrive whole in number, cut in length, and no message grows beyond what a controller takes."""
    code = "import sys\nfor n in range(300): sys.stdout.write(f'{n} ' + 'x' * 20000 + '\\n')"

    async def test() -> None:
        async with fake_controller() as controller, agent(controller, tmp_path):
            controller.start("p", sys.executable, "-c", code)
            await until(lambda: controller.exit_code("p") is not None)
            lines = controller.lines("p")
            assert [int(line.split()[0]) for line in lines] == list(range(300))
            assert max(map(len, lines)) == MAX_LINE_CHARACTERS
            sizes = [
                sum(len(line) for e in m["events"] for line in e.get("lines", ()))
                for m in controller.messages
            ]
            assert max(sizes) <= 3 * BATCH_CHARACTERS

    run(test())


@pytest.mark.parametrize("why", ["stop_all", "lease", "410", "SIGTERM", "SIGUSR2", "no command"])
def test_the_end_of_everything(tmp_path: Path, why: str) -> None:
    """Told to, without its controller for a lease, replaced, or signalled (also amid news): all processes end, then the agent; files go."""

    async def test() -> None:
        async with (
            fake_controller() as controller,
            agent(controller, tmp_path) as child,
        ):
            controller.start("p", "sh", "-c", FAMILY, str(tmp_path))
            controller.start("q", "sleep", "1000")
            pids = await asyncio.to_thread(family, tmp_path)
            match why:
                case "stop_all":
                    controller.command(kind="stop_all", call="stopped:a")
                    answer = await until(lambda: controller.answer("stopped:a"))
                    assert answer["value"] == {"left": []}
                case "lease":
                    child.send_signal(signal.SIGUSR1)
                    await controller.close()
                case "no command":  # one of the agent's own jobs dies of it
                    controller.commands.append({"kind": "call"})
                case "410":
                    controller.answers = [410] * 1000
                case "SIGTERM" | "SIGUSR2":
                    child.send_signal(signal.Signals[why])
            assert await ended(child) == 0
            assert [name for name, pid in pids.items() if running(pid)] == []
        assert not (tmp_path / "run").exists()
        assert (tmp_path / "logs" / "p.log").exists()

    run(test())


def test_nonsense_is_asked_again(tmp_path: Path) -> None:
    """An answer that is no JSON, or not of the protocol, is not the end: the next one is heard."""

    async def test() -> None:
        async with fake_controller() as controller, agent(controller, tmp_path) as child:
            await until(lambda: controller.messages)
            controller.nonsense = ["{", "[]", "{}"]
            await until(lambda: not controller.nonsense)
            controller.start("p", "sh", "-c", "echo heard; sleep 1000")
            await until(lambda: controller.lines("p") == ["heard"])
            assert child.returncode is None

    run(test())


def test_the_end_does_not_wait_for_a_digest(tmp_path: Path) -> None:
    """A checkpoint that takes minutes to read holds up nobody: its thread ends with the process."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    with (model / "model.safetensors").open("wb") as file:
        file.truncate(1 << 42)  # sparse

    async def test() -> None:
        async with fake_controller() as controller, agent(controller, tmp_path) as child:
            arguments = {"model": str(model), "revision": None, "nonce": "n", "full": True}
            controller.command(kind="call", call="digest:a", what="digest", arguments=arguments)
            controller.start("p", "sh", "-c", "echo meanwhile; sleep 1000")
            await until(lambda: controller.lines("p") == ["meanwhile"])
            child.send_signal(signal.SIGTERM)
            assert await ended(child) == 0
            assert controller.answer("digest:a") is None

    run(test())


def test_a_short_outage_is_no_end(tmp_path: Path) -> None:
    """A controller that fails for a moment finds the agent, its processes and what they wrote meanwhile."""

    async def test() -> None:
        async with fake_controller() as controller, agent(controller, tmp_path) as child:
            await until(lambda: controller.messages)
            controller.answers = [500, 401, 413]
            controller.start("p", "sh", "-c", "echo meanwhile; sleep 1000")
            await until(lambda: controller.lines("p") == ["meanwhile"])
            assert child.returncode is None

    run(test())


def test_standing_still_is_not_the_controllers_silence(tmp_path: Path) -> None:
    """An agent that was stopped for longer than its lease asks the controller more than once before it gives up."""

    async def test() -> None:
        async with fake_controller() as controller, agent(controller, tmp_path, lease_seconds=5) as child:
            controller.start("p", "sh", "-c", "echo lives; sleep 1000")
            await until(lambda: controller.lines("p") == ["lives"])
            child.send_signal(signal.SIGSTOP)
            await asyncio.sleep(6)
            controller.answers = [500, 500]
            seen = len(controller.messages)
            child.send_signal(signal.SIGCONT)
            await until(lambda: len(controller.messages) > seen + 3)
            assert child.returncode is None
            assert controller.exit_code("p") is None

    run(test())


def test_the_last_agent_of_a_machine_removes_the_directory(tmp_path: Path) -> None:
    """Agents that share a machine leave each other's Ray directory alone; the last one removes what they shared."""
    run_dir, logs = tmp_path / "run", tmp_path / "logs"
    ray = {name: Path(Paths(str(run_dir), "").ray_dir(name)) for name in ("a", "b")}
    for name, path in ray.items():
        (path / "session_2026/logs").mkdir(parents=True)
        (path / "session_2026/logs/raylet.err").write_text(f"words of {name}")
    logs.mkdir()

    def leave(name: str) -> None:
        agent = Agent(AgentConfig(name, "http://127.0.0.1:1", "k", "m", str(run_dir), str(logs), False))
        agent._keep_ray_logs()
        agent._clear_run_dir()

    leave("front")
    leave("a")
    assert ray["b"].exists()
    assert not ray["a"].exists()
    assert (logs / "ray" / "raylet.err").read_text() == "words of a"
    leave("b")
    assert not run_dir.exists()


def test_a_log_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    """Halves of a line are joined, a log that is gone is no error, and nothing is told twice."""
    log = tmp_path / "log"
    watched = Watched("p", log, None)
    assert watched.read() == []
    with log.open("wb") as file:
        for data, lines in (
            (b"a\nb", ["a"]),
            (b"c\r", ["bc"]),
            (b"\xff\n", ["\N{REPLACEMENT CHARACTER}"]),
            (b"d", []),
        ):
            file.write(data)
            file.flush()
            assert watched.read() == lines
    assert watched.read() == []
    assert watched.read(whole=True) == ["d"]
    assert watched.read(whole=True) == []
    log.unlink()
    assert watched.read() == []


def test_a_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that grows for ever takes twice the limit on disk at most; every line is told once, and the last ones are kept."""
    monkeypatch.setattr("longspan.daemon.agent.MAX_LOG_BYTES", 1000)
    log = tmp_path / "p.log"
    watched = Watched("p", log, None)
    told: list[str] = []
    with log.open("ab") as file:
        for number in range(1000):
            file.write(f"line {number}\n".encode())
            file.flush()
            told += watched.read() or watched.rotate()
            assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2200
            told += watched.read() or watched.rotate()
    assert told == [f"line {number}" for number in range(1000)]
    kept = (tmp_path / "p.log.1").read_text() + log.read_text()
    assert kept.splitlines() == told[-len(kept.splitlines()) :]


def test_the_program_goes_into_the_background(tmp_path: Path) -> None:
    """What ssh or srun waits for returns with the agent's identity; the agent lives on, without a controller for its lease."""
    config = (
        '{"name": "a", "controller_url": "http://127.0.0.1:9", "key": "k", "mark": "m", "joined": false,'
        f' "run_dir": "{tmp_path}/run", "log_dir": "{tmp_path}/logs"}}'
    )
    done = subprocess.run(
        [sys.executable, "-m", "longspan.daemon.agent"],
        input=config, env=environment(tmp_path), capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    pid = json.loads(done.stdout)["pid"]
    try:
        assert running(pid)
        wait_for(lambda: "controller unreachable" in (tmp_path / "logs" / "agent.log").read_text())
        assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    finally:
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not running(pid))
    assert not (tmp_path / "run").exists()

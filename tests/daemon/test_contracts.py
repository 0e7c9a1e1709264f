"""What the controller relies on in the gateway's program, and the agents' answers about their node."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from real import TIMEOUT_SECONDS, environment

from longspan.daemon import functions, gateway_config, processes
from longspan.errors import PortError


def configuration(home: Path, listen: str, *, url: str = "http://127.0.0.1:9") -> Path:
    """The gateway's file as the controller writes it."""
    (home / "engine-key").write_text("k")
    path = home / "gateway.toml"
    path.write_text(
        gateway_config.render(
            listen=listen, key_sha256="0" * 64, admin_sha256="1" * 64, ledger=str(home / "ledger.sqlite3"), model='a "quoted" name', upstream_key_file=str(home / "engine-key"),
            replicas=[gateway_config.Upstream("r0", url, "out", "the engine is starting")] if url else [],
        )
    )  # fmt: skip
    return path


def gateway(home: Path, config: Path) -> subprocess.Popen[str]:
    """The gateway as the front agent starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "longspan.gateway", "--config", str(config)],
        env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:9"])
def test_the_gateway_says_where_it_listens(tmp_path: Path, url: str) -> None:
    """Its first line is the event that the state machine waits for; SIGTERM ends it in order."""
    with gateway(tmp_path, configuration(tmp_path, "127.0.0.1:0", url=url)) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line.startswith('{"event"')
        event = json.loads(line)
        assert event["event"] == "listening"
        assert event["admin"].startswith("127.0.0.1:")
        host, port = event["address"].split(":")
        socket.create_connection((host, int(port)), timeout=60).close()
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=TIMEOUT_SECONDS)
        assert child.returncode == 0


def test_the_gateway_tells_a_taken_port_by_its_exit_code(tmp_path: Path) -> None:
    """The code is PortError's, by which the state machine tells it from other ends; the holder is named."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = configuration(tmp_path, f"127.0.0.1:{server.getsockname()[1]}")
        with gateway(tmp_path, config) as child:
            _, errors = child.communicate(timeout=TIMEOUT_SECONDS)
    assert child.returncode == PortError.exit_code
    assert str(os.getpid()) in errors


def test_files_of_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are written for their owner only, with the user's list of variables joined to ours; nothing goes elsewhere."""
    users = tmp_path / "users"
    users.mkdir()
    (users / "ray_non_carry_over_env_vars.json").write_text('["MINE"]')
    monkeypatch.setenv("VLLM_CONFIG_ROOT", str(users))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    functions.write_files(run_dir, {str(run_dir / "deep" / "key"): "secret"})
    assert (run_dir / "deep" / "key").read_text() == "secret"
    assert (run_dir / "deep" / "key").stat().st_mode & 0o777 == 0o600
    variables = json.loads((run_dir / "vllm" / "ray_non_carry_over_env_vars.json").read_text())
    assert {"MINE", "NCCL_SOCKET_IFNAME"} <= set(variables)
    for outside in (tmp_path / "x", run_dir / ".." / "x", Path("/etc/x")):
        with pytest.raises(ValueError, match="is outside"):
            functions.write_files(run_dir, {str(outside): "secret"})
    assert not (tmp_path / "x").exists()


def test_a_list_of_variables_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's damaged list does not stop a launch."""
    (tmp_path / "ray_non_carry_over_env_vars.json").write_text("{")
    monkeypatch.setenv("VLLM_CONFIG_ROOT", str(tmp_path))
    functions.write_local_variables(tmp_path / "vllm")
    assert "TMPDIR" in json.loads((tmp_path / "vllm" / "ray_non_carry_over_env_vars.json").read_text())


def test_what_a_node_is_asked(tmp_path: Path) -> None:
    """Facts, free ports that differ and that no connection takes, and no digests of what the hub cache does not hold."""

    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())

    async def test() -> None:
        facts = await functions.facts({"python": sys.executable}, str(tmp_path))
        assert {"ray", "vllm", "python", "memory_available_bytes", "shm_free_bytes"} <= set(facts)
        assert facts["memory_available_bytes"] > 0
        ports = await functions.ports({"address": "127.0.0.1", "count": 20}, "")
        assert len(set(ports)) == 20
        assert [port for port in ports if low <= port <= high or port < 20600] == []
        wanted = {"model": "org/name", "revision": "0" * 40, "nonce": "n", "full": False}
        assert (await functions.digest_model(wanted, ""))["files"] == []

    asyncio.run(test())


def test_ranks_are_our_own_processes(tmp_path: Path) -> None:
    """Of the pids asked for only descendants of the agent are confirmed that belong to the group; init is not ours, and what
    runs beside them for another replica is another's."""
    child, other = (
        subprocess.Popen(["sleep", "1000"], env={**os.environ, "LONGSPAN_GROUP": f"m/{n}"}) for n in (1, 2)
    )
    try:
        arguments = {"pids": [1, child.pid, other.pid, 0], "mark": "m", "group": "m/1", "joined": False}
        assert asyncio.run(functions.ranks(arguments, "")) == {str(child.pid): []}
    finally:
        for one in (child, other):
            one.kill()
            one.wait()


def nvidia_smi(home: Path, monkeypatch: pytest.MonkeyPatch, pid: int, times: int) -> None:
    """A driver that says for its first few answers that this pid still holds a GPU."""
    program = home / "bin" / "nvidia-smi"
    program.parent.mkdir()
    count = home / "count"
    program.write_text(
        f'#!/bin/sh\necho x >> {count}\n[ "$(wc -l < {count})" -le {times} ] && echo "{pid}, GPU-1"\nexit 0\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.mark.parametrize(("times", "left"), [(0, []), (2, []), (100, [77])])
def test_the_end_of_a_group_waits_for_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, left: list[int]
) -> None:
    """A process that has ended may hold GPU memory for a while; what is never given back is told as left."""
    nvidia_smi(tmp_path, monkeypatch, 77, times)
    monkeypatch.setattr(functions, "GPU_FREE_SECONDS", 4)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(processes, "end_group", lambda *_, **__: processes.Ended(seen={77, 78}))
    arguments = {"group": "m/1", "mark": "m", "joined": False}
    assert asyncio.run(functions.end_group(arguments, str(tmp_path))) == {"left": left}
    assert len(slept) == min(times, 4)


def test_a_drill_strikes_only_what_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By pid or by the module that it runs; another's process, or none, is refused."""
    code = "import time; print('up', flush=True); time.sleep(1000)"
    child = subprocess.Popen([sys.executable, "-c", code, "the.module"], stdout=subprocess.PIPE)
    other = subprocess.Popen(["sleep", "1000"])
    try:
        assert child.stdout is not None
        child.stdout.readline()
        monkeypatch.setattr(processes, "ours", lambda mark, *, joined: {child.pid})
        plain = {"mark": "m", "joined": False, "signal": "KILL"}
        for wrong in ({"pid": other.pid}, {"module": "the"}):
            with pytest.raises(ValueError, match="no such process"):
                asyncio.run(functions.strike({**plain, **wrong}, str(tmp_path)))
        assert other.poll() is None
        found = asyncio.run(functions.strike({**plain, "module": "the.module"}, str(tmp_path)))
        assert found == {"pids": [child.pid]}
        assert child.wait(TIMEOUT_SECONDS) == -signal.SIGKILL
    finally:
        for one in (child, other):
            one.kill()
            one.wait()
        assert child.stdout is not None
        child.stdout.close()

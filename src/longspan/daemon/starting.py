"""Running our own programs on a node: here, over ssh, by a job step of Slurm, in a container, or by a task in a Ray.

In each case a module is run with what it needs on standard input: the agent's, which prints who it is, or the sweep,
which ends what a lost agent left. On this machine, over ssh and in Ray the agent then goes into the background. A job
step and a container end with their first process, so there it stays in the foreground, and so does the command (srun,
docker, ssh) that started it.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from longspan.cluster.container import Container
from longspan.daemon.reach import host_of
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.errors import HostError
from longspan.host import SlurmHost, SshHost
from longspan.launch import container
from longspan.launch.commands import ray_task
from longspan.launch.container import Job
from longspan.launch.words import AGENT_VARIABLE

AGENT = "longspan.daemon.agent"
SWEEP = "longspan.daemon.sweep"
ALONG_TIMEOUT_SECONDS = 55.0  # below the state machine's patience with the agents
IDENTITY = '{"pid": '  # what an agent prints first
_stays: dict[str, subprocess.Popen[bytes]] = {}  # by the node's name


async def _run(
    name: str, argv: Sequence[str], env: Mapping[str, str], stdin: str, timeout_seconds: float
) -> str:
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **env},
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            out, err = await child.communicate(stdin.encode())
    except TimeoutError:
        raise HostError(f"{name} did not answer within {timeout_seconds:.0f} s") from None
    finally:
        if child.returncode is None:  # too slow, or we are being stopped
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if child.returncode != 0:
        raise HostError(_ended(argv, child.returncode, err.decode(errors="replace")))
    return out.decode(errors="replace")


def _ended(argv: Sequence[str], code: int | None, said: str) -> str:
    last = said.strip().splitlines()[-1:] or ["no reason given"]
    return f"{argv[0]} ended with status {code}: {last[0]}"


def _spawn(argv: Sequence[str], env: Mapping[str, str], stdin: str, said: Path) -> subprocess.Popen[bytes]:
    """Starts a command that lives as long as the agent. It writes to a file: a pipe would end with us."""
    said.parent.mkdir(parents=True, exist_ok=True)
    with said.open("wb") as out:
        child = subprocess.Popen(
            list(argv), stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, env=dict(env), start_new_session=True
        )  # fmt: skip
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended at once; why, it has written
        child.stdin.write(stdin.encode())
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    return child


async def _identity_said(name: str, argv: Sequence[str], child: subprocess.Popen[bytes], said: Path) -> None:
    """Waits until the agent has said who it is; ends the command where it does not."""
    deadline = time.monotonic() + ALONG_TIMEOUT_SECONDS
    try:
        while IDENTITY not in (text := await asyncio.to_thread(said.read_text, errors="replace")):
            if child.poll() is not None:
                raise HostError(_ended(argv, child.returncode, text))
            if time.monotonic() > deadline:
                last = text.strip()[-200:] or "nothing was said"
                raise HostError(
                    f"the agent on {name} did not start within {ALONG_TIMEOUT_SECONDS:.0f} s: {last}"
                )
            await asyncio.sleep(0.05)
    except BaseException:
        child.terminate()  # srun hands it on to the step
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(child.wait, 10)
        if child.poll() is None:
            child.kill()
        raise


async def start_agent(
    node: NodeSpec | None, config: dict[str, Any], spec: DeploymentSpec, said: Path
) -> None:
    """Starts the agent of a node; None is the front agent on this machine.

    Args:
        said: where a command that stays (srun, docker) writes what it says.

    Raises:
        HostError: it did not start, with the last line that was said about it.
    """
    joined = node is not None and spec.joins_ray
    if node is not None and stays(node, spec):
        await _start_along(node, {**config, "joined": False, "foreground": True}, spec, said)
        return
    stdin = json.dumps({**config, "joined": joined})
    await _on_node(node, config["name"], config["mark"], AGENT, stdin, spec.ray_address)


async def sweep(node: NodeSpec | None, name: str, mark: str, run_dir: str, spec: DeploymentSpec) -> Any:
    """Ends what a lost agent left on its node; None is this machine.

    Returns:
        {"left": [pid, …]}

    Raises:
        HostError: the node cannot be reached, or the program failed there.
        ValueError: it did not answer with JSON.
    """
    if node is not None and stays(node, spec):
        # The job step ends with the command that started it. A container does not: its engine is told.
        await asyncio.to_thread(_end_staying, [name], 10)
        if node.container:
            argv = host_of(node).argv(container.remove_command(node.container, mark, node.name))
            await _run(name, argv, {}, "", 60)
        return {"left": []}
    wanted = json.dumps({"mark": mark, "run_dir": run_dir})
    answer = await _on_node(node, name, "", SWEEP, wanted, spec.ray_address)
    return json.loads(answer.strip().rpartition("\n")[2])


def stays(node: NodeSpec, spec: DeploymentSpec) -> bool:
    """Whether the command that starts a node's agent lives as long as the agent."""
    return not spec.ray_address and bool(node.slurm or node.container)


async def _on_node(
    node: NodeSpec | None, name: str, agent_of: str, module: str, stdin: str, ray_address: str | None
) -> str:
    """Runs one of our programs on a node: here, over ssh, or by a task in a Ray that we joined.

    Args:
        agent_of: the mark that tells agents in their environment; empty for what is no agent.
    """
    env = {AGENT_VARIABLE: agent_of} if agent_of else {}
    if node is None or (node.is_here and ray_address is None):
        return await _run(name, [sys.executable, "-m", module], env, stdin, 30)
    program = [node.python, "-m", module]
    if node.ssh is not None:
        return await _run(name, SshHost(node.name, node.ssh).argv(program, env), {}, stdin, 60)
    task, wanted = ray_task(sys.executable, str(ray_address), node.address, program, env, stdin)
    return await _run(name, task, {}, wanted, 90)


async def _start_along(node: NodeSpec, config: dict[str, Any], spec: DeploymentSpec, said: Path) -> None:
    """In a job step or a container, which end with the agent."""
    host = host_of(node, more={AGENT_VARIABLE: config["mark"]})
    env = host.env if isinstance(host, SlurmHost) else {**os.environ, AGENT_VARIABLE: config["mark"]}
    argv = [node.python, "-m", AGENT]
    if node.container is not None:
        job = Job(spec.name, node.name, config["mark"], "", spec.model)
        asked = host.argv(container.prepare_command(node.container, job))
        job = replace(job, home=home_said(await _run(node.name, asked, {}, "", 30), node.container))
        argv = container.run_command(node.container, job, argv)
        config = {**config, "log_dir": container.LOGS}
    whole = host.argv(argv)
    child = await asyncio.to_thread(_spawn, whole, env, json.dumps(config), said)
    _stays[node.name] = child
    await _identity_said(node.name, whole, child, said)


def end_along(grace_seconds: float) -> None:
    """Once the deployment is gone: ends the commands whose agents did not, such as those of hosts that are lost."""
    _end_staying(list(_stays), grace_seconds)


def _end_staying(names: Sequence[str], grace_seconds: float) -> None:
    children = [_stays[name] for name in names if name in _stays]
    deadline = time.monotonic() + grace_seconds
    for wait_until, end in ((deadline, "terminate"), (deadline + grace_seconds, "kill")):
        while time.monotonic() < wait_until and any(child.poll() is None for child in children):
            time.sleep(0.05)
        for child in children:
            if child.poll() is None:
                getattr(child, end)()


def home_said(answer: str, wanted: Container) -> str:
    """The user's home there, out of what `container.prepare_command` printed."""
    word, _, home = (answer.strip().splitlines() or [""])[-1].partition(" ")
    if word == "home" and home.startswith("/"):
        return home
    reasons = {
        "no-engine": f"{wanted.engine} is not installed there",
        "no-daemon": f"{wanted.engine} does not answer there: try `{wanted.engine} info` as this user",
        "no-image": f"the image is not there: `{wanted.engine} pull {wanted.image}`",
    }
    raise HostError(reasons.get(word, f"it cannot be made ready for a container: {answer.strip()[:200]}"))

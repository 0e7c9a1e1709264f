"""Starting an agent on a node: here, over ssh, by a job step of Slurm, in a container, or by a task in a Ray that runs.

In each case the agent's own program is run with its configuration on standard input and prints who it is. On this
machine, over ssh and in Ray it then goes into the background. A job step and a container end with their first
process, so there the agent stays in the foreground, and so does the command (srun, docker, ssh) that started it.
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
from longspan.launch.container import Job
from longspan.launch.words import AGENT_VARIABLE

AGENT = ("-m", "longspan.daemon.agent")
ALONG_TIMEOUT_SECONDS = 55.0  # below the state machine's patience with the agents
IDENTITY = '{"pid": '  # what an agent prints first
_stays: list[subprocess.Popen[bytes]] = []


async def _run(name: str, mark: str, argv: Sequence[str], stdin: str, timeout_seconds: float) -> str:
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, AGENT_VARIABLE: mark},
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            out, err = await child.communicate(stdin.encode())
    except TimeoutError:
        raise HostError(f"the agent on {name} did not start within {timeout_seconds:.0f} s") from None
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
    joined = bool(node and spec.ray_address)
    if node is not None and not joined and (node.slurm or node.container):
        await _start_along(node, {**config, "joined": False, "foreground": True}, spec, said)
        return
    stdin = json.dumps({**config, "joined": joined})
    if node is None or (node.is_here and not joined):
        await _run(config["name"], config["mark"], [sys.executable, *AGENT], stdin, 30)
    elif node.ssh is not None:
        argv = SshHost(node.name, node.ssh).argv([node.python, *AGENT])
        await _run(node.name, config["mark"], argv, stdin, 60)
    else:
        wanted = json.dumps({"address": node.address, "config": stdin, "python": node.python})
        argv = [sys.executable, "-m", "longspan.launch.ray_join", "start-agent", str(spec.ray_address)]
        await _run(node.name, config["mark"], argv, wanted, 90)


async def _start_along(node: NodeSpec, config: dict[str, Any], spec: DeploymentSpec, said: Path) -> None:
    """In a job step or a container, which end with the agent."""
    host = host_of(node, more={AGENT_VARIABLE: config["mark"]})
    env = host.env if isinstance(host, SlurmHost) else {**os.environ, AGENT_VARIABLE: config["mark"]}
    argv = [node.python, *AGENT]
    if node.container is not None:
        job = Job(spec.name, node.name, config["mark"], "", spec.model)
        asked = host.argv(container.prepare_command(node.container, job))
        job = replace(job, home=_home(await _run(node.name, config["mark"], asked, "", 30), node.container))
        argv = container.run_command(node.container, job, argv)
        config = {**config, "log_dir": container.LOGS}
    whole = host.argv(argv)
    child = await asyncio.to_thread(_spawn, whole, env, json.dumps(config), said)
    _stays.append(child)
    await _identity_said(node.name, whole, child, said)


def end_along(grace_seconds: float) -> None:
    """Once the deployment is gone: ends the commands whose agents did not, such as those of hosts that are lost."""
    deadline = time.monotonic() + grace_seconds
    for wait_until, end in ((deadline, "terminate"), (deadline + grace_seconds, "kill")):
        while time.monotonic() < wait_until and any(child.poll() is None for child in _stays):
            time.sleep(0.05)
        for child in _stays:
            if child.poll() is None:
                getattr(child, end)()


def _home(answer: str, wanted: Container) -> str:
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

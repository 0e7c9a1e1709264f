"""Running our own programs on a node: on this machine, over ssh, or by a task in a Ray cluster that already runs.

In each case a module is run with what it needs on standard input. The agent's goes into the background and prints who
it is; the sweep ends what a lost agent left.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from longspan.deployment import NodeSpec
from longspan.errors import HostError
from longspan.host import SshHost
from longspan.launch.words import AGENT_VARIABLE


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
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise HostError(f"{argv[0]} ended with status {child.returncode}: {last[0]}")
    return out.decode(errors="replace")


async def start_agent(node: NodeSpec | None, config: dict[str, Any], ray_address: str | None) -> None:
    """Starts the agent of a node; None is the front agent on this machine.

    Raises:
        HostError: it did not start, with the last line that was said about it.
    """
    stdin = json.dumps({**config, "joined": bool(node and ray_address)})
    await _on_node(node, config["name"], config["mark"], "longspan.daemon.agent", stdin, ray_address)


async def sweep(node: NodeSpec | None, name: str, mark: str, run_dir: str, ray_address: str | None) -> Any:
    """Ends what a lost agent left on its node; None is this machine.

    Returns:
        {"left": [pid, …]}

    Raises:
        HostError: the node cannot be reached, or the program failed there.
        ValueError: it did not answer with JSON.
    """
    wanted = json.dumps({"mark": mark, "run_dir": run_dir})
    said = await _on_node(node, name, "", "longspan.daemon.sweep", wanted, ray_address)
    return json.loads(said.strip().rpartition("\n")[2])


async def _on_node(
    node: NodeSpec | None, name: str, agent_of: str, module: str, stdin: str, ray_address: str | None
) -> str:
    """Runs one of our programs on a node: here, over ssh, or by a task in a Ray that we joined.

    Args:
        agent_of: the mark that tells agents in their environment; empty for what is no agent.
    """
    env = {AGENT_VARIABLE: agent_of} if agent_of else {}
    if node is None or (node.ssh is None and ray_address is None):
        return await _run(name, [sys.executable, "-m", module], env, stdin, 30)
    program = [node.python, "-m", module]
    if node.ssh is not None:
        marks = [f"{key}={value}" for key, value in env.items()]
        argv = SshHost(node.name, node.ssh).argv([*(["env", *marks] if marks else []), *program])
        return await _run(name, argv, {}, stdin, 60)
    wanted = json.dumps({"address": node.address, "argv": program, "env": env, "stdin": stdin})
    argv = [sys.executable, "-m", "longspan.launch.ray_join", "run", str(ray_address)]
    return await _run(name, argv, {}, wanted, 90)

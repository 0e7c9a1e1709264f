"""Starting an agent on a node: on this machine, over ssh, or by a task in a Ray cluster that already runs.

In each case the agent's own program is run with its configuration on standard input; it goes into the background
and prints who it is.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from longspan.deployment import NodeSpec
from longspan.errors import HostError
from longspan.host import SshHost
from longspan.launch.words import AGENT_VARIABLE

AGENT = ("-m", "longspan.daemon.agent")


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
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise HostError(f"{argv[0]} ended with status {child.returncode}: {last[0]}")
    return out.decode(errors="replace")


async def start_agent(node: NodeSpec | None, config: dict[str, Any], ray_address: str | None) -> None:
    """Starts the agent of a node; None is the front agent on this machine.

    Raises:
        HostError: it did not start, with the last line that was said about it.
    """
    stdin = json.dumps({**config, "joined": bool(node and ray_address)})
    if node is None or (node.ssh is None and ray_address is None):
        await _run(config["name"], config["mark"], [sys.executable, *AGENT], stdin, 30)
    elif node.ssh is not None:
        argv = SshHost(node.name, node.ssh).argv([node.python, *AGENT])
        await _run(node.name, config["mark"], argv, stdin, 60)
    else:
        wanted = json.dumps({"address": node.address, "config": stdin, "python": node.python})
        argv = [sys.executable, "-m", "longspan.launch.ray_join", "start-agent", str(ray_address)]
        await _run(node.name, config["mark"], argv, wanted, 90)

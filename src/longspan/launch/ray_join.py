"""Speaks to a Ray cluster that somebody else started: who is in it, what they have, and one task that starts our agent.

A program of its own, because it imports Ray: `ray_join probe ADDRESS` prints the nodes as JSON; `ray_join ask ADDRESS`
reads {"commands": [argv, ...]} and adds what they print on each node; `ray_join start-agent ADDRESS` reads {"address",
"python", "config"} and starts the agent on that node. All must run on a machine of the cluster, as every Ray driver must.
"""

import json
import subprocess
import sys
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def connect(address: str) -> None:
    """Joins; Ray's own message names a version mismatch or a wrong token."""
    ray.init(address=address, namespace="longspan", log_to_driver=False, logging_level="error")


def nodes() -> list[dict[str, Any]]:
    """The live nodes."""
    return [
        {
            "id": node["NodeID"],
            "address": node["NodeManagerAddress"],
            "hostname": node["NodeManagerHostname"],
            "gpus": int(node["Resources"].get("GPU", 0)),
            "head": "node:__internal_head__" in node["Resources"],
        }
        for node in ray.nodes()
        if node["Alive"]
    ]


def start_agent(python: str, config: str) -> str:
    """Runs on the node: the agent's program goes into the background by itself and must not inherit Ray's job."""
    import os

    env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_JOB", "RAY_RAYLET"))}
    done = subprocess.run(
        [python, "-m", "longspan.daemon.agent"],
        input=config.encode(),
        capture_output=True,
        env=env,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace").strip()[-400:])
    return done.stdout.decode()


# How long one command of `ask` may take, and a node for all of them.
_COMMAND_SECONDS, _NODE_SECONDS = 20, 90


def answers(commands: list[list[str]], seconds: float) -> list[tuple[int, str, str] | None]:
    """Runs on the node, which need not have Longspan: status, stdout and stderr of each command; None where it cannot run."""
    found: list[tuple[int, str, str] | None] = []
    for argv in commands:
        try:
            done = subprocess.run(argv, capture_output=True, timeout=seconds, check=False)
        except (OSError, subprocess.TimeoutExpired):
            found.append(None)
            continue
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        found.append((done.returncode, out, err))
    return found


def ask(found: list[dict[str, Any]], commands: list[list[str]]) -> None:
    """Adds `answers` to every node, from one task pinned to each; `error` where the task did not come back."""
    tasks = []
    for node in found:
        strategy = NodeAffinitySchedulingStrategy(node_id=node["id"], soft=False)
        remote = ray.remote(num_cpus=0, max_retries=0)(answers).options(scheduling_strategy=strategy)
        tasks.append(remote.remote(commands, _COMMAND_SECONDS))
    ray.wait(tasks, num_returns=len(tasks), timeout=_NODE_SECONDS)
    for node, task in zip(found, tasks, strict=True):
        try:
            node["answers"] = ray.get(task, timeout=0.1)
        except (ray.exceptions.RayError, TimeoutError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            node["error"] = lines[-1]


def main(arguments: list[str]) -> None:
    """See the module's text."""
    verb, address = arguments
    wanted = json.load(sys.stdin) if verb != "probe" else {}
    connect(address)
    found = nodes()
    if verb in ("probe", "ask"):
        if verb == "ask":
            ask(found, wanted["commands"])
        joined = ray.get_runtime_context().gcs_address
        print(json.dumps({"version": ray.__version__, "address": joined, "nodes": found}))
        return
    node = next(node for node in found if node["address"] == wanted["address"])
    strategy = NodeAffinitySchedulingStrategy(node_id=node["id"], soft=False)
    task = (
        ray.remote(num_cpus=0)(start_agent)
        .options(scheduling_strategy=strategy)
        .remote(wanted["python"], wanted["config"])
    )
    print(ray.get(task, timeout=80))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Speaks to a Ray cluster that somebody else started: who is in it, and one task per node that starts or sweeps.

A program of its own, because it imports Ray: `ray_join probe ADDRESS` prints the nodes as JSON; `ray_join run ADDRESS`
reads {"address", "argv", "env", "stdin"} and runs that on that node, such as our agent's program. Both must run on a
machine of the cluster, as every Ray driver must.
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


def run(argv: list[str], more_env: dict[str, str], stdin: str) -> str:
    """Runs on the node: the agent's program goes into the background by itself and must not inherit Ray's job."""
    import os

    env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_JOB", "RAY_RAYLET"))}
    done = subprocess.run(
        argv,
        input=stdin.encode(),
        capture_output=True,
        env={**env, **more_env},
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace").strip()[-400:])
    return done.stdout.decode()


def main(arguments: list[str]) -> None:
    """See the module's text."""
    verb, address = arguments
    wanted = json.load(sys.stdin) if verb == "run" else {}
    connect(address)
    found = nodes()
    if verb == "probe":
        print(json.dumps({"version": ray.__version__, "nodes": found}))
        return
    node = next(node for node in found if node["address"] == wanted["address"])
    strategy = NodeAffinitySchedulingStrategy(node_id=node["id"], soft=False)
    task = (
        ray.remote(num_cpus=0)(run)
        .options(scheduling_strategy=strategy)
        .remote(wanted["argv"], wanted["env"], wanted["stdin"])
    )
    print(ray.get(task, timeout=80))


if __name__ == "__main__":
    main(sys.argv[1:])

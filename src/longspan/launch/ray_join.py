"""Speaks to a Ray cluster that somebody else started: who is in it, and one task per node that starts or sweeps.

A program of its own, because it imports Ray: `ray_join probe ADDRESS` prints the nodes as JSON; `ray_join ask ADDRESS`
reads {"commands": [argv, ...]} and adds what they print on each node; `ray_join run ADDRESS` reads {"address", "argv",
"env", "stdin"} and runs that on that node, such as our agent's program; `ray_join talk ADDRESS NODE ARGV…` runs a program
on that node and carries lines to and fro. `ray_join groups ADDRESS` prints the placement groups that Longspan made there, and
`ray_join release ADDRESS NAME` gives one of them back. All must run on a machine of the cluster, as every Ray driver must.
"""

import json
import subprocess
import sys
from typing import Any

import ray
from ray._private.state import jobs  # the only way to a job's driver without the dashboard
from ray.util import get_placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from longspan.launch.words import GROUP_PREFIX

# How the answers of a pre-flight's program begin (`preflight.remote`).
TALK_MARKS = ("longspan-reply ", "longspan-old ")


def connect(address: str, namespace: str = "longspan") -> None:
    """Joins; Ray's own message names a version mismatch or a wrong token."""
    ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="error")


def nodes() -> list[dict[str, Any]]:
    """The live nodes."""
    return [
        {
            "id": node["NodeID"],
            "address": node["NodeManagerAddress"],
            "hostname": node["NodeManagerHostname"],
            "gpus": int(node["Resources"].get("GPU", 0)),
            "head": "node:__internal_head__" in node["Resources"],
            # Ray's name for the GPUs it found itself, such as "H100"; GPUs that were only declared have none.
            "accelerator": next(
                (key.partition(":")[2] for key in node["Resources"] if key.startswith("accelerator_type:")),
                "",
            ),
        }
        for node in ray.nodes()
        if node["Alive"]
    ]


def groups() -> list[dict[str, Any]]:
    """The placement groups whose names are ours and that still hold something, with the driver that made each."""
    address_of = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    drivers = {job["JobID"]: job for job in jobs()}
    found = []
    for group in placement_group_table().values():
        if not group["name"].startswith(GROUP_PREFIX) or group["state"] == "REMOVED":
            continue
        # A group's id ends with that of its job, 4 bytes.
        driver = drivers.get(group["placement_group_id"][-8:], {})
        found.append(
            {
                "name": group["name"],
                "gpus": int(sum(bundle.get("GPU", 0) for bundle in group["bundles"].values())),
                "nodes": sorted({address_of.get(n, n) for n in group["bundles_to_node_id"].values() if n}),
                "driver": str(driver.get("DriverIPAddress", "")),
                "driver_lives": bool(driver) and not driver["IsDead"],
            }
        )
    return found


def release(name: str) -> None:
    """Removes one group of ours, which is in the namespace of its own name; what runs in it ends.

    Raises:
        ValueError: there is none of that name, or it is not ours.
    """
    if not name.startswith(GROUP_PREFIX):
        raise ValueError(f"{name} is no placement group of Longspan's")
    remove_placement_group(get_placement_group(name))


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
    return done.stdout.decode(errors="replace")


class Talker:
    """Runs on the node: a program that answers each line but the first with one that starts with a mark."""

    def __init__(self, argv: list[str], marks: tuple[str, ...]) -> None:
        import os

        env = {
            key: value for key, value in os.environ.items() if not key.startswith(("RAY_JOB", "RAY_RAYLET"))
        }
        self.marks = marks
        self.child = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )

    def say(self, line: str, *, answered: bool) -> tuple[str, str, int]:
        """Hands a line over; returns (the answer or "", standard error and exit status once it has ended)."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        try:
            self.child.stdin.write(line)
            self.child.stdin.flush()
        except OSError:
            answered = True
        if not answered:
            return "", "", 0
        for said in self.child.stdout:
            if said.startswith(self.marks):
                return said, "", 0
        assert self.child.stderr is not None
        return "", self.child.stderr.read()[-4000:], self.child.wait()

    def end(self) -> None:
        """Ends its input."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        try:
            self.child.wait(5)
        except subprocess.TimeoutExpired:
            self.child.kill()


def talk(node_id: str, argv: list[str]) -> int:
    """Carries standard input's lines to a program on a node and its answers back; returns its exit status."""
    strategy = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    actor = ray.remote(num_cpus=0)(Talker).options(scheduling_strategy=strategy).remote(argv, TALK_MARKS)
    for number, line in enumerate(sys.stdin):
        answer, errors, status = ray.get(actor.say.remote(line, answered=number > 0))
        if number and not answer:
            sys.stderr.write(errors)
            return int(status) or 1
        sys.stdout.write(answer)
        sys.stdout.flush()
    ray.get(actor.end.remote(), timeout=10)
    return 0


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
    verb, address, *rest = arguments
    wanted = json.load(sys.stdin) if verb in ("run", "ask") else {}
    if verb == "release":
        connect(address, rest[0])
        release(rest[0])
        return
    connect(address)
    if verb == "groups":
        print(json.dumps({"groups": groups()}))
        return
    found = nodes()
    if verb == "ask":
        ask(found, wanted["commands"])
    if verb in ("probe", "ask"):
        joined = ray.get_runtime_context().gcs_address
        print(json.dumps({"version": ray.__version__, "address": joined, "nodes": found}))
        return
    if verb == "talk":
        sys.exit(talk(next(node["id"] for node in found if node["address"] == rest[0]), rest[1:]))
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

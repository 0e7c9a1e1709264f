"""A pre-flight in a Ray that somebody else started: nodes without ssh are reached by an actor on each."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import longspan as package
from engine.running import RUN
from engine.test_lab_hosts import start_ray, strangers
from lab.build import Lab
from lab.hosts import HostSpec, LabHost

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.timeout(600)]


# As the launcher does in a Ray that we joined: the values of all nodes by address, and the hook that each worker runs.
HOOKED = """
import json, os, sys
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
by_address = json.loads(sys.argv[2])
os.environ["GLOO_SOCKET_IFNAME"] = "the-drivers-own"
ray.init(address=sys.argv[1], logging_level="error", log_to_driver=False, runtime_env={
    "env_vars": {"LONGSPAN_NODE_ENV": json.dumps(by_address)}, "worker_process_setup_hook": "longspan.launch.worker_hook.apply"})
def told():
    return os.environ.get("GLOO_SOCKET_IFNAME")
nodes = {n["NodeManagerAddress"]: n["NodeID"] for n in ray.nodes() if n["Alive"]}
task = ray.remote(num_cpus=0)(told)
asked = {a: task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=i, soft=False)).remote() for a, i in nodes.items()}
print("NICS" + json.dumps({address: ray.get(found, timeout=60) for address, found in asked.items()}))
"""


# What a launcher leaves whose agent was killed: it lives, and holds its group in a namespace of the same name.
HOLDS = """
import sys, time, ray
from ray.util import placement_group
ray.init(address=sys.argv[1], namespace="longspan-past-r0-2", logging_level="error", log_to_driver=False)
group = placement_group([{"GPU": 1}], name="longspan-past-r0-2")
assert group.wait(60)
print("held", flush=True)
time.sleep(600)
"""


def hooked(host: LabHost, address: str, nics: dict[str, str]) -> dict[str, str]:
    """What a worker on each node has for its NIC, by the node's address."""
    values = json.dumps({node: {"GLOO_SOCKET_IFNAME": nic} for node, nic in nics.items()})
    done = host.run([sys.executable, "-W", "ignore", "-c", HOOKED, address, values], timeout_seconds=180)
    found: dict[str, str] = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith("NICS"))[4:]
    )
    return found


def said(host: LabHost, argv: list[str]) -> Any:
    """The JSON document that a program prints last."""
    return json.loads(host.run(argv, timeout_seconds=120).stdout.splitlines()[-1])


def test_check_in_a_joined_ray(make_lab: Callable[..., AbstractContextManager[Lab]], tmp_path: Path) -> None:
    """Both nodes answer, every port trial between them passes, each has its own NIC, which reaches a worker on it by the set-up
    hook whatever the driver's own is, and that Ray stays as it was. What an earlier deployment still holds there is named, stays, and is
    given back by the command that the finding tells."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/root"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(Path(package.__file__).parent.parent),
    }
    with make_lab([HostSpec("h1", "eth0"), HostSpec("h2", "ens7")], env=env) as lab:
        first, second = lab.hosts
        address = f"{first.address}:6379"
        cluster = tmp_path / "ray.toml"
        cluster.write_text(f'[ray]\naddress = "{address}"\n')
        rays = [start_ray(first, "--head", "--port=6379", "--include-dashboard=false")]
        try:
            rays.append(start_ray(second, f"--address={address}"))
            old = first.popen(
                [sys.executable, "-W", "ignore", "-c", HOLDS, address], stdout=subprocess.PIPE, text=True
            )
            rays.append(old)
            assert old.stdout is not None
            with old.stdout as said_by_it:
                assert "held" in said_by_it.readline()
            done = first.run(
                [*RUN, "check", "--cluster", str(cluster), "--no-collective", "--json"],
                timeout_seconds=300,
                check=False,
            )
            assert done.returncode == 0, done.stderr + done.stdout
            document = json.loads(done.stdout)
            nics = {
                node["address"]: node["environment"]["GLOO_SOCKET_IFNAME"]["value"]
                for node in document["nodes"]
            }
            assert nics == {first.address: "eth0", second.address: "ens7"}
            assert hooked(first, address, nics) == nics
            states = {check["id"]: check["state"] for check in document["checks"]}
            assert {
                states[name] for name in ("reachable", "ports", "data", "python", "ray", "clock", "ray-token")
            } == {"ok"}
            assert all(ray.poll() is None for ray in rays)
            held = [
                one
                for check in document["checks"]
                for one in check["findings"]
                if one["cause"] == "stale-placement-group"
            ]
            assert [(one["subject"], one["severity"]) for one in held] == [("longspan-past-r0-2", "warning")]
            assert (
                f"1 GPU on {first.address}" in held[0]["summary"]
                or f"1 GPU on {second.address}" in held[0]["summary"]
            )
            assert f"{first.address} still runs" in held[0]["summary"]
            asked = [sys.executable, "-W", "ignore", "-m", "longspan.launch.ray_join", "groups", address]
            assert [one["name"] for one in said(first, asked)["groups"]] == ["longspan-past-r0-2"]
            first.run(shlex.split(held[0]["remedy"].split("`")[3]), timeout_seconds=120)
            assert said(first, asked) == {"groups": []}
            left = [line for host in lab.hosts for line in strangers(host) if "longspan-old" in line]
            assert left == []
        finally:
            for ray in rays:
                ray.kill()
                ray.wait()

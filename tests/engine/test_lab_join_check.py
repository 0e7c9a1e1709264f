"""A pre-flight in a Ray that somebody else started: nodes without ssh are reached by an actor on each."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

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


def hooked(host: LabHost, address: str, nics: dict[str, str]) -> dict[str, str]:
    """What a worker on each node has for its NIC, by the node's address."""
    values = json.dumps({node: {"GLOO_SOCKET_IFNAME": nic} for node, nic in nics.items()})
    done = host.run([sys.executable, "-W", "ignore", "-c", HOOKED, address, values], timeout_seconds=180)
    found: dict[str, str] = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith("NICS"))[4:]
    )
    return found


def test_check_in_a_joined_ray(make_lab: Callable[..., AbstractContextManager[Lab]], tmp_path: Path) -> None:
    """Both nodes answer, every port trial between them passes, each has its own NIC, which reaches a worker on it by the set-up
    hook whatever the driver's own is, and that Ray stays as it was."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/root"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with make_lab([HostSpec("h1", "eth0"), HostSpec("h2", "ens7")], env=env) as lab:
        first, second = lab.hosts
        address = f"{first.address}:6379"
        cluster = tmp_path / "ray.toml"
        cluster.write_text(f'[ray]\naddress = "{address}"\n')
        rays = [start_ray(first, "--head", "--port=6379", "--include-dashboard=false")]
        try:
            rays.append(start_ray(second, f"--address={address}"))
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
            left = [line for host in lab.hosts for line in strangers(host) if "longspan-old" in line]
            assert left == []
        finally:
            for ray in rays:
                ray.kill()
                ray.wait()

"""A pre-flight in a Ray that somebody else started: nodes without ssh are reached by an actor on each."""

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from engine.running import RUN
from engine.test_lab_hosts import start_ray, strangers
from lab.build import Lab
from lab.hosts import HostSpec

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.timeout(600)]


def test_check_in_a_joined_ray(make_lab: Callable[..., AbstractContextManager[Lab]], tmp_path: Path) -> None:
    """Both nodes answer, every port trial between them passes, each has its own NIC, and that Ray stays as it was."""
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

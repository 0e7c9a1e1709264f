"""`plan --probe ray` against a real Ray of two hosts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path

import pytest

import longspan
from lab.build import Lab
from lab.hosts import HostPopen, LabHost
from longspan.cluster.inventory_file import parse_cluster

pytestmark = [
    pytest.mark.lab,
    pytest.mark.engine,
    pytest.mark.skipif(
        find_spec("ray") is None, reason="Ray is not installed: make test (without LONGSPAN_ENGINE=none)"
    ),
]
# A host's own nvidia-smi: what it prints for the GPU query and for `topo -m`.
SMI = """#!/bin/sh
[ "$1" = topo ] && exit 1
echo '0, NVIDIA {name}, {mib}, GPU-a'
"""
PROBE = "import sys; from longspan.cli.main import run; sys.argv[0] = 'longspan'; run()"


def start_ray(host: LabHost, name: str, mib: int, *args: str) -> HostPopen:
    """`ray start` in the foreground, on a host whose nvidia-smi shows one GPU."""
    tools = host.folder / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(SMI.format(name=name, mib=mib))
    (tools / "nvidia-smi").chmod(0o755)
    with (host.folder / "ray.log").open("w") as log:
        return host.popen(
            [
                str(Path(sys.executable).parent / "ray"), "start", "--block", f"--node-ip-address={host.address}",
                "--num-cpus=1", "--num-gpus=1", "--object-store-memory=100000000", "--disable-usage-stats", *args,
            ],
            env={"PATH": f"{tools}:{os.environ['PATH']}"},
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def probe(host: LabHost) -> dict[str, object]:
    """The document of `plan --probe` on a host."""
    argv = [sys.executable, "-c", PROBE, "plan", "--probe", f"ray:{host.address}:6379", "--json"]
    env = {"PYTHONPATH": str(Path(longspan.__file__).parent.parent)}
    found: dict[str, object] = json.loads(host.run(argv, env=env, timeout_seconds=180).stdout)
    return found


def test_every_node_of_a_real_ray_is_asked(make_lab: Callable[..., AbstractContextManager[Lab]]) -> None:
    """One task on each node brings back that node's own GPUs and interface, though only the head was named."""
    waiting: list[HostPopen] = []
    try:
        with make_lab() as lab:
            first, second = lab.hosts
            waiting.append(
                start_ray(first, "L4", 23034, "--head", "--port=6379", "--include-dashboard=false")
            )
            while len((cluster := parse_cluster(str(probe(first)["inventory"]))).nodes) < 2:
                if len(waiting) == 1:
                    waiting.append(
                        start_ray(second, "GeForce RTX 4090", 24564, f"--address={first.address}:6379")
                    )
                assert waiting[-1].poll() is None, (second.folder / "ray.log").read_text()
            one, two = cluster.nodes
            assert (one.name, one.address, one.gpu_types) == ("h1", first.address, ("L4",))
            assert (two.name, two.address, two.gpu_types) == ("h2", second.address, ("RTX-4090",))
            assert one.network.interface
            assert two.network.interface
    finally:
        for process in waiting:
            process.wait(timeout=10)

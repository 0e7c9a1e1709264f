"""The lab is good enough for Ray: two hosts form a cluster, and losing one is seen."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path

import pytest

from lab.build import Lab
from lab.hosts import HostPopen, LabHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.engine,
    pytest.mark.skipif(
        find_spec("ray") is None, reason="Ray is not installed: make test (without LONGSPAN_ENGINE=none)"
    ),
]
GCS_PORT = 6379
# By itself Ray 2.60 waits for up to a minute before a silent node is dead to it.
QUICK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
COUNT_NODES = """
import sys, time, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
deadline = time.monotonic() + 90
while len(alive := [n for n in ray.nodes() if n["Alive"]]) != int(sys.argv[2]) and time.monotonic() < deadline:
    time.sleep(0.5)
print("NODES", *sorted(f"{n['NodeManagerAddress']}:{n['NodeManagerHostname']}:{n['Resources']['GPU']:.0f}" for n in alive))
"""


def start_ray(host: LabHost, *args: str) -> HostPopen:
    """`ray start` in the foreground, so that it ends with the host."""
    with (host.folder / "ray.log").open("w") as log:
        return host.popen(
            [
                str(Path(sys.executable).parent / "ray"), "start", "--block", f"--node-ip-address={host.address}",
                "--num-cpus=1", "--num-gpus=1", "--object-store-memory=100000000", "--disable-usage-stats", *args,
            ],
            env=QUICK, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def nodes(host: LabHost, count: int) -> list[str]:
    """The nodes that are alive, as address:hostname:gpus, once there are so many (or after 90 s)."""
    argv = [sys.executable, "-W", "ignore", "-c", COUNT_NODES, f"{host.address}:{GCS_PORT}", str(count)]
    # The raylet's own warnings come between, whatever the log level.
    said = host.run(argv, timeout_seconds=180).stdout
    return next(line for line in said.splitlines() if line.startswith("NODES")).split()[1:]


def test_two_ray_nodes(make_lab: Callable[..., AbstractContextManager[Lab]]) -> None:
    """Ray joins two hosts with one declared GPU each; when one is killed Ray counts one, and nothing is left."""
    waiting: list[HostPopen] = []
    try:
        with make_lab() as lab:
            first, second = lab.hosts
            waiting.append(start_ray(first, "--head", f"--port={GCS_PORT}", "--include-dashboard=false"))
            assert nodes(first, 1) == [f"{first.address}:h1:1"]
            waiting.append(start_ray(second, f"--address={first.address}:{GCS_PORT}"))
            assert nodes(first, 2) == [f"{first.address}:h1:1", f"{second.address}:h2:1"]
            assert (second.outside("/tmp/ray") / "session_latest").is_symlink()
            second.kill()
            assert nodes(first, 1) == [f"{first.address}:h1:1"]
    finally:
        # The hosts are gone, so each of these has ended.
        codes = [process.wait(timeout=10) for process in waiting]
    assert 0 not in codes

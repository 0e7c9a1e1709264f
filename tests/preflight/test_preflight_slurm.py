"""A pre-flight inside a real Slurm allocation: one job step a node, with the environment that the ranks will have."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from lab.build import Lab
from lab.hosts import HostSpec
from lab.slurm import Slurm, start_slurm, why_no_slurm

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm()),
]
REPO = Path(__file__).parent.parent.parent

CHECK = """
import json, sys
from longspan.cli import preflighting
from longspan.cli.allocation import allocated_hosts
from longspan.deployment import NodeSpec, RayPorts
from longspan.preflight.run import Options
ports = RayPorts()
nodes = [NodeSpec(h.name, h.address, 1, python=sys.executable, slurm=h.slurm) for h in allocated_hosts().hosts]
options = Options(ray_ports=(ports.first, ports.last), fixed_ports=ports.tried, collective=False)
checked = preflighting.run(nodes, None, options, lambda _: None)
states = {one.check.id: one.outcome.state for one in checked.judged}
nics = {node.name: checked.scene.value(node.name, "GLOO_SOCKET_IFNAME") for node in checked.scene.nodes}
print("CHECKED" + json.dumps({"states": states, "nics": nics, "causes": [f.cause for f in checked.findings]}))
"""


def test_check_in_an_allocation(make_lab: Callable[..., AbstractContextManager[Lab]]) -> None:
    """Each node answers over its job step, every pair is tried, each has its own NIC; a NIC that the shell exported for all
    is found where it is not; and no step is left."""
    with (
        make_lab([HostSpec("h1"), HostSpec("h2", nic="ens7")]) as lab,
        start_slurm(lab, {"h1": 1, "h2": 1}) as found,
    ):
        path = os.pathsep.join([str(REPO / "src"), os.environ.get("PYTHONPATH", "")])
        slurm = Slurm(lab, {**found.env, "PYTHONPATH": path})
        argv = ["salloc", "--quiet", "-N2", sys.executable, "-c", CHECK]
        told = json.loads(
            next(
                line
                for line in slurm.run(argv, timeout_seconds=120).stdout.splitlines()
                if line.startswith("CHECKED")
            )[7:]
        )
        assert told["nics"] == {"h1": "eth0", "h2": "ens7"}
        assert {
            told["states"][name] for name in ("reachable", "ports", "data", "python", "clock", "nic-address")
        } == {"ok"}
        exported = Slurm(lab, {**slurm.env, "GLOO_SOCKET_IFNAME": "ens7"})
        told = json.loads(
            next(
                line
                for line in exported.run(argv, timeout_seconds=120).stdout.splitlines()
                if line.startswith("CHECKED")
            )[7:]
        )
        assert "nic-missing" in told["causes"]
        assert found.steps() == ""

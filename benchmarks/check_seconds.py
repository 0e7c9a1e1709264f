#!/usr/bin/env python3
"""Seconds of a pre-flight over lab hosts: sudo PYTHONPATH=src:tests python benchmarks/check_seconds.py [--collective] 2 4 16

The hosts are network namespaces of this machine and share its processors, so real hosts are faster: each has its own.
"""

import argparse
import json
import os
import sys
import time

from lab.build import build_lab, why_no_lab
from lab.hosts import HostSpec
from longspan.cli import preflighting
from longspan.deployment import NodeSpec, RayPorts
from longspan.preflight.run import Options


def seconds(count: int, *, collective: bool) -> dict[str, object]:
    """One check of so many hosts."""
    ports = RayPorts()
    options = Options(ray_ports=(ports.first, ports.last), fixed_ports=ports.tried, collective=collective)
    specs = [HostSpec(f"h{index}", f"eth{index}") for index in range(1, count + 1)]
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root")}
    before = os.environ["PATH"]
    with build_lab(specs, env=env) as lab:
        os.environ["PATH"] = f"{lab.bin}:{before}"
        nodes = [NodeSpec(host.name, host.address, 1, host.name, sys.executable) for host in lab.hosts]
        begun = time.monotonic()
        checked = preflighting.run(nodes, None, options, lambda _: None)
        took = time.monotonic() - begun
        os.environ["PATH"] = before
    tried = sum(len(pair.ports) for pair in checked.scene.pairs)
    return {
        "hosts": count, "collective": collective, "seconds": round(took, 2), "errors": checked.count("error"),
        "connections": tried, "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def main() -> None:
    """Prints one JSON document a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", nargs="*", type=int, default=[2, 4, 16])
    parser.add_argument("--collective", action="store_true")
    arguments = parser.parse_args()
    if reason := why_no_lab():
        sys.exit(reason)
    for count in arguments.hosts:
        print(json.dumps(seconds(count, collective=arguments.collective)), flush=True)


if __name__ == "__main__":
    main()

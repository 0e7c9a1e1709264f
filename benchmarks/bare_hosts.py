#!/usr/bin/env python3
"""Seconds from two bare SSH hosts to a checked Ray cluster: sudo PYTHONPATH=src:tests python benchmarks/bare_hosts.py MODEL

`longspan up` over lab hosts, from the command to the reservation of all ranks: pre-flight, agents, digests of the checkpoint, Ray with
its token, and the placement group; no engine is loaded. The hosts are network namespaces of this machine and share its processors.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from engine.running import Longspan
from lab.build import build_lab, why_no_lab
from lab.hosts import HostSpec

PHASES = ("agents", "ray", "reservation")


def measure(model: str, state: Path) -> dict[str, object]:
    """When each phase was done, in seconds after the command."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/root"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    done: dict[str, float] = {}
    with build_lab([HostSpec("h1", "eth0"), HostSpec("h2", "ens7")], env=env) as lab:
        cluster = state / "hosts.toml"
        cluster.write_text(
            "".join(
                f'[[node]]\nname = "{host.name}"\naddress = "{host.address}"\ngpus = 1\nssh = "{host.name}"\n'
                for host in lab.hosts
            )
        )
        longspan = Longspan(state, {"PATH": f"{lab.bin}:{os.environ['PATH']}"})
        begun = time.monotonic()
        process = longspan.start_up(model, "--cluster", str(cluster), "--listen", "127.0.0.1:18439")
        said = []
        try:
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line)
                for phase in PHASES:
                    if f"✓ {phase}" in line:
                        done.setdefault(phase, round(time.monotonic() - begun, 1))
                if "reservation" in done:
                    break
        finally:
            longspan.run("down")
            process.communicate(timeout=120)
    if "reservation" not in done:
        sys.exit("".join(said))
    return {
        "hosts": 2,
        "seconds": done["reservation"],
        "done_after": done,
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Prints one JSON document."""
    if reason := why_no_lab():
        sys.exit(reason)
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="longspan-bare-") as folder:
        print(json.dumps(measure(sys.argv[1], Path(folder))))


if __name__ == "__main__":
    main()

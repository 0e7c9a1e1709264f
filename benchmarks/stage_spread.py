"""Seconds to bring a checkpoint to several hosts: each byte once from here and then from node to node, against all of it from here.

The hosts are network namespaces; this machine's line to them is limited, as an office's or a storage's is; theirs are not. Both
ways use the same code and the same ssh; the second one forbids the nodes to pass on what they have. Needs root.

    python benchmarks/stage_spread.py [--hosts 4] [--files 12] [--mebibytes 96] [--megabits 200]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from lab.build import Lab, build_lab, why_no_lab  # noqa: E402
from lab.hosts import HostSpec  # noqa: E402
from lab.network import ip  # noqa: E402
from longspan.cli import stage_spread  # noqa: E402
from longspan.cli.stage_copy import Progress, listing, reach, sources  # noqa: E402
from longspan.cluster.hosts import HostEntry  # noqa: E402
from longspan.host import LocalHost, SshHost  # noqa: E402
from longspan.launch.digest import checkpoint_files  # noqa: E402
from longspan.launch.staging import plan_node  # noqa: E402


def measure(lab: Lab, model: Path, target: str, *, spread: bool) -> tuple[float, int]:
    """Seconds, and the bytes that this machine sent."""
    entries = [
        HostEntry(name=host.name, address=host.address, gpus=1, ssh=host.name, python=sys.executable)
        for host in lab.hosts
    ]
    hosts = {host.name: reach(SshHost(host.name, host.name)) for host in lab.hosts}
    files, here = sources(model, checkpoint_files), listing(LocalHost("here"), str(model))
    plans = [plan_node(name, listing(host, target), files, here) for name, host in hosts.items()]
    progress = Progress({plan.node: plan.left_bytes for plan in plans})
    began = time.monotonic()
    errors = stage_spread.send_all(
        model, plans, entries, hosts, progress, streams=4, are_copies_trusted=spread
    )
    if errors:
        raise errors[0]
    return time.monotonic() - began, progress.here_bytes


def main() -> None:
    """Builds the lab, limits the line, measures both ways in turn, twice."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in (("hosts", 4), ("files", 12), ("mebibytes", 96), ("megabits", 200)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    if reason := why_no_lab():
        sys.exit(reason)
    with tempfile.TemporaryDirectory(prefix="ls-stage-") as folder:
        model, own = Path(folder, "model"), Path(folder, "own")
        model.mkdir()
        own.mkdir()
        (model / "config.json").write_text("{}")
        for number in range(options.files):
            size = (options.mebibytes << 20) // options.files
            (model / f"model-{number:03}.safetensors").write_bytes(os.urandom(size))
        specs = [HostSpec(f"h{n + 1}", private=("/tmp/ray", str(own))) for n in range(options.hosts)]
        with build_lab(specs) as lab:
            os.environ["PATH"] = f"{lab.bin}:{os.environ['PATH']}"
            rate = f"{options.megabits}mbit"
            # What this machine sends into the bridge; what hosts send each other does not pass here.
            ip("link", "set", lab.network.bridge, "txqueuelen", "1000")
            subprocess.run(
                ["tc", "qdisc", "add", "dev", lab.network.bridge, "root", "tbf", "rate", rate, "burst", "256k", "latency", "50ms"],
                check=True,
            )  # fmt: skip
            for number, spread in enumerate((True, False, False, True)):
                seconds, sent = measure(lab, model, f"{own}/{number}", spread=spread)
                way = "from node to node" if spread else "all from here"
                print(f"{way}: {seconds:.1f} s, {sent / 2**20:.0f} MiB left this machine", flush=True)


if __name__ == "__main__":
    main()

"""What an agent's telemetry costs on a node with eight GPUs, eight RDMA ports and four interfaces, in CPU and on the wire.

The GPUs are a compiled stand-in of NVML (its answers cost nothing: on a real node add the driver's own time), the ports a tree in
the form of sysfs, processes those of this machine. Run: `PYTHONPATH=src python benchmarks/telemetry_cost.py`.
"""

import json
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from longspan.monitor import node
from longspan.monitor.node import NodeSampler
from longspan.monitor.nvml import Nvml
from longspan.monitor.record import to_json

ROUNDS = 300
STANDIN = Path(__file__).parent.parent / "tests" / "fixtures" / "monitor" / "nvml_standin.c"
COUNTERS = ("port_rcv_data", "port_xmit_data", "port_xmit_discards", "port_rcv_errors", "local_link_integrity_errors",
            "excessive_buffer_overrun_errors")  # fmt: skip
OWN = ("out_of_buffer", "packet_seq_err", "out_of_sequence", "local_ack_timeout_err", "rnr_nak_retry_err")


def ports(root: Path) -> None:
    """Eight ports of mlx5 and four interfaces."""
    for index in range(8):
        port = root / "class/infiniband" / f"mlx5_{index}" / "ports/1"
        for folder, names in (("counters", COUNTERS), ("hw_counters", OWN)):
            (port / folder).mkdir(parents=True)
            for name in names:
                (port / folder / name).write_text("123456789\n")
        (port / "state").write_text("4: ACTIVE\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    for index in range(4):
        nic = root / "class/net" / f"eth{index}"
        (nic / "statistics").mkdir(parents=True)
        (nic / "device").mkdir()
        for name in (
            "rx_bytes",
            "tx_bytes",
            "rx_dropped",
            "tx_dropped",
            "rx_errors",
            "tx_errors",
            "rx_missed_errors",
        ):
            (nic / "statistics" / name).write_text("1234567\n")


def main() -> None:
    """Prints CPU per sample, the share of a core at one sample a second, and the size of a sample."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        ports(root)
        gpus: Nvml | None = None
        compiler = shutil.which("cc")
        if compiler:
            library = root / "nvml.so"
            subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(STANDIN)], check=True)
            opened = Nvml.open(str(library))
            assert isinstance(opened, Nvml)
            opened.gpus = [opened.gpus[0]] * 8
            gpus = opened
        now = [0.0]

        def clock() -> float:
            now[0] += 1.0
            return now[0]

        sampler = NodeSampler("n", "a", ("/", folder), root=1, sys=root, gpus=gpus, clock=clock)
        sampler.sample()
        began, before = time.perf_counter(), time.thread_time()
        for _ in range(ROUNDS):
            text = json.dumps({"node": to_json(sampler.sample()), "at": 0.0, "log": []})
        cpu_ms = (time.thread_time() - before) / ROUNDS * 1000
        wall_ms = (time.perf_counter() - began) / ROUNDS * 1000
    rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    walks = len(list(Path("/proc").glob("[0-9]*")))
    print(f"{cpu_ms:.2f} ms CPU a sample ({wall_ms:.2f} ms wall), every tenth with a walk over {walks} processes "
          f"(each {node.SLOW_SECONDS:.0f} s)")  # fmt: skip
    print(f"{cpu_ms / 10:.2f} % of a core at one sample a second; limit 1 %")
    print(
        f"{len(text) / 1024:.1f} KiB a sample on the wire; {rss_mib:.0f} MiB for the whole benchmark process"
    )


if __name__ == "__main__":
    main()

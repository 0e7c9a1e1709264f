"""The written batch script in a real Slurm: submitted, serving over two nodes, and taken down by Slurm's own signal."""

import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from engine.running import RUN, UP_TIMEOUT_SECONDS, Longspan
from engine.test_lab_hosts import chat
from lab.build import Lab
from lab.hosts import HostSpec
from lab.slurm import Slurm, start_slurm, why_no_slurm

pytestmark = [
    pytest.mark.engine,
    pytest.mark.lab,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm()),
]
OURS = ("longspan.daemon", "longspan.gateway", "raylet", "gcs_server", "VLLM::", "EngineCore")


def test_a_batch_job_serves_and_ends(
    make_lab: Callable[..., AbstractContextManager[Lab]], demo_model: Path, tmp_path: Path
) -> None:
    """`manifest slurm` writes the script, `sbatch` runs it, each rank is on its node, SIGTERM ends job and processes."""
    longspan = Longspan(tmp_path / "state")
    script, log = tmp_path / "serve.sbatch", tmp_path / "job.log"
    words = [
        "--nodes",
        "2",
        "--gpus-per-node",
        "1",
        "--device",
        "cpu",
        "--executor",
        "mp",
        "--listen",
        "0.0.0.0:18440",
    ]
    more = ["--sbatch", "time=60", "-o", str(script)]
    written = longspan.run("manifest", "slurm", str(demo_model), *words, *more)
    assert written.returncode == 0, written.stderr
    with (
        make_lab([HostSpec("h1"), HostSpec("h2", nic="ens7")]) as lab,
        start_slurm(lab, {"h1": 1, "h2": 1}) as plain,
    ):
        slurm = Slurm(
            lab,
            {
                **plain.env,
                **longspan.environment(),
                "PATH": plain.env["PATH"],
                "RAY_USAGE_STATS_ENABLED": "0",
            },
        )
        job = slurm.run(["sbatch", "--parsable", f"--output={log}", str(script)]).stdout.strip()
        first = lab.hosts[0]
        deadline = time.monotonic() + UP_TIMEOUT_SECONDS
        while "longspan down" not in (text := log.read_text() if log.exists() else ""):
            assert time.monotonic() < deadline, text
            assert slurm.run(["squeue", "--noheader", f"--job={job}"], check=False).stdout, text
            time.sleep(1)
        state = {
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        status = json.loads(first.run([*RUN, "status", "--json"], env=state).stdout)
        assert [rank["address"] for rank in status["ranks"]] == [host.address for host in lab.hosts]
        key = Path(status["api_key_file"]).read_text()
        assert "Paris" in chat(f"http://{first.address}:18440/v1", key)
        slurm.run(["scancel", "--batch", "--signal=TERM", job])
        while slurm.run(["squeue", "--noheader", f"--job={job}"], check=False).stdout.strip():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        assert "taking everything down" in log.read_text()
        assert "JobState=COMPLETED" in slurm.run(["scontrol", "show", "job", job]).stdout
        for host in lab.hosts:
            listing = host.run(["ps", "-eww", "-o", "args="]).stdout
            assert [line for line in listing.splitlines() if any(word in line for word in OURS)] == []

#!/usr/bin/env python3
"""The checks that need GPUs, for a host that has them: `python scripts/gpu_checks.py MODEL_DIRECTORY [--gpus N]`.

Everything here could not be run where Longspan is developed (no GPU). Each check starts a deployment of its own on this
machine, looks at its status, and takes it down. Prints a line a check and ends with 1 if one failed; the output is
what an issue report should hold.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

RUN = [sys.executable, "-c", "from longspan.cli.main import run; run()"]
NAME = ["--name", "gpu-checks"]


def longspan(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One verb, to its end."""
    return subprocess.run([*RUN, *arguments], capture_output=True, text=True, check=False)


def deployed(model: str, *arguments: str) -> dict[str, Any]:
    """`up`, then the status document.

    Raises:
        AssertionError: `up` failed, with what it said.
    """
    done = longspan("up", model, *NAME, "--listen", "127.0.0.1:18470", *arguments)
    assert done.returncode == 0, done.stderr
    status: dict[str, Any] = json.loads(longspan("status", *NAME, "--json").stdout)
    return status


def compute_processes() -> dict[int, str]:
    """pid -> GPU UUID, as the driver reports."""
    query = ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    return {int(pid): uuid.strip() for pid, uuid in (line.split(",") for line in lines)}


def device_is_cuda(status: dict[str, Any]) -> None:
    """The CPU platform plugin stayed out: the engine runs on the GPUs."""
    assert status["layout"]["device"] == "cuda", status["layout"]


def ranks_on_own_gpus(status: dict[str, Any]) -> None:
    """Each rank's process is on one GPU of its own, as the driver says."""
    seen = [gpu for rank in status["ranks"] for gpu in rank["gpu"] or []]
    assert len(seen) == len(status["ranks"]) == len(set(seen)), seen


def proved(status: dict[str, Any]) -> None:
    """No layer of the proof failed; the reference is skipped only where no GPU was free."""
    layers = {layer["name"]: (layer["state"], layer["seen"]) for layer in status["proof"]["layers"]}
    assert all(state != "failed" for state, _ in layers.values()), layers
    assert layers["reference"][0] == "passed" or "free" in layers["reference"][1], layers


def main() -> int:
    """Runs all checks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument(
        "--gpus", type=int, default=2, help="how many to use; one more free GPU makes the reference"
    )
    options = parser.parse_args()
    half = str(max(1, options.gpus // 2))
    layouts = {
        "ray executor, TP": ("--tp", str(options.gpus), "--nodes", "1"),
        "mp executor, TP": ("--tp", str(options.gpus), "--nodes", "1", "--executor", "mp"),
        "ray executor, PP over two Ray nodes": ("--tp", half, "--pp", "2", "--nodes", "2"),
    }
    checks: tuple[Callable[[dict[str, Any]], None], ...] = (device_is_cuda, ranks_on_own_gpus, proved)
    failed = 0
    for name, arguments in layouts.items():
        before = compute_processes()
        try:
            status = deployed(options.model, *arguments)
            for check in checks:
                check(status)
            print(f"PASS {name}: first token after {status['first_token_seconds']} s", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"FAIL {name}: {error}", flush=True)
        finally:
            longspan("down", *NAME)
        if left := {pid: gpu for pid, gpu in compute_processes().items() if pid not in before}:
            failed += 1
            print(
                f"FAIL {name}: compute processes that were not there before are left after down: {left}",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Prints how long `longspan plan` takes on 4 x 8 and 64 x 8 GPUs, on one core; the aims are 1 s and 5 s.

.venv/bin/python benchmarks/plan_time.py [RUNS]

Each run is a fresh process, as a user starts it: imports, search, what-ifs and printing included. `cpu_seconds` is what it used of the core,
which a busy machine does not change much; `wall_seconds` is what one waits.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

MODELS = (
    "meta-llama/Llama-3.3-70B-Instruct",
    "Qwen/Qwen3-235B-A22B",
    "deepseek-ai/DeepSeek-V3.2",
    "openai/gpt-oss-120b",
)
CASES = {
    "4x8 H100": ("--gpus", "4x8xH100"),
    "4x8 H100, objectives": ("--gpus", "4x8xH100", "--rate", "10", "--slo", "ttft_p95=2s,tpot_p95=60ms"),
    "64x8 H100": ("--gpus", "64x8xH100"),
}


def one_core() -> None:
    """The planner is one thread; its start is not spread over cores either."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def run(model: str, words: tuple[str, ...]) -> tuple[float, float]:
    """Wall and CPU seconds of one command."""
    argv = [
        sys.executable,
        "-c",
        "from longspan.cli.main import run; run()",
        "plan",
        model,
        "--offline",
        "--json",
        *words,
    ]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=one_core
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """One line of JSON a case and model."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for case, words in CASES.items():
        for model in MODELS:
            found = [run(model, words) for _ in range(runs)]
            walls, cpus = zip(*found, strict=True)
            figures = {
                "wall_seconds": round(statistics.median(walls), 2), "cpu_seconds": round(statistics.median(cpus), 2),
                "fastest_wall_seconds": round(min(walls), 2), "fastest_cpu_seconds": round(min(cpus), 2), "runs": runs,
            }  # fmt: skip
            print(json.dumps({"case": case, "model": model, **figures}), flush=True)


if __name__ == "__main__":
    main()

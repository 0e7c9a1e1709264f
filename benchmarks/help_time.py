#!/usr/bin/env python3
"""Prints how long `longspan --help` takes, in seconds; the aim is less than 0.3.

.venv/bin/python benchmarks/help_time.py [RUNS]
"""

import json
import statistics
import subprocess
import sys
import time


def main() -> None:
    """Runs the command in fresh processes; the first run, which may read a cold disk, is reported apart."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    seconds = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        argv = [sys.executable, "-c", "from longspan.cli.main import run; run()", "--help"]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - began)
    first, *rest = seconds
    figures = {"first": first, "median": statistics.median(rest), "fastest": min(rest), "slowest": max(rest)}
    print(json.dumps({"seconds": {name: round(value, 3) for name, value in figures.items()}, "runs": runs}))


if __name__ == "__main__":
    main()

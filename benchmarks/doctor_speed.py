"""How fast the doctor reads: MB per second of processor time and peak memory, on three kinds of log.

    python benchmarks/doctor_speed.py [--megabytes 100]

serving: what a busy server writes. prompts: every request logged with its text, so that no two lines are alike, the
worst case. failing: a launch that fails in a loop, so that many lines match.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

WORDS = (
    "the model answers a question about",
    "memory",
    "error",
    "failed",
    "cuda",
    "network",
    "please",
    "summary",
    "why does",
    "rank",
)


def serving(rng: random.Random) -> Iterator[str]:
    """Access lines, throughput lines and request lines."""
    second = 0
    while True:
        second += 1
        stamp = f"11-12 {second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        for _ in range(10):
            yield f'INFO:     10.0.{rng.randrange(9)}.{rng.randrange(250)}:{rng.randrange(65535)} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
        yield f"(APIServer pid=1) INFO {stamp} [logger.py:42] Received request chatcmpl-{rng.getrandbits(128):032x}: params: n=1"
        yield (
            f"(APIServer pid=1) INFO {stamp} [loggers.py:335] Engine 000: Avg prompt throughput: {rng.randrange(9000)}.0 tokens/s, Avg "
            f"generation throughput: {rng.randrange(1, 2000)}.0 tokens/s, Running: {rng.randrange(64)} reqs, Waiting: 0 reqs"
        )


def prompts(rng: random.Random) -> Iterator[str]:
    """No two lines alike."""
    while True:
        text = " ".join(rng.choice(WORDS) + f"{rng.getrandbits(20):x}" for _ in range(20))
        yield f"(APIServer pid=1) INFO 11-12 10:00:00 [logger.py:42] Received request c-{rng.getrandbits(64):x}: prompt: '{text}', params: n=1"


def failing(rng: random.Random) -> Iterator[str]:
    """Sixteen ranks that fail again and again."""
    while True:
        for rank in range(16):
            front = f"(RayWorkerProc pid={rng.randrange(9999)}, ip=10.0.0.{rank // 8}) ERROR 11-12 10:00:00 [multiproc_executor.py:953]"
            yield f"{front} WorkerProc failed to start."
            yield f"{front} Traceback (most recent call last):"
            for _ in range(20):
                yield f'{front}   File "/opt/vllm/v1/worker/gpu_worker.py", line {rng.randrange(999)}, in load_model'
            yield f"{front} torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {rng.randrange(9)}.0 GiB."


KINDS = {"serving": serving, "prompts": prompts, "failing": failing}


def write(kind: str, megabytes: int, path: Path) -> None:
    """A log of one kind."""
    left = megabytes * 1_000_000
    with path.open("w") as file:
        for line in KINDS[kind](random.Random(kind)):
            left -= file.write(line + "\n")
            if left <= 0:
                return


def measure(path: Path) -> dict[str, float]:
    """Runs in a process of its own, so that memory and processor time are its own."""
    from longspan.doctor.collect import diagnose

    begin = time.process_time()
    diagnosis = diagnose([path])
    seconds = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "MB_per_second": round(diagnosis.size_bytes / 1e6 / seconds, 1),
        "seconds": round(seconds, 2),
        "peak_MiB": round(peak),
    }


def main() -> None:
    """Prints one line a kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--measure", type=Path)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            path = Path(folder) / f"{kind}.log"
            write(kind, arguments.megabytes, path)
            done = subprocess.run(
                [sys.executable, __file__, "--measure", str(path)], capture_output=True, text=True, check=True
            )
            print(f"{kind:8} {arguments.megabytes} MB: {done.stdout.strip()}")
            path.unlink()


if __name__ == "__main__":
    main()

"""Seconds to the first token: `longspan up` against the same engine started by hand, in one run.

By hand means what the guides say: `ray start --head`, `ray start --address`, `vllm serve` with the same arguments, then
asking until a token comes. Both on this machine, the demo model, PP=2 on two Ray nodes, without a GPU. Rounds
alternate, since the machine's file cache favours whoever comes second.

    python benchmarks/up_against_bare.py [--rounds 2] [--json FILE]
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from longspan.launch.commands import CPU_BATCHED_TOKENS
from longspan.launch.words import MARK_VARIABLE
from longspan.model.demo import ensure_demo_model

RUN = [sys.executable, "-c", "from longspan.cli.main import run; run()"]
# Outside 10002 to 19999, which Ray gives to its workers.
PORT = 8460
RAY_PORT = 6479
TIMEOUT_SECONDS = 600


def ask(port: int, model: str, key: str = "") -> bool:
    """Whether one completion comes back."""
    body = json.dumps({"model": model, "prompt": "The capital of France is", "max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return bool(json.load(response)["choices"])
    except (OSError, ValueError):
        return False


def until_first_token(port: int, model: str, key: str = "") -> None:
    """Asks ten times a second."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not ask(port, model, key):
        if time.monotonic() > deadline:
            sys.exit("no token came")
        time.sleep(0.1)


def longspan_once(folder: Path) -> float:
    """`longspan up` with a state directory of its own; its own figure of the first token is checked by ours."""
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    began = time.monotonic()
    up = subprocess.Popen(
        [*RUN, "up", "--listen", f"127.0.0.1:{PORT}"],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    key_file = folder / "state" / "longspan" / "default" / "api-key"
    while not key_file.exists():
        time.sleep(0.05)
    until_first_token(PORT, "smollm2-135m-instruct", key_file.read_text())
    seconds = time.monotonic() - began
    up.wait(TIMEOUT_SECONDS)
    subprocess.run([*RUN, "down"], env=env, check=True, capture_output=True)
    return seconds


def bare_once(folder: Path, model: Path) -> float:
    """The three commands by hand, each started when the one before it is ready, as a person would."""
    env = {
        **os.environ, "LONGSPAN_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1", "RAY_ADDRESS": f"127.0.0.2:{RAY_PORT}", "VLLM_HOST_IP": "127.0.0.2",
        "RAY_USAGE_STATS_ENABLED": "0", MARK_VARIABLE: "bare-benchmark", "SPT_NOENV": "1",
    }  # fmt: skip
    ray = [
        sys.executable,
        "-m",
        "longspan.launch.ray_main",
        "start",
        "--num-gpus=1",
        "--object-store-memory=200000000",
    ]
    ray += ["--disable-usage-stats", "--block"]
    head = [*ray, "--head", f"--port={RAY_PORT}", "--node-ip-address=127.0.0.2", "--include-dashboard=false"]
    head += [f"--temp-dir={folder}/1", f"--ray-client-server-port={RAY_PORT + 1}"]
    worker = [
        *ray,
        f"--address=127.0.0.2:{RAY_PORT}",
        "--node-ip-address=127.0.0.3",
        f"--temp-dir={folder}/2",
    ]
    worker += [f"--dashboard-agent-listen-port={RAY_PORT + 2}"]
    engine = [
        sys.executable, "-m", "longspan.launch.engine_main", "serve", str(model), "--served-model-name", "demo",
        "--host", "127.0.0.1", "--port", str(PORT), "--tensor-parallel-size", "1", "--pipeline-parallel-size", "2",
        "--distributed-executor-backend", "ray", "--compilation-config", '{"mode": 2, "backend": "eager"}',
        "--max-num-batched-tokens", str(CPU_BATCHED_TOKENS),
    ]  # fmt: skip
    began = time.monotonic()
    started = []
    for argv, log in ((head, folder / "head.log"), (worker, folder / "worker.log")):
        with log.open("w") as out:
            clean = {key: value for key, value in env.items() if key != "RAY_ADDRESS"}
            started.append(subprocess.Popen(argv, env=clean, stdout=out, stderr=out, start_new_session=True))
        while "Ray runtime started" not in log.read_text():
            if started[-1].poll() is not None:
                sys.exit(f"ray start ended: {log.read_text()[-2000:]}")
            time.sleep(0.05)
    with (folder / "engine.log").open("w") as out:
        started.append(subprocess.Popen(engine, env=env, stdout=out, stderr=out, start_new_session=True))
    until_first_token(PORT, "demo")
    seconds = time.monotonic() - began
    from longspan.daemon import processes

    for process in reversed(started):
        process.send_signal(signal.SIGTERM)
    processes.end(processes.marked("bare-benchmark"), grace_seconds=5)
    return seconds


def main() -> None:
    """Runs the rounds and prints both, and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = ensure_demo_model(print)
    figures: dict[str, list[float]] = {"longspan_seconds": [], "bare_seconds": []}
    for number in range(options.rounds):
        for name in (
            ("longspan_seconds", "bare_seconds") if number % 2 == 0 else ("bare_seconds", "longspan_seconds")
        ):
            with tempfile.TemporaryDirectory(prefix="ls-bench-", ignore_cleanup_errors=True) as folder:
                once = (
                    longspan_once(Path(folder))
                    if name == "longspan_seconds"
                    else bare_once(Path(folder), model)
                )
            figures[name].append(round(once, 2))
            print(f"{name}: {once:.1f}", flush=True)
    ratio = statistics.median(figures["longspan_seconds"]) / statistics.median(figures["bare_seconds"])
    print(f"longspan / bare = {ratio:.3f}")
    if options.json:
        options.json.write_text(json.dumps({**figures, "ratio": round(ratio, 3)}) + "\n")


if __name__ == "__main__":
    main()

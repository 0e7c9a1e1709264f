"""CPU, memory and added latency of the gateway beside others, in one run: ratios to each peer, Longspan first and last.

    PYTHONPATH=src:tests python benchmarks/gateway_overhead.py --suite ../shared/gateway nginx vllm_router litellm_proxy [--seconds 10]

SUITE is the directory of the fault and overhead suite for gateways; peers are names of its adapters, whose programs are found as each
adapter says (VLLM_ROUTER_BIN, LITELLM_BIN, NGINX_BIN, or PATH). Keys, ledger and metrics are on for Longspan. On an otherwise idle
machine; about two and a half minutes for each gateway. What cannot be measured is named, never guessed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OURS = Path(__file__).parent.parent / "tests" / "gateway_suite" / "adapter.py"
FIGURES = (
    "cpu_us_per_request",
    "cpu_us_per_chunk",
    "rss_peak_mb",
    "added_ms_p50",
    "added_first_token_ms_p50",
)


def measured(suite: Path, adapter: Path, seconds: float, repeats: int) -> dict[str, Any]:
    """One gateway's figures; {"error": why} where there are none."""
    with tempfile.TemporaryDirectory(prefix="gateway-overhead-") as folder:
        out = Path(folder) / "out.json"
        done = subprocess.run(
            [sys.executable, str(suite / "overhead.py"), "--adapter", str(adapter), "--json", str(out), "--secs", str(seconds),
             "--stream-secs", str(1.5 * seconds), "--repeats", str(repeats)],
            cwd=suite, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode or not out.exists():
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["no reason given"]
            return {"error": words[0][:200]}
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def main() -> None:
    """Runs all of them and prints one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peers", nargs="*", default=["nginx"])
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    suite = options.suite.resolve()
    if not (suite / "overhead.py").exists():
        sys.exit(f"{suite} has no overhead.py")
    # Longspan twice, at both ends, so that a machine that drifts shows.
    names = ["longspan", *options.peers, "longspan again"]
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        adapter = OURS if name.startswith("longspan") else suite / "adapters" / f"{name}.py"
        print(f"{name} …", file=sys.stderr, flush=True)
        found[name] = measured(suite, adapter, options.seconds, options.repeats)
    own = [found[name] for name in (names[0], names[-1]) if "error" not in found[name]]
    ratios = {
        peer: {
            figure: round(sum(one[figure] for one in own) / len(own) / found[peer][figure], 3)
            for figure in FIGURES[:3]
            if found[peer].get(figure)
        }
        for peer in options.peers
        if own and "error" not in found[peer]
    }
    kept = {name: {key: one[key] for key in ("error", *FIGURES) if key in one} for name, one in found.items()}
    print(json.dumps({"gateways": kept, "longspan_to_peer": ratios}, indent=2))


if __name__ == "__main__":
    main()

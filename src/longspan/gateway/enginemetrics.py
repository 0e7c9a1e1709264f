"""An engine's Prometheus text to one `EngineLoad`; only vLLM's names that routing needs, summed over DP engines."""

from longspan.gateway.standing import EngineLoad

# Gauges and counters of vLLM V1 (vllm/v1/metrics/loggers.py). The KV gauge had the second name before 0.10.
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
PROGRESS = (
    "vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:iteration_tokens_total_count",
    "vllm:iteration_tokens_total_sum",
)  # fmt: skip


def parse_engine_metrics(text: str) -> EngineLoad | None:
    """None if the text has no vLLM gauge (another engine): then the gateway relies on its own ledger alone."""
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for line in text.splitlines():
        if not line.startswith("vllm:"):
            continue
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name != RUNNING and name != WAITING and name not in KV and name not in PROGRESS:
            continue
        try:
            value = float(line.rsplit("}", 1)[-1].split()[0] if "}" in line else line.split()[1])
        except (ValueError, IndexError):
            continue
        sums[name] = sums.get(name, 0.0) + value
        counts[name] = counts.get(name, 0) + 1
    if RUNNING not in sums:
        return None
    kv_name = next((name for name in KV if name in sums), None)
    kv = sums[kv_name] / counts[kv_name] if kv_name else 0.0
    progress = (*(sums.get(name, 0.0) for name in PROGRESS), kv)
    return EngineLoad(sums[RUNNING], sums.get(WAITING, 0.0), kv, progress)

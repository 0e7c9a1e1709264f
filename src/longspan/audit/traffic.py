"""An engine's /metrics text -> what it was asked for. Pure."""

import re

from longspan.audit.facts import Traffic

_SAMPLE = re.compile(r"(?m)^(vllm:\w+)(?:\{(.*)\})? ([0-9.eE+-]+|NaN|\+Inf)$")


def read_traffic(text: str, max_model_len: int) -> Traffic | None:
    """What vLLM counted (vllm/v1/metrics/loggers.py); None where the text holds no request counters."""
    buckets: dict[str, dict[float, float]] = {"prompt": {}, "generation": {}}
    totals = {"requests": 0.0, "preemptions": 0.0, "kv": 0.0}
    seen = False
    for name, labels, value in _SAMPLE.findall(text):
        number = float(value)
        bucket = re.fullmatch(r"vllm:request_(prompt|generation)_tokens_bucket", name)
        bound = re.search(r'(?:^|,)le="([^"]+)"', labels)
        if bucket and bound:
            seen = True
            upper = float(bound[1].replace("+Inf", "inf"))
            counts = buckets[bucket[1]]
            counts[upper] = counts.get(upper, 0.0) + number
        elif name == "vllm:request_prompt_tokens_count":
            totals["requests"] += number
        elif name == "vllm:num_preemptions_total":
            totals["preemptions"] += number
        elif name in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"):
            totals["kv"] = max(totals["kv"], number)
    if not seen:
        return None
    longest = sum(_longest(counts, max_model_len) for counts in buckets.values())
    return Traffic(
        round(totals["requests"]),
        min(longest, max_model_len),
        max_model_len,
        round(totals["preemptions"]),
        totals["kv"],
    )


def _longest(counts: dict[float, float], limit: int) -> int:
    """The upper bound of the highest bucket that holds anything; counts are cumulative."""
    total = max(counts.values(), default=0.0)
    bound = min((upper for upper, count in counts.items() if count >= total), default=0.0) if total else 0.0
    return limit if bound == float("inf") else round(bound)

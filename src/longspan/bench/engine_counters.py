"""What a load test needs of an engine's /metrics: counters before and after, gauges between, and the audit of tokens. Pure.

Names are those of vLLM 0.33 (`vllm:…`); a prefix other than `vllm:` in front (Ray writes `ray_vllm_…`) is taken off.
"""

import re
from collections.abc import Mapping, Sequence

from longspan.bench.record import RequestRecord
from longspan.bench.result import TokenAudit

COUNTERS = {
    "generation_tokens_total": "generation_tokens",
    "prompt_tokens_total": "prompt_tokens",
    "num_preemptions_total": "preemptions",
    "prefix_cache_queries_total": "prefix_cache_queries",
    "prefix_cache_hits_total": "prefix_cache_hits",
    "request_generation_tokens_sum": "request_generation_tokens",
    "request_generation_tokens_count": "requests",
    "e2e_request_latency_seconds_sum": "e2e_seconds",
    "e2e_request_latency_seconds_count": "e2e_requests",
}
SUMMED_GAUGES = {"num_requests_running": "running", "num_requests_waiting": "waiting"}
KV_GAUGES = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
_LINE = re.compile(r"(?:ray_)?vllm[:_](\w+)(?:\{[^}]*\})?\s+([^\s]+)")


def read_counters(text: str) -> dict[str, float]:
    """Counters and gauges by short name, summed over engines; KV use is that of the fullest."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        matched = _LINE.match(line)
        if matched is None:
            continue
        name = matched.group(1)
        try:
            value = float(matched.group(2))
        except ValueError:
            continue
        if short := COUNTERS.get(name) or SUMMED_GAUGES.get(name):
            found[short] = found.get(short, 0.0) + value
        elif name in KV_GAUGES:
            found["kv_share"] = max(found.get("kv_share", 0.0), value)
    return found


def growth(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float | None:
    """How much a counter grew; None where it is unknown or its process was started anew."""
    if name not in before or name not in after or after[name] < before[name]:
        return None
    return after[name] - before[name]


def restarted(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Whether a counter shrank, which only a new process explains."""
    return any(after.get(name, 0.0) < before[name] for name in COUNTERS.values() if name in before)


def hit_share(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """The share of prompt tokens that the prefix cache held."""
    queries = growth(before, after, "prefix_cache_queries")
    hits = growth(before, after, "prefix_cache_hits")
    return hits / queries if queries and hits is not None else None


def audit(
    records: Sequence[RequestRecord], before: Mapping[str, float], after: Mapping[str, float]
) -> TokenAudit:
    """Compares the client's, the engine's and its per-request count of output tokens."""
    sent = [one for one in records if one.sent_seconds is not None]
    counted = [one for one in sent if one.counted and one.output_tokens >= 0]
    usage = sum(one.output_tokens for one in counted) if counted else None
    good = sum(one.ok for one in sent)
    tokens = growth(before, after, "generation_tokens")
    each = growth(before, after, "request_generation_tokens")
    requests = growth(before, after, "requests")
    numbers = [None if value is None else round(value) for value in (tokens, each, requests)]
    verdict, reason = _verdict(usage, numbers[0], numbers[1], len(sent) - len(counted))
    return TokenAudit(usage, numbers[0], numbers[1], numbers[2], good, verdict, reason)


def _verdict(usage: int | None, tokens: int | None, each: int | None, uncounted: int) -> tuple[str, str]:
    if tokens is None:
        return "cannot tell", "the engine's counters were not read, or it was started anew"
    if usage is None:
        return "cannot tell", "no answer had a usage"
    if uncounted and tokens >= usage:
        return (
            "cannot tell",
            f"{uncounted} requests ended without a usage; the engine counts {tokens - usage} more tokens",
        )
    if tokens != usage:
        reason = f"usage says {usage} tokens, the engine's counter {tokens}: "
        more = "others used it during the run" if tokens > usage else "not all engines were read"
        return "differ", reason + more + ", or one counts wrongly"
    if each is not None and each != tokens:
        return "differ", f"the engine's counter says {tokens} tokens, its finished requests {each}"
    return "agree", f"{usage} tokens in the usage and in the engine's counters"

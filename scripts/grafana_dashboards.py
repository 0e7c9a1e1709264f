#!/usr/bin/env python3
"""Writes deploy/grafana/*.json; a test fails when they differ, and another when one of their queries returns nothing.

PYTHONPATH=src python scripts/grafana_dashboards.py
"""

import json
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "deploy" / "grafana"
SOURCE = {"type": "prometheus", "uid": "${source}"}
D = 'deployment=~"$deployment"'
# Title, unit in Grafana's words, queries with their legends.
Panel = tuple[str, str, list[tuple[str, str]]]


def quantiles(name: str) -> list[tuple[str, str]]:
    """Three recorded quantiles of a latency."""
    return [(f"longspan:{name}_seconds:p{q}_5m{{{D}}}", f"{{{{part}}}} p{q}") for q in (50, 95, 99)]


OVERVIEW: list[Panel] = [
    ("Replicas serving", "none", [(f"sum by (deployment) (longspan_replica_serving{{{D}}})", "{{deployment}}")]),
    ("Nodes up", "none", [(f"sum by (deployment) (longspan_node_up{{{D}}})", "{{deployment}}")]),
    ("Alarms", "none", [(f"sum by (deployment) (longspan_alarms{{{D}}})", "{{deployment}}")]),
    ("Output tokens/s", "short", [(f"longspan:generation_tokens_per_second:rate1m{{{D}}}", "{{part}}")]),
    ("Prompt tokens/s", "short", [(f"longspan:prompt_tokens_per_second:rate1m{{{D}}}", "{{part}}")]),
    ("TTFT", "s", quantiles("ttft")),
    ("TPOT (below 10 ms is interpolated)", "s", quantiles("tpot")),
    ("Requests at the engines", "none", [
        (f"sum by (part) (vllm:num_requests_running{{{D}}})", "{{part}} running"),
        (f"sum by (part) (vllm:num_requests_waiting{{{D}}})", "{{part}} waiting"),
    ]),
    ("Requests in the gateway", "none", [
        (f"longspan_gateway_running{{{D}}}", "running"), (f"longspan_gateway_waiting{{{D}}}", "waiting {{model}}"),
    ]),
    ("Requests that end, by outcome", "reqps", [(f"longspan:gateway_requests_per_second:rate1m{{{D}}}", "{{outcome}}")]),
    ("TTFT at the gateway, streams", "s", [
        (f"histogram_quantile({q}, sum by (le) (rate(longspan_gateway_ttft_seconds_bucket{{{D}}}[5m])))", f"p{q * 100:.0f}")
        for q in (0.5, 0.95, 0.99)
    ]),
    ("Error of the predicted wait, p95", "s", [
        (f"histogram_quantile(0.95, sum by (le) (rate(longspan_gateway_prediction_error_seconds_bucket{{{D}}}[5m])))", "p95"),
    ]),
    ("Overflow", "percentunit", [(f"longspan:gateway_overflow_share:rate5m{{{D}}}", "share of requests")]),
    ("Overflow by reason", "reqps", [(f"sum by (reason) (rate(longspan_gateway_overflows_total{{{D}}}[5m]))", "{{reason}}")]),
    ("Cost", "currencyUSD", [
        (f"sum(longspan_gateway_outside_usd_total{{{D}}})", "spent outside"),
        (f"sum(longspan_gateway_avoided_usd_total{{{D}}})", "avoided by serving here"),
        (f"sum(longspan_gateway_local_usd_total{{{D}}})", "our replicas"),
    ]),
    ("Failed attempts", "reqps", [(f"sum by (cause) (rate(longspan_gateway_failed_attempts_total{{{D}}}[5m]))", "{{cause}}")]),
]  # fmt: skip
ENGINES: list[Panel] = [
    ("KV use", "percentunit", [(f"max by (part) (vllm:kv_cache_usage_perc{{{D}}})", "{{part}}")]),
    ("Prefix hits", "percentunit", [(f"longspan:prefix_hit_share:rate5m{{{D}}}", "{{part}}")]),
    ("Preemptions", "cps", [(f"sum by (part) (rate(vllm:num_preemptions_total{{{D}}}[5m]))", "{{part}}")]),
    ("Why requests wait", "none", [(f"sum by (part, reason) (vllm:num_requests_waiting_by_reason{{{D}}})", "{{part}} {{reason}}")]),
    ("Requests that ended", "reqps", [(f"sum by (part, finished_reason) (rate(vllm:request_success_total{{{D}}}[5m]))", "{{part}} {{finished_reason}}")]),
    ("Where a request's time goes, mean", "s", [
        (f"sum by (part) (rate(vllm:request_{step}_time_seconds_sum{{{D}}}[5m])) / sum by (part) (rate(vllm:request_{step}_time_seconds_count{{{D}}}[5m]))", f"{{{{part}}}} {step}")
        for step in ("queue", "prefill", "decode")
    ]),
    ("Time between tokens, p95", "s", [(f"histogram_quantile(0.95, sum by (part, le) (rate(vllm:inter_token_latency_seconds_bucket{{{D}}}[5m])))", "{{part}}")]),
    ("Whole requests, p95", "s", [(f"histogram_quantile(0.95, sum by (part, le) (rate(vllm:e2e_request_latency_seconds_bucket{{{D}}}[5m])))", "{{part}}")]),
    ("Tokens in a step, mean", "none", [(f"sum by (part) (rate(vllm:iteration_tokens_total_sum{{{D}}}[5m])) / sum by (part) (rate(vllm:iteration_tokens_total_count{{{D}}}[5m]))", "{{part}}")]),
    ("Age of what is known of a replica", "s", [(f"longspan_replica_age_seconds{{{D}}}", "{{replica}}")]),
]  # fmt: skip
NODES: list[Panel] = [
    ("GPU memory", "percentunit", [(f"longspan:gpu_memory_share{{{D}}}", "{{node}} {{gpu}}")]),
    ("What fills it, by rank", "bytes", [
        (f"longspan_gpu_{what}_bytes{{{D}}}", f"{{{{node}}}} {{{{gpu}}}} {what}") for what in ("weights", "kv", "other")
    ]),
    ("GPUs busy", "percentunit", [(f"longspan_gpu_utilisation_share{{{D}}}", "{{node}} {{gpu}}")]),
    ("Ranks off their replica's median", "percentunit", [
        (f'longspan_gpu_utilisation_share{{{D}, rank!=""}} - on (deployment, replica) group_left () quantile by (deployment, replica) (0.5, longspan_gpu_utilisation_share{{{D}, rank!=""}})', "{{replica}} rank {{rank}}"),
    ]),
    ("GPU power", "watt", [(f"longspan_gpu_power_watts{{{D}}}", "{{node}} {{gpu}}")]),
    ("GPU heat", "celsius", [(f"longspan_gpu_temperature_celsius{{{D}}}", "{{node}} {{gpu}}")]),
    ("SM clock", "rotmhz", [(f"longspan_gpu_sm_clock_mhz{{{D}}}", "{{node}} {{gpu}}")]),
    ("ECC errors and NVLinks down", "none", [
        (f"longspan_gpu_ecc_uncorrected{{{D}}}", "{{node}} {{gpu}} uncorrected"), (f"longspan_gpu_nvlink_down{{{D}}}", "{{node}} {{gpu}} links down"),
    ]),
    ("Port load", "percentunit", [(f"longspan:port_load_share{{{D}}}", "{{node}} {{port}}")]),
    ("Bytes, all ports", "Bps", [
        (f"sum by (node, kind) (longspan_port_tx_bytes_per_second{{{D}}})", "{{node}} {{kind}} out"),
        (f"sum by (node, kind) (longspan_port_rx_bytes_per_second{{{D}}})", "{{node}} {{kind}} in"),
    ]),
    ("Drops and errors", "pps", [
        (f"longspan_port_drops_per_second{{{D}}}", "{{node}} {{port}} drops"), (f"longspan_port_errors_per_second{{{D}}}", "{{node}} {{port}} errors"),
    ]),
    ("CPU", "percentunit", [(f"longspan_node_cpu_share{{{D}}}", "{{node}}")]),
    ("Memory and /dev/shm", "percentunit", [
        (f"longspan_node_ram_used_bytes{{{D}}} / longspan_node_ram_total_bytes{{{D}}}", "{{node}} memory"),
        (f"longspan_node_shm_used_bytes{{{D}}} / longspan_node_shm_total_bytes{{{D}}}", "{{node}} shm"),
    ]),
    ("Disks", "percentunit", [(f"longspan_node_disk_used_bytes{{{D}}} / longspan_node_disk_total_bytes{{{D}}}", "{{node}} {{path}}")]),
    ("The agents themselves", "percentunit", [(f"longspan_agent_cpu_share{{{D}}}", "{{node}}")]),
    ("Age of a node's telemetry", "s", [(f"longspan_node_age_seconds{{{D}}}", "{{node}}")]),
]  # fmt: skip
DASHBOARDS = {
    "overview": ("Longspan", OVERVIEW),
    "engines": ("Longspan: engines", ENGINES),
    "nodes": ("Longspan: nodes", NODES),
}


def panel(number: int, found: Panel) -> dict[str, Any]:
    """A time series, two in a row."""
    title, unit, queries = found
    return {
        "id": number + 1, "type": "timeseries", "title": title, "datasource": SOURCE,
        "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
        "fieldConfig": {"defaults": {"unit": unit, "min": None if "off" in title else 0, "custom": {"spanNulls": False}}, "overrides": []},
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}, "legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(queries)
        ],
    }  # fmt: skip


def dashboard(name: str) -> dict[str, Any]:
    """One dashboard, with a choice of data source and deployment."""
    title, panels = DASHBOARDS[name]
    variables = [
        {"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"},
        {
            "name": "deployment", "type": "query", "label": "Deployment", "datasource": SOURCE, "includeAll": True, "multi": True,
            "query": {"query": "label_values(longspan_node_up, deployment)", "refId": "deployment"}, "refresh": 2,
            "current": {"text": "All", "value": "$__all"},
        },
    ]  # fmt: skip
    return {
        "uid": f"longspan-{name}", "title": title, "tags": ["longspan"], "schemaVersion": 39, "editable": True,
        "time": {"from": "now-1h", "to": "now"}, "refresh": "15s", "templating": {"list": variables},
        "links": [{"type": "dashboards", "tags": ["longspan"], "asDropdown": False, "title": "Longspan", "includeVars": True, "keepTime": True}],
        "panels": [panel(number, found) for number, found in enumerate(panels)],
    }  # fmt: skip


def render(name: str) -> str:
    """The file's text."""
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    for name in DASHBOARDS:
        (TARGET / f"{name}.json").write_text(render(name))

"""Conditions out of what a deployment or a foreign endpoint tells. Pure: the documents are given."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_SECRET_FLAG = re.compile(r"--[\w-]*(?:key|token|password|secret)[\w-]*", re.IGNORECASE)
_CACHE_INFO = re.compile(r"^(?:ray_)?vllm[:_]cache_config_info\{([^}]*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_LIBRARIES = ("vllm", "torch", "ray", "python", "nccl", "driver", "kernel", "os", "hostname")
# Those of one run that no other may share: they say nothing about what was measured.
_PASSING = {"num_gpu_blocks_override_source", "engine", "pid", "port"}


def of_deployment(status: Mapping[str, Any], spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The lock of a Longspan deployment.

    Args:
        status: `longspan status --json`. spec: the deployment's wanted state, where every engine argument stands.
    """
    layout = status.get("layout") or {}
    found: dict[str, Any] = {
        "model/name": status.get("model"),
        "model/served_name": status.get("served_name"),
        "model/checkpoint": None,
        "layout/tp": layout.get("tp"),
        "layout/pp": layout.get("pp"),
        "layout/executor": layout.get("executor"),
        "layout/device": layout.get("device"),
        "layout/rank_map": rank_map(status),
        "layout/gpus": gpus(status),
        "engine/version": None,
    }
    nodes = status.get("nodes") or []
    for node in nodes:
        name, facts = node.get("name", "?"), node.get("facts") or {}
        for what in _LIBRARIES:
            if what in facts or what in ("driver", "nccl", "torch"):
                found[f"node/{name}/{'host_name' if what == 'hostname' else what}"] = facts.get(what)
        for variable, value in (node.get("environment") or {}).items():
            found[f"node/{name}/{variable}"] = value
        found["model/checkpoint"] = found["model/checkpoint"] or facts.get("checkpoint")
        found["engine/version"] = found["engine/version"] or facts.get("vllm")
    if spec is not None:
        found |= arguments(spec.get("vllm_arguments") or ())
        found["model/revision"] = spec.get("revision") or None
    return found


def rank_map(status: Mapping[str, Any]) -> str | None:
    """ "0@node-1 1@node-2": each rank's node as planned; None where nothing is known."""
    ranks = status.get("ranks") or []
    return " ".join(f"{one.get('rank')}@{one.get('planned_node')}" for one in ranks) or None


def gpus(status: Mapping[str, Any]) -> str | None:
    """The UUIDs in rank order, as the driver gave them; None on a host without, or before they are known."""
    found = [" ".join(one["gpu"]) for one in status.get("ranks") or [] if one.get("gpu")]
    return ", ".join(found) or None


def arguments(words: Sequence[str]) -> dict[str, Any]:
    """vLLM's command line as conditions, one a flag: "engine/argument/max-num-seqs" -> "256". Values of secrets are hidden."""
    found: dict[str, Any] = {}
    flag, values = "", list[str]()

    def keep() -> None:
        if flag:
            hidden = _SECRET_FLAG.fullmatch(flag)
            name = flag.lstrip("-").replace("_", "-")
            found[f"engine/argument/{name}"] = "***" if hidden else " ".join(values) or "yes"

    for word in words:
        if word.startswith("--"):
            keep()
            flag, equals, value = word.partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    keep()
    return found


def of_endpoint(
    models: Mapping[str, Any] | None, version: Mapping[str, Any] | None, metrics: str = "", model: str = ""
) -> dict[str, Any]:
    """The lock of an endpoint that is not ours, from the little that it tells; the rest is openly unknown.

    Args:
        models: the answer of /v1/models. version: of /version. metrics: the text of /metrics. Each may be missing.
    """
    listed = [one for one in (models or {}).get("data") or [] if isinstance(one, dict)]
    chosen = next((one for one in listed if one.get("id") == model), listed[0] if len(listed) == 1 else {})
    found: dict[str, Any] = {
        "model/served_name": chosen.get("id") or model or None,
        "model/name": chosen.get("root"),
        "model/checkpoint": None,
        "model/max_model_len": chosen.get("max_model_len"),
        "engine/owner": chosen.get("owned_by"),
        "engine/version": (version or {}).get("version"),
        "engine/arguments": None,
        "layout/rank_map": None,
        "layout/gpus": None,
        "node/driver": None,
        "node/nccl": None,
        "node/nic": None,
        "gateway/configuration": None,
    }
    return found | cache_config(metrics)


def cache_config(metrics: str) -> dict[str, Any]:
    """The engine's cache configuration, which vLLM shows as labels of a metric; empty where there is none."""
    seen = _CACHE_INFO.findall(metrics)
    if not seen:
        return {}
    labels = dict(_LABEL.findall(seen[0]))
    found: dict[str, Any] = {
        f"engine/cache/{name}": value for name, value in sorted(labels.items()) if name not in _PASSING
    }
    found["engine/count"] = len(seen)
    return found

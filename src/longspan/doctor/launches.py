"""Compares a launch with the last good one, and names a plan's ranks in the findings."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from longspan.deployment import DeploymentSpec
from longspan.finding import Evidence, Finding

# A change of one of these explains the causes it stands with.
_EXPLAINS: dict[str, tuple[str, ...]] = {
    "driver": ("driver-too-old", "cuda-driver-mismatch", "fabricmanager-down", "collective-hang"),
    "nccl": ("nccl-env-mismatch", "nccl-init-hang", "collective-hang", "collective-desync"),
    "ray": ("version-mismatch-ray", "ray-node-lost"),
    "torch": ("worker-env-differs", "gpu-arch-unsupported", "driver-too-old", "collective-hang", "collective-desync"),
    "checkpoint": ("weights-corrupt", "model-path-missing", "oom-weights", "model-arch-unsupported"),
    "python": ("version-mismatch-ray", "worker-env-differs"),
    "vllm": ("worker-env-differs", "model-arch-unsupported", "collective-desync"),
    "address": ("host-ip-mismatch", "nccl-wrong-interface", "gloo-wrong-interface"),
    "nic": ("nccl-wrong-interface", "gloo-wrong-interface", "ib-gid-mismatch"),
    "NCCL_SOCKET_IFNAME": ("nccl-wrong-interface", "collective-hang", "nccl-init-hang"),
    "GLOO_SOCKET_IFNAME": ("gloo-wrong-interface", "collective-hang"),
    "VLLM_HOST_IP": ("host-ip-mismatch",),
    "NCCL_IB_HCA": ("nccl-init-hang", "collective-hang", "ib-gid-mismatch"),
    "NCCL_IB_GID_INDEX": ("ib-gid-mismatch",),
    "NCCL_IB_DISABLE": ("collective-hang",),
    "bandwidth": ("collective-hang",),
    "model": ("weights-corrupt", "model-path-missing", "oom-weights"),
    "arguments": ("oom-kv-cache", "oom-runtime", "parallel-config-invalid", "heads-not-divisible"),
}  # fmt: skip


# What an agent finds on its node; unknown until it has answered.
_FACTS = ("python", "ray", "vllm", "torch", "nccl", "driver", "checkpoint")
_SECRET_FLAG = re.compile(r"--[\w-]*(?:key|token|password|secret)[\w-]*", re.IGNORECASE)


def model_of(spec: DeploymentSpec) -> str:
    """The model as the record names it."""
    return f"{spec.model}@{spec.revision}" if spec.revision else spec.model


def recorded(
    spec: DeploymentSpec,
    facts: Mapping[str, Mapping[str, Any] | None],
    checked: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, str]:
    """A launch as `difference` compares it: "host/what" and "deployment/what" -> value; no secret in it.

    Args:
        facts: node -> what its agent found there, as far as it answered.
        checked: node -> what the pre-flight found there: versions, driver, compiled environment, measured bandwidth.
    """
    found = {
        "deployment/identity": spec.identity,
        "deployment/model": model_of(spec),
        "deployment/arguments": " ".join(_without_secrets(spec.vllm_arguments)) or "none",
        "deployment/layout": f"TP {spec.tp} x PP {spec.pp}, {spec.executor}, {spec.device}, ranks on "
        + ", ".join(node.name for node in spec.rank_nodes()),
    }
    for node in spec.used_nodes():
        found[f"{node.name}/address"] = node.address
        if nic := node.env.get("NCCL_SOCKET_IFNAME") or node.env.get("GLOO_SOCKET_IFNAME"):
            found[f"{node.name}/nic"] = nic
        found |= {
            f"{node.name}/{what}": str(value) for what, value in (checked or {}).get(node.name, {}).items()
        }
        here = facts.get(node.name) or {}
        found |= {f"{node.name}/{what}": str(here[what]) for what in _FACTS if here.get(what)}
    return found


def _without_secrets(arguments: Sequence[str]) -> list[str]:
    told: list[str] = []
    hide = False
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        secret = bool(_SECRET_FLAG.fullmatch(flag))
        if hide and not argument.startswith("--"):
            told.append("***")
            continue  # a flag may take several values
        told.append(f"{flag}=***" if secret and equals else argument)
        hide = secret and not equals
    return told


def changes_since(
    good: Mapping[str, str],
    spec: DeploymentSpec,
    facts: Mapping[str, Mapping[str, Any] | None],
    checked: Mapping[str, Mapping[str, str]] | None = None,
) -> list[tuple[str, str, str]]:
    """What this launch has other than the last good one. What a node has not told yet is no change.

    Args:
        good: `recorded` of the last good launch; empty if there was none, and then nothing changed.
        checked: see `recorded`.
    """
    if not good:
        return []
    now = recorded(spec, facts, checked)
    silent = {
        key
        for node in spec.used_nodes()
        for key in good
        if key.startswith(f"{node.name}/") and key not in now and _is_silent(key, node.name, checked or {})
    }
    changes = difference({key: value for key, value in good.items() if key not in silent}, now)
    # The identity is a digest of all the rest: it only says something where nothing else does.
    telling = [change for change in changes if change[0] != "deployment/identity"]
    return telling or changes


def _is_silent(key: str, node: str, checked: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether a value is missing because nobody told it this time, and not because it is gone."""
    what = key.rsplit("/", 1)[-1]
    return what in _FACTS or (what not in ("address", "nic") and node not in checked)


def plan_names(spec: DeploymentSpec, facts: Mapping[str, Mapping[str, Any] | None]) -> dict[str, str]:
    """What logs call the nodes -> what the plan calls them: by address, and by host name where no two share it."""
    names = {node.address: node.name for node in spec.used_nodes()}
    hosts = [str(known["hostname"]) for known in facts.values() if known and known.get("hostname")]
    for node in spec.used_nodes():
        host = str((facts.get(node.name) or {}).get("hostname") or "")
        if host and hosts.count(host) == 1:
            names[host] = node.name
    return names


def difference(good: Mapping[str, str], now: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """What changed since the last good launch: (key, then, now), sorted by key. A missing value is "-"."""
    keys = sorted(good.keys() | now.keys())
    return [(k, good.get(k, "-"), now.get(k, "-")) for k in keys if good.get(k) != now.get(k)]


def with_difference(findings: Sequence[Finding], changes: Sequence[tuple[str, str, str]]) -> list[Finding]:
    """Adds the changes that could explain a finding to its evidence.

    Args:
        changes: from `difference`; keys are "host/what" ("node-3/driver").
    """
    result = []
    for finding in findings:
        told = [c for c in changes if finding.cause in _EXPLAINS.get(c[0].rsplit("/", 1)[-1], ())]
        extra = tuple(Evidence("last good launch", 0, f"{key}: {then} -> {now}") for key, then, now in told)
        summary = finding.summary
        if told:
            summary += (
                " Changed since the last good launch: "
                + "; ".join(f"{k} {a} -> {b}" for k, a, b in told)
                + "."
            )
        result.append(replace(finding, summary=summary, evidence=(*finding.evidence, *extra)))
    return result


def with_ranks(findings: Sequence[Finding], names: Mapping[str, str]) -> list[Finding]:
    """Puts the plan's names into the subjects.

    Args:
        names: what logs call it -> what the plan calls it ("10.0.0.12" -> "gpu-node-2", "rank 13" -> "replica 0 rank 13").
    """
    result = []
    for finding in findings:
        subject = finding.subject
        for seen, planned in sorted(names.items(), key=lambda item: -len(item[0])):
            if not _whole(planned).search(subject) and (match := _whole(seen).search(subject)):
                subject = f"{subject[: match.start()]}{planned} ({seen}){subject[match.end() :]}"
        result.append(replace(finding, subject=subject))
    return result


def _whole(word: str) -> re.Pattern[str]:
    """The word, not as a part of another: 10.0.0.1 does not stand in 10.0.0.12, nor gpu-1 in gpu-1-b."""
    return re.compile(rf"(?<![\w.-]){re.escape(word)}(?![\w-]|\.\w)")

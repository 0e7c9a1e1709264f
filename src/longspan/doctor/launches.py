"""Compares a launch with the last good one, and names a plan's ranks in the findings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from longspan.finding import Evidence, Finding

# A change of one of these explains the causes it stands with.
_EXPLAINS: dict[str, tuple[str, ...]] = {
    "driver": ("driver-too-old", "cuda-driver-mismatch", "fabricmanager-down", "collective-hang"),
    "nccl": ("nccl-env-mismatch", "nccl-init-hang", "collective-hang", "collective-desync"),
    "ray": ("version-mismatch-ray", "ray-node-lost"),
    "python": ("version-mismatch-ray", "worker-env-differs"),
    "vllm": ("worker-env-differs", "model-arch-unsupported", "collective-desync"),
    "address": ("host-ip-mismatch", "nccl-wrong-interface", "gloo-wrong-interface"),
    "nic": ("nccl-wrong-interface", "gloo-wrong-interface", "ib-gid-mismatch"),
    "model": ("weights-corrupt", "model-path-missing", "oom-weights"),
    "arguments": ("oom-kv-cache", "oom-runtime", "parallel-config-invalid", "heads-not-divisible"),
}  # fmt: skip


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
            if seen in subject and planned not in subject:
                subject = subject.replace(seen, f"{planned} ({seen})" if planned != seen else seen, 1)
        result.append(replace(finding, subject=subject))
    return result

"""All checks, in the order in which people read them, and what they make of a scene. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from longspan.finding import Finding
from longspan.preflight import (
    checks_collective,
    checks_compare,
    checks_gpu,
    checks_network,
    checks_node,
    checks_pairs,
    checks_rails,
    checks_ray,
)
from longspan.preflight.check import Check, Outcome
from longspan.preflight.scene import Scene

GROUPS = ("hosts", "versions", "gpus", "model", "network", "pairs", "collective")
_ALL = (
    *checks_node.CHECKS, *checks_compare.CHECKS, *checks_gpu.CHECKS, *checks_network.CHECKS, *checks_pairs.CHECKS,
    *checks_collective.CHECKS, *checks_rails.CHECKS, *checks_ray.CHECKS,
)  # fmt: skip
CHECKS: tuple[Check, ...] = tuple(check for group in GROUPS for check in _ALL if check.group == group)


@dataclass(frozen=True, slots=True)
class Judged:
    """A check and what it saw."""

    check: Check
    outcome: Outcome


def judge(scene: Scene, checks: Sequence[Check] = CHECKS) -> tuple[Judged, ...]:
    """Every check's outcome. Where no node answered only the check that says so is asked."""
    if not scene.answering:
        checks = [check for check in checks if check.id == "reachable"]
    return tuple(Judged(check, check.judge(scene)) for check in checks)


def findings(judged: Sequence[Judged]) -> list[Finding]:
    """All findings, the worst first."""
    order = ("error", "warning", "info")
    found = [finding for one in judged for finding in one.outcome.findings]
    return sorted(found, key=lambda finding: order.index(finding.severity))

"""All that a deployment left to read: logs here, logs on other machines, and what was collected before its ranks were ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longspan.cli.check_hosts import RayHost
from longspan.daemon.places import Places, logs_elsewhere
from longspan.daemon.reach import host_of
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.doctor.collect import diagnose
from longspan.doctor.fetch import fetch_logs
from longspan.doctor.kept import FOLDER, kept, kernel_lines
from longspan.doctor.match import Diagnosis
from longspan.doctor.stacks import Collected, judge
from longspan.doctor.standing import as_context, judged, rank_states, standing
from longspan.finding import Finding
from longspan.host import Host

# A cause in the logs that is at least so sure explains what the survivors were waiting for.
EXPLAINED = 0.5


@dataclass(frozen=True, slots=True)
class Left:
    """What was read.

    Attributes:
        paths: the directories of logs.
        collected: what was taken from the hosts before the ranks were ended; empty where nothing was.
        missing: node -> why its logs were not read.
    """

    diagnosis: Diagnosis
    paths: tuple[Path, ...]
    collected: tuple[Collected, ...]
    missing: Mapping[str, str]


def _is_here(node: NodeSpec, logs: Path) -> bool:
    """An agent writes its logs on its own machine; what it collected comes here, wherever it runs."""
    try:
        return any(entry.name != FOLDER for entry in (logs / node.name).iterdir())
    except OSError:
        return False


def _where(node: NodeSpec, places: Places, spec: DeploymentSpec) -> tuple[Host, str] | None:
    """The door to a node whose logs are not here, and where they lie behind it; None for a node of this machine that has
    not written anything yet."""
    if node.is_here and node.container is None and spec.ray_address is None:
        return None
    if node.is_here and spec.ray_address is not None:
        return RayHost(node.name, node.address, spec.ray_address), str(places.logs / node.name)
    below_home = node.ssh is not None or node.container is not None
    folder = logs_elsewhere(spec.name, node.name) if below_home else str(places.logs / node.name)
    return host_of(node), folder


def read(places: Places, spec: DeploymentSpec) -> Left:
    """Reads all logs; those of nodes on other machines are fetched first: over ssh, by a job step or through Ray.

    Raises:
        LogUnreadableError: the logs here may not be read.
    """
    far = [node for node in spec.used_nodes() if not _is_here(node, places.logs)]
    missing = fetch_logs([w for node in far if (w := _where(node, places, spec))], places.fetched)
    collected = tuple(kept(places.logs))
    paths = (places.logs, places.fetched) if places.fetched.is_dir() else (places.logs,)
    nodes = {base / node.name: node.name for node in spec.used_nodes() for base in paths}
    diagnosis = diagnose(paths, kernel_lines(collected), nodes)
    return Left(diagnosis, paths, collected, missing)


def with_survivors(left: Left, status: Mapping[str, Any]) -> Diagnosis:
    """The diagnosis, and what the ranks that still lived at a failure were waiting for.

    Args:
        status: the last one of a launch; one without a failure has no survivors.
    """
    failure = status.get("failure")
    if not failure or not left.collected:
        return left.diagnosis
    then = {**status, "phase": failure["phase"]}
    states = rank_states(then)
    found: Sequence[Finding] = judge(states, left.collected)
    explained = any(
        f.cause != "insufficient-evidence" and f.confidence >= EXPLAINED for f in left.diagnosis.findings
    )
    found = as_context(found) if explained else judged(found, standing(then, states))
    return with_findings(left.diagnosis, found)


def with_findings(diagnosis: Diagnosis, more: Sequence[Finding]) -> Diagnosis:
    """The diagnosis with further findings in their place by confidence."""
    both = sorted([*diagnosis.findings, *more], key=lambda f: -f.confidence)
    return replace(diagnosis, findings=tuple(both))

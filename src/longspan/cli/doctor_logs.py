"""All that a deployment left to read: logs here, logs on other machines, and what was collected before its ranks were ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longspan.daemon.places import Places, logs_elsewhere
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.doctor.collect import diagnose
from longspan.doctor.fetch import fetch_logs
from longspan.doctor.kept import FOLDER, kept, kernel_lines
from longspan.doctor.match import Diagnosis
from longspan.doctor.stacks import Collected, judge
from longspan.doctor.standing import as_context, judged, rank_states, standing
from longspan.finding import Finding
from longspan.host import Host, SshHost

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


def read(places: Places, spec: DeploymentSpec, hosts: Mapping[str, Host] | None = None) -> Left:
    """Reads all logs; those of nodes that are reached by ssh are fetched first.

    Args:
        hosts: node -> how it is reached, in place of ssh.

    Raises:
        LogUnreadableError: the logs here may not be read.
    """
    far = [node for node in spec.used_nodes() if not _is_here(node, places.logs)]
    reach = hosts or {node.name: SshHost(node.name, node.ssh) for node in far if node.ssh is not None}
    wanted = [(reach[node.name], logs_elsewhere(spec.name, node.name)) for node in far if node.name in reach]
    failed = fetch_logs(wanted, places.fetched)
    nowhere = {node.name: "it is reached through Ray only" for node in far if node.name not in reach}
    if spec.ray_address is None:
        nowhere = {}  # a node of this machine that has not written anything yet
    collected = tuple(kept(places.logs))
    paths = (places.logs, places.fetched) if places.fetched.is_dir() else (places.logs,)
    nodes = {base / node.name: node.name for node in spec.used_nodes() for base in paths}
    diagnosis = diagnose(paths, kernel_lines(collected), nodes)
    return Left(diagnosis, paths, collected, {**failed, **nowhere})


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
    both = sorted([*left.diagnosis.findings, *found], key=lambda f: -f.confidence)
    return replace(left.diagnosis, findings=tuple(both))

"""What `longspan doctor` and a failed `longspan up` know beyond the logs: the deployment's plan, its live ranks, its last
good launch."""

import json
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from longspan.cli import control, doctor_logs
from longspan.daemon.launch_store import LaunchStore
from longspan.daemon.places import Places
from longspan.daemon.reach import host_of
from longspan.deployment import DeploymentSpec
from longspan.doctor.history import budgets_seconds
from longspan.doctor.launches import changes_since, model_of, plan_names, with_difference, with_ranks
from longspan.doctor.live import Target, examine
from longspan.doctor.match import Diagnosis
from longspan.doctor.stacks import Collected
from longspan.doctor.standing import Standing, judged, rank_states, standing
from longspan.errors import ControlPlaneError, HostError
from longspan.finding import Finding
from longspan.host import Host, LocalHost
from longspan.launch.phases import rank_of_title

Change = tuple[str, str, str]
# Nothing is waited for in these: it serves, or it is being ended already.
SETTLED = frozenset({"serving", "fencing", "failed", "stopping", "gone"})


@dataclass(frozen=True, slots=True)
class Seen:
    """What the doctor says of a deployment.

    Attributes:
        standing: what a live launch waits for; None where none is under way.
        changes: what differs from the last good launch; empty for one that serves.
        elsewhere: nodes whose logs lie on another machine and were not read, and why.
        names: what the plan and the hosts call themselves, to be taken out of what is shared.
        paths: the logs that were read; raw: what was collected from the hosts.
    """

    diagnosis: Diagnosis
    standing: Standing | None
    changes: tuple[Change, ...]
    elsewhere: Mapping[str, str]
    names: tuple[str, ...]
    paths: tuple[Path, ...] = ()
    raw: tuple[Collected, ...] = ()

    def to_json(self, name: str) -> dict[str, Any]:
        """What `--json` adds to the diagnosis."""
        return {
            "deployment": name,
            "live": self.standing.to_json() if self.standing else None,
            "changes": [{"what": what, "then": then, "now": now} for what, then, now in self.changes],
            "logs_elsewhere": sorted(self.elsewhere),
        }


def _document(path: Path) -> dict[str, Any]:
    """A JSON file of ours; empty where there is none, or none that can be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def spec_of(places: Places) -> DeploymentSpec | None:
    """The deployment that runs or ran here last; None where there was none."""
    document = _document(places.spec)
    return DeploymentSpec.from_json(document["spec"]) if "spec" in document else None


def budgets(places: Places, spec: DeploymentSpec) -> dict[str, float]:
    """What each phase may take, by the launches of this model that served under this name."""
    model = model_of(spec)
    good = LaunchStore(places.launches).good()
    return budgets_seconds([launch.seconds for launch in good if launch.made_of["deployment/model"] == model])


def has_run(places: Places) -> bool:
    """Whether there is something to say about a deployment of this name."""
    return places.logs.is_dir() and spec_of(places) is not None


def connected(
    findings: Sequence[Finding], places: Places, spec: DeploymentSpec, status: Mapping[str, Any]
) -> tuple[list[Finding], list[Change]]:
    """Findings with the plan's names and what changed since the last good launch, and all those changes."""
    facts = {node["name"]: node["facts"] for node in status.get("nodes", ())}
    changes = changes_since(LaunchStore(places.launches).last_good(), spec, facts, places.checked())
    return with_difference(with_ranks(findings, plan_names(spec, facts)), changes), changes


def targets(
    spec: DeploymentSpec, status: Mapping[str, Any], hosts: Sequence[tuple[frozenset[str], Host]]
) -> list[Target]:
    """The hosts to examine, each with the processes of its ranks.

    Args:
        hosts: from `reachable`.
    """
    found = []
    for nodes, host in hosts:
        rows = [row for row in status["ranks"] if row["planned_node"] in nodes]
        pids = {row["rank"]: row["pid"] for row in rows if row["pid"]}
        missing = {row["rank"] for row in rows} - pids.keys()
        if (
            missing
        ):  # a rank that hangs in NCCL's set-up has not announced itself, and its stack is the one that tells
            pids |= {rank: pid for rank, pid in worker_pids(host, spec.tp).items() if rank in missing}
        found.append(Target(host, pids))
    return found


def worker_pids(host: Host, tp: int) -> dict[int, int]:
    """rank -> pid of vLLM's workers on a host by their titles; a rank that two processes claim is left out."""
    try:
        lines = host.run(["ps", "-eww", "-o", "pid=,args="], timeout_seconds=20).stdout.splitlines()
    except HostError:
        return {}
    claims: list[tuple[int, int]] = []
    for line in lines:
        pid, _, title = line.strip().partition(" ")
        rank = rank_of_title(title.strip(), tp)
        if rank is not None and pid.isdigit():
            claims.append((rank, int(pid)))
    times = Counter(rank for rank, _ in claims)
    return {rank: pid for rank, pid in claims if times[rank] == 1}


def reachable(
    spec: DeploymentSpec, status: Mapping[str, Any], hostname: str
) -> list[tuple[frozenset[str], Host]]:
    """How the doctor reaches the nodes: all of this machine at once, the others by ssh or srun.

    Args:
        hostname: this machine's. A node of a joined Ray without ssh is reached only if it is this machine.
    """
    facts = {node["name"]: node["facts"] or {} for node in status["nodes"]}
    here: list[str] = []
    found: list[tuple[frozenset[str], Host]] = []
    for node in spec.used_nodes():
        if not node.is_here:
            found.append((frozenset({node.name}), host_of(node)))
        elif spec.ray_address is None or facts.get(node.name, {}).get("hostname") == hostname:
            here.append(node.name)
    return [(frozenset(here), LocalHost(", ".join(here))), *found] if here else found


def _status(places: Places) -> tuple[dict[str, Any], bool]:
    """The status, and whether a launch is under way; the last one's if its controller is gone or does not answer."""
    record = places.running()
    if record is not None:
        try:
            status = control.request(record, "/v1/status")
        except ControlPlaneError as error:
            click.echo(f"{error.what} Only the logs are read.", err=True)
        else:
            return status, status["phase"] not in SETTLED
    return _document(places.last_status), False


def look(places: Places) -> Seen:
    """Reads the logs of a deployment, on other machines too, and examines its hosts where a launch is under way; nothing
    is changed on them.

    Raises:
        LogUnreadableError: its logs may not be read.
    """
    spec = spec_of(places)
    assert spec is not None, "ask has_run first"
    status, under_way = _status(places)
    left = doctor_logs.read(places, spec)
    diagnosis, where, raw = left.diagnosis, None, left.collected
    if under_way:
        states = rank_states(status)
        where = standing(status, states, budgets(places, spec))
        hosts = reachable(spec, status, socket.gethostname())
        click.echo("Examining the hosts: stacks, sockets, counters …", err=True)
        found, live_raw = examine(targets(spec, status, hosts), states)
        raw = (*raw, *live_raw)
        diagnosis = doctor_logs.with_findings(diagnosis, judged(found, where))
    else:
        diagnosis = doctor_logs.with_survivors(left, status)
    findings, changes = connected(diagnosis.findings, places, spec, status)
    return Seen(
        replace(diagnosis, findings=tuple(findings)),
        where,
        () if status.get("phase") == "serving" else tuple(changes),
        left.missing,
        private_names(spec, status),
        left.paths,
        raw,
    )


def private_names(spec: DeploymentSpec, status: Mapping[str, Any]) -> tuple[str, ...]:
    """Node names, host names and ssh's users and hosts of a deployment: no bundle may carry them."""
    found = {node.name for node in spec.nodes}
    for node in spec.nodes:
        words = (node.ssh or "").split()
        found |= {part for word in words if not word.startswith("-") for part in word.split("@")}
    for row in status.get("nodes", ()):
        found.add(str((row["facts"] or {}).get("hostname") or ""))
    return tuple(sorted(found - {"", "localhost", "root"}))


def change_lines(changes: Sequence[Change]) -> list[str]:
    """The differences, for people."""
    return [f"  {what}: {then} -> {now}" for what, then, now in changes]


def print_seen(seen: Seen, name: str) -> None:
    """What people read after the diagnosis."""
    if where := seen.standing:
        over = f", {where.over_seconds:.0f} s too long" if where.over_seconds > 0 else ", within its time"
        click.echo(
            f"{name} stands in the phase {where.phase} for {where.seconds:.0f} s{over}; it waits for {where.who}."
        )
        click.echo(f"  look at: {where.next_probe}")
    if seen.changes:
        click.echo("Changed since the last good launch:")
        for line in change_lines(seen.changes):
            click.echo(line)
    for node, reason in seen.elsewhere.items():
        click.echo(f"Not read: the logs of {node}, which lie there: {reason}")

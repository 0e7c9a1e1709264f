"""How verbs run a pre-flight: hosts of a cluster file -> sessions, a scene -> findings, environment and what is kept."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from longspan.cli.check_hosts import host_of
from longspan.cli.joining import reservations_in
from longspan.cluster.hosts import HostsFile, NetworkWish
from longspan.deployment import DeploymentSpec, NodeSpec, RayPorts
from longspan.errors import CheckError
from longspan.finding import Finding
from longspan.preflight.catalogue import Judged, findings, judge
from longspan.preflight.run import Options, Target, preflight
from longspan.preflight.scene import Scene, Wanted
from longspan.units import format_seconds


@dataclass(frozen=True, slots=True)
class Checked:
    """A pre-flight's result."""

    scene: Scene
    judged: tuple[Judged, ...]
    seconds: float

    @property
    def findings(self) -> list[Finding]:
        """All findings, the worst first."""
        return findings(self.judged)

    def count(self, severity: str) -> int:
        """How many findings of a severity."""
        return sum(finding.severity == severity for finding in self.findings)


def run(
    nodes: Sequence[NodeSpec],
    hosts: HostsFile | None,
    options: Options,
    progress: Callable[[str], None],
    ray_address: str | None = None,
) -> Checked:
    """Runs the checks on these nodes, with what the cluster file says of their networks.

    Args:
        ray_address: of a Ray that runs already, by which nodes without ssh are reached.
    """
    networks = networks_of(hosts)
    targets = [
        Target(
            node.name, node.address, host_of(node, ray_address, options.model or ""), node.python, node.env
        )
        for node in nodes
    ]
    wanted = []
    for node in nodes:
        wish = networks.get(node.name, NetworkWish())
        wanted.append(
            Wanted(
                node.name, node.address, node.gpus, node.env, node.ssh, node.python, wish.interface, wish.hcas, wish.kind,
                wish.rate_bits_per_second,
            )
        )  # fmt: skip
    begun = time.monotonic()
    scene = preflight(targets, wanted, options, progress)
    if ray_address:
        scene = replace(scene, reservations=reservations_in(ray_address))
    return Checked(scene, judge(scene), time.monotonic() - begun)


def networks_of(hosts: HostsFile | None) -> dict[str, NetworkWish]:
    """What the file says of each host's network."""
    return {host.name: host.network for host in hosts.hosts} if hosts else {}


def options_for(spec: DeploymentSpec) -> Options:
    """The fast part, before a launch."""
    model = Path(spec.model)
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors")) if model.is_absolute() else 0
    ports = RayPorts(spec.ray_first_port) if spec.ray_first_port else None
    return Options(
        model=spec.model, weights_bytes=weights, own_ray=spec.ray_address is None,
        ray_ports=(ports.first, ports.last) if ports else (0, 0), fixed_ports=ports.tried if ports else (),
        tp=spec.tp, vllm_arguments=spec.vllm_arguments, collective=False, device=spec.device, digests_follow=True,
    )  # fmt: skip


def with_environment(spec: DeploymentSpec, scene: Scene) -> DeploymentSpec:
    """The deployment with the compiled values of each node; what the user set is kept as it is."""

    def complete(node: NodeSpec) -> NodeSpec:
        compiled = {
            one.variable: one.value
            for one in scene.environment.get(node.name, ())
            if one.origin == "compiled"
        }
        return replace(node, env={**compiled, **node.env})

    head = complete(spec.ray_head) if spec.ray_head else None
    return replace(spec, nodes=tuple(map(complete, spec.nodes)), ray_head=head)


def before_launch(spec: DeploymentSpec, hosts: HostsFile | None, progress: Callable[[str], None]) -> Checked:
    """Checks the nodes of a deployment, without the collective."""
    return run(spec.ray_nodes(), hosts, options_for(spec), progress, spec.ray_address)


def refuse_errors(checked: Checked) -> None:
    """Ends the verb where an error was found.

    Raises:
        CheckError: the first error with its remedy, and how many more there are.
    """
    errors = [finding for finding in checked.findings if finding.severity == "error"]
    if errors:
        more = (
            f" ({len(errors) - 1} more error{'s' if len(errors) > 2 else ''}: `longspan check` shows all.)"
            if len(errors) > 1
            else ""
        )
        raise CheckError(errors[0].summary + more, errors[0].remedy)


def here() -> NodeSpec:
    """This machine as the only node."""
    return NodeSpec("this-machine", "127.0.0.1", 0, python=sys.executable)


def by_cause(found: Iterable[Finding]) -> dict[tuple[str, str], list[Finding]]:
    """(severity, cause) -> its findings: what several nodes have in common is said once."""
    causes: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        causes.setdefault((finding.severity, finding.cause), []).append(finding)
    return causes


def finding_lines(checked: Checked) -> list[str]:
    """A line a cause, with the names of the nodes that share it."""
    lines = []
    for (severity, _), found in by_cause(checked.findings).items():
        likewise = f" (likewise {', '.join(one.subject for one in found[1:])})" if len(found) > 1 else ""
        lines.append(f"{severity}: {found[0].summary}{likewise} {found[0].remedy}")
    return lines


def summary(checked: Checked) -> str:
    """The last line."""
    states = [one.outcome.state for one in checked.judged]
    errors, warnings = checked.count("error"), checked.count("warning")
    skipped = states.count("skipped")
    return (
        f"{errors} error{'s' if errors != 1 else ''}, {warnings} warning{'s' if warnings != 1 else ''};"
        f" {states.count('ok')} checks passed, {skipped} skipped, in {format_seconds(checked.seconds)}"
    )

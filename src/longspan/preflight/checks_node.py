"""Checks that look at each node by itself: reachable, installed, with the limits, memory and disk that ranks need."""

from longspan.finding import Finding, Severity
from longspan.preflight.check import Check, Outcome, finding, together, unknown
from longspan.preflight.facts import NodeFacts
from longspan.preflight.scene import Scene
from longspan.units import GIB, MIB, format_bytes

# vLLM's documentation asks for this much shared memory in containers on GPU nodes (docs/deployment/docker.md).
SHM_GPU_BYTES = 16 * GIB
# Ray's object store (200 MiB as we start it) and the engine's message queues must fit.
SHM_LEAST_BYTES = 512 * MIB
NOFILE_WANTED, NOFILE_LEAST = 65536, 4096
DISK_LEAST_BYTES = GIB
# Ray kills workers when a node uses 95 % of its memory (RAY_memory_usage_threshold's default).
RAY_MEMORY_SHARE = 0.95


def reachable(scene: Scene) -> Outcome:
    """Every node answered over its session."""
    found = []
    for node in scene.nodes:
        if node.refused is not None:
            cause, what, remedy = node.refused
            found.append(
                finding(
                    node.name,
                    "error",
                    cause,
                    f"{node.name} cannot be used: {what}.",
                    remedy,
                    where="ssh",
                    evidence=what,
                )
            )
    return Outcome(tuple(found), seen=f"{len(scene.answering)} of {len(scene.nodes)} nodes answer")


def installed(scene: Scene) -> Outcome:
    """Longspan, Ray and the engine are there for the interpreter that will run them."""
    found: list[Finding] = []
    workers = {node.name for node in scene.workers}
    for node in scene.answering:
        missing = [name for name in ("longspan", "ray") if name not in node.packages]
        # A head without GPU runs Ray only.
        missing += ["vllm"] if not node.vllm and node.name in workers else []
        if missing and "packages" not in node.unknown:
            found.append(
                finding(
                    node.name, "error", "engine-missing",
                    f"{together(missing)} {'is' if len(missing) == 1 else 'are'} not installed for {node.executable} on {node.name}.",
                    "Install the same environment as on the other nodes there, or name the interpreter that has it with"
                    " python = … in the cluster file.",
                    where="importlib.metadata", evidence=", ".join(f"{k} {v}" for k, v in node.packages.items()) or "nothing found",
                )
            )  # fmt: skip
    return Outcome(
        tuple(found),
        unknown(scene.answering, "packages"),
        "Longspan, Ray and vLLM on every node that needs them",
    )


def open_files(scene: Scene) -> Outcome:
    """The hard limit counts: the agent raises the soft one to it."""
    found = []
    for node in scene.answering:
        limit = node.limits.get("nofile_hard", -1)
        if limit < 0 or limit >= NOFILE_WANTED:
            continue
        found.append(
            finding(
                node.name, "error" if limit < NOFILE_LEAST else "warning", "ulimit-nofile",
                f"{node.name} allows {limit} open files (hard limit), Ray and its workers want {NOFILE_WANTED}.",
                f"Raise it: `{node.user} hard nofile 1048576` in /etc/security/limits.conf (LimitNOFILE in a systemd unit,"
                " --ulimit nofile for a container), then log in anew.",
                where="getrlimit", evidence=f"RLIMIT_NOFILE {node.limits.get('nofile')} soft, {limit} hard",
            )
        )  # fmt: skip
    return Outcome(tuple(found), unknown(scene.answering, "limits"), f"{NOFILE_WANTED} or more")


def locked_memory(scene: Scene) -> Outcome:
    """RDMA registers memory, which must be lockable; sockets do not care."""
    if not any(scene.value(node.name, "NCCL_IB_HCA") for node in scene.answering):
        return Outcome(skipped="no RDMA is planned, and sockets lock no memory")
    found = [
        finding(
            node.name, "error", "ulimit-memlock",
            f"{node.name} allows {format_bytes(limit)} of locked memory; RDMA registers its buffers, and NCCL fails with"
            " “ibv_reg_mr failed: Cannot allocate memory”.",
            f"`{node.user} - memlock unlimited` in /etc/security/limits.conf (LimitMEMLOCK=infinity, --ulimit memlock=-1).",
            where="getrlimit", evidence=f"RLIMIT_MEMLOCK {limit}",
        )
        for node in scene.answering
        if (limit := node.limits.get("memlock", -1)) >= 0
    ]  # fmt: skip
    return Outcome(tuple(found), unknown(scene.answering, "limits"), "unlimited")


def shared_memory(scene: Scene) -> Outcome:
    """Room in /dev/shm for the object store and for NCCL and vLLM between the processes of a node."""
    found = []
    for node in scene.answering:
        if not node.shm:
            continue
        total, free = int(node.shm["total"]), int(node.shm["free"])
        remedy = "`mount -o remount,size=16G /dev/shm` (--shm-size 16g or --ipc host for a container; a medium: Memory volume in Kubernetes)."
        evidence = f"/dev/shm: {format_bytes(free)} free of {format_bytes(total)}"
        if free < SHM_LEAST_BYTES:
            found.append(
                finding(
                    node.name, "error", "shm-too-small",
                    f"/dev/shm on {node.name} has {format_bytes(free)} free; Ray's object store and the engine's queues need"
                    f" {format_bytes(SHM_LEAST_BYTES)} at least, and fail with “No space left on device” or a bus error.",
                    remedy if total < SHM_GPU_BYTES else "Remove what fills it: `ls -la /dev/shm`.", where="statvfs", evidence=evidence,
                )
            )  # fmt: skip
        elif node.gpus and total < SHM_GPU_BYTES:
            found.append(
                finding(
                    node.name, "warning", "shm-small",
                    f"/dev/shm on {node.name} is {format_bytes(total)}; vLLM's documentation asks for {format_bytes(SHM_GPU_BYTES)} on GPU nodes.",
                    remedy, where="statvfs", evidence=evidence,
                )
            )  # fmt: skip
    return Outcome(tuple(found), unknown(scene.answering, "shm"), "enough")


def stale_shared_memory(scene: Scene) -> Outcome:
    """Segments that nobody maps are what a killed engine left; restart after restart they fill /dev/shm."""
    found = []
    for node in scene.answering:
        stale = list(node.shm.get("stale", ()))
        if stale:
            found.append(
                finding(
                    node.name, "warning", "shm-stale",
                    f"/dev/shm on {node.name} holds {format_bytes(int(node.shm['stale_bytes']))} in {len(stale)} file(s) of engines that are gone.",
                    f"On {node.name}: `rm {' '.join('/dev/shm/' + name for name in stale[:4])}`{' …' if len(stale) > 4 else ''}.",
                    where="/proc/*/maps", evidence=", ".join(stale[:6]),
                )
            )  # fmt: skip
    return Outcome(tuple(found), unknown(scene.answering, "shm"), "none")


def memory(scene: Scene) -> Outcome:
    """Host memory: what Ray's memory monitor and the control group leave for loading the weights."""
    found = []
    for node in scene.answering:
        if not node.memory:
            continue
        total, available, limit = (node.memory[key] for key in ("total", "available", "limit"))
        share = scene.weights_bytes // max(1, len(scene.workers))
        if available < (1 - RAY_MEMORY_SHARE) * total:
            found.append(
                finding(
                    node.name, "error", "memory-full",
                    f"{node.name} has {format_bytes(available)} of {format_bytes(total)} memory available; from 95 % use on Ray"
                    " kills workers.",
                    "Stop what fills it (`ps aux --sort=-rss | head`).", where="/proc/meminfo", evidence=f"MemAvailable {available}",
                )
            )  # fmt: skip
        if limit and limit < share + 8 * GIB and limit < total:
            found.append(
                finding(
                    node.name, "warning", "memory-limit",
                    f"The control group of the session on {node.name} is limited to {format_bytes(limit)}; a node's share of the weights"
                    f" is {format_bytes(share)}, and processes and buffers want about 8 GiB beside it.",
                    "Raise the container's or the job's memory limit.", where="memory.max", evidence=str(limit),
                )
            )  # fmt: skip
    return Outcome(tuple(found), unknown(scene.answering, "memory"), "enough")


def disk(scene: Scene) -> Outcome:
    """Room for Ray's files in /tmp, and for the weights where they must still be fetched."""
    found = []
    for node in scene.answering:
        temp = node.disks.get("tmp")
        if temp and temp["free"] < max(DISK_LEAST_BYTES, 0.05 * temp["total"]):
            severity: Severity = "error" if temp["free"] < DISK_LEAST_BYTES else "warning"
            found.append(
                finding(
                    node.name, severity, "disk-full",
                    f"/tmp on {node.name} has {format_bytes(temp['free'])} free of {format_bytes(temp['total'])}; Ray needs 1 GiB for"
                    " logs and sockets, and takes no more objects when the disk is over 95 % full.",
                    "Free some.", where="statvfs", evidence=f"{temp['free']} of {temp['total']} bytes",
                )
            )  # fmt: skip
        cache = node.disks.get("hub cache")
        need = round(scene.weights_bytes * 1.1)
        if cache and node.hub and not node.hub.get("cached") and need > cache["free"]:
            found.append(
                finding(
                    node.name, "error", "disk-full",
                    f"{node.name} must fetch {format_bytes(scene.weights_bytes)} of weights, its hub cache has {format_bytes(cache['free'])} free.",
                    "Free some, or set HF_HOME to a larger disk (env = { HF_HOME = … } in the cluster file).",
                    where="statvfs", evidence=f"{cache['free']} bytes free",
                )
            )  # fmt: skip
    return Outcome(tuple(found), unknown(scene.answering, "disks"), "enough")


def leftovers(scene: Scene) -> Outcome:
    """Engines and Rays that run already share ports, memory and GPUs with ours."""
    found = []
    for node in scene.answering:
        kinds = [
            (pid, name)
            for pid, name in node.processes
            if scene.own_ray or not name.startswith(("raylet", "gcs", "ray::"))
        ]
        if kinds:
            told = ", ".join(f"{name} (pid {pid})" for pid, name in kinds[:6])
            found.append(
                finding(
                    node.name, "warning", "leftover-processes",
                    f"{node.name} runs {told}{' and more' if len(kinds) > 6 else ''} already.",
                    "If they belong to nobody, end them by pid; `longspan down` ends its own. Not `ray stop`: it ends every Ray on the machine.",
                    where="/proc", evidence=told,
                )
            )  # fmt: skip
    return Outcome(tuple(found), unknown(scene.answering, "processes"), "none")


def own_ports(scene: Scene) -> Outcome:
    """The ports that our Ray will use are free."""
    if not scene.own_ray or scene.ray_ports == (0, 0):
        return Outcome(skipped="Longspan starts no Ray on fixed ports here")
    first, last = scene.ray_ports
    found: list[Finding] = []
    for node in scene.answering:
        held = [one for one in node.ports_held if first <= one.port <= last]
        found += [_held(node, one.port, one.holder or "another user's process", scene) for one in held[:3]]
    return Outcome(tuple(found), unknown(scene.answering, "listeners"), f"{first} to {last} are free")


def _held(node: NodeFacts, port: int, holder: str, scene: Scene) -> Finding:
    first, last = scene.ray_ports
    return finding(
        node.name, "error", "port-taken", f"Port {port} on {node.name}, one of {first} to {last} that Ray will use, is held by {holder}.",
        "Stop it (`longspan down`, if it is an older deployment of yours), or move ours: [ray] first_port = … in the cluster file.",
        where="/proc/net/tcp", evidence=f"{port} {holder}",
    )  # fmt: skip


def ephemeral_range(scene: Scene) -> Outcome:
    """The kernel hands out no port of ours for an outgoing connection, and has enough for the engine's rendezvous."""
    found = []
    first, last = scene.ray_ports
    for node in scene.answering:
        low, high = node.ephemeral
        if not high:
            continue
        kept = any(a <= first and last <= b for a, b in node.reserved)
        if last and scene.own_ray and low <= last and first <= high and not kept:
            found.append(
                finding(
                    node.name, "warning", "ports-ephemeral",
                    f"{node.name} hands out ports {low} to {high} to outgoing connections, Ray's {first} to {last} among them, so that one may"
                    " be taken when Ray starts.",
                    f"`sysctl net.ipv4.ip_local_reserved_ports={first}-{last}`, or choose other ports: [ray] first_port = … in the cluster file.",
                    where="ip_local_port_range", evidence=f"{low} {high}",
                )
            )  # fmt: skip
        if high - low < 5000:
            found.append(
                finding(
                    node.name, "warning", "ports-few",
                    f"{node.name} has only {high - low + 1} ephemeral ports; vLLM's rendezvous and message queues use random ones.",
                    "`sysctl net.ipv4.ip_local_port_range='32768 60999'`.", where="ip_local_port_range", evidence=f"{low} {high}",
                )
            )  # fmt: skip
    return Outcome(tuple(found), unknown(scene.answering, "ephemeral"), "apart from Ray's ports")


CHECKS = (
    Check("reachable", "hosts", "every node answers over ssh", "an agent must be started on each node", "ssh HOST true", "", reachable),
    Check("installed", "versions", "Longspan and Ray on every node, vLLM on every node with ranks", "a node without them cannot take part",
          "python -m pip list", "gpustack#5430", installed),
    Check("open-files", "hosts", f"hard limit of at least {NOFILE_WANTED} open files (error below {NOFILE_LEAST})",
          "Ray's workers and their sockets run out of descriptors", "ulimit -Hn", "ray#24920", open_files),
    Check("locked-memory", "hosts", "unlimited, where RDMA is used", "NCCL cannot register its buffers", "ulimit -l", "nccl-tests#206",
          locked_memory),
    Check("shared-memory", "hosts", "/dev/shm has 512 MiB free; 16 GiB in all on GPU nodes", "NCCL and vLLM die with a bus error or ENOSPC",
          "df -h /dev/shm", "dynamo#1408", shared_memory),
    Check("stale-shared-memory", "hosts", "no segment of an engine that is gone", "they fill /dev/shm over restarts", "ls -la /dev/shm",
          "llm-d#352", stale_shared_memory),
    Check("memory", "hosts", "5 % available, and a control-group limit above the node's share of the weights plus 8 GiB",
          "Ray kills workers at 95 %, the kernel at the limit", "free -b; cat memory.max", "vllm#2269", memory),
    Check("disk", "hosts", "1 GiB and 5 % of /tmp, and 1.1 x the weights where they must be fetched", "Ray and downloads fail half way",
          "df -h /tmp", "llamafactory#327", disk),
    Check("leftovers", "hosts", "no engine or Ray runs already", "they hold GPUs, ports and shared memory", "ps; nvidia-smi", "vllm#29265",
          leftovers),
    Check("ray-ports", "network", "nobody listens on the ports that our Ray will use", "Ray fails to start, or another's answers",
          "ss -ltnp", "", own_ports),
    Check("ephemeral-range", "network", "Ray's ports outside the kernel's ephemeral range, at least 5000 ports in it",
          "an outgoing connection may take one of Ray's ports", "sysctl net.ipv4.ip_local_port_range", "vllm#19670", ephemeral_range),
)  # fmt: skip

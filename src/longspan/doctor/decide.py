"""Where one text has several causes: small functions that read the surroundings and choose."""

import re
from collections.abc import Callable

from longspan.doctor.addresses import kind_of_address, same_subnet
from longspan.doctor.collectives import compare, works_of
from longspan.doctor.rules.rule import Rule
from longspan.doctor.scene import Guess, Scene
from longspan.doctor.timeline import Event

Decider = Callable[[Event, Rule, Scene], Guess]


def default(event: Event, rule: Rule, scene: Scene) -> Guess:
    """What the rule itself says."""
    return Guess(rule.cause, rule.weight, rule.also, remedy=rule.remedy)


def nccl_connect(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A virtual or foreign address is the wrong interface; a right one is a closed port or a dead peer."""
    peer = event.hit.groups.get("peer") or event.hit.groups.get("peer2") or ""
    kind, text = kind_of_address(peer.split("<")[0]), event.hit.text
    own = [a for a in scene.own_addresses() if not kind_of_address(a)]
    near = any(same_subnet(peer, a) for a in own)
    if any(same_subnet(peer, a, 2) for a in own) and kind == "docker bridge":
        kind = ""
    if kind:
        return Guess(
            "nccl-wrong-interface", max(rule.weight, 0.9), ("port-blocked",), f"{peer} is a {kind} address"
        )
    if "refused" in text:
        return Guess(
            "port-blocked",
            0.7,
            ("nccl-peer-died-first", "nccl-wrong-interface"),
            f"{peer} refused the connection",
        )
    if "timed out" in text and near:
        return Guess(
            "port-blocked",
            0.75,
            ("nccl-wrong-interface",),
            f"{peer} is in the same subnet and does not answer",
        )
    return Guess("nccl-wrong-interface", rule.weight, ("port-blocked",))


def missing_nic(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A NIC name that works on one node and is missing on another was forwarded with the driver's environment."""
    nic = event.hit.groups.get("nic") or ""
    failing = {e.hit.node for e in scene.of(rule.id)}
    elsewhere = [
        e
        for e in scene.of("nccl-bootstrap", "world", "rank-assigned", "init-start")
        if e.hit.node not in failing
    ]
    forwarded = bool(scene.of("env-forwarded"))
    if kind_of_address(nic):
        return Guess(rule.cause, rule.weight, rule.also)
    if forwarded or (elsewhere and any(failing)):
        return Guess(
            "node-env-forwarded",
            0.85 if forwarded else 0.6,
            (rule.cause,),
            "the name exists on another node only",
        )
    return Guess(rule.cause, rule.weight, rule.also)


def store_address(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A store at a bridge's or loopback address was advertised wrongly; at a right one the port is closed."""
    peer = event.hit.groups.get("peer") or event.hit.groups.get("peer2") or ""
    kind = kind_of_address(peer)
    if kind and not (kind == "loopback" and rule.kind == "wait"):
        return Guess(
            "host-ip-mismatch", max(rule.weight, 0.85), ("port-blocked",), f"{peer} is a {kind} address"
        )
    return Guess("port-blocked", rule.weight, ("host-ip-mismatch", "nccl-peer-died-first"))


def watchdog(event: Event, rule: Rule, scene: Scene) -> Guess:
    """Compares the sequence numbers of all ranks."""
    result = compare(works_of(e.hit for e in scene.of("nccl-watchdog", "nccl-watchdog-seq")), scene.world())
    if result.verdict == "desync":
        return Guess("collective-desync", 0.88, ("collective-hang",), f"ranks differ in {result.differing}")
    died = [
        e
        for e in scene.of("worker-proc-died", "ray-worker-died", "ray-worker-eof", "segfault", "exit-137")
        if _not_later(e, event)
    ]
    if died:
        return Guess(
            "nccl-peer-died-first", 0.8, ("worker-killed",), "a worker ended before the watchdog spoke"
        )
    if result.verdict == "peer-died":
        missing = ", ".join(str(r) for r in result.missing)
        return Guess(
            "nccl-peer-died-first", 0.78, ("collective-hang",), f"no watchdog line of rank {missing}"
        )
    if result.verdict == "equal":
        return Guess(
            "collective-hang",
            0.8,
            ("nccl-peer-died-first",),
            f"{len(result.works)} ranks wait in the same collective",
        )
    return Guess("collective-hang", rule.weight, rule.also)


def _not_later(one: Event, other: Event) -> bool:
    if one.when_seconds is not None and other.when_seconds is not None:
        return one.when_seconds <= other.when_seconds + 5
    return one.hit.order <= other.hit.order


def nccl_generic(event: Event, rule: Rule, scene: Scene) -> Guess:
    """Different NCCL versions on the nodes explain what NCCL itself does not."""
    versions = {v for e in scene.of("nccl-starts") if (v := e.hit.groups.get("nccl"))}
    if len(versions) > 1:
        return Guess("nccl-env-mismatch", 0.85, (), f"NCCL {' and '.join(sorted(versions))} run together")
    drivers = {d for e in scene.of("driver-version") if (d := e.hit.groups.get("driver"))}
    if len(drivers) > 1:
        return Guess(
            "driver-too-old",
            0.8,
            ("cuda-driver-mismatch",),
            f"drivers {' and '.join(sorted(drivers))} run together",
        )
    return default(event, rule, scene)


_GID = re.compile(r"(local|remote) ?[Gg][Ii][Dd]s?:? (?!index)(?P<gid>[0-9a-fA-F:.]+)")


def _gids(text: str) -> tuple[str, str]:
    found = {m[1]: m["gid"].rstrip(".,") for m in _GID.finditer(text)}
    return found.get("local", ""), found.get("remote", "")


def _gid_kind(gid: str) -> str:
    if not gid:
        return ""
    return (
        "link-local"
        if gid.lower().startswith("fe80")
        else "ipv4"
        if "ffff:" in gid.lower() and "." in gid
        else "other"
    )


def ib_completion(event: Event, rule: Rule, scene: Scene) -> Guess:
    """GIDs of different kinds in the line itself are a mismatch; otherwise the transport gave up."""
    local, remote = _gids(event.hit.text)
    if local and remote and _gid_kind(local) != _gid_kind(remote):
        return Guess("ib-gid-mismatch", 0.9, ("ib-transport-error",), f"{local} talks to {remote}")
    if event.hit.groups.get("status") == "5":
        return Guess(
            "nccl-peer-died-first", 0.5, ("ib-transport-error",), "status 5 only flushes after another error"
        )
    if rule.id == "ib-completion-error" and scene.phase_before(event) >= 9:
        return Guess("ib-transport-error", 0.8, ("ib-gid-mismatch",), "it had worked before")
    return default(event, rule, scene)


def ib_modify_qp(event: Event, rule: Rule, scene: Scene) -> Guess:
    """Unreachable is a GID without route; timed out towards another subnet is another rail."""
    text = event.hit.text
    why = (event.hit.groups.get("why") or event.hit.groups.get("why2") or "").lower()
    local, remote = _gids(text)
    if local and remote and _gid_kind(local) != _gid_kind(remote):
        return Guess("ib-gid-mismatch", 0.9, ("ib-transport-error",), f"{local} talks to {remote}")
    if "unreachable" in why or "no such device" in why or "invalid argument" in why or "101" in why:
        return Guess("ib-gid-mismatch", 0.88, ("ib-transport-error",))
    if "memory" in why:
        return Guess("memlock-limit", 0.85)
    if "timed out" in why or "110" in why:
        if local and remote and not same_subnet(local.rsplit(":", 1)[-1], remote.rsplit(":", 1)[-1]):
            return Guess(
                "ib-cross-rail",
                0.88,
                ("ib-transport-error",),
                f"{local} and {remote} are on different subnets",
            )
        if "next state RTR" in text:
            return Guess("ib-cross-rail", 0.75, ("ib-transport-error", "ib-gid-mismatch"))
        return Guess("ib-transport-error", 0.85, ("ib-cross-rail", "ib-gid-mismatch"))
    return default(event, rule, scene)


def cannot_assign(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A side channel's address is the driver's; a store's or server's own is an old or foreign VLLM_HOST_IP."""
    text = event.hit.text
    if scene.of("nixl", "env-forwarded") or re.search(r"nixl|NIXL|side.?channel|:5[56]\d\d\b", text):
        return Guess("node-env-forwarded", 0.88, ("host-ip-mismatch",))
    on_worker = bool(event.hit.head.node) or "Worker" in event.hit.head.process
    if "tcp://" in text and on_worker:
        return Guess(
            "node-env-forwarded",
            0.75,
            ("host-ip-mismatch",),
            "a worker tries to listen on another node's address",
        )
    if "tcp://" in text:
        return Guess("node-env-forwarded", 0.6, ("host-ip-mismatch",))
    return Guess("host-ip-mismatch", 0.75, ("node-env-forwarded",))


def gcs_lost(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A head that was reached before has died; one that never answered is not reachable."""
    if re.search(r"address (?:=|at )?:6379|--address=:|at :\d+", event.hit.text):
        return Guess(
            "ray-head-unreachable",
            0.92,
            (),
            "the head's address is empty",
            "Pass --address=HEAD:6379 with the head's address.",
        )
    earlier = [e for e in scene.of("ray-connected", "world") if e.hit.order < event.hit.order]
    later_node_loss = scene.of("node-marked-dead")
    if earlier or later_node_loss or scene.phase_before(event) >= 3:
        return Guess(
            "nccl-peer-died-first",
            0.7,
            ("ray-head-unreachable", "ray-node-lost"),
            "the head had been reached before",
        )
    return default(event, rule, scene)


def node_lost(event: Event, rule: Rule, scene: Scene) -> Guess:
    """Names the node."""
    match = re.search(r"address: (\S+)", event.hit.text)
    return Guess(rule.cause, rule.weight, rule.also, f"node {match[1]}" if match else "")


def module_missing(event: Event, rule: Rule, scene: Scene) -> Guess:
    """On a worker only: that node's environment differs. On the driver: its own lacks it."""
    head, module = event.hit.head, event.hit.groups.get("module") or ""
    if (
        module.startswith("transformers_modules")
        or "ray::" in event.hit.text
        or head.node
        or head.process.startswith(("RayWorker", "raylet"))
    ):
        where = f" on {event.hit.node}" if event.hit.node else ""
        return Guess("worker-env-differs", rule.weight, (), f"{module or 'a library'} is missing{where}")
    if scene.of("frame-weights", "world", "ray-connected"):
        return Guess("worker-env-differs", 0.7)
    return Guess("worker-env-differs", 0.6)


def model_path(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A path inside the hub's cache is a download that this node never made."""
    if re.search(r"/hub/models--|\.cache/huggingface", event.hit.text):
        return Guess(
            "hf-download-failed",
            0.8,
            ("model-path-missing",),
            "the path lies in another node's download cache",
        )
    return default(event, rule, scene)


def on_one_node(event: Event, rule: Rule, scene: Scene) -> Guess:
    """Believed more where only some nodes say it."""
    failing, nodes = {e.hit.node for e in scene.of(rule.id)}, scene.nodes()
    return Guess(rule.cause, 0.7 if failing and failing < nodes else 0.35)


# How Ray calls the share of a resource that a placement group reserved.
_HELD = re.compile(r"\b(?:GPU|bundle)_group_")


def node_no_gpu(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A node whose resources name a placement group's bundle has GPUs, and that group holds them."""
    if _HELD.search(event.hit.text):
        return Guess(
            "stale-placement-group",
            0.9,
            ("gpu-not-visible-to-ray",),
            "a placement group holds the node's GPUs",
        )
    return default(event, rule, scene)


def placement(event: Event, rule: Rule, scene: Scene) -> Guess:
    """`ray status` in the same log tells too few GPUs from GPUs in use."""
    for status in reversed(scene.of("ray-gpus")):
        total, used = float(status.hit.groups["total"] or 0), float(status.hit.groups["used"] or 0)
        reserved = float(status.hit.groups["reserved"] or 0)
        if total == 0:
            return Guess(
                "gpu-not-visible-to-ray", 0.85, ("placement-group-unsatisfied",), "Ray knows of no GPU"
            )
        if used >= total or reserved >= total:
            return Guess(
                "stale-placement-group",
                0.85,
                ("placement-group-unsatisfied",),
                f"{used:g} of {total:g} GPUs are in use",
            )
    if _HELD.search(event.hit.text):
        return Guess("stale-placement-group", 0.85, ("placement-group-unsatisfied",))
    return default(event, rule, scene)


def worker_exit(event: Event, rule: Rule, scene: Scene) -> Guess:
    """Beside a watchdog's time-out the death explains the time-out."""
    if scene.of("nccl-watchdog", "nccl-watchdog-seq"):
        return Guess(
            "nccl-peer-died-first",
            0.8,
            ("worker-killed",),
            "the watchdog's time-out followed a worker's death",
        )
    code = event.hit.groups.get("code")
    return Guess("worker-killed", rule.weight, rule.also, f"exit code {code}" if code else "")


_OURS = re.compile(r"(?i)vllm|ray|python|pt_main|engine|worker|sglang|nccl|load|uvicorn")


def oom_victim(event: Event, rule: Rule, scene: Scene) -> Guess:
    """The kernel kills other programs too."""
    groups = event.hit.groups
    victim = groups.get("victim") or groups.get("victim2") or groups.get("victim3") or ""
    if victim and not _OURS.search(victim):
        return Guess("oom-host-ram", 0.05, (), f"the kernel killed {victim}")
    return Guess("oom-host-ram", rule.weight, (), f"the kernel killed {victim}" if victim else "")


_SHM = re.compile(
    r"/dev/shm|nccl-\w|</torch_\d|psm_|sem\.|shmutils|shared memory|posix_fallocate|SharedMemory|shm_open"
)


def no_space(event: Event, rule: Rule, scene: Scene) -> Guess:
    """The path tells /dev/shm from a disk; without a path the traceback does."""
    if _SHM.search(event.hit.text):
        return Guess("shm-too-small", 0.93, ("disk-full",))
    if "frame-shm" in scene.frames_above(event)[:12]:
        return Guess("shm-too-small", 0.85, ("disk-full",))
    return Guess("disk-full", rule.weight, ("shm-too-small",))


_GIB = r"(\d+(?:\.\d+)?) ([KMGT])iB"
_UNIT = {"K": 1 / 2**20, "M": 1 / 2**10, "G": 1.0, "T": 2.0**10}


def _amount(pattern: str, text: str) -> float:
    match = re.search(pattern.replace("SIZE", _GIB), text)
    return float(match[1]) * _UNIT[match[2]] if match else 0.0


def cuda_oom(event: Event, rule: Rule, scene: Scene) -> Guess:
    """Who holds the memory, then where the traceback stands, then how far the launch had come."""
    text = event.hit.text
    total = _amount(r"total capacity of SIZE", text)
    own = _amount(r"this process has SIZE", text) or _amount(r"Of the allocated memory SIZE", text)
    free = _amount(r"of which SIZE is free", text)
    if total and own and total - own - free > 0.4 * total:
        return Guess(
            "gpu-memory-taken",
            0.85,
            ("oom-weights", "oom-runtime"),
            f"others hold {total - own - free:.0f} GiB",
        )
    for means in scene.frames_above(event):
        if means == "frame-weights":
            return Guess("oom-weights", 0.92, ("gpu-memory-taken",), "while the model was built")
        if means == "frame-kv":
            return Guess(
                "oom-kv-cache", 0.75, ("oom-runtime", "gpu-memory-taken"), "while the KV cache was allocated"
            )
        if means == "frame-runtime":
            return Guess("oom-runtime", 0.92, ("gpu-memory-taken",), "at warm-up, capture or while serving")
    phase = scene.phase_before(event)
    if phase >= 6:
        return Guess("oom-runtime", 0.9, ("gpu-memory-taken",), "after the weights were loaded")
    if phase == 5:
        return Guess("oom-weights", 0.88, ("gpu-memory-taken",), "while the weights were loading")
    return Guess("oom-runtime", 0.5, ("oom-weights", "gpu-memory-taken"))


def hang_phase(event: Event, rule: Rule, scene: Scene) -> Guess:
    """Before the communicators stand it hangs in their set-up; after, in a collective; while loading it may just be slow."""
    phase, count = scene.phase_before(event), sum(e.hit.count for e in scene.of(rule.id))
    if scene.of("rendezvous", "autotune-start") and phase < 9:
        return Guess("nccl-init-hang", 0.7, ("collective-hang",))
    if phase in (3, 4):
        return Guess(
            "nccl-init-hang", 0.7, ("collective-hang", "port-blocked"), "the communicators were never built"
        )
    if rule.id == "core-wait":
        return Guess(
            "nccl-init-hang", 0.5 if phase < 3 else 0.35, ("insufficient-evidence", "collective-hang")
        )
    if phase == 5:
        return Guess("collective-hang", 0.45, ("insufficient-evidence",), "the weights may just load slowly")
    return Guess("collective-hang", rule.weight if count > 1 else 0.6, rule.also)


DECIDERS: dict[str, Decider] = {
    "": default, "nccl_connect": nccl_connect, "missing_nic": missing_nic, "store_address": store_address, "watchdog": watchdog,
    "nccl_generic": nccl_generic, "ib_completion": ib_completion, "ib_modify_qp": ib_modify_qp, "cannot_assign": cannot_assign,
    "gcs_lost": gcs_lost, "node_lost": node_lost, "module_missing": module_missing, "on_one_node": on_one_node,
    "node_no_gpu": node_no_gpu, "model_path": model_path, "placement": placement, "worker_exit": worker_exit, "oom_victim": oom_victim, "no_space": no_space,
    "cuda_oom": cuda_oom, "hang_phase": hang_phase,
}  # fmt: skip

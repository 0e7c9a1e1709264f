"""What network texts mean where their surroundings decide: addresses, NICs, watchdogs, RDMA, hangs."""

import re
from itertools import combinations

from longspan.doctor.addresses import kind_of_address, same_subnet
from longspan.doctor.collectives import compare, works_of
from longspan.doctor.deciders.plain import default
from longspan.doctor.rules.rule import Rule
from longspan.doctor.scene import Guess, Scene
from longspan.doctor.timeline import Event

# Bridges and overlays of one host's containers, machines and tunnels: other hosts do not reach what listens there.
_VIRTUAL_NIC = re.compile(r"docker|virbr|veth|br-|cni|flannel|cali|vmnet|tailscale|wg\d|tun\d|lo$")


def nccl_connect(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A virtual or foreign address is the wrong interface; a right one is a closed port or a dead peer."""
    peer = event.hit.groups.get("peer") or event.hit.groups.get("peer2") or ""
    kind, text = kind_of_address(peer.split("<")[0]), event.hit.text
    own = [a for a in scene.own_addresses() if not kind_of_address(a)]
    near = any(same_subnet(peer, a) for a in own)
    if any(same_subnet(peer, a, 2) for a in own) and kind == "docker bridge":
        kind = ""
    for mark in scene.of("nccl-bootstrap"):
        nic, address = mark.hit.groups.get("nic") or "", mark.hit.groups.get("addr") or ""
        if address == peer.split("<")[0] and _VIRTUAL_NIC.match(nic):
            kind = nic
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
    if scene.comparison is None:
        scene.comparison = compare(
            works_of(e.hit for e in scene.of("nccl-watchdog", "nccl-watchdog-seq")), scene.world()
        )
    result = scene.comparison
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
    if scene.of("no-gpudirect") and result.verdict in ("equal", "one-rank"):
        note = "GPUDirect RDMA is off on a node that uses InfiniBand"
        remedy = "Load nvidia_peermem (or a kernel with DMA-BUF) on every node and look for GDRDMA in NCCL_DEBUG=INFO; else NCCL_IB_DISABLE=1."
        return Guess("collective-hang", 0.8, ("nccl-peer-died-first",), note, remedy)
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
    by_node: dict[str, set[str]] = {}
    loaded: set[str] = set()  # by vLLM itself
    for start in scene.of("nccl-starts"):
        if version := start.hit.groups.get("nccl"):
            by_node.setdefault(start.hit.node, set()).add(version)
            loaded |= {version} if "nccl==" in start.hit.text else set()
    # torch's own NCCL and vLLM's may differ on every node alike.
    if len(loaded) > 1 or any(not one & other for one, other in combinations(by_node.values(), 2)):
        versions = set().union(*by_node.values())
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


_GID = re.compile(r"(local|remote) ?[Gg][Ii][Dd]s?:? ?(?!index| index)(?P<gid>[0-9a-fA-F:.]+)")


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


def hang_phase(event: Event, rule: Rule, scene: Scene) -> Guess:
    """Before the communicators stand it hangs in their set-up; after, in a collective; while loading it may just be slow."""
    phase, count = scene.phase_before(event), sum(e.hit.count for e in scene.of(rule.id))
    if (
        rule.id == "shm-broadcast"
        and phase >= 10
        and not scene.of("throughput-zero", "rpc-timeout", "engine-dead")
    ):
        return Guess("collective-hang", 0.45, ("insufficient-evidence",), "an idle engine writes this too")
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


def frontend_silent(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A front end on the same machine needs no open port: it died or was slow, and its own log says why."""
    far = re.search(r"headless|front-end at tcp://(?!127\.|localhost)", event.hit.text)
    starts = scene.of("api-server-start")
    others = {e.hit.node for e in starts} - {event.hit.node}
    if starts and not others and not far and not scene.of("headless") and len(scene.nodes()) < 2:
        return Guess("insufficient-evidence", 0.6, ("port-blocked",), "the front end runs on this machine")
    return default(event, rule, scene)

"""A healthy scene of two nodes, and ways to make it ill."""

from dataclasses import replace
from typing import Any

from longspan.preflight.catalogue import CHECKS
from longspan.preflight.check import Outcome
from longspan.preflight.environment import compile_environment
from longspan.preflight.facts import Gid, GpuFacts, Nic, NodeFacts, RdmaPort, Route
from longspan.preflight.scene import GroupResult, PairFacts, PortTrial, Scene, Wanted

NAMES = ("a", "b", "c")
PORTS = (20100, 20599)


def address(name: str) -> str:
    """10.0.0.1 and so on."""
    return f"10.0.0.{NAMES.index(name) + 1}"


def node(name: str, **changes: Any) -> NodeFacts:
    """A node on which all is well; each has a NIC of its own name."""
    nic = f"eth{NAMES.index(name)}"
    peers = {address(other): Route(nic, address(name)) for other in NAMES if other != name}
    healthy = NodeFacts(
        name, address(name), python="3.11.2", executable="/opt/python",
        packages={"longspan": "0.1.0", "ray": "2.60.0", "vllm": "0.32.0", "torch": "2.13.0", "nvidia-nccl-cu12": "2.28.9"},
        hostname=f"host-{name}", resolves=(address(name),), boot_id=f"boot-{name}", user="ops",
        nics=(Nic("lo", ("127.0.0.1", "::1"), 65536, True, True), Nic(nic, (address(name),), 1500, True, True)),
        routes=peers, ephemeral=(32768, 60999), limits={"nofile": 1024, "nofile_hard": 1 << 20, "memlock": -1},
        memory={"total": 64 << 30, "available": 60 << 30, "swap": 0, "limit": 0},
        shm={"total": 32 << 30, "free": 32 << 30, "stale": [], "stale_bytes": 0},
        disks={"tmp": {"free": 100 << 30, "total": 200 << 30}}, clock_offset_seconds=0.001, clock_error_seconds=0.001,
    )  # fmt: skip
    return replace(healthy, **changes)


def gpu(index: int = 0, **changes: Any) -> GpuFacts:
    """An idle H100."""
    healthy = GpuFacts(
        index, "NVIDIA H100 80GB HBM3", 80 << 30, 4 << 20, f"GPU-{index}", "580.1", "9.0", 0, False
    )
    return replace(healthy, **changes)


def rdma_port(
    device: str = "mlx5_0", layer: str = "InfiniBand", rate: float = 400e9, **changes: Any
) -> RdmaPort:
    """An active port."""
    gids = (Gid(0, "RoCE v1", "eth0", False), Gid(3, "RoCE v2", "eth0", True)) if layer == "Ethernet" else ()
    return replace(RdmaPort(device, 1, True, rate, layer, gids), **changes)


def rdma(name: str, *ports: RdmaPort, **changes: Any) -> NodeFacts:
    """A node with these ports and all that they need."""
    whole = {
        "rdma_ports": ports,
        "rdma_library": "libibverbs.so.1",
        "rdma_devices": ("rdma_cm", "uverbs0"),
        "modules": ("nvidia_peermem",),
    }
    return node(name, **{**whole, **changes})


def pair(source: str, target: str, *errors: tuple[int, str, str], mtu: int = 1500) -> PairFacts:
    """A pair whose ports are open but for (port, error, stage)."""
    bad = {port: (error, stage) for port, error, stage in errors}
    trials = tuple(
        PortTrial(p, *bad[p]) if p in bad else PortTrial(p, peer_seen=address(source))
        for p in (20100, 20102, 45000, 45001)
    )
    return PairFacts(source, target, trials, mtu, 1500)


def scene(*nodes: NodeFacts, wanted: dict[str, dict[str, Any]] | None = None, **changes: Any) -> Scene:
    """The nodes (a and b where none are given), all pairs open, a collective that went well."""
    known = nodes or (node("a"), node("b"))
    wants = tuple(Wanted(one.name, one.address, 1) for one in known)
    if wanted:
        wants = tuple(replace(want, **wanted.get(want.name, {})) for want in wants)
    names = [one.name for one in known]
    healthy = Scene(
        wants, tuple(known), compile_environment(wants, known),
        tuple(pair(s, t) for s in names for t in names if s != t), ray_ports=PORTS,
        groups=(GroupResult(tuple(names[:2]), "gloo", latency_seconds=1e-4, bus_bytes_per_second=1e9),),
    )  # fmt: skip
    return replace(healthy, **changes)


def outcome(check: str, what: Scene) -> Outcome:
    """What one check makes of a scene."""
    return next(one for one in CHECKS if one.id == check).judge(what)


def causes(check: str, what: Scene) -> list[tuple[str, str, str]]:
    """(node, severity, cause) of a check's findings."""
    return [(finding.subject, finding.severity, finding.cause) for finding in outcome(check, what).findings]

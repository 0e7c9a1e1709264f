"""Alarms about GPUs: full, unequal, straggling, idle before a queue, broken. Pure."""

import statistics
from collections.abc import Iterable, Iterator

from longspan.monitor.alarms import Hit, Rule, Scene, level, seen
from longspan.monitor.view import GpuView, NodeView, ReplicaView
from longspan.units import format_bytes

# Xids that end what runs on the GPU, or the GPU (NVIDIA, "XID Errors"): memory, fallen off the bus, NVLink, page retirement.
FATAL_XIDS = frozenset({48, 62, 64, 74, 79, 94, 95, 109, 119, 120, 122, 136, 140, 143})
HIT_BY_SOFTWARE = frozenset({13, 31, 43, 45, 68, 69})


def gpus(scene: Scene) -> Iterator[tuple[NodeView, GpuView, str]]:
    """Every GPU with a name for people: "n0/3"."""
    for node in scene.nodes:
        for gpu in node.gpus:
            yield node, gpu, f"{node.name}/{gpu.index}"


def gpus_of(scene: Scene, replica: ReplicaView) -> list[GpuView]:
    """The GPUs on which a replica's ranks work, where they are known."""
    mine = {uuid for rank in replica.ranks for uuid in rank.gpu_uuids}
    return [gpu for _, gpu, _ in gpus(scene) if gpu.uuid in mine]


def stages(scene: Scene, replica: ReplicaView) -> Iterator[list[tuple[NodeView, GpuView, str]]]:
    """The GPUs of each pipeline stage of a replica, where they are known: those that do the same work in step."""
    by_uuid = {gpu.uuid: (node, gpu, name) for node, gpu, name in gpus(scene)}
    found: dict[int, list[tuple[NodeView, GpuView, str]]] = {}
    for rank in replica.ranks:
        for uuid in rank.gpu_uuids:
            if uuid in by_uuid:
                found.setdefault(rank.pp_rank, []).append(by_uuid[uuid])
    yield from (members for members in found.values() if len(members) > 1)


def nearly_full(scene: Scene) -> Iterable[Hit]:
    """The fullest GPU of the deployment has hardly any memory left: the next larger batch is an OOM."""
    worst: tuple[float, Hit] | None = None
    for node, gpu, name in gpus(scene):
        if not gpu.memory_total_bytes or gpu.memory_used_bytes is None or gpu.replica is None:
            continue
        free = gpu.memory_total_bytes - gpu.memory_used_bytes
        share = free / gpu.memory_total_bytes
        limit = scene.objectives.memory_free_share
        low = level(share, limit, 2 * limit)
        if low is None or (worst and worst[0] <= share):
            continue
        parts = " ".join(
            f"{what} {format_bytes(size)}"
            for what, size in (("weights", gpu.weights_bytes), ("KV", gpu.kv_bytes), ("other", gpu.other_bytes))
            if size is not None
        )  # fmt: skip
        worst = share, Hit(
            name, f"GPU {name} has {format_bytes(free)} free of {format_bytes(gpu.memory_total_bytes)}.",
            (seen(f"memory of {name}", f"{format_bytes(gpu.memory_used_bytes)} used {parts}".strip()),),
            "Lower --gpu-memory-utilization by some hundredths, or end what else runs on that GPU.", low, node.name,
        )  # fmt: skip
    if worst:
        yield worst[1]


def unequal(scene: Scene) -> Iterable[Hit]:
    """GPUs of one stage hold the same weights and cache: one that uses much more holds something else."""
    for replica in scene.serving:
        for members in stages(scene, replica):
            used = {name: gpu.memory_used_bytes for _, gpu, name in members}
            known = [value for value in used.values() if value is not None]
            if len(known) < 2:
                continue
            middle = statistics.median(known)
            for node, gpu, name in members:
                if gpu.memory_used_bytes is None or not gpu.memory_total_bytes:
                    continue
                off = abs(gpu.memory_used_bytes - middle) / gpu.memory_total_bytes
                over = level(off, 0.08, 0.05)
                if over is not None:
                    yield Hit(
                        name,
                        f"GPU {name} uses {format_bytes(gpu.memory_used_bytes)}, the others of its stage {format_bytes(middle)}.",
                        tuple(seen(f"memory of {n}", format_bytes(v or 0)) for n, v in list(used.items())[:8]),
                        "Look for a process that is not the engine's on the fuller one (`nvidia-smi`), or for one rank that did "
                        "not load all of its part.", over, node.name,
                    )  # fmt: skip


def straggling(scene: Scene) -> Iterable[Hit]:
    """A rank whose GPU runs slower than its stage's: all of them wait for it in every collective."""
    for replica in scene.serving:
        for members in stages(scene, replica):
            yield from _clock(members)
            yield from _power(members)


def _clock(members: list[tuple[NodeView, GpuView, str]]) -> Iterable[Hit]:
    busy = [m for m in members if (m[1].utilisation_share or 0) > 0.5 and m[1].sm_clock_mhz]
    if len(busy) < 2:
        return
    middle = statistics.median(m[1].sm_clock_mhz or 0 for m in busy)
    for node, gpu, name in busy:
        slow = level((gpu.sm_clock_mhz or 0) / middle, 0.85, 0.92)
        if slow is not None:
            why = ", ".join(gpu.throttled_by or ()) or "no reason given"
            yield Hit(
                f"{name} clock",
                f"GPU {name} runs at {gpu.sm_clock_mhz:.0f} MHz, the others of its stage at {middle:.0f} MHz ({why}).",
                (seen(f"SM clock of {name}", f"{gpu.sm_clock_mhz:.0f} MHz"), seen(f"throttling of {name}", why)),
                "Thermal: look at its fans and its place in the rack. Power: compare the limits (`nvidia-smi -q -d POWER`). "
                "Until then isolate the node.", slow, node.name,
            )  # fmt: skip


def _power(members: list[tuple[NodeView, GpuView, str]]) -> Iterable[Hit]:
    """In a collective a waiting GPU spins at full utilisation and little power: the one that still draws power is behind."""
    known = [m for m in members if m[1].power_watts is not None and (m[1].utilisation_share or 0) > 0.5]
    if len(known) < 3:
        return
    middle = statistics.median(m[1].power_watts or 0 for m in known)
    for node, gpu, name in known:
        over = level((gpu.power_watts or 0) / middle if middle else None, 1.6, 1.4)
        if over is not None:
            yield Hit(
                f"{name} power",
                f"GPU {name} draws {gpu.power_watts:.0f} W, the others of its stage {middle:.0f} W at the same utilisation: "
                "they wait for it.",
                tuple(seen(f"power of {n}", f"{g.power_watts:.0f} W") for _, g, n in known[:8]),
                "Compare its clocks, PCIe link and NVLinks with the others'; `longspan check` tries them in pairs.", over,
                node.name,
            )  # fmt: skip


def idle_before_a_queue(scene: Scene) -> Iterable[Hit]:
    """Requests wait in an engine whose GPUs have nothing to do."""
    for replica in scene.serving:
        known = [g.utilisation_share for g in gpus_of(scene, replica) if g.utilisation_share is not None]
        if known and (replica.waiting or 0) > 0:
            idle = level(max(known), 0.05, 0.15)
            if idle is not None:
                yield Hit(
                    replica.name,
                    f"{replica.waiting:.0f} requests wait in {replica.name}, and its busiest GPU works {max(known):.0%} of the time.",
                    (seen("num_requests_waiting", f"{replica.waiting:.0f}"), seen("GPU utilisation", f"{max(known):.0%}")),
                    "The scheduler or a rank is stuck, or requests wait for something else (LoRA, KV transfer, a grammar): "
                    "look at num_requests_waiting_by_reason, then `longspan doctor`.", idle, replica.name,
                )  # fmt: skip


def broken(scene: Scene) -> Iterable[Hit]:
    """Xid errors that are not the program's own, uncorrectable memory errors."""
    for node, gpu, name in gpus(scene):
        if gpu.xid is not None and gpu.xid not in HIT_BY_SOFTWARE:
            fatal = gpu.xid in FATAL_XIDS
            yield Hit(
                f"{name} xid", f"GPU {name} reported Xid {gpu.xid}{', after which it must be reset' if fatal else ''}.",
                (seen(f"Xid of {name}", str(gpu.xid)),),
                "Isolate the node, look at `dmesg`, reset or replace the GPU (NVIDIA: XID Errors).", about=node.name,
            )  # fmt: skip
        if gpu.ecc_uncorrected:
            yield Hit(
                f"{name} ecc", f"GPU {name} has {gpu.ecc_uncorrected} uncorrectable memory errors since the driver was loaded.",
                (seen(f"ECC of {name}", f"{gpu.ecc_uncorrected} uncorrectable, {gpu.ecc_corrected or 0} corrected"),),
                "Results may be wrong. Drain the node and reset the GPU; replace it if rows can no longer be remapped.",
                about=node.name,
            )  # fmt: skip


def links_down(scene: Scene) -> Iterable[Hit]:
    """NVLinks that are down on a GPU of which others are up."""
    for node, gpu, name in gpus(scene):
        if gpu.nvlink_down:
            yield Hit(
                name, f"{gpu.nvlink_down} of {gpu.nvlink_down + (gpu.nvlink_up or 0)} NVLinks of GPU {name} are down.",
                (seen(f"NVLink of {name}", f"{gpu.nvlink_up} up, {gpu.nvlink_down} down"),),
                "`nvidia-smi nvlink -s`; check the fabric manager's log, then the module.", about=node.name,
            )  # fmt: skip


RULES = (
    Rule("gpu-memory-nearly-full", "warning", "The fullest GPU has less than 1 % of its memory free.", nearly_full, 10, 60),
    Rule("gpu-imbalance", "warning", "A GPU uses 8 % more or less memory than the others of its stage.", unequal, 60, 60),
    Rule("straggler", "warning", "A GPU is slower than the others of its stage: all wait for it.", straggling, 20, 60),
    Rule("queue-with-idle-gpu", "error", "Requests wait in an engine whose GPUs are idle.", idle_before_a_queue, 10, 20),
    Rule("gpu-broken", "error", "Xid or uncorrectable memory errors.", broken, 0, 60,
         "https://docs.nvidia.com/deploy/xid-errors/index.html"),
    Rule("nvlink-down", "warning", "NVLinks of a GPU are down.", links_down, 30, 60),
)  # fmt: skip

"""Alarms about nodes and the gateway: silence, clocks, disks, memory, a queue, spending. Pure."""

from collections.abc import Iterable

from longspan.monitor.alarms import Hit, Rule, Scene, fresh, level, seen
from longspan.monitor.rates import share
from longspan.monitor.view import GatewayView
from longspan.units import format_bytes, format_seconds

# Of fewer requests a minute, one that fails or leaves is a large share and says nothing.
LEAST_REQUESTS_PER_SECOND = 10 / 60


def silent(scene: Scene) -> Iterable[Hit]:
    """A node that sent telemetry sends none any more."""
    for node in scene.view.nodes:
        if node.age_seconds is not None:
            # The second figure would let it go at 3 s: a node that is back is back.
            over = level(node.age_seconds, 8.0, 3.0)
            if over is not None:
                yield Hit(
                    node.name, f"{node.name} was last heard of {format_seconds(node.age_seconds)} ago.",
                    (seen("telemetry", f"{node.age_seconds:.0f} s old"),),
                    "Is the machine up, and does it reach this one? If only telemetry is missing, a GPU driver may hang there.",
                    over,
                )  # fmt: skip


def skewed(scene: Scene) -> Iterable[Hit]:
    """A node's clock is off: its log lines and certificates do not fit the others'."""
    limit = scene.objectives.clock_skew_seconds
    for node in scene.nodes:
        skew = node.clock_skew_seconds
        over = level(abs(skew) if skew is not None else None, limit, limit / 2)
        if over is not None and skew is not None:
            yield Hit(
                node.name, f"{node.name}'s clock is {format_seconds(abs(skew))} {'ahead' if skew > 0 else 'behind'}.",
                (seen("clock", f"{skew:+.2f} s against the controller's"),), "Run chrony or systemd-timesyncd there.", over,
                node.name,
            )  # fmt: skip


def full_disks(scene: Scene) -> Iterable[Hit]:
    """A file system that we write to is nearly full."""
    limit = scene.objectives.disk_used_share
    for node in scene.nodes:
        for disk in node.disks:
            used = share(disk.used_bytes, disk.total_bytes)
            over = level(used, limit, limit - 0.02)
            if over is not None and disk.total_bytes and disk.used_bytes is not None:
                free = format_bytes(disk.total_bytes - disk.used_bytes)
                yield Hit(
                    f"{node.name}{disk.path}", f"{disk.path} on {node.name} is {used:.0%} full, {free} free.",
                    (seen(disk.path, f"{free} free of {format_bytes(disk.total_bytes)}"),),
                    "Remove old checkpoints and logs there; logs stop growing when nothing can be written.", over, node.name,
                )  # fmt: skip


def full_memory(scene: Scene) -> Iterable[Hit]:
    """RAM or /dev/shm run out: the kernel or Ray kills a rank, or NCCL cannot map its buffers."""
    for node in scene.nodes:
        for what, used, whole in (
            ("RAM", node.ram_used_bytes, node.ram_total_bytes),
            ("/dev/shm", node.shm_used_bytes, node.shm_total_bytes),
        ):
            part = share(used, whole)
            over = level(part, 0.95, 0.92)
            if over is not None and used is not None and whole is not None:
                yield Hit(
                    f"{node.name} {what}", f"{what} of {node.name} is {part:.0%} used.",
                    (seen(what, f"{format_bytes(used)} of {format_bytes(whole)}"),),
                    "Give containers more --shm-size." if what != "RAM" else "Look for what grows; Ray kills workers at 95 %.",
                    over, node.name,
                )  # fmt: skip


def queue_at_the_door(scene: Scene) -> Iterable[Hit]:
    """Requests wait in the gateway while a replica has nothing to do."""
    gateway = scene.view.gateway
    if not fresh(gateway.age_seconds) or not gateway.waiting:
        return
    for replica in scene.serving:
        if replica.phase == "serving" and replica.running == 0 and not replica.waiting:
            yield Hit(
                replica.name, f"{gateway.waiting:.0f} requests wait in the gateway while {replica.name} is idle.",
                (seen("longspan_gateway_waiting", f"{gateway.waiting:.0f}"), seen("num_requests_running", "0")),
                "The gateway does not trust it, or a limit holds requests back: /admin/status says why.", about="gateway",
            )  # fmt: skip


def failing(scene: Scene) -> Iterable[Hit]:
    """More requests fail than a client can shrug off."""
    gateway = scene.view.gateway
    over = level(gateway.failed_share, 0.05, 0.02) if _busy(gateway) else None
    if over is not None:
        yield Hit(
            "gateway", f"{gateway.failed_share:.0%} of the requests of the last minute failed.",
            (seen("longspan_gateway_requests_total", f"{gateway.failed_share:.1%} not ok"),),
            "The gateway's log names each one's last attempt; other alarms name the replica.", over, "gateway",
        )  # fmt: skip


def _busy(gateway: GatewayView) -> bool:
    """Whether shares of its requests mean anything now."""
    return fresh(gateway.age_seconds) and (gateway.requests_per_second or 0.0) >= LEAST_REQUESTS_PER_SECOND


def spending(scene: Scene) -> Iterable[Hit]:
    """Providers serve, or cost, more than the operator wants."""
    gateway, limits = scene.view.gateway, scene.objectives
    if not _busy(gateway):
        return
    for what, value, limit, text in (
        ("share", gateway.overflow_share, limits.overflow_share, "{:.0%} of the requests go to providers, the limit is {:.0%}."),
        ("money", gateway.outside_usd_per_hour, limits.overflow_usd_per_hour, "Providers cost {:.2f} $ an hour, the limit is {:.2f} $."),
    ):  # fmt: skip
        over = level(value, limit, 0.8 * limit) if limit is not None else None
        if over is not None and value is not None and limit is not None:
            yield Hit(
                f"gateway {what}", text.format(value, limit),
                (seen("overflow", f"reasons: {', '.join(gateway.overflow_reasons) or 'none given'}"),),
                "Set `spend_cap_usd_per_hour` of the provider, a higher `overflow.threshold_seconds`, or add a replica.", over, "gateway",
            )  # fmt: skip


RULES = (
    Rule("node-silent", "error", "A node has sent no telemetry for 8 s.", silent, 0, 0),
    Rule("clock-skew", "warning", "A node's clock is more than 2 s off.", skewed, 10, 30),
    Rule("disk-full", "warning", "A file system of ours is more than 95 % full.", full_disks, 5, 30),
    Rule("memory-full", "warning", "RAM or /dev/shm of a node is more than 95 % used.", full_memory, 10, 30),
    Rule("queue-with-idle-replica", "warning", "Requests wait in the gateway while a replica is idle.", queue_at_the_door, 10, 20),
    Rule("requests-fail", "error", "More than 5 % of the requests of the last minute failed.", failing, 10, 60),
    Rule("overflow-spending", "warning", "Providers serve or cost more than the objective.", spending, 30, 120),
)  # fmt: skip

"""Alarms about the network: collectives on TCP though RDMA is there, drops, errors, a port without a link. Pure."""

from collections.abc import Iterable

from longspan.monitor.alarms import Hit, Rule, Scene, level, seen
from longspan.monitor.rates import total
from longspan.monitor.view import NodeView, PortView

# A replica over several nodes moves gigabytes a second when it is busy; ssh, metrics and tokens move less than this.
BUSY_BYTES_PER_SECOND = 20e6
IDLE_BYTES_PER_SECOND = 1e6


def traffic(node: NodeView, kind: str) -> float | None:
    """Bytes a second in both directions over all ports of a kind that have a link and lead out of the machine."""
    ports = [p for p in node.ports if p.kind == kind and p.up is not False and not p.virtual]
    return total(*(total(p.rx_bytes_per_second, p.tx_bytes_per_second) for p in ports))


def collectives_on_tcp(scene: Scene) -> Iterable[Hit]:
    """RDMA ports stand still while the interfaces carry what only collectives can be."""
    for replica in scene.serving:
        nodes = scene.fresh_nodes_of(replica)
        if len(nodes) < 2 or not any(p.kind == "rdma" and p.up for node in nodes for p in node.ports):
            continue
        tcp = [(node, traffic(node, "netdev") or 0.0, traffic(node, "rdma")) for node in nodes]
        loud = [(n, t, r) for n, t, r in tcp if r is not None and r < max(IDLE_BYTES_PER_SECOND, t / 20)]
        if len(loud) < 2:
            continue
        over = level(min(t for _, t, _ in loud), BUSY_BYTES_PER_SECOND, BUSY_BYTES_PER_SECOND / 2)
        if over is not None:
            figures = tuple(
                seen(n.name, f"{t / 1e6:.0f} MB/s over interfaces, {(r or 0) / 1e6:.1f} MB/s over RDMA") for n, t, r in loud
            )  # fmt: skip
            yield Hit(
                replica.name,
                f"{replica.name}'s collectives run over TCP: {figures[0].text} on {figures[0].file}, where RDMA ports have a link.",
                figures,
                "NCCL chose sockets: set NCCL_IB_HCA, leave NCCL_IB_DISABLE unset, give containers /dev/infiniband and "
                "IPC_LOCK. NCCL_DEBUG=INFO says why; `longspan check` tries the RDMA path.", over, replica.name,
            )  # fmt: skip


def _ports(scene: Scene) -> Iterable[tuple[NodeView, PortView, str]]:
    for node in scene.nodes:
        for port in node.ports:
            if not port.virtual:
                yield node, port, f"{node.name}/{port.name}"


def drops(scene: Scene) -> Iterable[Hit]:
    """A port drops packets: TCP slows to a crawl, RoCE goes back and sends again."""
    for node, port, name in _ports(scene):
        over = level(port.drops_per_second, 10.0, 1.0)
        if over is not None:
            yield Hit(
                name, f"{name} drops {port.drops_per_second:.0f} packets a second.",
                (seen(name, f"{port.drops_per_second:.1f} drops/s, {port.drops_total} since its start"),),
                "RoCE: check PFC and ECN on the switch and the NIC. Otherwise larger rings (`ethtool -G`) and queues.", over,
                node.name,
            )  # fmt: skip


def errors(scene: Scene) -> Iterable[Hit]:
    """A port counts errors: cable, transceiver, or packets that must be sent again."""
    for node, port, name in _ports(scene):
        over = level(port.errors_per_second, 1.0, 0.1)
        if over is not None:
            yield Hit(
                name, f"{name} counts {port.errors_per_second:.1f} errors a second.",
                (seen(name, f"{port.errors_per_second:.2f} errors/s, {port.errors_total} since its start"),),
                "Clean or change the cable or transceiver; on RoCE look for lost packets (packet_seq_err).", over, node.name,
            )  # fmt: skip


def no_link(scene: Scene) -> Iterable[Hit]:
    """An RDMA port without a link on a node of which others have one."""
    for node in scene.nodes:
        ports = [p for p in node.ports if p.kind == "rdma"]
        if any(p.up for p in ports):
            for port in ports:
                if port.up is False:
                    name = f"{node.name}/{port.name}"
                    yield Hit(
                        name, f"RDMA port {name} has no link; others of the node do.", (seen(name, "not ACTIVE"),),
                        "`ibstat` and the cable; leave it out with NCCL_IB_HCA if it is meant to be down.", about=node.name,
                    )  # fmt: skip


RULES = (
    Rule("collectives-on-tcp", "warning", "RDMA ports are idle while a replica over several nodes fills the interfaces.",
         collectives_on_tcp, 15, 60, "https://github.com/vllm-project/vllm/issues/6610"),
    Rule("nic-drops", "warning", "More than 10 dropped packets a second on a port.", drops, 10, 60),
    Rule("nic-errors", "warning", "More than one error a second on a port.", errors, 10, 60),
    Rule("rdma-link-down", "info", "An RDMA port has no link though others of its node have.", no_link, 30, 30),
)  # fmt: skip

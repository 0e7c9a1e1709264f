"""Checks of each node's NICs, routes, names and RDMA ports."""

from longspan.finding import Finding, Severity
from longspan.preflight.addresses import is_same_address, why_unreachable
from longspan.preflight.check import Check, Outcome, finding, majority, minority, together, unknown
from longspan.preflight.environment import NIC_VARIABLES, gid_index, rdma_of_all, usable_ports
from longspan.preflight.facts import NodeFacts
from longspan.preflight.scene import Scene

_ONE = "there is only one node"


def address_kind(scene: Scene) -> Outcome:
    """Node addresses that only their own machine can reach."""
    if len(scene.wanted) < 2:
        return Outcome(skipped=_ONE)
    found = tuple(
        finding(
            want.name, "error", "address-unreachable", f"{want.address} of {want.name} is {why}, which other hosts cannot reach.",
            "Give the address on the network that the hosts share: `ip -brief address` on that host.", where="cluster file", evidence=want.address,
        )
        for want in scene.wanted
        if (why := why_unreachable(want.address))
    )  # fmt: skip
    return Outcome(found, seen="routable")


def nic_carries_address(scene: Scene) -> Outcome:
    """A NIC of the node carries its address, is up and has a cable."""
    found = []
    for node in scene.answering:
        if "addresses" in node.unknown:
            continue
        nic = node.nic_of(node.address)
        own = ", ".join(f"{one.name} {' '.join(one.addresses)}" for one in node.nics if one.name != "lo")
        if nic is None:
            found.append(
                finding(
                    node.name, "error", "address-missing", f"No NIC of {node.name} carries {node.address}, the address in the cluster file.",
                    "Correct the address; behind address translation give the inner one that all hosts share.", where="ip address", evidence=own,
                )
            )  # fmt: skip
        elif not (nic.is_up and nic.has_carrier):
            found.append(
                finding(
                    node.name, "error", "nic-down",
                    f"{nic.name} on {node.name}, which carries {node.address}, is {'without a link' if nic.is_up else 'down'}.",
                    f"`ip link set {nic.name} up`, and check the cable and the switch's port.", where="ip address", evidence=own,
                )
            )  # fmt: skip
    return Outcome(
        tuple(found), unknown(scene.answering, "addresses"), "each NIC up, with the node's address"
    )


def nic_names(scene: Scene) -> Outcome:
    """Every NIC that a variable names exists on that node."""
    found: list[Finding] = []
    for node in scene.answering:
        if "addresses" in node.unknown:
            continue
        have = [nic.name for nic in node.nics]
        for setting in scene.environment.get(node.name, ()):
            if setting.variable not in NIC_VARIABLES or setting.value.startswith("^"):
                continue
            exact = setting.value.startswith("=") or not setting.variable.startswith("NCCL")
            names = setting.value.removeprefix("=").split(",")
            if not any(nic == name or (not exact and nic.startswith(name)) for nic in have for name in names):
                found.append(
                    finding(
                        node.name, "error", "nic-missing",
                        f"{setting.variable}={setting.value} ({setting.why}), but {node.name} has no such NIC.",
                        f"It has {together([name for name in have if name != 'lo'])}. Leave the variable out and Longspan chooses.",
                        where="ip address", evidence=", ".join(have),
                    )
                )  # fmt: skip
    return Outcome(tuple(found), unknown(scene.answering, "addresses"), "every NIC named exists")


def routes(scene: Scene) -> Outcome:
    """The kernel's way to each peer leaves by the NIC that carries the node's address, and from that address."""
    if len(scene.wanted) < 2:
        return Outcome(skipped=_ONE)
    found = []
    for node in scene.answering:
        carrier = node.nic_of(node.address)
        bad: dict[tuple[str, str], list[str]] = {}
        for peer in scene.peers(node.name):
            route = node.routes.get(peer.address)
            if route is None:
                continue
            if route.error:
                bad.setdefault(("route-missing", f"no route ({route.error})"), []).append(peer.name)
            elif carrier and route.nic not in (carrier.name, "lo"):
                bad.setdefault(("route-other-nic", f"{route.nic} and not {carrier.name}"), []).append(
                    peer.name
                )
            elif route.source and not is_same_address(route.source, node.address) and route.nic != "lo":
                bad.setdefault(("route-other-source", f"source address {route.source}"), []).append(peer.name)
        found += [_route_finding(node, cause, what, peers) for (cause, what), peers in bad.items()]
    return Outcome(
        tuple(found), unknown(scene.answering, "routes"), "each peer over the NIC with the node's address"
    )


def _route_finding(node: NodeFacts, cause: str, what: str, peers: list[str]) -> Finding:
    many = together(peers)
    if cause == "route-missing":
        told = f"{node.name} has no way to {many}: {what}."
        remedy = (
            "Add the route or the address that is missing: `ip route get PEER` shows the kernel's choice."
        )
    elif cause == "route-other-nic":
        told = f"{node.name} reaches {many} over {what}, which carries {node.address}: NCCL and Ray would use different networks."
        remedy = "Give the address of that network in the cluster file, or correct the route."
    else:
        told = f"{node.name} reaches {many} with the {what} and not its own {node.address}, so peers see another host."
        remedy = "Correct the order of addresses on that NIC, or the address in the cluster file."
    severity: Severity = "error" if cause == "route-missing" else "warning"
    return finding(node.name, severity, cause, told, remedy, where="ip route get", evidence=what)


def host_names(scene: Scene) -> Outcome:
    """The host's own name leads to an address that others can reach."""
    found = []
    for node in scene.answering:
        if "names" in node.unknown or len(scene.wanted) < 2:
            continue
        lost = [address for address in node.resolves if why_unreachable(address)]
        if node.resolves and len(lost) == len(node.resolves):
            # What we start is told its address; what asks for its own name still gets the wrong one.
            found.append(
                finding(
                    node.name, "warning", "hostname-loopback",
                    f"{node.name}'s own name {node.hostname} resolves to {together(lost)} there. Longspan sets address and NIC for what it"
                    " starts; a library that looks up its own name would offer peers an address that leads to themselves.",
                    f"In /etc/hosts on {node.name}: `{node.address} {node.hostname}` instead of the 127.0.1.1 line.",
                    where="getaddrinfo", evidence=f"{node.hostname} -> {', '.join(node.resolves)}",
                )
            )  # fmt: skip
        elif not node.resolves:
            found.append(
                finding(
                    node.name, "warning", "hostname-unknown", f"{node.name}'s own name {node.hostname} resolves to nothing there.",
                    f"Add `{node.address} {node.hostname}` to /etc/hosts on {node.name}.", where="getaddrinfo", evidence=node.hostname,
                )
            )  # fmt: skip
    return Outcome(
        tuple(found),
        unknown(scene.answering, "names"),
        "each host's own name leads to an address that others reach",
    )


def rdma_ports(scene: Scene) -> Outcome:
    """RDMA is the same everywhere: active ports, rate, link layer, MTU, GID type, library and device files."""
    if not any(node.rdma_ports for node in scene.workers):
        return Outcome(skipped=unknown(scene.workers, "infiniband") or "no node has an RDMA device")
    said = {node.name: node for node in scene.workers}
    rdma = rdma_of_all(scene.wanted, said)
    found: list[Finding] = []
    if rdma.mixed:
        found.append(
            finding(
                "cluster", "warning", "rdma-mixed", f"RDMA cannot be used between all nodes: {rdma.why}.",
                "Until it is mended NCCL_IB_DISABLE=1 is set everywhere, and traffic goes over sockets at a fraction of the rate.",
                where="sysfs", evidence=rdma.why,
            )
        )  # fmt: skip
    ports = {name: usable_ports(scene.want(name), node) for name, node in said.items()}
    shapes = {
        name: f"{len(all_)} port(s) of {all_[0].rate_bits_per_second / 1e9:g} Gbit/s"
        for name, all_ in ports.items()
        if all_
    }
    for name, here in minority(shapes).items():
        found.append(
            finding(
                name, "warning", "rdma-rate-differs", f"{name} has {here}, the others {majority(shapes)}: the slowest sets the pace of all.",
                "Check the cable, the switch's port and `ibstat`.", where="sysfs", evidence=here,
            )
        )  # fmt: skip
    mtus = {name: str(min(node.active_mtus.values())) for name, node in said.items() if node.active_mtus}
    for name, here in minority(mtus).items():
        found.append(
            finding(
                name, "warning", "rdma-mtu-differs", f"The active RDMA MTU of {name} is {here}, of the others {majority(mtus)}.",
                "Set the same MTU on switch and NIC; RoCE needs an Ethernet MTU above it.", where="ibv_devinfo", evidence=here,
            )
        )  # fmt: skip
    for name, used in ports.items():
        if used and all(port.link_layer == "Ethernet" for port in used) and gid_index(used) is None:
            found.append(
                finding(
                    name, "error", "gid-missing", f"The RoCE ports of {name} have no RoCE v2 entry with an IPv4 address in common.",
                    f"Give each RoCE NIC of {name} an IPv4 address (`show_gids` lists the table).", where="gid_attrs", evidence=f"{len(used)} ports",
                )
            )  # fmt: skip
    return Outcome(tuple(found), seen=rdma.why)


def gpudirect(scene: Scene) -> Outcome:
    """With RDMA, GPU memory should be reachable for the NIC."""
    if not any(scene.value(node.name, "NCCL_IB_HCA") for node in scene.workers):
        return Outcome(skipped="no RDMA is planned")
    found = tuple(
        finding(
            node.name, "warning", "gpudirect-missing",
            f"{node.name} has no nvidia_peermem loaded; without it, or DMA-BUF in kernel and driver, each byte goes through host memory.",
            "`modprobe nvidia_peermem`; NCCL's log says GDRDMA where it works.", where="/proc/modules", evidence=", ".join(node.modules) or "none",
        )
        for node in scene.workers
        if node.gpus and not {"nvidia_peermem", "nv_peer_mem"} & set(node.modules)
    )  # fmt: skip
    return Outcome(found, unknown(scene.workers, "rdma"), "nvidia_peermem loaded")


def ibgda(scene: Scene) -> Outcome:
    """DeepEP's low-latency kernels let GPUs ring the NIC's bell themselves, which driver and gdrdrv must allow."""
    if not any("deepep_low_latency" in argument for argument in scene.vllm_arguments):
        return Outcome(skipped="DeepEP's low-latency kernels are not asked for")
    found = []
    for node in scene.workers:
        missing = [] if "gdrdrv" in node.modules else ["the module gdrdrv"]
        missing += [] if "EnableStreamMemOPs: 1" in node.driver_params else ["NVreg_EnableStreamMemOPs=1"]
        missing += [] if "PeerMappingOverride=1" in node.driver_params else ["PeerMappingOverride=1"]
        if missing:
            found.append(
                finding(
                    node.name, "error", "ibgda-missing", f"{node.name} lacks {together(missing)}, without which DeepEP's low-latency kernels do not start.",
                    'In /etc/modprobe.d/nvidia.conf: options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords="PeerMappingOverride=1;", load gdrdrv, reboot.',
                    where="/proc/driver/nvidia/params", evidence=together(missing),
                )
            )  # fmt: skip
    return Outcome(tuple(found), unknown(scene.workers, "rdma"), "set")


CHECKS = (
    Check("address-kind", "network", "not loopback, link-local or a container's bridge", "peers would connect to themselves", "ip address",
          "vllm#7815", address_kind),
    Check("nic-address", "network", "a NIC of each node is up, has a link and carries the node's address", "Ray and NCCL bind to it", "ip -j address",
          "gpustack#2275", nic_carries_address),
    Check("nic-names", "network", "each NIC that a variable names exists on that node (names may differ)", "NCCL: “no socket interface found”",
          "ip -j address", "gpustack#2275", nic_names),
    Check("routes", "network", "the route to each peer uses that NIC and source address", "traffic takes another network than planned",
          "ip route get PEER", "vllm PR#43095", routes),
    Check("host-names", "network", "the host's own name does not lead to 127.0.1.1", "libraries offer peers a loopback address", "getent hosts $(hostname)",
          "gpustack#2125", host_names),
    Check("rdma-ports", "network", "active, with the same rate, MTU, link layer and GID type everywhere", "NCCL hangs, or falls back to sockets",
          "ibv_devinfo; show_gids", "nccl-tests#227, nccl#426, nccl#1515", rdma_ports),
    Check("ibgda", "network", "driver options and gdrdrv set, where DeepEP's low-latency kernels are asked for", "the kernels do not start",
          "cat /proc/driver/nvidia/params", "DeepEP#139", ibgda),
    Check("gpudirect", "network", "nvidia_peermem loaded where RDMA is planned", "each byte goes through host memory", "lsmod", "vllm PR#52292",
          gpudirect),
)  # fmt: skip

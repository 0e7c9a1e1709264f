"""Checks of each pair of nodes, both directions: ports, data, address translation, MTU."""

from collections.abc import Iterable, Sequence

from longspan.finding import Finding
from longspan.preflight.addresses import is_same_address
from longspan.preflight.check import Check, Outcome, finding, together
from longspan.preflight.scene import PortTrial, Scene


def _skip(scene: Scene) -> str:
    return scene.no_pairs or ("" if scene.pairs else "no pair was tried")


def ports(scene: Scene) -> Outcome:
    """Every port of every ordered pair takes a connection."""
    if reason := _skip(scene):
        return Outcome(skipped=reason)
    bad: dict[tuple[str, str], list[PortTrial]] = {}
    for pair in scene.pairs:
        failed = [trial for trial in pair.ports if trial.error and trial.stage != "data"]
        if failed:
            bad[pair.source, pair.target] = failed
    found = _blocked_everywhere(scene, bad)
    told = {one.subject for one in found}
    for (source, target), failed in bad.items():
        if target not in told:
            way = "" if (target, source) in bad else f" (the other direction, {target} to {source}, is open)"
            found.append(_finding(scene, target, f"{source} does not reach {target}{way}", failed))
    tried = sum(len(pair.ports) for pair in scene.pairs)
    return Outcome(tuple(found), seen=f"{tried} connections in both directions")


def _blocked_everywhere(scene: Scene, bad: dict[tuple[str, str], list[PortTrial]]) -> list[Finding]:
    """Nodes that no peer reaches on a port: the fault is at that node, and one finding says so."""
    found = []
    names = [node.name for node in scene.answering]
    for target in names:
        sources = [
            name
            for name in names
            if name != target and any(p.source == name and p.target == target for p in scene.pairs)
        ]
        if len(sources) < 2 or any((source, target) not in bad for source in sources):
            continue
        common = set.intersection(*({trial.port for trial in bad[source, target]} for source in sources))
        if common:
            trials = [trial for trial in bad[sources[0], target] if trial.port in common]
            found.append(_finding(scene, target, f"{target} is not reached by {together(sources)}", trials))
    return found


def _finding(scene: Scene, target: str, what: str, failed: Sequence[PortTrial]) -> Finding:
    first, last = scene.ray_ports
    fixed = [trial.port for trial in failed if first <= trial.port <= last]
    random = [trial.port for trial in failed if trial.port not in fixed]
    parts = [
        f"Ray's port{'s' if len(fixed) > 1 else ''} {_list(fixed)}" if fixed else "",
        f"ephemeral ports such as {random[0]}" if random else "",
    ]
    which = " and ".join(filter(None, parts))
    silent = all("no answer" in trial.error for trial in failed)
    nic = next((node.nic_of(node.address) for node in scene.nodes if node.name == target), None)
    at = f" (NIC {nic.name})" if nic else ""
    address = scene.want(target).address
    cause = "port-blocked" if fixed or not random else "ephemeral-blocked"
    if any("something else" in trial.error for trial in failed):
        return finding(
            target, "error", "port-answered-by-other", f"{what} on {which}: another program answers there.",
            "A proxy or a second host with this address stands between.", where="connect", evidence=failed[0].error,
        )  # fmt: skip
    remedy = (
        f"A firewall drops it. Open TCP {first}-{last} and the ephemeral range between the nodes, on {target} for instance with"
        f" `nft insert rule inet filter input ip saddr NODES accept`."
        if silent
        else f"Something refuses it: `nft list ruleset` on {target}, and `ip route get {address}` on the other side."
    )
    return finding(target, "error", cause, f"{what}{at} on {which}: {failed[0].error}.", remedy, where=f"connect {address}",
                   evidence="; ".join(f"{trial.port}: {trial.error}" for trial in failed[:4]))  # fmt: skip


def _list(numbers: Iterable[int]) -> str:
    return together([str(number) for number in sorted(numbers)])


def data(scene: Scene) -> Outcome:
    """After the handshake 256 KiB go each way."""
    if reason := _skip(scene):
        return Outcome(skipped=reason)
    found = []
    for pair in scene.pairs:
        stuck = [trial for trial in pair.ports if trial.error and trial.stage == "data"]
        if stuck:
            smaller = (
                f" Packets up to {pair.mtu} bytes pass, the NIC sends {pair.nic_mtu}."
                if 0 < pair.mtu < pair.nic_mtu
                else ""
            )
            found.append(
                finding(
                    pair.target, "error", "data-stuck",
                    f"{pair.source} connects to {pair.target}, but data does not come through ({stuck[0].error}).{smaller}",
                    "Usually an MTU on the way that is smaller than the NICs': set the same MTU on NICs, bridges and switch"
                    + (f", `ip link set … mtu {pair.mtu}` at both ends for a start." if smaller else "."),
                    where="connect", evidence=f"port {stuck[0].port}: {stuck[0].error}",
                )
            )  # fmt: skip
    return Outcome(tuple(found), seen="256 KiB both ways on every pair")


def mtu(scene: Scene) -> Outcome:
    """Packets of the NIC's size pass uncut, and NICs agree."""
    if reason := _skip(scene):
        return Outcome(skipped=reason)
    tried = [pair for pair in scene.pairs if pair.mtu >= 0]
    if not any(pair.mtu for pair in tried):
        return Outcome(skipped="no UDP datagram came through (a firewall?), so the path MTU is unknown")
    found = [
        finding(
            pair.target, "warning", "mtu-path",
            f"From {pair.source} to {pair.target} packets up to {pair.mtu} bytes pass uncut, the NIC of {pair.source} sends {pair.nic_mtu}.",
            "Set the same MTU on both NICs and everything between; larger packets are cut or lost on the way.",
            where="UDP with don't-fragment", evidence=f"{pair.nic_mtu} bytes: no answer; {pair.mtu} bytes: answered",
        )
        for pair in tried
        if 0 < pair.mtu < pair.nic_mtu
    ]  # fmt: skip
    sizes = sorted({pair.nic_mtu for pair in tried if pair.mtu})
    return Outcome(tuple(found), seen=f"{', '.join(map(str, sizes))} bytes pass uncut")


def translation(scene: Scene) -> Outcome:
    """Each node is seen under its own address."""
    if reason := _skip(scene):
        return Outcome(skipped=reason)
    found = []
    for pair in scene.pairs:
        own = scene.want(pair.source).address
        seen = {
            trial.peer_seen
            for trial in pair.ports
            if trial.peer_seen and not is_same_address(trial.peer_seen, own)
        }
        if seen:
            found.append(
                finding(
                    pair.source, "error", "address-translated", f"{pair.target} sees {pair.source} as {together(sorted(seen))}, not as {own}.",
                    "Address translation or masquerading stands between; Ray and NCCL need the same address on both sides.",
                    where="accept", evidence=", ".join(sorted(seen)),
                )
            )  # fmt: skip
    return Outcome(tuple(found), seen="each node under its own address")


def listened(scene: Scene) -> Outcome:
    """Every node could listen where it was asked to."""
    if reason := _skip(scene):
        return Outcome(skipped=reason)
    held = {(node.name, one.port) for node in scene.answering for one in node.ports_held}
    found = [
        finding(
            name, "error", "listen-failed", f"{name} cannot listen on port {port} of {scene.want(name).address}: {why}.",
            "Free the port, or correct the address.", where="bind", evidence=why,
        )
        for name, ports_ in scene.taken.items()
        for port, why in ports_.items()
        if (name, port) not in held  # said already, with the holder
    ]  # fmt: skip
    return Outcome(tuple(found), seen="yes")


CHECKS = (
    Check("listen", "pairs", "every node can listen on its address", "Ray binds to it", "ss -ltn", "", listened),
    Check("ports", "pairs", "Ray's ports and 5 random ones, all pairs, both directions", "a port that is closed in one direction hangs the launch",
          "nc -z PEER PORT", "ray#45179, vllm#19960, vllm#19670", ports),
    Check("data", "pairs", "256 KiB each way after the handshake", "small packets pass, the first tensor never arrives", "iperf3", "", data),
    Check("mtu", "pairs", "packets of the NIC's MTU pass uncut", "large packets are cut or lost", "ping -M do -s $((MTU-28)) PEER",
          "nccl-mesh-plugin PR#12", mtu),
    Check("addresses-seen", "pairs", "each node is seen under its own address", "NCCL and Ray compare addresses as text", "ss -tn", "vllm PR#43095",
          translation),
)  # fmt: skip

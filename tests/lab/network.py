"""Bridge, veth pairs and namespaces by iproute2. Every name starts with the lab's own prefix, `lsp<number>`."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LABS_OF_ONE_WORKER = 100
NETNS = Path("/run/netns")


def ip(*args: str, check: bool = True) -> str:
    """Runs ip(8) and returns its output.

    Raises:
        RuntimeError: it failed, with its own words.
    """
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Network:
    """The addresses and names of one lab. The subnet is 10.213.<number>.0/24; the test machine has .254."""

    number: int

    @property
    def bridge(self) -> str:
        """The bridge's name, which is also the prefix of all other names."""
        return f"lsp{self.number}"

    @property
    def gateway(self) -> str:
        """The test machine's own address on the bridge."""
        return f"10.213.{self.number}.254"

    def address(self, index: int) -> str:
        """The address of host `index`, counted from 1."""
        return f"10.213.{self.number}.{index}"

    def veth(self, index: int) -> str:
        """The outer end of a host's cable."""
        return f"{self.bridge}p{index}"

    def namespace(self, index: int) -> str:
        """The name of a host's network namespace."""
        return f"{self.bridge}h{index}"


def claim_network(owner: str) -> Network:
    """Makes a bridge with a free number. The kernel refuses a second bridge of a name, so no two labs collide.

    Args:
        owner: is written to the bridge's alias, so that the leftovers of a killed run can be told from a live one.
    """
    # Workers of one test run have network namespaces of their own (`lanes`), but share the names in /run/netns.
    first = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) * LABS_OF_ONE_WORKER
    for number in range(first, first + LABS_OF_ONE_WORKER):
        network = Network(number)
        if any(NETNS.glob(f"{network.bridge}h*")):
            continue  # of a lab whose bridge is in another network namespace
        done = subprocess.run(
            ["ip", "link", "add", network.bridge, "type", "bridge"], capture_output=True, check=False
        )
        if done.returncode == 0:
            ip("link", "set", network.bridge, "alias", owner)
            ip("address", "add", f"{network.gateway}/24", "dev", network.bridge)
            ip("link", "set", network.bridge, "up")
            return network
        if b"File exists" not in done.stderr:
            raise RuntimeError(done.stderr.decode())
    raise RuntimeError(f"all {LABS_OF_ONE_WORKER} lab networks are in use: `ip link show type bridge`")


def plug_in(network: Network, index: int, nic: str) -> None:
    """Makes a host's namespace and joins it to the bridge; inside, the cable's end is called `nic`."""
    namespace, outer = network.namespace(index), network.veth(index)
    ip("netns", "add", namespace)
    ip("link", "add", outer, "type", "veth", "peer", "name", nic, "netns", namespace)
    ip("link", "set", outer, "master", network.bridge, "up")
    ip("-n", namespace, "link", "set", "lo", "up")
    ip("-n", namespace, "address", "add", f"{network.address(index)}/24", "dev", nic)
    ip("-n", namespace, "link", "set", nic, "up")
    ip("-n", namespace, "route", "add", "default", "via", network.gateway)


def bridges() -> dict[str, str]:
    """The labs' bridges on this machine: name to alias."""
    links = json.loads(ip("-j", "link", "show", "type", "bridge") or "[]")
    return {
        link["ifname"]: link.get("ifalias", "")
        for link in links
        if link.get("ifname", "").startswith("lsp") and link["ifname"][3:].isdigit()
    }


def namespaces(bridge: str) -> list[str]:
    """The namespaces of a lab."""
    names = [path.name for path in NETNS.iterdir()] if NETNS.is_dir() else []
    return sorted(name for name in names if name.startswith(f"{bridge}h"))


def links(bridge: str) -> list[str]:
    """The outer cable ends of a lab, and its bridge."""
    names = [link["ifname"] for link in json.loads(ip("-j", "link", "show") or "[]") if "ifname" in link]
    return sorted(name for name in names if name == bridge or name.startswith(f"{bridge}p"))


def processes(namespace: str) -> list[int]:
    """The processes whose network namespace is this one, by their ids here (not those inside the host)."""
    wanted = (NETNS / namespace).stat().st_ino
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns" / "net").stat().st_ino == wanted:
                    found.append(int(entry.name))
            except OSError:
                continue
    return sorted(found)


def take_down(bridge: str) -> None:
    """Removes what the kernel holds of a lab. Its processes must be gone."""
    for namespace in namespaces(bridge):
        ip("netns", "delete", namespace, check=False)
    for link in links(bridge):
        ip("link", "delete", link, check=False)


def nft(namespace: str, commands: Sequence[str]) -> None:
    """Feeds commands to nft(8) inside a namespace.

    Raises:
        RuntimeError: it failed, with its own words.
    """
    argv = ["ip", "netns", "exec", namespace, "nft", "-f", "-"]
    done = subprocess.run(argv, input="\n".join(commands), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"nft in {namespace}: {done.stderr.strip()}")

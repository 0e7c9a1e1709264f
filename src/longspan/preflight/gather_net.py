"""The network part of what a node says of itself. Standard library only; see `gather`."""

import ipaddress
import socket
import subprocess
from pathlib import Path
from typing import Any

from longspan.preflight.gather_file import text_of

_NET = Path("/sys/class/net")
_IB = Path("/sys/class/infiniband")


def _ip(*arguments: str) -> str:
    done = subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, timeout=5, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise ValueError(done.stderr.strip()[:200] or f"ip ended with status {done.returncode}")
    return done.stdout


def addresses(_: dict[str, Any]) -> str:
    """`ip -j address`."""
    return _ip("-j", "address", "show")


def routes(request: dict[str, Any]) -> dict[str, str]:
    """Peer address -> `ip -j route get` of it, or "error: …"."""
    found = {}
    for peer in request["peers"]:
        try:
            found[peer] = _ip("-j", "route", "get", peer)
        except ValueError as error:
            found[peer] = f"error: {error}"
    return found


def nics(_: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Interface -> mtu, speed (Mbit/s; absent where the driver has none), operstate, driver."""
    found = {}
    for entry in sorted(_NET.iterdir()):
        told = {name: text_of(entry / name) for name in ("mtu", "speed", "operstate")}
        driver = entry / "device" / "driver"
        found[entry.name] = {
            **told,
            "driver": driver.readlink().name if driver.is_symlink() else "",
        }
    return found


def names(_: dict[str, Any]) -> dict[str, Any]:
    """The host's own name, and the addresses that it resolves to here."""
    own = socket.gethostname()
    try:
        resolved = sorted({str(info[4][0]) for info in socket.getaddrinfo(own, None)})
    except OSError as error:
        return {"hostname": own, "resolves": [], "error": str(error)}
    return {"hostname": own, "resolves": resolved}


def ephemeral(_: dict[str, Any]) -> dict[str, str]:
    """The range of ports that the kernel hands out, and those kept out of it."""
    folder = Path("/proc/sys/net/ipv4")
    return {
        "range": text_of(folder / "ip_local_port_range"),
        "reserved": text_of(folder / "ip_local_reserved_ports"),
    }


def infiniband(_: dict[str, Any]) -> list[dict[str, Any]]:
    """Each port of each RDMA device: state, rate, link layer, GIDs with type and interface."""
    found: list[dict[str, Any]] = []
    for device in sorted(_IB.iterdir()) if _IB.is_dir() else ():
        for port in sorted((device / "ports").iterdir()):
            told = {name: text_of(port / name) for name in ("state", "rate", "link_layer", "phys_state")}
            gids = []
            for entry in sorted((port / "gids").iterdir(), key=lambda path: int(path.name)):
                gid = text_of(entry)
                if gid and set(gid) - {"0", ":"}:
                    kind = text_of(port / "gid_attrs" / "types" / entry.name)
                    nic = text_of(port / "gid_attrs" / "ndevs" / entry.name)
                    gids.append({"index": int(entry.name), "gid": gid, "type": kind, "nic": nic})
            found.append({"device": device.name, "port": int(port.name), **told, "gids": gids})
    return found


def listeners(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Who listens on the ports that we are about to use: [{port, address, holder}]."""
    first, last = request["ports"]
    found: dict[str, tuple[int, str]] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in text_of(Path(table)).splitlines()[1:]:
            fields = line.split()
            port = int(fields[1].rsplit(":", 1)[1], 16)
            if fields[3] == "0A" and first <= port <= last:
                found[fields[9]] = (port, _unpack(fields[1].rsplit(":", 1)[0]))
    holders = _holders(set(found)) if found else {}
    return [
        {"port": port, "address": address, "holder": holders.get(inode, "")}
        for inode, (port, address) in sorted(found.items(), key=lambda item: item[1])
    ]


def _unpack(text: str) -> str:
    """An address of /proc/net/tcp: words of 32 bits in the machine's byte order."""
    raw = b"".join(bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8))
    return str(ipaddress.ip_address(raw))


def _holders(inodes: set[str]) -> dict[str, str]:
    found = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            for link in (process / "fd").iterdir():
                target = str(link.readlink())
                if target.startswith("socket:[") and target[8:-1] in inodes:
                    found[target[8:-1]] = f"{text_of(process / 'comm')} (pid {process.name})"
        except OSError:
            continue
    return found


PROBES: dict[str, Any] = {
    "addresses": addresses, "routes": routes, "nics": nics, "names": names, "ephemeral": ephemeral,
    "infiniband": infiniband, "listeners": listeners,
}  # fmt: skip

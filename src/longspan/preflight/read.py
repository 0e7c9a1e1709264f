"""The answers of `gather` -> NodeFacts. Pure: recorded text in, values out. What cannot be read counts as unknown."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from longspan.cluster.parse import parse_topology
from longspan.preflight.facts import Gid, GpuFacts, Held, Nic, NodeFacts, RdmaPort, Route
from longspan.units import MIB

# ibv_devinfo prints "active_mtu: 4096 (5)".
_DEVINFO = re.compile(r"hca_id:\s*(\S+)|active_mtu:\s*(\d+)")


def read_nics(text: str, speeds: Mapping[str, Mapping[str, str]]) -> tuple[Nic, ...]:
    """Reads `ip -j address`.

    Args:
        speeds: NIC -> what sysfs says of it; may be empty.
    """
    found = []
    for link in json.loads(text):
        name = str(link.get("ifname", ""))
        if not name:
            continue
        flags = link.get("flags", [])
        speed = speeds.get(name, {}).get("speed", "")
        found.append(
            Nic(
                name,
                tuple(str(one["local"]) for one in link.get("addr_info", ()) if "local" in one),
                int(link.get("mtu", 0)),
                "UP" in flags,
                "NO-CARRIER" not in flags,
                int(speed) * 1e6 if speed.isdigit() else 0.0,
            )
        )
    return tuple(found)


def read_route(text: str) -> Route:
    """Reads `ip -j route get PEER`, or "error: …"."""
    if text.startswith("error:"):
        return Route(error=text.removeprefix("error:").strip())
    entries = json.loads(text)
    if not entries or not entries[0].get("dev"):
        return Route(error="the kernel names no interface")
    entry = entries[0]
    return Route(str(entry["dev"]), str(entry.get("prefsrc", "")))


def read_gpus(text: str) -> tuple[GpuFacts, ...]:
    """Reads nvidia-smi's table of `gather_gpu.GPU_FIELDS`; a value that it has not ("[N/A]") counts as 0 or None.

    Raises:
        ValueError: a line has another number of fields.
    """
    found = []
    for line in filter(str.strip, text.splitlines()):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 9 or not cells[0].isdigit():
            raise ValueError(f"nvidia-smi printed {line.strip()[:80]!r}, which is no GPU")
        index, name, total, uuid, driver, capability, used, ecc, mig = cells
        found.append(
            GpuFacts(
                int(index), name, _mib(total), _mib(used), uuid, driver, capability,
                int(ecc) if ecc.isdigit() else None, mig == "Enabled",
            )
        )  # fmt: skip
    return tuple(found)


def _mib(text: str) -> int:
    return int(text) * MIB if text.isdigit() else 0


def read_gpu_processes(text: str) -> tuple[tuple[int, str], ...]:
    """(pid, GPU's UUID) of what holds GPU memory."""
    rows = (line.split(",") for line in text.splitlines() if line.strip())
    return tuple((int(row[0]), row[1].strip()) for row in rows if len(row) >= 2 and row[0].strip().isdigit())


def read_rdma_ports(entries: list[dict[str, Any]]) -> tuple[RdmaPort, ...]:
    """Reads sysfs's words: state "4: ACTIVE", rate "400 Gb/sec (4X NDR)", GIDs."""
    found = []
    for entry in entries:
        rate = re.match(r"\d+(?:\.\d+)?", entry["rate"])
        gids = tuple(
            # An IPv4 address stands in a GID as ::ffff:a.b.c.d.
            Gid(
                one["index"], one["type"], one["nic"], one["gid"].startswith("0000:0000:0000:0000:0000:ffff:")
            )
            for one in entry["gids"]
        )
        found.append(
            RdmaPort(
                entry["device"], entry["port"], "ACTIVE" in entry["state"], float(rate[0]) * 1e9 if rate else 0.0,
                entry["link_layer"], gids,
            )
        )  # fmt: skip
    return tuple(found)


def read_active_mtus(text: str) -> dict[str, int]:
    """Device -> the smallest active MTU of its ports, from ibv_devinfo."""
    found: dict[str, int] = {}
    device = ""
    for match in _DEVINFO.finditer(text):
        if match[1]:
            device = match[1]
        elif device:
            found[device] = min(found.get(device, 1 << 30), int(match[2]))
    return found


def read_range(text: str) -> tuple[int, int]:
    """Reads ip_local_port_range: two numbers."""
    first, last = text.split()
    return int(first), int(last)


def read_reserved(text: str) -> tuple[tuple[int, int], ...]:
    """Reads ip_local_reserved_ports: "8080,9148-9200"."""
    found = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.append((int(first), int(last or first)))
    return tuple(found)


def read_facts(name: str, address: str, document: Mapping[str, Any]) -> NodeFacts:
    """All that a node said.

    Args:
        document: `gather.gather`'s answer. A value that cannot be read becomes unknown, with the reason.
    """
    values: Mapping[str, Any] = document["values"]
    unknown: dict[str, str] = dict(document["unknown"])
    fields: dict[str, Any] = {}

    def take(probe: str, read: Callable[[Any], Mapping[str, Any]]) -> None:
        if probe in values:
            try:
                fields.update(read(values[probe]))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                unknown[probe] = f"its answer cannot be read ({type(error).__name__}: {error})"[:300]

    take("python", lambda v: {"python": str(v["version"]), "executable": str(v["executable"])})
    take("packages", lambda v: {"packages": dict(v)})
    take("environment", lambda v: {"env": dict(v)})
    take("names", lambda v: {"hostname": str(v["hostname"]), "resolves": tuple(v["resolves"])})
    take("system", lambda v: {"boot_id": str(v["boot_id"]), "user": str(v["user"])})
    take("addresses", lambda v: {"nics": read_nics(v, values.get("nics", {}))})
    take("routes", lambda v: {"routes": {peer: read_route(text) for peer, text in v.items()}})
    take(
        "listeners",
        lambda v: {"ports_held": tuple(Held(int(e["port"]), str(e["address"]), str(e["holder"])) for e in v)},
    )
    take(
        "ephemeral", lambda v: {"ephemeral": read_range(v["range"]), "reserved": read_reserved(v["reserved"])}
    )
    take("infiniband", lambda v: {"rdma_ports": read_rdma_ports(v)})
    take(
        "rdma",
        lambda v: {
            "rdma_library": str(v["library"]), "rdma_devices": tuple(v["devices"]), "modules": tuple(v["modules"]),
            "driver_params": str(v.get("driver_params", "")),
        },
    )  # fmt: skip
    take("ibv_devinfo", lambda v: {"active_mtus": read_active_mtus(v)})
    for probe in ("limits", "memory", "shm", "disks", "fabric", "model", "hub", "ray_token"):
        take(probe, lambda v, probe=probe: {probe: dict(v)})  # type: ignore[misc]
    take("processes", lambda v: {"processes": tuple((int(e["pid"]), str(e["name"])) for e in v)})
    take("gpus", lambda v: {"gpus": read_gpus(v)})
    take("gpu_processes", lambda v: {"gpu_processes": read_gpu_processes(v)})
    take("topology", lambda v: {"nvlinks": parse_topology(v).nvlinks})
    take("torch", lambda v: {"torch": dict(json.loads(v.strip().splitlines()[-1]))})
    take("xids", lambda v: {"xids": tuple(v)})
    return NodeFacts(name, address, unknown=unknown, **fields)


# What ssh says -> (cause, what it means, what to do). The first that matches, so the telling ones stand first.
_SSH: tuple[tuple[str, str, str, str], ...] = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "host-key-changed",
     "its host key is not the one that this machine knows: it was installed anew, or another machine answers",
     "If it was installed anew, `ssh-keygen -R {host}` and connect once by hand; otherwise find out who answers there."),
    ("Host key verification failed", "host-key-unknown", "its host key is not known on this machine",
     "Connect once by hand (`ssh {target} true`) and accept its key, or add it to known_hosts."),
    ("Permission denied", "ssh-key-refused", "it refuses this user's key",
     "Put your public key into its authorized_keys (`ssh-copy-id {target}`), or name user and key in ~/.ssh/config."),
    ("Too many authentication failures", "ssh-key-refused", "it refused every key that was offered",
     "Name the right one for {target} in ~/.ssh/config: IdentityFile, and IdentitiesOnly yes."),
    ("Could not resolve hostname", "host-name-unknown", "its name cannot be resolved here",
     "Correct ssh = … in the cluster file, or give {target} a HostName in ~/.ssh/config."),
    ("Connection refused", "ssh-refused", "nothing listens on its ssh port", "Start sshd there, or correct the port in ~/.ssh/config."),
    ("timed out", "host-unreachable", "it does not answer", "Is it on, and is the network between open? Try `ssh {target} true`."),
    ("No route to host", "host-unreachable", "there is no route to it", "Is it on and on this network? Try `ssh {target} true`."),
    ("Network is unreachable", "host-unreachable", "there is no route to its network", "Check this machine's routes."),
)  # fmt: skip


def read_refusal(status: int, errors: list[str], target: str, python: str) -> tuple[str, str, str]:
    """Why a session did not begin: (cause, sentence part, remedy).

    Args:
        status: what ended it; ssh's own failures are 255, a shell's "not found" 127 and "not executable" 126.
        errors: its standard error.
    """
    text = "\n".join(errors)
    if status in (126, 127) or ("No such file or directory" in text and python in text):
        return (
            "python-missing", f"{python} cannot be run there",
            "Correct python = … in the cluster file, or install Python 3.11 or newer at that path.",
        )  # fmt: skip
    if status == 255 or "ssh:" in text:
        for words, cause, sentence, remedy in _SSH:
            if words in text:
                return cause, sentence, remedy.format(target=target, host=target.rsplit("@", 1)[-1])
    last = next((line for line in reversed(errors) if line.strip()), "no reason given")
    return (
        "host-unreachable" if status == 255 else "session-failed",
        f"the session ended with status {status}: {last[:200]}",
        f"Try `ssh {target} {python} -V` until it works.",
    )

"""The hosts of a cluster file as the launcher sees them: names, addresses, how to reach them. Pure.

The same TOML file serves the planner (`inventory_file`), which reads GPU types, links and networks out of it:

    [ray]
    address = "10.0.0.1:6379"     # a Ray cluster that already runs; left out, Longspan starts its own over ssh
    first_port = 20100            # or: the first of the 500 ports that our own Ray uses on each host

    [[node]]
    name = "gpu-a"
    address = "10.0.0.1"          # by which the other nodes reach it
    gpus = "8x H100-SXM-80GB"     # or a plain number
    ssh = "ops@gpu-a"             # what one would type after ssh
    python = "/opt/serve/bin/python"
    env = { HF_HOME = "/data/hf" }
    container = "vllm/vllm-openai:v0.20.0"   # run everything inside; see `container`
    network = { kind = "ethernet", rate_gbit_per_second = 100, interface = "ens1" }

A first [[node]] with gpus = 0 runs Ray's head and no rank.
"""

import difflib
import ipaddress
import re
import tomllib
from dataclasses import dataclass, field
from typing import Any

from longspan.cluster.catalog import find_gpu
from longspan.cluster.container import Container, parse_container
from longspan.errors import InputError

# What a [[node]] may hold: the launcher's part and the planner's (`inventory_file`).
NODE_FIELDS = (
    "name",
    "address",
    "gpus",
    "ssh",
    "python",
    "env",
    "container",
    "link",
    "network",
    "gpu_memory_gib",
)
_PORTS_LAST = 65535 - 500


@dataclass(frozen=True, slots=True)
class NetworkWish:
    """What the file says of a host's network; empty and 0 where it does not."""

    kind: str = ""
    rate_bits_per_second: float = 0.0
    interface: str = ""
    hcas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One host. `gpus` is None where the file does not say and Ray is asked; `slurm`: see `deployment.NodeSpec`.

    Attributes:
        vendor: of the GPU types in the file ("nvidia", "amd", "mixed"); empty where it gives a number only, or a type
            that neither the catalogue nor the file's [gpu_type] tables know.
    """

    name: str
    address: str
    gpus: int | None
    ssh: str | None = None
    python: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    slurm: str | None = None
    container: Container | None = None
    network: NetworkWish = NetworkWish()
    vendor: str = ""


@dataclass(frozen=True, slots=True)
class HostsFile:
    """The launcher's part of a cluster file. `first_port` is None where the file does not choose."""

    ray_address: str | None
    hosts: tuple[HostEntry, ...]
    first_port: int | None = None


def parse_hosts(text: str, source: str) -> HostsFile:
    """Reads the file's text.

    Raises:
        InputError: bad TOML (with line and column), a missing or wrong field, a name or address that stands twice.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        lines = text.splitlines() or [""]
        end = f"at line {len(lines)}, column {len(lines[-1]) + 1}, the end of the file"
        told = str(error).replace("at end of document", end)
        raise InputError(f"{source} is not TOML: {told}.", "Mend that line.") from error
    first_port = _first_port(document.get("ray"), source)
    ray_address = None if first_port is not None else _ray_address(document.get("ray"), source)
    tables = document.get("node", [])
    if not isinstance(tables, list) or (not tables and ray_address is None):
        raise InputError(
            f"{source} names no [[node]] and no [ray] address.", "Add a [[node]] with name and address."
        )
    for number, table in enumerate(tables, 1):
        _refuse_unknown(table, number, text, source)
    hosts = tuple(
        _host(table, f"{source}: node {number}", document) for number, table in enumerate(tables, 1)
    )
    if ray_address and any(host.container for host in hosts):
        raise InputError(
            f"{source}: a Ray that already runs is joined where it runs; container would start something beside it.",
            "Leave out container, or [ray].",
        )
    for what in ("name", "address"):
        seen: set[str] = set()
        for host in hosts:
            value = getattr(host, what)
            if value in seen:
                raise InputError(f"{source}: the {what} {value!r} stands twice.", "Every node needs its own.")
            seen.add(value)
    return HostsFile(ray_address, hosts, first_port)


def _refuse_unknown(table: Any, number: int, text: str, source: str) -> None:
    """A field that nobody reads is a typo, and is shown where it stands."""
    for key in table if isinstance(table, dict) else ():
        if key not in NODE_FIELDS:
            line, column = place_of(text, key, number)
            near = difflib.get_close_matches(key, NODE_FIELDS, 1)
            raise InputError(
                f"{source}, line {line}, column {column}: a [[node]] has no field {key!r}.",
                f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(NODE_FIELDS)}.",
            )


def place_of(text: str, key: str, table: int) -> tuple[int, int]:
    """Line and column, from 1, of a key in the `table`-th [[node]]; (0, 0) where it cannot be found."""
    count = 0
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*\[\[\s*node\s*\]\]", line):
            count += 1
        match = re.match(rf"\s*(\[\s*node\s*\.\s*)?[\"']?{re.escape(key)}[\"']?\s*[=.\]]", line)
        if match and count == table:
            return number, line.index(key) + 1
    return 0, 0


def _first_port(ray: Any, source: str) -> int | None:
    """[ray] first_port, which is for a Ray of our own."""
    if not isinstance(ray, dict) or "first_port" not in ray:
        return None
    port = ray["first_port"]
    if "address" in ray:
        raise InputError(
            f"{source}: [ray] address names a Ray that runs already, first_port one that Longspan starts.",
            "Give one of them.",
        )
    if isinstance(port, bool) or not isinstance(port, int) or not 1024 <= port <= _PORTS_LAST:
        raise InputError(
            f"{source}: [ray] first_port must be a port from 1024 to {_PORTS_LAST}, not {port!r}.",
            "20100 is the default.",
        )
    return port


def _ray_address(ray: Any, source: str) -> str | None:
    if ray is None:
        return None
    address = ray.get("address") if isinstance(ray, dict) else ray
    if not isinstance(ray, dict) or not (
        isinstance(address, str) and re.fullmatch(r"[\w.\[\]:-]+:\d{1,5}", address, re.ASCII)
    ):
        raise InputError(
            f'{source}: [ray] address must be "host:port", not {address!r}.',
            'Write [ray] and below it address = "10.0.0.1:6379"; without [ray], Longspan starts its own Ray.',
        )
    return address


def _host(table: Any, where: str, document: dict[str, Any]) -> HostEntry:
    if not isinstance(table, dict):
        raise InputError(f"{where} is not a table.", "Write [[node]].")
    name = _text(table, "name", where)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,62}", name, re.ASCII) or name == "front":
        raise InputError(f"{where}: {name!r} cannot be a node's name.", "Letters, digits, '.', '_' and '-'.")
    address = _text(table, "address", where)
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        raise InputError(
            f"{where}: address must be an IP address, not {address!r}: Ray and NCCL compare addresses as text.",
            "Give the address that the other nodes reach it by (`ip -brief address` on that host).",
        ) from None
    if found.is_unspecified or found.is_multicast:
        raise InputError(
            f"{where}: {address} is no address of a host.", "Give the one that the others reach it by."
        )
    ssh = table.get("ssh")
    if ssh is not None and (not isinstance(ssh, str) or not ssh or ssh.startswith("-")):
        raise InputError(f"{where}: ssh must be what one types after `ssh`, not {ssh!r}.")
    python = table.get("python")
    if python is not None and (not isinstance(python, str) or not python or python.startswith("-")):
        raise InputError(f"{where}: python must be the path of an interpreter, not {python!r}.")
    gpus = _gpus(table.get("gpus"), where)
    return HostEntry(
        name, str(found), gpus, ssh, python, _env(table.get("env", {}), where),
        container=_container(table, where, document), network=_network(table.get("network", document.get("network")), where),
        vendor=_vendor(table.get("gpus"), document.get("gpu_type", {})),
    )  # fmt: skip


def _network(table: Any, where: str) -> NetworkWish:
    """What `inventory_file` reads strictly for the planner, as far as a launch needs it."""
    if table is None:
        return NetworkWish()
    if not isinstance(table, dict):
        raise InputError(f"{where}: network must be a table with kind and rate_gbit_per_second.")
    rate, nics, hcas = table.get("rate_gbit_per_second", 0), table.get("nics", 1), table.get("hcas", [])
    if not isinstance(hcas, list) or any(
        isinstance(one, bool) or not isinstance(one, int | float) for one in (rate, nics)
    ):
        raise InputError(
            f"{where}: in network, rate_gbit_per_second and nics are numbers and hcas is a list."
        )
    return NetworkWish(
        str(table.get("kind", "")), rate * nics * 1e9, str(table.get("interface", "")), tuple(map(str, hcas))
    )


def _container(table: dict[str, Any], where: str, document: dict[str, Any]) -> Container | None:
    """The node's own, else the file's; InfiniBand devices go in where the network has RDMA, AMD's where GPUs are AMD's."""
    network = table.get("network", document.get("network"))
    rdma = isinstance(network, dict) and network.get("kind") in ("infiniband", "roce")
    value = table.get("container", document.get("container"))
    if isinstance(value, str):
        value = {"image": value}
    if isinstance(value, dict) and re.search(r"\bMI\d", str(table.get("gpus", ""))):
        value = {"gpu_vendor": "amd", **value}
    return parse_container(value, where, rdma=rdma)


def _vendor(value: Any, types: Any) -> str:
    """Who made the GPUs of `gpus = …`."""
    found = set()
    for text in value if isinstance(value, list) else [value]:
        if not isinstance(text, str):
            continue
        name = re.sub(r"^\s*\d{1,4}\s*[x\u00d7]\s*", "", text).strip()
        table = types.get(name) if isinstance(types, dict) else None
        known = find_gpu(name)
        if isinstance(table, dict):
            found.add(str(table.get("vendor", "nvidia")))
        elif known is not None:
            found.add(known.vendor)
    return found.pop() if len(found) == 1 else "mixed" if found else ""


def _env(table: Any, where: str) -> dict[str, str]:
    if not isinstance(table, dict):
        raise InputError(f"{where}: env must be a table.", 'Such as env = { NCCL_SOCKET_IFNAME = "eno1" }.')
    for key, value in table.items():
        number = isinstance(value, int) and not isinstance(value, bool)
        if not (number or (isinstance(value, str) and "\0" not in value)):
            raise InputError(f"{where}: env.{key} must be a text, not {value!r}.", f'Write {key} = "…".')
        if not re.fullmatch(r"[A-Za-z_]\w*", key, re.ASCII):
            raise InputError(f"{where}: {key!r} cannot be a variable's name.", "Letters, digits and '_'.")
    return {key: str(value) for key, value in table.items()}


def _text(table: dict[str, Any], field_name: str, where: str) -> str:
    value = table.get(field_name)
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}: {field_name} is missing.", f'Write {field_name} = "…".')
    return value


def _gpus(value: Any, where: str) -> int | None:
    """A number, "4x TYPE", a list of types, or nothing."""
    match value:
        case None:
            return None
        case bool():
            pass
        case int() if value >= 0:
            return value
        case list() if all(isinstance(kind, str) and kind.strip() for kind in value):
            return len(value)
        case str() if found := re.match(r"(\d{1,4})\s*x\s*\S", value, re.ASCII):
            return int(found[1])
        case str() if value.strip() and not value.strip()[0].isdigit():
            return 1
    raise InputError(f'{where}: gpus must be a number, "4x TYPE" or a list of types, not {value!r}.')

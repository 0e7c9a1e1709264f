"""The hosts of a cluster file as the launcher sees them: names, addresses, how to reach them. Pure.

The same TOML file serves the planner (`inventory_file`), which reads GPU types, links and networks out of it:

    [ray]
    address = "10.0.0.1:6379"     # a Ray cluster that already runs; left out, Longspan starts its own over ssh

    [[node]]
    name = "gpu-a"
    address = "10.0.0.1"          # by which the other nodes reach it
    gpus = "8x H100-SXM-80GB"     # or a plain number
    ssh = "ops@gpu-a"             # what one would type after ssh
    python = "/opt/serve/bin/python"
    env = { NCCL_SOCKET_IFNAME = "eno1" }
    container = "vllm/vllm-openai:v0.20.0"   # run everything inside; see `container`
"""

import ipaddress
import re
import tomllib
from dataclasses import dataclass, field
from typing import Any

from longspan.cluster.catalog import find_gpu
from longspan.cluster.container import Container, parse_container
from longspan.errors import InputError


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
    vendor: str = ""


@dataclass(frozen=True, slots=True)
class HostsFile:
    """The launcher's part of a cluster file."""

    ray_address: str | None
    hosts: tuple[HostEntry, ...]


def parse_hosts(text: str, source: str) -> HostsFile:
    """Reads the file's text.

    Raises:
        InputError: bad TOML (with line and column), a missing or wrong field, a name or address that stands twice.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not TOML: {error}.", "Mend that line.") from error
    ray_address = _ray_address(document.get("ray"), source)
    tables = document.get("node", [])
    if not isinstance(tables, list) or (not tables and ray_address is None):
        raise InputError(
            f"{source} names no [[node]] and no [ray] address.", "Add a [[node]] with name and address."
        )
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
    return HostsFile(ray_address, hosts)


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
        container=_container(table, where, document), vendor=_vendor(table.get("gpus"), document.get("gpu_type", {})),
    )  # fmt: skip


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

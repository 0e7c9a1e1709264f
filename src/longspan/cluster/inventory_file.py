"""Reading and writing a cluster: the TOML inventory, and the shorthand of the command line.

name = "lab"

[network]                       # the default of every node
kind = "ethernet"               # infiniband, roce or ethernet
rate_gbit_per_second = 10
interface = "eno1"

[[node]]
name = "gpu-a"
address = "10.0.0.1"
gpus = "4x A100-PCIe-80GB"      # or ["A100-PCIe-80GB", "RTX-4090"] in index order

[[node]]
name = "gpu-b"
address = "10.0.0.2"
gpus = "4x A100-PCIe-80GB"
link = { kind = "nvlink", gb_per_second = 300 }
network = { kind = "infiniband", rate_gbit_per_second = 200, nics = 2, interface = "ib0" }
"""

import json
import re
import tomllib
from collections import Counter
from typing import Any

from longspan.cluster.catalog import GpuType, custom_gpu, require_gpu
from longspan.cluster.hosts import NODE_FIELDS
from longspan.cluster.inventory import (
    DEFAULT_LINK_BYTES_PER_SECOND,
    LINK_KINDS,
    NETWORK_KINDS,
    Cluster,
    Gpu,
    Link,
    Network,
    Node,
    slower_link,
    usual_network,
)
from longspan.errors import InputError

_GIGA = 10**9
# More than any machine has; beyond it, a slip of the hand would be hours of planning.
_TOO_MUCH = 10**9
MOST_GPUS_A_NODE = 1024
MOST_GPUS = 16_384


# What counts for a node where the file names no network.
ASSUMED_NETWORK = {"kind": "ethernet", "rate_gbit_per_second": 10}
# What `longspan check --write-links` adds to a node's network.
_MEASURED = {"measured_gbit_per_second", "measured_latency_us", "measured_with"}


def _number(table: dict[str, Any], field: str, where: str, default: float | None = None) -> float:
    value = table.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _TOO_MUCH:
        raise InputError(f"{where}: {field} must be a number above 0, not {str(value)[:40]}.")
    return value


def _known(table: dict[str, Any], fields: set[str], where: str) -> None:
    unknown = sorted(set(table) - fields)
    if unknown:
        raise InputError(
            f"{where}: unknown field{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}.",
            f"Known: {', '.join(sorted(fields))}.",
        )


def _network(table: Any, where: str) -> Network:
    if not isinstance(table, dict):
        raise InputError(f"{where}: network must be a table with kind and rate_gbit_per_second.")
    _known(
        table, {"kind", "rate_gbit_per_second", "nics", "interface", "hcas", *_MEASURED}, f"{where}: network"
    )
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in NETWORK_KINDS:
        raise InputError(f"{where}: network.kind must be one of {', '.join(NETWORK_KINDS)}, not {kind!r}.")
    hcas = table.get("hcas", [])
    if not isinstance(hcas, list):
        raise InputError(f"{where}: network.hcas must be a list of names, not {str(hcas)[:40]}.")
    return Network(
        kind,
        _number(table, "rate_gbit_per_second", f"{where}: network") * _GIGA,
        max(round(_number(table, "nics", f"{where}: network", 1)), 1),
        str(table.get("interface", "")),
        tuple(str(hca) for hca in hcas),
        _measured(table, "measured_gbit_per_second", where) * _GIGA / 8,
        _measured(table, "measured_latency_us", where) / 1e6,
        str(table.get("measured_with", "")),
    )


def _measured(table: dict[str, Any], field: str, where: str) -> float:
    return _number(table, field, f"{where}: network") if field in table else 0.0


def _gpus(value: Any, types: dict[str, GpuType], where: str, memory_gib: float | None) -> tuple[Gpu, ...]:
    names: list[str] = []
    for text in value if isinstance(value, list) else [value]:
        match = (
            re.fullmatch(r"\s*(?:(\d+)\s*[x\u00d7]\s*)?(\S.*?)\s*", text) if isinstance(text, str) else None
        )
        if match is None:
            raise InputError(f'{where}: gpus must read like "8x H100" or ["H100", "H100"], not {text!r}.')
        count = float(match[1] or 1)  # a count of a thousand digits is infinite, and too many
        if len(names) + count > MOST_GPUS_A_NODE:
            raise InputError(f"{where}: a node has at most {MOST_GPUS_A_NODE} GPUs here, not {text[:60]!r}.")
        names += [match[2]] * int(count)
    found = [types[name] if name in types else require_gpu(name) for name in names]
    return tuple(
        Gpu(index, kind, kind.memory_bytes if memory_gib is None else round(memory_gib * (1 << 30)))
        for index, kind in enumerate(found)
    )


def _link(value: Any, gpus: tuple[Gpu, ...], where: str) -> Link:
    if value is None:
        return slower_link(gpus)
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, dict) or table.get("kind") not in LINK_KINDS:
        raise InputError(f"{where}: link.kind must be one of {', '.join(LINK_KINDS)}.")
    _known(table, {"kind", "gb_per_second"}, f"{where}: link")
    kind = str(table["kind"])
    default = DEFAULT_LINK_BYTES_PER_SECOND.get(kind) or max(
        (gpu.type.link_bytes_per_second for gpu in gpus if gpu.type.link == kind), default=300e9
    )
    return Link(kind, _number(table, "gb_per_second", f"{where}: link", default / _GIGA) * _GIGA)


def _expand(name: str) -> list[str]:
    """ "gpu[01-03]" -> gpu01, gpu02, gpu03, as Slurm writes host lists."""
    match = re.fullmatch(r"(.*)\[(\d{1,9})-(\d{1,9})\](.*)", name)
    if match is None:
        return [name]
    first, last = int(match[2]), int(match[3])
    if last < first or last - first > 4095:
        raise InputError(f"The node range {name!r} is empty or too long.")
    return [f"{match[1]}{number:0{len(match[2])}d}{match[4]}" for number in range(first, last + 1)]


def _refuse_shell(where: str, *words: str) -> None:
    """Raises: InputError: a word that a shell would take for more than a word; the plan prints commands to be pasted."""
    for word in words:
        if not re.fullmatch(r"[^\s\"'`$;&|<>()\\]+", word):
            raise InputError(
                f"{where}: {word[:60]!r} is no name or address of a host: it would not stay one word in a shell."
            )


def parse_cluster(text: str) -> Cluster:
    """Reads an inventory.

    Raises:
        InputError: not TOML, or a field is wrong; the message names the node and the field.
    """
    try:
        document = tomllib.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as error:  # no TOML, a number of thousands of digits, or nested too deep
        raise InputError(f"The inventory is not valid TOML: {error}.") from error
    _known(document, {"name", "network", "node", "gpu_type", "ray", "container"}, "inventory")
    described, listed = document.get("gpu_type", {}), document.get("node", [])
    if not isinstance(described, dict) or not all(isinstance(table, dict) for table in described.values()):
        raise InputError("inventory: gpu_type must be tables, [gpu_type.NAME].")
    if not isinstance(listed, list) or not all(isinstance(table, dict) for table in listed):
        raise InputError("inventory: node must be tables, [[node]] with two pairs of brackets.")
    types = {name: custom_gpu(name, table, LINK_KINDS) for name, table in described.items()}
    nodes: list[Node] = []
    for number, table in enumerate(listed, 1):
        where = f"node {table.get('name', number)}"
        _known(table, set(NODE_FIELDS), where)
        if not isinstance(table.get("name"), str) or not table["name"].strip():
            raise InputError(f"{where}: name is missing.")
        memory = _number(table, "gpu_memory_gib", where) if "gpu_memory_gib" in table else None
        gpus = _gpus(table["gpus"], types, where, memory) if table.get("gpus") else ()
        network = table.get("network", document.get("network"))
        if network is None:
            network = ASSUMED_NETWORK
        for name in _expand(table["name"]):
            address = str(table.get("address", name)).replace("{name}", name)
            _refuse_shell(where, name, address)
            nodes.append(
                Node(name, address, gpus, _link(table.get("link"), gpus, where), _network(network, where))
            )
    if not nodes:
        raise InputError(
            "The inventory names no node.", 'Add a table: [[node]] with name = "…" and gpus = "8x H100".'
        )
    doubled = [name for name, count in Counter(node.name for node in nodes).items() if count > 1]
    if doubled:
        raise InputError(f"The inventory names {', '.join(doubled)} more than once.")
    _refuse_many(sum(len(node.gpus) for node in nodes))
    return Cluster(str(document.get("name", "cluster")), tuple(nodes))


def _refuse_many(gpus: float) -> None:
    """Raises: InputError: more GPUs than are planned for."""
    if gpus > MOST_GPUS:
        raise InputError(
            f"{gpus:,.0f} GPUs are more than the {MOST_GPUS:,} that are planned for at once.",
            "Plan a part of the cluster; its replicas are alike.",
        )


def parse_shorthand(gpus: str, network: str = "") -> Cluster:
    """Reads a cluster from two words of the command line.

    Args:
        gpus: "8xH100" is one node; "2x4xA100-PCIe-80GB" two nodes of four; "8xH100+4xL40S" two unequal nodes.
        network: "ethernet:10", "roce:100x2", "infiniband:400x8" (Gbit/s, NICs); by default 8 x 400 Gbit/s
            InfiniBand where the GPUs have NVLink and 10 Gbit/s Ethernet elsewhere, the usual fabric of each.

    Raises:
        InputError: it cannot be read.
    """
    nodes: list[Node] = []
    for group in gpus.split("+"):
        match = re.fullmatch(r"\s*(?:(\d+)\s*[x\u00d7]\s*)?(\d+)\s*[x\u00d7]\s*(\S.*?)\s*", group)
        if match is None or int(match[2]) == 0 or match[1] == "0":
            raise InputError(
                f"{group[:80]!r} is no group of GPUs.",
                'Write "8xH100" or "2x4xA100-PCIe-80GB" (nodes x GPUs x type).',
            )
        members = _gpus(f"{match[2]}x {match[3]}", {}, gpus[:80], None)
        _refuse_many(sum(len(node.gpus) for node in nodes) + len(members) * float(match[1] or 1))
        link = slower_link(members)
        for _ in range(int(match[1] or 1)):
            name = f"node{len(nodes)}"
            nodes.append(
                Node(name, name, members, link, parse_network(network) if network else usual_network(link))
            )
    return Cluster("cluster", tuple(nodes))


def parse_network(text: str) -> Network:
    """Reads "infiniband:400x8", "ib:200", "roce:100", "ethernet:10" or "eth:25".

    Raises:
        InputError: it cannot be read.
    """
    match = re.fullmatch(
        r"(infiniband|ib|roce|ethernet|eth):(\d+(?:\.\d+)?)(?:[x\u00d7](\d+))?", text.strip().lower()
    )
    if match is None or not 0 < float(match[2]) < _TOO_MUCH or not 0 < float(match[3] or 1) < _TOO_MUCH:
        raise InputError(
            f"{text[:80]!r} is no network.",
            'Write "infiniband:400x8", "roce:100" or "ethernet:10" (Gbit/s x NICs).',
        )
    kind = {"ib": "infiniband", "eth": "ethernet"}.get(match[1], match[1])
    return Network(kind, float(match[2]) * _GIGA, int(match[3] or 1))


def measured_fields(bytes_per_second: float, latency_seconds: float, with_: str) -> list[str]:
    """What a measurement looks like in a network's table; empty for none."""
    if not bytes_per_second:
        return []
    return [
        f"measured_gbit_per_second = {bytes_per_second * 8 / _GIGA!r}",
        f"measured_latency_us = {latency_seconds * 1e6!r}",
        *([f"measured_with = {json.dumps(with_)}"] if with_ else []),
    ]


def to_toml(cluster: Cluster) -> str:
    """Writes an inventory that `parse_cluster` reads back to an equal cluster (catalogue types only)."""
    lines = [f"name = {json.dumps(cluster.name)}"]
    for node in cluster.nodes:
        network = node.network
        fields = [
            f'kind = "{network.kind}"',
            f"rate_gbit_per_second = {network.rate_bits_per_second / _GIGA!r}",
        ]
        fields += [f"nics = {network.nics}"] if network.nics != 1 else []
        fields += [f"interface = {json.dumps(network.interface)}"] if network.interface else []
        fields += [f"hcas = {json.dumps(list(network.hcas))}"] if network.hcas else []
        fields += measured_fields(
            network.measured_bytes_per_second, network.measured_latency_seconds, network.measured_with
        )
        lines += ["", "[[node]]", f"name = {json.dumps(node.name)}", f"address = {json.dumps(node.address)}"]
        if node.gpus:
            same = len(node.gpu_types) == 1
            gpus = f"{len(node.gpus)}x {node.gpu_types[0]}" if same else [gpu.type.name for gpu in node.gpus]
            lines.append(f"gpus = {json.dumps(gpus)}")
            memory = {gpu.memory_bytes for gpu in node.gpus}
            if len(memory) == 1 and any(gpu.memory_bytes != gpu.type.memory_bytes for gpu in node.gpus):
                lines.append(f"gpu_memory_gib = {memory.pop() / (1 << 30)!r}")
        lines.append(
            f'link = {{ kind = "{node.link.kind}", gb_per_second = {node.link.bytes_per_second / _GIGA!r} }}'
        )
        lines.append(f"network = {{ {', '.join(fields)} }}")
    return "\n".join(lines) + "\n"

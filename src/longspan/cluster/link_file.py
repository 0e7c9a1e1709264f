"""Writes measured links into a cluster file without touching anything else in it. Pure: text in, text out.

The file is the user's, with comments and an order of its own, so it is not written anew: one line per node is changed
or added, and the result must read back to the same file but for the measurement.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longspan.cluster.inventory_file import ASSUMED_NETWORK, measured_fields
from longspan.errors import InputError

_NODE = re.compile(r"\s*\[\[\s*node\s*\]\]")
_TABLE = re.compile(r"\s*\[")
_INLINE = re.compile(r"(\s*)network\s*=\s*\{.*\}\s*(#.*)?$")


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """Between a node and its slowest peer; `with_` is the library, nccl or gloo."""

    bytes_per_second: float
    latency_seconds: float
    with_: str


def write_links(text: str, links: Mapping[str, MeasuredLink]) -> str:
    """The file with the links of the named nodes.

    Raises:
        InputError: it is written in a way that cannot be changed line by line; with the lines to add by hand.
    """
    before = tomllib.loads(text)
    lines = text.splitlines()
    for name, link in links.items():
        _write(lines, name, before, link)
    after = "\n".join(lines) + "\n"
    try:
        same = _without(tomllib.loads(after), links) == _without(before, links)
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise InputError(
            "The cluster file is written in a way that cannot be changed line by line.",
            "Add by hand: " + "; ".join(f"{name}: network = {{ {', '.join(_fields(link))} }}" for name, link in links.items()),
        )  # fmt: skip
    return after


def _write(lines: list[str], name: str, document: dict[str, Any], link: MeasuredLink) -> None:
    tables = document.get("node", [])
    number = next((i for i, table in enumerate(tables) if table.get("name") == name), None)
    heads = [i for i, line in enumerate(lines) if _NODE.match(line)]
    if number is None or number >= len(heads):
        raise InputError(
            f"The cluster file has no [[node]] called {name!r} of its own, so its link cannot be written there."
        )
    start = heads[number] + 1
    end = next((i for i in range(start, len(lines)) if _TABLE.match(lines[i])), len(lines))
    own = tables[number].get("network") or document.get("network") or ASSUMED_NETWORK
    kept = {key: value for key, value in own.items() if not key.startswith("measured_")}
    fields = [f"{key} = {json.dumps(value)}" for key, value in kept.items()]
    line = f"network = {{ {', '.join([*fields, *_fields(link)])} }}"
    for index in range(start, end):
        if match := _INLINE.match(lines[index]):
            lines[index] = f"{match[1]}{line}{'  ' + match[2] if match[2] else ''}"
            return
    while end > start and not lines[end - 1].strip():
        end -= 1
    lines.insert(end, line)


def _fields(link: MeasuredLink) -> list[str]:
    rounded = (float(f"{link.bytes_per_second:.4g}"), float(f"{link.latency_seconds:.4g}"))
    return measured_fields(*rounded, link.with_)


def _without(document: dict[str, Any], links: Mapping[str, MeasuredLink]) -> dict[str, Any]:
    """The document as it was meant without any measurement, each node with the network that counts for it."""
    common = document.get("network") or ASSUMED_NETWORK
    nodes = []
    for table in document.get("node", []):
        network = table.get("network") or (common if table.get("name") in links else None)
        plain = network and {key: value for key, value in network.items() if not key.startswith("measured_")}
        nodes.append({**table, "network": plain})
    return {**document, "node": nodes}

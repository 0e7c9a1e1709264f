#!/usr/bin/env python3
"""Writes the tables of docs/check.md from the code: the checks, the documented ports, the faults that the lab makes; a test
fails when they differ.

PYTHONPATH=src:tests python scripts/check_table.py
"""

import re
from pathlib import Path

from longspan.deployment import RayPorts
from longspan.preflight.catalogue import CHECKS
from preflight.lab_faults import FAULTS

TARGET = Path(__file__).parent.parent / "docs" / "check.md"
_MARKED = re.compile(r"(<!-- (\w+):begin -->\n).*?(<!-- \2:end -->)", re.DOTALL)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def checks() -> str:
    """One row a check."""
    rows = [
        f"| `{check.id}` | {check.group} | {_cell(check.rule)} | {_cell(check.why)} | `{_cell(check.command)}` | {check.source} |"
        for check in CHECKS
    ]
    head = "| check | group | passes when | otherwise | the same by hand | source |\n| --- | --- | --- | --- | --- | --- |"
    return "\n".join([head, *rows, ""])


def ports() -> str:
    """One row a port of our Ray."""
    block = RayPorts()
    rows = [
        (str(block.gcs), "head", "GCS: where nodes and drivers join"),
        (str(block.client_server), "head", "Ray client server"),
    ]
    for flag in block.flags():
        name, _, value = flag.removeprefix("--").partition("=")
        if not name.endswith("worker-port"):
            rows.append((value, "every node", name.replace("-", " ")))
    rows.append((f"{block.workers[0]} to {block.workers[1]}", "every node", "workers and drivers"))
    rows.append((f"{block.again} to {block.last}", "every node", "a node that joins again after it was lost"))
    lines = [f"| {port} | {where} | {what} |" for port, where, what in rows]
    return "\n".join(["| port | on | what |", "| --- | --- | --- |", *lines, ""])


def faults() -> str:
    """One row a fault of the lab."""
    rows = [f"| {fault.name} | `{fault.cause}` | {fault.severity} |" for fault in FAULTS]
    return "\n".join(["| fault | found as | severity |", "| --- | --- | --- |", *rows, ""])


def render(text: str) -> str:
    """The page with its tables as the code has them."""
    tables = {"checks": checks(), "ports": ports(), "faults": faults()}
    return _MARKED.sub(lambda match: f"{match[1]}{tables[match[2]]}{match[3]}", text)


if __name__ == "__main__":
    TARGET.write_text(render(TARGET.read_text()))

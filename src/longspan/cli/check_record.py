"""What is kept and printed of a pre-flight: measured links, the launch record's part, the document of `--json`."""

import contextlib
import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longspan.cli.preflighting import Checked
from longspan.cluster.link_file import MeasuredLink
from longspan.daemon.places import state_root, write_private
from longspan.preflight import rails
from longspan.preflight.groups import describe
from longspan.preflight.scene import Scene, Setting


def measured_links(scene: Scene) -> dict[str, MeasuredLink]:
    """Node -> the link to its slowest peer, of the pairs that finished."""
    found: dict[str, MeasuredLink] = {}
    for group in scene.groups:
        if group.ok and len(group.nodes) == 2:
            link = MeasuredLink(group.bus_bytes_per_second, group.latency_seconds, group.backend)
            for name in group.nodes:
                if name not in found or link.bytes_per_second < found[name].bytes_per_second:
                    found[name] = link
    return found


def _kept(addresses: Sequence[str]) -> Path:
    key = hashlib.sha256(" ".join(sorted(addresses)).encode()).hexdigest()[:16]
    return state_root() / "checks" / f"{key}.json"


def keep_links(scene: Scene) -> None:
    """Keeps what a collective measured, so that the record of a later launch on these nodes can tell it."""
    if links := _links_document(scene):
        with contextlib.suppress(OSError):  # a full disk takes nothing from what was seen
            write_private(
                _kept([one.address for one in scene.wanted]),
                json.dumps({"at": time.time(), "links": links}),
            )


def _links_document(scene: Scene) -> dict[str, Any]:
    return {
        name: {"gbit_per_second": link.bytes_per_second * 8 / 1e9, "latency_us": link.latency_seconds * 1e6, "with": link.with_}
        for name, link in measured_links(scene).items()
    }  # fmt: skip


def kept_links(addresses: Sequence[str]) -> dict[str, Any]:
    """The links of the last check of exactly these nodes; empty if there was none."""
    try:
        found: dict[str, Any] = json.loads(_kept(addresses).read_text())["links"]
    except (OSError, ValueError, KeyError):
        return {}
    return found


def record_of(checked: Checked) -> dict[str, Any]:
    """What the launch record keeps of a pre-flight: versions, environment, links; no secret in it."""
    scene = checked.scene
    links = _links_document(scene) or kept_links([one.address for one in scene.wanted])
    nodes: dict[str, dict[str, str]] = {}
    for node in scene.answering:
        facts = {
            "python": node.python,
            "torch": node.packages.get("torch", ""),
            "nccl": node.nccl,
            "longspan": node.packages.get("longspan", ""),
        }
        facts |= (
            {"driver": node.gpus[0].driver, "gpus": f"{len(node.gpus)}x {node.gpus[0].name}"}
            if node.gpus
            else {}
        )
        if link := links.get(node.name):
            facts["bandwidth"] = f"{link['gbit_per_second']:.1f} Gbit/s ({link['with']})"
        facts |= {setting.variable: setting.value for setting in scene.environment.get(node.name, ())}
        nodes[node.name] = {key: value for key, value in facts.items() if value}
    warnings = [f"{finding.subject}: {finding.summary}" for finding in checked.findings]
    return {"nodes": nodes, "findings": warnings, "seconds": round(checked.seconds, 2)}


def setting_document(setting: Setting) -> dict[str, str]:
    """One variable for `--json`."""
    return {"value": setting.value, "why": setting.why, "origin": setting.origin}


def document(checked: Checked) -> dict[str, Any]:
    """What `longspan check --json` prints."""
    scene = checked.scene
    return {
        "errors": checked.count("error"),
        "warnings": checked.count("warning"),
        "seconds": round(checked.seconds, 3),
        "nodes": [
            {
                "name": node.name, "address": node.address, "answered": node.answered, "python": node.python, "packages": dict(node.packages),
                "gpus": [gpu.name for gpu in node.gpus], "clock_offset_seconds": node.clock_offset_seconds, "unknown": dict(node.unknown),
                "environment": {one.variable: setting_document(one) for one in scene.environment.get(node.name, ())},
            }
            for node in scene.nodes
        ],
        "checks": [
            {
                "id": one.check.id, "group": one.check.group, "state": one.outcome.state, "skipped": one.outcome.skipped, "seen": one.outcome.seen,
                "rule": one.check.rule, "why": one.check.why, "findings": [finding.to_json() for finding in one.outcome.findings],
            }
            for one in checked.judged
        ],
        "collective": [describe(group) for group in scene.groups],
        "rails": [rails.describe(trial) for trial in scene.rails],
    }  # fmt: skip

"""What a node must have for its ranks: versions that are new enough, and the device of the deployment. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from longspan.deployment import NodeSpec

# vLLM: the first with the Ray executor V2 as its default (vllm-project/vllm#36836 brought it behind a switch, 0.23 turned it
# on). Ray: the first with token authentication (docs.ray.io, "Ray token authentication": 2.52), without which our own
# Ray would take orders from anybody on the network.
MINIMUM: dict[str, tuple[int, int]] = {"vllm": (0, 23), "ray": (2, 52)}
NAMES = {"vllm": "vLLM", "ray": "Ray"}
_DEVICES = {"cpu": "no GPU", "cuda": "NVIDIA GPUs", "rocm": "AMD GPUs"}


def too_old(package: str, version: str) -> str:
    """ "vLLM 0.20.1 is older than 0.23" where it is; empty for one that is new enough or whose number says nothing.

    A build from sources without tags calls itself 0.1.dev…; nobody knows how old that is.
    """
    number = re.match(r"(\d+)(?:\.(\d+))?", version)
    if number is None or re.match(r"0\.[01]\.dev", version):
        return ""
    least = MINIMUM[package]
    if (int(number[1]), int(number[2] or 0)) >= least:
        return ""
    return f"{NAMES[package]} {version} is older than {least[0]}.{least[1]}"


def unfit(nodes: Sequence[NodeSpec], facts: Mapping[str, Any], device: str) -> tuple[str, str] | None:
    """Why a node cannot hold its ranks, and what to do; None where all can.

    Args:
        facts: node name -> what its agent found: versions, and its device.
        device: of the deployment.
    """
    for node in nodes:
        found = facts[node.name]
        for package in MINIMUM:
            if old := too_old(package, found.get(package) or ""):
                return (
                    f"{old}, which is the least that Longspan can drive ({node.python} on {node.name}).",
                    f"Install a newer {NAMES[package]} there.",
                )
        here = found.get("device") or device
        if here != device and device != "cpu":  # processors are everywhere: --device cpu may be a wish
            return (
                f"The deployment is for {_DEVICES[device]}, {node.name} has {_DEVICES.get(here, here)}.",
                'Say which GPUs the nodes have: gpus = "8x H100-SXM-80GB" in the cluster file, or --device.',
            )
    return None


def versions_differ(
    nodes: Sequence[NodeSpec], ray_nodes: Sequence[NodeSpec], facts: Mapping[str, Any]
) -> tuple[str, str] | None:
    """What is wrong with the versions of engine, Ray and Python on the nodes, and what to do; None if nothing.

    Args:
        nodes: those with ranks, the first rank's first. ray_nodes: all of Ray. facts: node -> what its agent found.
    """
    head = nodes[0].name
    for key, name in (("vllm", "vLLM"), ("ray", "Ray"), ("python", "Python")):
        there = facts[head][key]
        for node in nodes if key == "vllm" else ray_nodes:
            here = facts[node.name][key]
            if not here:
                return f"{name} is not installed for {node.python} on {node.name}.", f"Install {name} there."
            if here != there:
                what = f"{node.name} has {name} {here}, {head} has {there or 'none'}"
                return (
                    f"{what}: ranks of one replica must run the same versions.",
                    f"Install {name} {there} on {node.name}.",
                )
    return None

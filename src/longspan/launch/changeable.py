"""What of a deployment's specification can change while it serves, one replica at a time (`rolling.py`), and what cannot: pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from longspan.deployment import DeploymentSpec

# What stands in the way, and what to do.
Refusal = tuple[str, str]


def merged(old: DeploymentSpec, asked: DeploymentSpec) -> DeploymentSpec:
    """What is asked for, on the places and with the nodes' environment that were compiled and checked at the start."""
    python = {node.name: node.python for node in asked.nodes}
    nodes = tuple(replace(node, python=python.get(node.name, node.python)) for node in old.nodes)
    return replace(
        old, identity=asked.identity, model=asked.model, revision=asked.revision, vllm_arguments=asked.vllm_arguments,
        tp=asked.tp, pp=asked.pp, executor=asked.executor, full_digest=asked.full_digest, nodes=nodes,
    )  # fmt: skip


def changes(old: DeploymentSpec, new: DeploymentSpec) -> list[str]:
    """What is other, as texts."""
    named: Sequence[tuple[str, Any, Any]] = [
        *((name, getattr(old, name), getattr(new, name)) for name in ("model", "revision", "tp", "pp", "executor")),
        ("arguments", " ".join(old.vllm_arguments), " ".join(new.vllm_arguments)),
        *((f"python on {a.name}", a.python, b.python) for a, b in zip(old.nodes, new.nodes, strict=False)),
    ]  # fmt: skip
    return [f"{name}: {then or 'none'} -> {now or 'none'}" for name, then, now in named if then != now]


def unchangeable(old: DeploymentSpec, asked: DeploymentSpec) -> Refusal | None:
    """Why a wish cannot be fulfilled while the deployment serves, and what to do; None where it can."""
    again = "`longspan down` and `longspan up` change it, with an outage; everything else of the command line can stay."
    if [(n.name, n.address, n.gpus) for n in old.nodes] != [(n.name, n.address, n.gpus) for n in asked.nodes]:
        return "Other nodes are asked for; agents and Ray run on those of the start.", again
    fixed = {
        "served_name": "the name that clients use", "listen": "the address that clients use", "device": "the device",
        "ray_address": "the Ray that was joined", "ray_head": "the node of Ray's head", "ray_first_port": "Ray's ports",
        "gateway_extra": "the gateway's tables", "standby_node": "the node of the second gateway",
        "standby_listen": "the second gateway's address",
    }  # fmt: skip
    for name, words in fixed.items():
        then, now = getattr(old, name), getattr(asked, name)
        if then != now:
            told = "" if name == "gateway_extra" else f" from {then} to {now}"
            return f"{words[0].upper()}{words[1:]} cannot change{told} while the deployment serves.", again
    scaling = ("replicas", "max_replicas", "autoscale_least", "autoscale_queue_seconds")
    if any(getattr(old, name) != getattr(asked, name) for name in scaling):
        return (
            "The number of replicas is not part of a rolling change.",
            "`longspan scale` changes it; repeat the options of the start here.",
        )
    if old.world_size != asked.world_size:
        what = f"A replica has {old.world_size} ranks, with the change it would have {asked.world_size}: its place has no room for others."
        return what, f"Choose --tp and --pp whose product is {old.world_size}. {again}"
    pythons = any(a.python != b.python for a, b in zip(old.nodes, asked.nodes, strict=True))
    if pythons and "ray" in {old.executor, asked.executor}:
        what = "Another Python environment needs Ray workers of it, and those of this deployment's Ray have the first one."
        return what, f"With --executor mp ranks are processes of their own, and can change. {again}"
    if not changes(old, merged(old, asked)):
        return (
            "Nothing is other than what runs.",
            "Repeat the command line of `longspan up` with what is to change.",
        )
    return None

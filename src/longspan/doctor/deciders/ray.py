"""What texts of Ray and of missing files mean where their surroundings decide."""

import re

from longspan.doctor.deciders.plain import default
from longspan.doctor.rules.rule import Rule
from longspan.doctor.scene import Guess, Scene
from longspan.doctor.timeline import Event


def gcs_lost(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A head that was reached before has died; one that never answered is not reachable."""
    if re.search(r"address (?:=|at )?:6379|--address=:|at :\d+", event.hit.text):
        return Guess(
            "ray-head-unreachable",
            0.92,
            (),
            "the head's address is empty",
            "Pass --address=HEAD:6379 with the head's address.",
        )
    earlier = [e for e in scene.of("ray-connected", "world") if e.hit.order < event.hit.order]
    later_node_loss = scene.of("node-marked-dead")
    if earlier or later_node_loss or scene.phase_before(event) >= 3:
        return Guess(
            "nccl-peer-died-first",
            0.7,
            ("ray-head-unreachable", "ray-node-lost"),
            "the head had been reached before",
        )
    return default(event, rule, scene)


def node_lost(event: Event, rule: Rule, scene: Scene) -> Guess:
    """Names the node."""
    match = re.search(r"address: (\S+)", event.hit.text)
    return Guess(rule.cause, rule.weight, rule.also, f"node {match[1]}" if match else "")


def module_missing(event: Event, rule: Rule, scene: Scene) -> Guess:
    """On a worker only: that node's environment differs. On the driver: its own lacks it."""
    head, module = event.hit.head, event.hit.groups.get("module") or ""
    if (
        module.startswith("transformers_modules")
        or "ray::" in event.hit.text
        or head.node
        or head.process.startswith(("RayWorker", "raylet"))
    ):
        where = f" on {event.hit.node}" if event.hit.node else ""
        return Guess("worker-env-differs", rule.weight, (), f"{module or 'a library'} is missing{where}")
    if scene.of("frame-weights", "world", "ray-connected"):
        return Guess("worker-env-differs", 0.7)
    return Guess("worker-env-differs", 0.6)


def model_path(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A path inside the hub's cache is a download that this node never made."""
    if re.search(r"/hub/models--|\.cache/huggingface", event.hit.text):
        return Guess(
            "hf-download-failed",
            0.8,
            ("model-path-missing",),
            "the path lies in another node's download cache",
        )
    return default(event, rule, scene)


def on_one_node(event: Event, rule: Rule, scene: Scene) -> Guess:
    """Believed more where only some nodes say it."""
    failing, nodes = {e.hit.node for e in scene.of(rule.id)}, scene.nodes()
    return Guess(rule.cause, 0.7 if failing and failing < nodes else 0.35)


# How Ray calls the share of a resource that a placement group reserved.
_HELD = re.compile(r"\b(?:GPU|bundle)_group_")


def node_no_gpu(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A node whose resources name a placement group's bundle has GPUs, and that group holds them."""
    if _HELD.search(event.hit.text):
        return Guess(
            "stale-placement-group",
            0.9,
            ("gpu-not-visible-to-ray",),
            "a placement group holds the node's GPUs",
        )
    return default(event, rule, scene)


def placement(event: Event, rule: Rule, scene: Scene) -> Guess:
    """`ray status` in the same log tells too few GPUs from GPUs in use."""
    for status in reversed(scene.of("ray-gpus")):
        total, used = float(status.hit.groups["total"] or 0), float(status.hit.groups["used"] or 0)
        reserved = float(status.hit.groups["reserved"] or 0)
        if total == 0:
            return Guess(
                "gpu-not-visible-to-ray", 0.85, ("placement-group-unsatisfied",), "Ray knows of no GPU"
            )
        if used >= total or reserved >= total:
            return Guess(
                "stale-placement-group",
                0.85,
                ("placement-group-unsatisfied",),
                f"{used:g} of {total:g} GPUs are in use",
            )
    bare = [
        r
        for e in scene.of("node-resources")
        if "'CPU'" in (r := e.hit.groups["resources"] or "") and "GPU" not in r
    ]
    if bare and "pending" not in event.hit.text:
        return Guess(
            "gpu-not-visible-to-ray",
            0.8,
            ("placement-group-unsatisfied",),
            "a node of the cluster offers no GPU",
        )
    if _HELD.search(event.hit.text):
        return Guess("stale-placement-group", 0.85, ("placement-group-unsatisfied",))
    return default(event, rule, scene)


STOP_SECONDS = 15.0


def raylet_ended(event: Event, rule: Rule, scene: Scene) -> Guess:
    """A raylet that is asked to end calls its agents' end a failure; so does one whose node was given up on purpose."""
    if event.when_seconds is not None:
        for stop in scene.marks("stop", "stopping"):
            if stop.when_seconds is not None and abs(stop.when_seconds - event.when_seconds) <= STOP_SECONDS:
                return Guess(rule.cause, 0.05)
    return default(event, rule, scene)

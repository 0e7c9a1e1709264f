"""Checks of a Ray that is joined: what earlier deployments left in it. Pure."""

from longspan.finding import Finding
from longspan.preflight.check import Check, Outcome, finding, together
from longspan.preflight.scene import Reservation, Scene


def stale_groups(scene: Scene) -> Outcome:
    """No placement group holds GPUs for a deployment that nobody here controls. It is named, never removed unasked."""
    if scene.own_ray:
        return Outcome(skipped="no Ray is joined")
    if scene.reservations is None:
        return Outcome(skipped="that Ray was not asked")
    found = tuple(_stale(one) for one in scene.reservations if not one.controlled)
    return Outcome(found, seen="none without its controller")


def _stale(one: Reservation) -> Finding:
    gpus = f"{one.gpus} GPU" + "s" * (one.gpus != 1)
    where = f" on {together(one.nodes)}" if one.nodes else ""
    maker = f"Its launcher on {one.driver or 'an unknown host'} " + (
        "still runs" if one.driver_lives else "has ended"
    )
    look = (
        f"`longspan status --name {one.deployment}` on the machine that started it tells whether it is wanted. If it is not: "
        if one.driver_lives
        else ""
    )
    return finding(
        one.name, "warning", "stale-placement-group",
        f"Ray holds {gpus}{where} for {one.name}, and no controller of {one.deployment!r} runs on this machine. {maker}.",
        f"{look}`{one.release}` gives them back; what still runs in that group ends.",
        where="placement groups", evidence=one.name,
    )  # fmt: skip


CHECKS = (
    Check(
        "stale-placement-groups", "hosts", "in a Ray that is joined, none of a deployment without a controller here",
        "they hold GPUs, so that a launch waits for them in vain", "ray list placement-groups", "", stale_groups,
    ),
)  # fmt: skip

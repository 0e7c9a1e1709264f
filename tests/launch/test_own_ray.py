"""Ray's head or one node's Ray ends while the deployment serves: it is built again, and the groups with it."""

from typing import Any

import pytest
from driving import make_spec, make_steps, outcome
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import World

from longspan.deployment import NodeSpec
from longspan.launch.events import DownAsked, Exited, Scaled, Wished
from longspan.launch.own_ray import MAX_LOSSES, QUIET_SECONDS

HOSTS = tuple(NodeSpec(f"n{i}", f"10.0.0.{i + 1}", 2, ssh=f"n{i}") for i in range(3))
# r0 on n0 and n1, r1 on n1 and n2, r2 on n2 and n0.
PLACES = (("n0", "n1"), ("n1", "n2"), ("n2", "n0"))


def serving(replicas: int = 2, **changes: Any) -> World:
    """PP=2 over hosts that two replicas share each; all of them serve."""
    made = World(make_steps(make_spec(nodes=HOSTS, replicas=replicas, placement=PLACES, **changes)))
    made.begin()
    made.run(60)
    assert made.machine.phase == "serving"
    return made


def replays(made: World) -> None:
    """What happened tells what is."""
    again = make_steps(made.machine.spec)
    again.begin(0.0)
    for now, event in made.machine.history:
        again.handle(event, now)
    assert outcome(again) == outcome(made.machine)
    assert again.ray.steps == made.machine.ray.steps
    assert again.ray.epochs == made.machine.ray.epochs


def phases(made: World) -> dict[str, str]:
    """Replica -> phase."""
    return {name: one.phase for name, one in made.machine.replicas.by_name.items()}


def test_one_nodes_ray_concerns_those_on_it() -> None:
    """r1 has a rank on n2, r0 has none: r0 serves on; n2 joins the same head again, under another name."""
    made = serving()
    made.kill_ray("n2")
    made.run(2)
    assert phases(made) == {"r0": "serving", "r1": "fencing"}
    assert made.gateway == {"r0": "ready", "r1": "out"}
    made.run(60)
    assert phases(made) == {"r0": "serving", "r1": "serving"}
    assert made.rays == {"n0": "ray", "n1": "ray", "n2": "ray.2"}
    assert [name for _, name, _ in made.machine.replicas.restarts] == ["r1"]
    replays(made)


def test_without_its_head_all_of_it_is_built_again() -> None:
    """Nothing old meets the new head, every group begins after its nodes have joined (the world looks), and all serve again."""
    made = serving(3)
    made.kill_ray("n0")
    made.run(2)
    assert set(made.gateway.values()) == {"out"}
    made.run(90)
    assert set(phases(made).values()) == {"serving"}
    assert set(made.rays.values()) == {"ray.2"}
    assert made.machine.failure is None
    replays(made)


def test_a_ray_that_ends_again_and_again_ends_the_deployment() -> None:
    """After the bounded number, with the reason; later losses are counted anew once it has served for long."""
    made = serving()
    for _ in range(MAX_LOSSES):
        made.kill_ray("n2")
        made.run(200)
        assert made.machine.phase == "serving"
        made.run(500)
    for _ in range(MAX_LOSSES + 1):
        made.kill_ray("n2")
        made.run(20)
    made.run(10)
    assert made.machine.phase == "gone"
    assert made.machine.failure is not None
    assert made.machine.failure.kind == "ray"
    assert "ended 4 times within 10 minutes" in made.machine.failure.what


def test_a_ray_that_does_not_start_ends_the_deployment() -> None:
    """A start without a word is not waited for for ever."""
    made = serving()
    made.mute.add("n2")
    made.kill_ray("n2")
    made.run(QUIET_SECONDS + 20)
    assert made.machine.failure is not None
    assert "not come back on n2 within 180 s" in made.machine.failure.what


def test_what_cannot_be_ended_is_told() -> None:
    """A process of the old Ray that survives SIGKILL would keep its ports."""
    made = serving()
    made.stubborn.add("n2")
    made.kill_ray("n2")
    made.run(10)
    assert made.machine.failure is not None
    assert "what was left of Ray on n2 could not be ended: pid 77 does not end" in made.machine.failure.what


def test_a_host_is_lost_while_the_head_is_built_again() -> None:
    """It joins the new head when it is back; the replica that does not need it does not wait for it."""
    made = serving()
    made.lose("n2")
    made.kill_ray("n0")
    made.run(60)
    assert phases(made) == {"r0": "serving", "r1": "fencing"}
    made.dead.clear()
    made.run(120)
    assert phases(made) == {"r0": "serving", "r1": "serving"}
    replays(made)


def test_a_new_replica_waits_for_ray() -> None:
    """`scale` and `restore` while the head is away begin once it is back."""
    made = serving()
    made.tell(Wished("r1", "drain"))
    made.run(10)
    assert phases(made)["r1"] == "drained"
    made.kill_ray("n0")
    made.run(1)
    made.tell(Scaled(3))
    made.tell(Wished("r1", "restore"))
    made.run(120)
    assert phases(made) == {"r0": "serving", "r1": "serving", "r2": "serving"}
    replays(made)


def test_before_all_have_served_it_ends_the_launch() -> None:
    """Half a launch is not rebuilt: whoever waits at the terminal is told."""
    made = World(make_steps(make_spec(nodes=HOSTS, replicas=2, placement=PLACES)))
    made.begin()
    made.run(20)
    made.tell(Exited("n2", "ray", 1))
    made.run(5)
    assert made.machine.phase == "gone"
    assert made.machine.failure is not None
    assert made.machine.failure.kind == "ray"


def test_nodes_of_one_machine_have_rays_of_their_own() -> None:
    """What ends the one must not find the other: they share mark and process table."""
    made = serving()
    groups = {made.machine.ray.group(node) for node in made.rays}
    assert len(groups) == 3


@pytest.mark.parametrize("seconds", [0.4, 1.0, 3.0, 20.0])
def test_down_ends_it_at_any_moment(seconds: float) -> None:
    """Nothing starts any more once it is to end."""
    made = serving()
    made.kill_ray("n0")
    made.run(seconds, 0.2)
    made.tell(DownAsked())
    made.run(60)
    assert made.machine.phase == "gone"


faults = st.one_of(
    st.sampled_from(["n0", "n1", "n2"]).map(lambda node: ("ray", node)),
    st.sampled_from(["r0", "r1", "r2"]).map(lambda name: ("rank", name)),
    st.sampled_from(["n1", "n2"]).map(lambda node: ("host", node)),
    st.sampled_from(["n1", "n2"]).map(lambda node: ("heal", node)),
    st.integers(1, 3).map(lambda count: ("scale", str(count))),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 3), st.lists(st.tuples(faults, st.floats(0, 60)), max_size=10))
def test_any_order_of_losses_converges(replicas: int, told: list[tuple[tuple[str, str], float]]) -> None:
    """Ray, ranks and hosts end in any order: the world's promises hold at every moment, and once it stops every replica serves, or
    was given up with a word, or the deployment ended with its reason."""
    made = serving(replicas)
    for (what, name), seconds in told:
        if what == "ray":
            made.kill_ray(name)
        elif what == "rank":
            made.kill_rank(name)
        elif what == "scale":
            made.tell(Scaled(int(name)))
        elif what == "heal":
            made.dead.discard(name)
        elif name not in made.dead:
            made.lose(name)
        made.run(seconds, 2.0)
    made.dead.clear()
    made.run(700, 5.0)
    machine = made.machine
    if machine.phase == "gone":
        assert machine.failure is not None
        return
    assert machine.ray.steps == {}
    assert machine.ground.rayless == set()
    for name, one in machine.replicas.by_name.items():
        assert one.phase in {"serving", "failed"}, (name, one.phase)
        assert one.phase == "failed" or made.gateway[name] == "ready"
    replays(made)

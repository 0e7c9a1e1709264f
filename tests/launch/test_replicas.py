"""Several replicas in one deployment: each lives by itself, and no fault or wish of one is another's."""

from collections.abc import Iterator
from typing import Any

import pytest
from driving import make_spec, make_steps, outcome
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import World

from longspan.deployment import NodeSpec
from longspan.launch.actions import SetGateway
from longspan.launch.events import (
    AgentJoined,
    AgentSilent,
    DownAsked,
    Drained,
    Exited,
    Scaled,
    Suspected,
    Wished,
)
from longspan.launch.fence import MAX_RESTARTS
from longspan.launch.replica import DRAIN_SECONDS
from longspan.launch.steps import MAX_GATEWAYS

HOSTS = tuple(NodeSpec(f"n{i}", f"10.0.0.{i + 1}", 2, ssh=f"n{i}") for i in range(3))
# r0 and r1 share n1: what befalls that host is both's.
PLACES = (("n0", "n1"), ("n1", "n2"), ("n2", "n0"))


def world(replicas: int = 2, **changes: Any) -> World:
    """PP=2 over hosts that two replicas share each."""
    made = World(make_steps(make_spec(nodes=HOSTS, replicas=replicas, placement=PLACES, **changes)))
    made.begin()
    return made


def serving(replicas: int = 2) -> World:
    """All of them serve."""
    made = world(replicas)
    made.run(60)
    assert made.machine.phase == "serving"
    return made


@pytest.fixture
def two() -> Iterator[World]:
    """Two replicas of at most three, whose history replays to the same state when the test is over."""
    made = serving()
    yield made
    replays(made)


def replays(made: World) -> None:
    """What happened tells what is."""
    again = make_steps(made.machine.spec)
    again.begin(0.0)
    for now, event in made.machine.history:
        again.handle(event, now)
    assert outcome(again) == outcome(made.machine)


def phases(made: World) -> dict[str, str]:
    """Replica -> phase."""
    return {name: one.phase for name, one in made.machine.replicas.by_name.items()}


def test_all_start_and_share_one_reference(two: World) -> None:
    """Each has calls, processes and ports of its own; what one rank says of the checkpoint is asked for once."""
    assert phases(two) == {"r0": "serving", "r1": "serving"}
    assert two.gateway == {"r0": "ready", "r1": "ready"}
    groups = [one.group for one in two.machine.replicas]
    assert [group.epoch for group in groups if group] == [1, 2]
    assert len({group.engine_url for group in groups if group}) == 2
    assert list(two.machine.ground.references) == ["n0"]


def test_what_fails_before_all_have_served_ends_the_launch() -> None:
    """With the name of the replica: half a deployment is not what was asked for."""
    made = world()
    made.broken.add("r1")
    made.run(60)
    assert made.machine.failure is not None
    assert made.machine.failure.what.startswith("r1: launcher.2 on n1 ended with status 1")
    assert made.machine.phase == "gone"


@pytest.mark.parametrize("liar", ["r0", "r1"])
def test_one_wrong_proof_ends_the_launch(liar: str) -> None:
    """Whoever it is, and whatever the other one has proved meanwhile: nobody gets traffic any more."""
    made = world()
    made.lying.add(liar)
    made.run(60)
    assert made.machine.failure is not None
    assert (made.machine.failure.kind, made.machine.phase) == ("proof", "gone")
    assert set(made.gateway.values()) == {"out"}


def test_one_that_lies_after_a_restart_is_given_up_alone(two: World) -> None:
    """The other one serves on."""
    two.lying.add("r1")
    two.kill_rank("r1")
    two.run(80)
    assert phases(two) == {"r0": "serving", "r1": "failed"}
    assert two.gateway == {"r0": "ready", "r1": "out"}


def test_one_restarts_while_the_other_serves(two: World) -> None:
    """Traffic of the other is never touched, and the deployment serves all the time."""
    two.kill_rank("r1")
    two.run(3)
    assert phases(two)["r1"] != "serving"
    assert two.gateway == {"r0": "ready", "r1": "out"}
    assert two.machine.phase == "serving"
    two.run(60)
    assert phases(two) == {"r0": "serving", "r1": "serving"}
    assert two.gateway == {"r0": "ready", "r1": "ready"}
    assert [name for _, name, _ in two.machine.replicas.restarts] == ["r1"]


def test_one_that_fails_again_and_again_is_given_up_alone(two: World) -> None:
    """It stays out, loudly, and is started again by `restore`; the deployment goes on. When the last one gives up, it ends."""
    two.broken.add("r1")
    two.kill_rank("r1")
    two.run(400)
    assert phases(two) == {"r0": "serving", "r1": "failed"}
    (found,) = [one for one in two.machine.findings if one.cause == "replica-given-up"]
    assert f"restarted {MAX_RESTARTS} times before" in found.summary
    assert "longspan restore r1" in found.remedy
    assert two.live.get(two.machine.replicas.by_name["r1"].epoch, {}) == {}
    two.broken.clear()
    two.tell(Wished("r1", "restore"))
    two.run(60)
    assert phases(two) == {"r0": "serving", "r1": "serving"}
    two.broken |= {"r0", "r1"}
    two.kill_rank("r0")
    two.kill_rank("r1")
    two.run(500)
    assert two.machine.phase == "gone"
    assert two.machine.failure is not None


def test_a_host_that_both_stand_on_takes_both_out_and_brings_both_back(two: World) -> None:
    """Silence moves the traffic of those that have ranks there, and of no other."""
    two.tell(Scaled(3))
    two.run(60)
    two.tell(Suspected("n1", "n1 has not answered for 3 s"))
    assert two.gateway == {"r0": "out", "r1": "out", "r2": "ready"}
    two.dead.add("n1")
    two.tell(AgentSilent("n1", 41.0))
    two.run(5)
    assert phases(two) == {"r0": "fencing", "r1": "fencing", "r2": "serving"}
    two.dead.clear()
    two.run(40)
    two.tell(Suspected("n1", ""))
    two.run(60)
    assert set(phases(two).values()) == {"serving"}
    assert set(two.gateway.values()) == {"ready"}


def test_scale_up_gets_traffic_only_with_its_proof(two: World) -> None:
    """A third one on the nodes that were checked for it; the first two notice nothing."""
    two.tell(Scaled(3))
    two.run(20)
    assert phases(two) == {"r0": "serving", "r1": "serving", "r2": "engine"}
    assert "r2" not in two.gateway
    two.run(40)
    assert two.gateway == {"r0": "ready", "r1": "ready", "r2": "ready"}


@pytest.mark.parametrize("replicas", [0, -1, 4])
def test_scale_beyond_the_nodes_changes_nothing(two: World, replicas: int) -> None:
    """The verb refuses it in words, the machine silently."""
    two.tell(Scaled(replicas))
    two.run(5)
    assert phases(two) == {"r0": "serving", "r1": "serving"}


def test_scale_down_finishes_streams_first(two: World) -> None:
    """The last one gets nothing new, ends when its streams have, and leaves the gateway's file; then its GPUs are free."""
    two.streams["r1"] = two.now + 30
    two.tell(Scaled(1))
    two.run(20)
    assert two.gateway == {"r0": "ready", "r1": "draining"}
    assert two.machine.replicas.by_name["r1"].epoch in two.live
    two.run(20)
    assert phases(two) == {"r0": "serving"}
    assert two.gateway == {"r0": "ready", "r1": "gone"}
    assert two.live[2] == {}
    two.tell(Scaled(2))
    two.run(60)
    assert phases(two) == {"r0": "serving", "r1": "serving"}


def test_a_stream_that_never_ends_is_cut_off_at_last(two: World) -> None:
    """And told."""
    two.streams["r1"] = two.now + 10 * DRAIN_SECONDS
    two.tell(Scaled(1))
    two.run(DRAIN_SECONDS + 5)
    assert phases(two) == {"r0": "serving"}
    assert [one.cause for one in two.machine.findings] == ["drain-cut-off"]


def test_who_is_wanted_again_while_it_leaves_stays_or_comes_back(two: World) -> None:
    """Before its end has begun it is simply let into traffic again; after that another one takes its place."""
    two.streams["r1"] = two.now + 30
    two.tell(Scaled(1))
    two.run(5)
    two.tell(Scaled(2))
    assert two.gateway["r1"] == "ready"
    assert two.machine.replicas.by_name["r1"].epoch == 2
    two.streams.clear()
    two.tell(Scaled(1))
    two.run(1.01, 1.0)
    assert phases(two)["r1"] == "fencing"
    two.tell(Scaled(2))
    two.run(60)
    assert phases(two) == {"r0": "serving", "r1": "serving"}
    assert two.machine.replicas.by_name["r1"].epoch > 2


def test_drain_releases_the_gpus_and_restore_takes_them_again(two: World) -> None:
    """Of a replica, or of all that have ranks on a node; everything drained is a deployment that waits."""
    two.tell(Wished("r1", "drain"))
    two.run(5)
    assert phases(two) == {"r0": "serving", "r1": "drained"}
    assert two.gateway == {"r0": "ready", "r1": "out"}
    assert two.live[2] == {}
    two.tell(Wished("n0", "drain"))
    two.run(5)
    assert two.machine.phase == "drained"
    two.tell(Wished("n0", "restore"))
    two.tell(Wished("r1", "restore"))
    two.run(60)
    assert phases(two) == {"r0": "serving", "r1": "serving"}


def test_a_drain_that_is_lifted_while_the_engine_ends_brings_it_back(two: World) -> None:
    """Its end goes on, since it has begun; then another one starts."""
    two.tell(Wished("r1", "drain"))
    two.tell(Drained("r1"))
    assert phases(two)["r1"] == "fencing"
    two.tell(Wished("r1", "restore"))
    two.run(60)
    assert phases(two)["r1"] == "serving"
    assert two.machine.replicas.by_name["r1"].epoch > 2


def test_one_that_dies_while_it_is_drained_stays_down(two: World) -> None:
    """It is not started again only to be drained."""
    two.streams["r1"] = two.now + 100
    two.tell(Wished("r1", "drain"))
    two.kill_rank("r1")
    two.run(60)
    assert phases(two)["r1"] == "drained"


def test_isolate_keeps_the_engine(two: World) -> None:
    """Out of traffic, nothing ended."""
    two.tell(Wished("r1", "isolate"))
    two.run(60)
    assert two.gateway["r1"] == "out"
    assert two.machine.replicas.by_name["r1"].epoch == 2
    two.tell(Wished("r1", "restore"))
    assert two.gateway["r1"] == "ready"


def test_suspicion_is_of_one_engine(two: World) -> None:
    """Fifteen seconds of it convict that one only."""
    two.tell(Suspected("r1", "nothing has moved"))
    assert two.gateway == {"r0": "ready", "r1": "out"}
    two.run(20)
    assert phases(two)["r0"] == "serving"
    assert phases(two)["r1"] != "serving"
    assert two.machine.replicas.suspected == {}


def test_down_ends_all_of_them(two: World) -> None:
    """Also one that is being fenced."""
    two.kill_rank("r1")
    two.run(2)
    two.tell(DownAsked())
    two.run(10)
    assert two.machine.phase == "gone"
    assert two.gateway == {"r0": "out", "r1": "out"}


def test_what_an_old_group_says_is_nobodys(two: World) -> None:
    """Numbers of starts are unique in the deployment, so that r1's past is not r0's present."""
    two.kill_rank("r1")
    two.run(60)
    before = phases(two)
    two.tell(Exited("n1", "launcher.2", 1))
    two.tell(Exited("n1", "rank.2", 1))
    assert phases(two) == before


wishes = st.one_of(
    st.builds(Scaled, st.integers(0, 4)),
    st.builds(Wished, st.sampled_from(["r0", "r1", "r2", "n0", "n1"]), st.sampled_from(["drain", "isolate", "restore"])),
    st.builds(Suspected, st.sampled_from(["r0", "r1", "r2", "n1"]), st.sampled_from(["", "it stands still"])),
    st.builds(AgentSilent, st.sampled_from(["n1", "n2"]), st.floats(3, 60)),
    st.builds(AgentJoined, st.sampled_from(["n1", "n2"])),
    st.builds(Exited, st.sampled_from(["n0", "n1"]), st.sampled_from(["launcher", "launcher.2", "launcher.3", "rank.2", "rank.4"]), st.just(1)),
    st.sampled_from(["kill r0", "kill r1", "kill r2"]),
)  # fmt: skip


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 3), st.lists(st.tuples(wishes, st.floats(0, 45)), max_size=12))
def test_any_order_converges(replicas: int, told: list[tuple[Any, float]]) -> None:
    """Whatever is wished and breaks: the world's promises hold at every moment, and once it stops and all is lifted, every
    replica that is wanted serves or was given up with a word, or the deployment has ended with its reason."""
    made = serving(replicas)
    for what, seconds in told:
        if isinstance(what, str):
            made.kill_rank(what.partition(" ")[2])
        else:
            made.tell(what)
        made.run(seconds, 2.0)
    for subject in (*HOSTS, *made.machine.replicas.by_name):
        made.tell(Suspected(getattr(subject, "name", subject), ""))
    for name in list(made.machine.replicas.subjects):
        made.tell(Wished(name, "restore"))
    made.run(400, 5.0)
    machine = made.machine
    if machine.phase == "gone":
        assert machine.failure is not None
        return
    assert set(machine.replicas.by_name) == {f"r{number}" for number in range(machine.replicas.wanted)}
    for name, one in machine.replicas.by_name.items():
        assert one.phase in {"serving", "failed"}, (name, one.phase)
        assert one.phase == "failed" or made.gateway[name] == "ready"
        assert one.phase == "serving" or one.failure is not None
    replays(made)


def test_no_setting_names_another_replica() -> None:
    """What a replica's traffic says is about itself."""
    made = serving()
    for one in made.machine.replicas:
        setting = one.traffic.setting()
        assert isinstance(setting, SetGateway)
        assert setting.replica == one.name


def test_a_second_gateway_fails_nothing_but_itself() -> None:
    """It is started on its node with the engines, again when it ends, but not for ever, and again once its node is back."""
    made = world(2, standby_node="n1", standby_listen="10.0.0.2:8000")
    started = made.standbys
    made.run(60)
    assert started == [("n1", "standby")]
    made.tell(Exited("n1", "standby", 1))
    made.tell(Exited("n1", "standby", 1))  # of the one before: nobody's
    assert started == [("n1", "standby"), ("n1", "standby.2")]
    for number in range(2, 9):
        made.tell(Exited("n1", f"standby.{number}", 1))
    assert len(started) == MAX_GATEWAYS
    assert made.gateway == {"r0": "ready", "r1": "ready"}
    assert made.machine.failure is None
    made.dead.add("n1")
    made.tell(AgentSilent("n1", 41.0))
    made.dead.clear()
    made.run(120)
    assert started[-1] == ("n1", f"standby.{MAX_GATEWAYS + 1}")

"""A change while the deployment serves: a canary first, the rest one by one, and all of it back when one fails."""

from dataclasses import replace
from typing import Any

import pytest
from driving import FACTS, copy, make_spec, make_steps, outcome
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import World

from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.launch import changeable, rolling, trial
from longspan.launch.events import Answered, Changed, Compared, Exited, Scaled, Suspected, Wished
from longspan.launch.trial import worse

HOSTS = tuple(NodeSpec(f"n{i}", f"10.0.0.{i + 1}", 1, ssh=f"n{i}") for i in range(4))
WATCH_SECONDS = 30.0


def spec(replicas: int = 3, places: int = 3, **changes: Any) -> DeploymentSpec:
    """Replicas of one rank on hosts of their own."""
    plain: dict[str, Any] = {
        "identity": "old", "pp": 1, "nodes": HOSTS, "replicas": replicas, "placement": tuple((h.name,) for h in HOSTS[:places]),
    }  # fmt: skip
    return make_spec(**{**plain, **changes})


class Rolled(World):
    """A world that watches how many serve, as the change alone would have it."""

    start: DeploymentSpec
    fewest: int = 99

    def check(self) -> None:
        """Beside what always holds: how many take traffic."""
        super().check()
        if self.machine.rolling and not self.machine.rolling.is_over:
            self.fewest = min(self.fewest, sum(state == "ready" for state in self.gateway.values()))


def serving(replicas: int = 3, places: int = 3, **changes: Any) -> Rolled:
    """All serve."""
    start = spec(replicas, places, **changes)
    made = Rolled(make_steps(start))
    made.start = start
    made.begin()
    made.run(60)
    assert made.machine.phase == "serving"
    return made


def change(made: Rolled, *, outage: bool = False, **changes: Any) -> None:
    """The operator wants something else."""
    wanted = {"identity": "new", "vllm_arguments": ("--max-num-seqs", "8"), **changes}
    made.tell(Changed(replace(made.start, **wanted).to_json(), WATCH_SECONDS, outage))


def identities(made: Rolled) -> dict[str, str]:
    """Replica -> which specification it has."""
    return {one.name: one.spec.identity for one in made.machine.replicas}


def stage(made: Rolled) -> str:
    """How far the change is."""
    assert made.machine.rolling is not None
    return made.machine.rolling.stage


def replays(made: Rolled) -> None:
    """What happened tells what is."""
    again = make_steps(made.start)
    again.begin(0.0)
    for now, event in made.machine.history:
        again.handle(event, now)
    assert outcome(again) == outcome(made.machine)
    assert again.spec == made.machine.spec
    assert again.rolling
    assert made.machine.rolling
    assert again.rolling.standing == made.machine.rolling.standing


def test_one_after_the_other_a_canary_first() -> None:
    """The last replica is the canary; the others wait until it has been watched; two of three always serve."""
    made = serving()
    change(made)
    made.run(5)
    assert made.machine.rolling
    assert made.machine.rolling.canary == "r2"
    made.run(55)
    assert identities(made) == {"r0": "old", "r1": "old", "r2": "new"}
    assert made.machine.rolling.document(made.machine.replicas, made.now)["watching"]
    made.run(120)
    assert stage(made) == "changed"
    assert set(identities(made).values()) == {"new"}
    assert made.machine.spec.vllm_arguments == ("--max-num-seqs", "8")
    assert made.fewest == 2
    assert set(made.gateway.values()) == {"ready"}
    # Each gave its own proof against one reference of the new specification, and what ended was no failure.
    assert all(one.group and one.group.proof for one in made.machine.replicas)
    assert list(made.machine.ground.known["new"].references) == ["n2"]
    assert made.machine.replicas.restarts == []
    replays(made)


@pytest.mark.parametrize("how", ["faulty", "wrong"])
def test_a_canary_that_fails_goes_back(how: str) -> None:
    """Whether its engine does not start or answers wrongly: it gets what it had before, and nobody else was touched."""
    made = serving()
    getattr(made, how).add("new")
    epochs = {one.name: one.epoch for one in made.machine.replicas}
    change(made)
    made.run(200)
    assert stage(made) == "went back"
    assert made.machine.rolling
    assert made.machine.rolling.reason.startswith("r2: ")
    assert set(identities(made).values()) == {"old"}
    assert made.machine.spec == made.start
    assert set(made.gateway.values()) == {"ready"}
    assert [epochs[one.name] == one.epoch for one in made.machine.replicas] == [True, True, False]
    assert made.fewest == 2
    replays(made)


def test_where_there_is_room_nobody_is_missing() -> None:
    """One more replica is the canary, and leaves at the end."""
    made = serving(replicas=2, places=3)
    change(made)
    made.run(40)
    assert identities(made) == {"r0": "old", "r1": "old", "r2": "new"}
    made.run(200)
    assert stage(made) == "changed"
    assert identities(made) == {"r0": "new", "r1": "new"}
    assert made.gateway == {"r0": "ready", "r1": "ready", "r2": "gone"}
    assert made.fewest == 2
    replays(made)


def test_a_surge_that_fails_leaves() -> None:
    """And those that serve were never touched, not even a single one."""
    made = serving(replicas=1, places=2)
    made.wrong.add("new")
    change(made)
    made.run(120)
    assert stage(made) == "went back"
    assert identities(made) == {"r0": "old"}
    assert (made.fewest, made.gateway) == (1, {"r0": "ready", "r1": "gone"})
    replays(made)


def test_one_that_fails_later_takes_all_back() -> None:
    """All-new or all-old: what was changed before goes back, one by one."""
    made = serving()
    change(made)
    made.run(75)
    assert made.machine.rolling
    assert made.machine.rolling.trusted
    made.faulty.add("new")
    made.run(300)
    assert stage(made) == "went back"
    assert set(identities(made).values()) == {"old"}
    assert set(made.gateway.values()) == {"ready"}
    assert made.fewest >= 2
    replays(made)


def test_a_single_one_needs_a_word() -> None:
    """Without room its change is an outage, and back it goes all the same when it fails."""
    made = serving(replicas=1, places=1)
    refused = rolling.not_now(made.machine.replicas, made.machine.ground, None, outage=False)
    assert refused is not None
    assert "nobody would serve" in refused[0]
    change(made)
    assert made.machine.rolling is None
    made.wrong.add("new")
    change(made, outage=True)
    made.run(20)
    assert made.machine.phase != "serving"
    made.run(200)
    assert stage(made) == "went back"
    assert made.gateway == {"r0": "ready"}
    replays(made)


def test_streams_end_first() -> None:
    """The canary finishes what it has before its engine ends."""
    made = serving()
    made.streams["r2"] = made.now + 100
    change(made)
    made.run(90)
    assert (made.gateway["r2"], identities(made)["r2"]) == ("draining", "old")
    made.run(60)
    assert identities(made)["r2"] == "new"


def rows(failures: int, seconds: float, requests: int = 100) -> dict[str, dict[str, Any]]:
    """The gateway's figures, where r2 is the one in question."""
    usual = {"requests": requests, "failures": 0, "ttft_seconds": 0.2}
    return {
        "r0": usual,
        "r1": usual,
        "r2": {"requests": requests, "failures": failures, "ttft_seconds": seconds},
    }


@pytest.mark.parametrize(
    ("failures", "seconds", "words"),
    [(9, 0.2, "9 of its 100 requests failed"), (0, 2.0, "first token takes 2.00 s")],
)
def test_what_the_gateway_sees_stops_it(failures: int, seconds: float, words: str) -> None:
    """Its errors at once, its slowness at the end of the watch; it may finish its streams."""
    made = serving()
    change(made)
    made.run(45)
    assert made.machine.rolling
    assert made.machine.rolling.watches()
    made.tell(Compared(rows(0, 0.2, 0)))
    made.tell(Compared(rows(failures, seconds)))
    assert (stage(made) == "going back") == bool(failures)
    made.run(100)
    assert stage(made) == "went back"
    assert words in made.machine.rolling.reason
    assert set(identities(made).values()) == {"old"}
    replays(made)


def test_others_that_fail_as_often_are_no_reason() -> None:
    """What befalls all is not the change's; a gateway that counts anew is no negative number."""
    before = {name: {"requests": 500, "failures": 50, "ttft_seconds": 0.2} for name in ("a", "b")}
    bad = {"requests": 100, "failures": 20, "ttft_seconds": 0.2}
    assert worse("a", before, {"a": bad, "b": bad}, at_the_end=True) == ""
    good = {"requests": 100, "failures": 0, "ttft_seconds": 0.2}
    assert "20 of its 100" in worse("a", before, {"a": bad, "b": good}, at_the_end=False)
    few = {"requests": trial.LEAST_REQUESTS - 1, "failures": 0, "ttft_seconds": 9.0}
    assert worse("a", before, {"a": few, "b": good}, at_the_end=True) == ""


def test_a_suspected_canary_begins_its_watch_again() -> None:
    """A blip is no failure; one that lasts is convicted as ever, and goes back."""
    made = serving()
    change(made)
    made.run(45)
    made.tell(Suspected("r2", "no token"))
    made.run(3)
    made.tell(Suspected("r2", ""))
    made.run(20)
    assert identities(made) == {"r0": "old", "r1": "old", "r2": "new"}
    made.tell(Suspected("r2", "no token"))
    made.run(150)
    assert stage(made) == "went back"
    replays(made)


def test_the_operator_stops_it() -> None:
    """By isolating the canary. How many there are is not changed meanwhile, nor is there a second change."""
    made = serving(replicas=2, places=3)
    change(made)
    made.tell(Scaled(1))
    assert made.machine.replicas.wanted == 2
    assert rolling.not_now(made.machine.replicas, made.machine.ground, made.machine.rolling, outage=True)
    made.run(40)
    made.tell(Wished("r2", "isolate"))
    made.run(100)
    assert stage(made) == "went back"
    assert identities(made) == {"r0": "old", "r1": "old"}
    replays(made)


def test_one_at_rest_has_it_the_next_time() -> None:
    """What is drained stays so, and `restore` starts the new one."""
    made = serving()
    made.tell(Wished("r0", "drain"))
    made.run(10)
    change(made)
    made.run(200)
    assert stage(made) == "changed"
    assert made.machine.replicas.by_name["r0"].phase == "drained"
    made.tell(Wished("r0", "restore"))
    made.run(60)
    assert identities(made) == {"r0": "new", "r1": "new", "r2": "new"}
    assert made.gateway["r0"] == "ready"
    replays(made)


def test_it_waits_for_one_that_is_unwell() -> None:
    """A replica that restarts by itself is not joined by a second one that is missing."""
    made = serving()
    change(made)
    made.run(55)
    made.kill_rank("r0")
    made.run(20)
    found = made.machine.rolling
    assert found is not None
    assert (found.trusted, found.current, found.waits) == (True, "", "until r0 is well")
    assert made.gateway == {"r0": "out", "r1": "ready", "r2": "ready"}
    made.run(200)
    assert stage(made) == "changed"
    assert made.fewest == 2
    replays(made)


def test_the_last_one_that_takes_traffic_is_not_taken() -> None:
    """The operator keeps the other one out: the change waits until it is back."""
    made = serving(replicas=2, places=2)
    made.tell(Wished("r0", "isolate"))
    change(made)
    made.run(100)
    assert made.machine.rolling is not None
    assert made.machine.rolling.waits == "until another replica than r1 takes traffic"
    assert made.gateway == {"r0": "out", "r1": "ready"}
    made.tell(Wished("r0", "restore"))
    made.run(200)
    assert stage(made) == "changed"
    assert made.fewest == 1
    replays(made)


@pytest.mark.parametrize(
    ("node", "answer", "words"),
    [
        ("n1", {**FACTS, "vllm": "0.33.0"}, "n1 has vLLM 0.33.0, n0 has 0.32.0"),
        ("n1", copy("other"), "n1"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_touched(node: str, answer: Any, words: str) -> None:
    """Copies that differ, versions that differ."""
    made = serving()
    change(made)
    assert made.machine.rolling is not None
    what = "facts" if "vllm" in answer else "digest"
    call = next(one for one in made.machine.rolling.waiting if one.startswith(f"{what}:{node}"))
    made.tell(Answered(call, answer))
    made.run(10)
    assert stage(made) == "refused"
    assert words in made.machine.rolling.reason
    assert set(made.gateway.values()) == {"ready"}


def test_another_ray_cannot_be_joined() -> None:
    """The new environment's Ray must be the one that runs."""
    made = serving()
    made.machine.facts["n2"] = {**FACTS, "ray": "2.59.0"}
    change(made)
    made.run(5)
    assert "n2 runs Ray 2.59.0" in (made.machine.rolling.reason if made.machine.rolling else "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"served_name": "x"}, "The name that clients use"),
        ({"listen": "127.0.0.1:9"}, "The address that clients use"),
        ({"nodes": HOSTS[:3]}, "Other nodes"),
        ({"replicas": 2}, "number of replicas"),
        ({"tp": 2}, "1 ranks, with the change it would have 2"),
        ({"nodes": (replace(HOSTS[0], python="/new/python"), *HOSTS[1:])}, "--executor mp"),
        ({"gateway_extra": "[queue]"}, "The gateway's tables"),
        ({}, "Nothing is other"),
    ],
)
def test_what_cannot_change_is_named(changes: dict[str, Any], words: str) -> None:
    """With the reason, before the deployment hears of it."""
    found = changeable.unchangeable(spec(), replace(spec(), identity="new", **changes))
    assert found is not None
    assert words in f"{found[0]} {found[1]}"
    assert all(found)


def test_what_can_change() -> None:
    """On the places and with the environment of the start."""
    old = spec(executor="mp", nodes=tuple(replace(one, env={"NCCL": "x"}) for one in HOSTS))
    asked = replace(
        spec(executor="mp", nodes=tuple(replace(one, python="/new/python") for one in HOSTS)),
        identity="new", model="/models/n", revision="v2", vllm_arguments=("--seed", "1"), placement=(("n0",),) * 3,
    )  # fmt: skip
    assert changeable.unchangeable(old, asked) is None
    new = changeable.merged(old, asked)
    assert (new.model, new.identity, new.placement) == ("/models/n", "new", old.placement)
    assert {(one.python, one.env["NCCL"]) for one in new.nodes} == {("/new/python", "x")}
    assert changeable.changes(old, new)[0] == "model: /models/m -> /models/n"


names = st.sampled_from(["r0", "r1", "r2", "r3"])
happenings = st.one_of(
    st.builds(lambda name: ("kill", name), names),
    st.builds(Suspected, names, st.sampled_from(["", "no token"])),
    st.builds(Wished, names, st.sampled_from(["drain", "isolate", "restore"])),
    st.builds(Scaled, st.integers(1, 4)),
    st.just(Exited("n0", "launcher", 1)),
    st.sampled_from([("faulty", "new"), ("wrong", "new")]),
    st.builds(lambda bad, slow: Compared(rows(bad, slow)), st.integers(0, 20), st.floats(0.1, 3)),
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(1, 3),
    st.integers(0, 1),
    st.booleans(),
    st.lists(st.tuples(happenings, st.floats(0, 60)), max_size=8),
)
def test_whatever_happens_it_is_all_new_or_all_old(
    replicas: int, room: int, outage: bool, told: list[tuple[Any, float]]
) -> None:
    """Once events stop and nobody is held any more, the change is over, everybody has one specification, and what happened replays.
    `World.check` sees to it after every event that no traffic goes to what is not proved and no GPU has two groups."""
    made = serving(replicas, replicas + room)
    change(made, outage=outage)
    for event, seconds in told:
        if made.machine.stopping:
            return
        match event:
            case ("kill", name):
                made.kill_rank(name)
            case ("faulty" | "wrong" as how, identity):
                getattr(made, how).add(identity)
            case _:
                made.tell(event)
        made.run(seconds, 2.0)
    for name in ("r0", "r1", "r2", "r3"):
        if not made.machine.stopping:
            made.tell(Suspected(name, ""))
            made.tell(Wished(name, "restore"))
    made.run(1500, 3.0)
    if made.machine.stopping:
        return
    found = set(identities(made).values())
    assert len(found) == 1, (identities(made), made.machine.rolling)
    if made.machine.rolling:
        assert made.machine.rolling.is_over
        assert found == {made.machine.spec.identity}
        replays(made)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 3), st.integers(0, 1), st.sampled_from(["", "faulty", "wrong"]), st.floats(0, 200))
def test_the_change_alone_takes_one_at_most(replicas: int, room: int, how: str, after_seconds: float) -> None:
    """Whenever the new specification begins to fail: never fewer than all but one serve, with room never fewer than all."""
    made = serving(replicas, replicas + room)
    change(made)
    made.run(after_seconds)
    if how:
        getattr(made, how).add("new")
    made.run(900, 3.0)
    assert made.fewest >= replicas - 1 + room
    assert made.machine.rolling is not None
    assert made.machine.rolling.is_over


@pytest.mark.parametrize("node", ["n0", "n2"])
def test_the_end_of_ray_is_not_the_canarys_doing(node: str) -> None:
    """Ray ends on the canary's node, or all of it with its head, while the canary is watched: the change goes on afterwards."""
    made = serving()
    change(made)
    for _ in range(300):
        made.run(1)
        if made.machine.rolling and made.machine.rolling.watches():
            break
    assert made.machine.rolling
    assert made.machine.rolling.canary == "r2"
    made.tell(Exited(node, made.rays.pop(node), 1))
    made.run(400)
    assert stage(made) == "changed"
    assert set(identities(made).values()) == {"new"}
    replays(made)

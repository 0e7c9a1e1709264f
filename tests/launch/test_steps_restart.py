"""An engine that fails once it has served: fenced on every node, then started again with names and ports of its own."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from driving import Drive, checked_drives, evidence, launcher_line, take_down

from longspan.launch.actions import Ask, Call, SetGateway, Start, StartAgent, Sweep
from longspan.launch.commands import Process
from longspan.launch.events import (
    AgentJoined,
    AgentSilent,
    Answered,
    DownAsked,
    Exited,
    Lines,
    StartFailed,
    Struck,
    Suspected,
    Tick,
    Wished,
)
from longspan.launch.fence import END_SECONDS, MAX_RESTARTS, SETTLED_SECONDS
from longspan.launch.lost_node import GIVE_UP_SECONDS
from longspan.launch.steps import FRONT, MAX_GATEWAYS
from longspan.launch.traffic import CONVICTION_SECONDS


@pytest.fixture
def start() -> Iterator[Callable[..., Drive]]:
    """Machines whose invariants are checked when the test is over."""
    with checked_drives() as make:
        yield make


def serving(start: Callable[..., Drive], **changes: Any) -> Drive:
    """One that serves."""
    drive = start(**changes)
    drive.until("proof")
    assert drive.machine.phase == "serving"
    return drive


def fenced(drive: Drive) -> list[Any]:
    """Evidence comes, every node ends the group, new ports are found; returns what starts then."""
    epoch = drive.r0.fence.epoch
    names = [node.name for node in drive.machine.nodes]
    for name in names:
        drive.answer(f"collect:{name}#{epoch}", {})
    for name in names:
        drive.answer(f"end_group:{name}#{epoch}", {"left": []})
    while drive.r0.fence.step == "pausing":
        drive.do(Tick())
    return drive.answer(f"ports:{names[0]}#{epoch}", [8000 + 10 * epoch + i for i in range(5)])


def comes_up(drive: Drive) -> list[Any]:
    """The next group of the Ray executor goes its way; returns the last actions."""
    epoch = drive.r0.group.epoch
    launcher, size = f"launcher.{epoch}", drive.machine.spec.world_size
    bundles = [node.address for node in drive.machine.spec.rank_nodes()]
    drive.say("a", launcher, launcher_line("gpus", have=size, want=size, nodes=[]))
    drive.say("a", launcher, launcher_line("reserved", placement_group=f"pg{epoch}", bundles=bundles))
    pids = [200 + 10 * epoch, 201 + 10 * epoch]
    ranks = [{"rank": r, "pid": pids[r], "address": bundles[r]} for r in (0, 1)]
    drive.say("a", launcher, launcher_line("ranks", ranks=ranks))
    drive.say("a", launcher, "INFO:     Application startup complete.")
    drive.answer(f"ranks:a#{epoch}", {str(pids[0]): []})
    (asked,) = drive.answer(f"ranks:b#{epoch}", {str(pids[1]): []})
    assert asked == Ask(f"first_token:#{epoch}", "first_token", {"direct": True})
    (asked,) = drive.answer(f"first_token:#{epoch}", {"detail": "' Paris'"})
    assert asked == Ask(f"evidence:#{epoch}", "evidence", {"direct": True})
    return drive.answer(f"evidence:#{epoch}", evidence())


def test_the_whole_way_back(start: Callable[..., Drive]) -> None:
    """Traffic goes first, then evidence is collected, then every node ends the group, then the next one starts with other
    names and ports, and gets traffic only once its proof is there; what the first one's references said is not asked again."""
    drive = serving(start)
    actions = drive.do(Exited("a", "launcher", 1))
    assert isinstance(actions[0], SetGateway)
    assert actions[0].state == "out"
    assert [(a.node, a.what) for a in actions[1:] if isinstance(a, Call)] == [
        ("a", "collect"),
        ("b", "collect"),
    ]
    assert drive.answer("collect:b#2", error="py-spy is missing") == []
    ends = drive.answer("collect:a#2", {})
    assert {(a.node, a.what, a.arguments["group"]) for a in ends if isinstance(a, Call)} == {
        ("a", "end_group", "default-m/1"), ("b", "end_group", "default-m/1"),
    }  # fmt: skip
    assert drive.answer("end_group:a#2", {"left": []}) == []
    (ports,) = drive.answer("end_group:b#2", {"left": []})  # the pause after a first failure is over by then
    assert (ports.node, ports.what) == ("a", "ports")
    (started,) = drive.answer("ports:a#2", [8000, 8001, 8002, 8003, 8004])
    assert isinstance(started, Start)
    assert started.process.name == "launcher.2"
    assert '"LONGSPAN_GROUP": "default-m/2"' in started.process.stdin
    assert '"8001"' in started.process.stdin
    assert comes_up(drive) == [SetGateway("ready")]
    assert drive.machine.phase == "serving"
    assert [reason for _, reason in drive.r0.restarts] == [
        "launcher on a ended with status 1 while serving. Its last line: INFO:     Application startup complete."
    ]
    take_down(drive)


def test_what_an_old_group_says_late_changes_nothing(start: Callable[..., Drive]) -> None:
    """Lines, ends and answers of the first group are not taken for the second one's."""
    drive = serving(start)
    drive.do(Exited("a", "launcher", 1))
    # While it is being fenced:
    assert drive.do(Exited("a", "launcher", 1)) == []
    assert (
        drive.say("a", "launcher", launcher_line("error", kind="gpus", have=1, want=2, missing=[], alive=[]))
        == []
    )
    fenced(drive)
    before = drive.machine.phase
    assert drive.say("a", "launcher", launcher_line("gpus", have=2, want=2, nodes=[])) == []
    assert drive.do(Exited("a", "launcher", -9)) == []
    assert drive.answer("ranks:a", {"100": []}) == []
    assert drive.machine.phase == before == "ray"
    comes_up(drive)
    assert drive.do(Exited("b", "engine", 1)) == []
    assert drive.machine.phase == "serving"


def test_mp_starts_all_its_ranks_again(start: Callable[..., Drive]) -> None:
    """Followers and head start under new names, with a rendezvous of their own."""
    drive = serving(start, executor="mp")
    drive.do(Exited("b", "engine", 1))
    fenced(drive)
    bundles = [node.address for node in drive.machine.spec.rank_nodes()]
    drive.say("a", "launcher.2", launcher_line("reserved", placement_group="pg", bundles=bundles))
    holders = [{"gpu_ids": [i]} for i in range(2)]
    first, second = drive.say("a", "launcher.2", launcher_line("holders", holders=holders))
    assert (first.process.name, second.process.name) == ("engine.2", "engine.2")
    assert first.process.env["LONGSPAN_GROUP"] == "default-m/2"
    assert first.process.argv[first.process.argv.index("--master-port") + 1] == "8024"


def test_suspicion_that_lasts_is_conviction(start: Callable[..., Drive]) -> None:
    """A blip costs nothing; after 15 s the engine is restarted, unless a node is silent: there nothing can be ended."""
    drive = serving(start)
    drive.do(Suspected("r0", "nothing has moved"))
    drive.do(Tick(), CONVICTION_SECONDS - 3)
    drive.do(Suspected("r0", ""))
    drive.do(Tick(), CONVICTION_SECONDS)
    assert drive.machine.phase == "serving"
    drive.do(Suspected("b", "b has not answered for 3 s"))
    drive.do(Suspected("r0", "nothing has moved"))
    drive.do(Tick(), CONVICTION_SECONDS + 1)
    assert drive.machine.phase == "serving"
    drive.do(Suspected("b", ""))
    actions = drive.do(Tick())
    assert drive.machine.phase == "fencing"
    assert {a.what for a in actions if isinstance(a, Call)} == {"collect"}
    assert drive.do(Suspected("r0", "of the old one")) == []
    fenced(drive)
    assert comes_up(drive) == [SetGateway("ready")]


def test_it_gives_up_after_a_few_tries(start: Callable[..., Drive]) -> None:
    """Three restarts without a settled service between; the fourth failure ends it, with all it has been through."""
    drive = serving(start)
    for number in range(MAX_RESTARTS):
        process = "launcher" if number == 0 else f"launcher.{number + 1}"
        drive.do(Exited("a", process, 1))
        assert drive.machine.phase == "fencing"
        fenced(drive)
    drive.do(Exited("a", f"launcher.{MAX_RESTARTS + 1}", 1))
    assert drive.machine.failure is not None
    assert f"restarted {MAX_RESTARTS} times before" in drive.machine.failure.what
    drive.stop_answers()
    assert drive.machine.phase == "gone"


def test_a_settled_service_starts_with_a_clean_record(start: Callable[..., Drive]) -> None:
    """Failures that lie ten minutes of service apart never add up."""
    drive = serving(start)
    for number in range(MAX_RESTARTS + 2):
        drive.do(Tick(), SETTLED_SECONDS)
        process = "launcher" if number == 0 else f"launcher.{number + 1}"
        drive.do(Exited("a", process, 1))
        fenced(drive)
        comes_up(drive)
        assert drive.machine.phase == "serving"


@pytest.mark.parametrize("answer", [{"left": [77]}, None])
def test_what_does_not_end_is_not_started_over(
    start: Callable[..., Drive], answer: dict[str, Any] | None
) -> None:
    """A rank that lives on, or a node that does not say: two groups on one GPU must never be."""
    drive = serving(start)
    drive.do(Exited("a", "launcher", 1))
    for name in ("a", "b"):
        drive.answer(f"collect:{name}#2", {})
    drive.answer("end_group:a#2", {"left": []})
    if answer:
        drive.answer("end_group:b#2", answer)
    drive.do(Tick(), END_SECONDS + 1)
    assert drive.machine.failure is not None
    assert "b " in drive.machine.failure.what or " b" in drive.machine.failure.what
    assert not [name for _, name in drive.started() if name == "launcher.2"]


def comes_back(drive: Drive, number: int = 2) -> list[Any]:
    """The lost host b is swept, gets an agent, its files and Ray; returns what starts then."""
    assert drive.answer(f"swept:b#{number}", {"left": []}) == [StartAgent("b")]
    calls = drive.do(AgentJoined("b"))
    assert [call.call for call in calls] == [f"back-write:b#{number}", f"back-ports:b#{number}"]
    assert calls[0].arguments["files"] == drive.machine.secrets
    drive.answer(f"back-write:b#{number}", {})
    return drive.answer(f"back-ports:b#{number}", [9000, 9001, 9002, 9003, 9004])


def listens(ray: Process) -> set[str]:
    """The ports of a Ray node, but for the workers' range."""
    words = [word.partition("=") for word in ray.argv]
    return {value for name, _, value in words if name.endswith("-port") and "worker" not in name}


def test_a_host_that_is_lost_comes_back(start: Callable[..., Drive]) -> None:
    """The group is ended where somebody answers, the host is swept as often as it takes, gets an agent and joins Ray again;
    only then the next group starts, on Ray's old address."""
    drive = serving(start, ray_first_port=20100)
    address = drive.machine.ground.ray_address
    (before,) = [
        a.process for a in drive.actions if isinstance(a, Start) and (a.node, a.process.name) == ("b", "ray")
    ]
    actions = drive.do(AgentSilent("b", 41))
    assert [(a.node, a.what) for a in actions if isinstance(a, Call)] == [("a", "collect")]
    assert [a for a in actions if isinstance(a, Sweep)] == [Sweep("b", "swept:b#2")]
    assert drive.do(AgentSilent("b", 42)) == []
    drive.answer("collect:a#2", {})
    drive.answer("end_group:a#2", {"left": []})
    assert drive.answer("swept:b#2", error="HostError: no route") == []
    assert drive.do(Tick(), 10) == []
    assert drive.do(Tick(), 30) == [Sweep("b", "swept:b#2")]
    assert drive.machine.phase == "fencing"
    ray, ports = comes_back(drive)
    assert (ray.node, ray.process.name) == ("b", "ray.2")
    assert f"--address={address}" in ray.process.argv
    # What Ray's head still sends to where the lost one listened must not reach the new one, nor keep it waiting.
    assert listens(ray.process).isdisjoint(listens(before))
    assert (ports.node, ports.what) == ("a", "ports")
    (launcher,) = drive.answer("ports:a#2", [8000, 8001, 8002, 8003, 8004])
    assert launcher.process.name == "launcher.2"
    assert comes_up(drive) == [SetGateway("ready")]
    assert drive.machine.ground.lost == {}
    # Lost once more: calls and Ray's process have names of their own again, and Ray's port is still the first one.
    drive.do(AgentSilent("b", 41))
    drive.answer("collect:a#3", {})
    drive.answer("end_group:a#3", {"left": []})
    drive.do(Tick(), 20)
    ray, *_ = comes_back(drive, 3)
    assert ray.process.name == "ray.3"
    assert f"--address={address}" in ray.process.argv
    take_down(drive)


def test_a_host_that_is_lost_while_the_group_is_fenced(start: Callable[..., Drive]) -> None:
    """What it was asked is not waited for any longer; the fence goes on without it and waits for it at the end."""
    drive = serving(start)
    drive.do(Exited("a", "launcher", 1))
    drive.answer("collect:a#2", {})
    ends = drive.do(AgentSilent("b", 41))
    assert [(a.node, a.what) for a in ends if isinstance(a, Call)] == [("a", "end_group")]
    drive.answer("end_group:a#2", {"left": []})
    drive.do(Tick(), 20)
    assert drive.r0.fence.step == "pausing"
    comes_back(drive)
    drive.answer("ports:a#2", [8000, 8001, 8002, 8003, 8004])
    assert comes_up(drive) == [SetGateway("ready")]


def test_an_agent_that_does_not_start_on_a_host_that_is_back(start: Callable[..., Drive]) -> None:
    """It is tried again, from the sweep on."""
    drive = serving(start)
    drive.do(AgentSilent("b", 41))
    assert drive.answer("swept:b#2", {"left": []}) == [StartAgent("b")]
    assert drive.do(StartFailed("b", "no python")) == []
    assert drive.machine.failure is None
    for _ in range(30):
        if Sweep("b", "swept:b#2") in drive.do(Tick(), 2):
            break
    else:
        raise AssertionError("not tried again")


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Answered("swept:b#2", {"left": [7]}), "pid 7 on b does not end"),
        (Tick(), "has not come back for 30 minutes"),
    ],
)
def test_a_host_that_cannot_be_brought_back(start: Callable[..., Drive], event: Any, words: str) -> None:
    """What does not end there, or a host that stays away: the deployment ends and says why."""
    drive = serving(start)
    drive.do(AgentSilent("b", 41))
    drive.do(event, 1 if isinstance(event, Answered) else GIVE_UP_SECONDS + 1)
    assert drive.machine.failure is not None
    assert words in drive.machine.failure.what
    drive.stop_answers()


@pytest.mark.parametrize(
    ("node", "changes"), [("a", {}), ("b", {"ray_address": "10.0.0.9:6379"}), (FRONT, {})]
)
def test_a_loss_that_ends_the_deployment(
    start: Callable[..., Drive], node: str, changes: dict[str, Any]
) -> None:
    """Ray's head, a host of a joined Ray, our own machine."""
    drive = serving(start, **changes)
    drive.do(AgentSilent(node, 41))
    assert drive.machine.failure is not None
    drive.stop_answers()


def test_down_while_it_is_fenced(start: Callable[..., Drive]) -> None:
    """Down ends everything at once; late answers of the fence start nothing."""
    drive = serving(start)
    drive.do(Exited("a", "launcher", 1))
    drive.do(DownAsked())
    assert drive.answer("collect:a#2", {}) == []
    drive.stop_answers()
    assert drive.machine.phase == "gone"


def test_a_gateway_that_ends_is_started_again(start: Callable[..., Drive]) -> None:
    """The engine goes on; a gateway that ends again and again ends the deployment."""
    drive = serving(start)
    for number in range(2, MAX_GATEWAYS + 1):
        process = "gateway" if number == 2 else f"gateway.{number - 1}"
        (started,) = drive.do(Exited(FRONT, process, -9))
        assert isinstance(started, Start)
        assert (started.node, started.process.name) == (FRONT, f"gateway.{number}")
        drive.do(Lines(FRONT, f"gateway.{number}", ('{"event": "listening", "address": "127.0.0.1:8000"}',)))
        assert drive.machine.ground.gateway_up
        assert drive.machine.phase == "serving"
    drive.do(Exited(FRONT, f"gateway.{MAX_GATEWAYS}", -9))
    assert drive.machine.failure is not None
    drive.stop_answers()


def test_traffic_by_hand(start: Callable[..., Drive]) -> None:
    """Isolated outweighs drained, suspicion both; a replica's name lifts everything; it holds over a restart."""
    drive = serving(start)
    assert drive.do(Wished("r0", "drain")) == [SetGateway("draining", "drained by the operator: r0")]
    assert drive.do(Wished("b", "isolate")) == [SetGateway("out", "isolated by the operator: b")]
    assert drive.do(Suspected("a", "silent")) == [SetGateway("out", "silent")]
    assert drive.do(Suspected("a", "")) == [SetGateway("out", "isolated by the operator: b")]
    assert drive.do(Wished("b", "restore")) == [SetGateway("draining", "drained by the operator: r0")]
    assert drive.do(Wished("c", "isolate")) == []
    assert drive.do(Wished("r0", "restore")) == [SetGateway("ready")]
    drive.do(Exited("a", "launcher", 1))
    assert drive.do(Wished("b", "isolate")) == []
    fenced(drive)
    assert comes_up(drive)[-1] == SetGateway("out", "isolated by the operator: b")
    assert drive.do(Wished("r0", "restore")) == [SetGateway("ready")]


def test_a_drill_is_an_event_like_any_other(start: Callable[..., Drive]) -> None:
    """The node's agent is told once for each strike; its answer, or refusal, changes nothing."""
    drive = serving(start)
    (call,) = drive.do(Struck("b", {"pid": 101, "signal": "KILL"}))
    assert isinstance(call, Call)
    assert (call.node, call.what, call.arguments["mark"]) == ("b", "strike", "default-m")
    assert drive.answer(call.call, error="no such process") == []
    (again,) = drive.do(Struck("b", {"pid": 101, "signal": "CONT"}))
    assert again.call != call.call
    assert drive.do(Struck("nobody", {})) == []
    drive.do(Exited("a", "launcher", 1))
    assert drive.do(Struck("b", {})) == []


def test_a_host_that_comes_and_goes_has_one_patience(start: Callable[..., Drive]) -> None:
    """Its half hour begins with the first loss of the fence, however often it was back for a moment."""
    drive = serving(start)
    drive.do(AgentSilent("b", 41))
    drive.answer("collect:a#2", {})
    drive.answer("end_group:a#2", {"left": []})
    drive.do(Tick(), GIVE_UP_SECONDS / 2)
    comes_back(drive)
    drive.do(AgentSilent("b", 41))
    assert drive.answer("ports:a#2", [8000, 8001, 8002, 8003, 8004]) == []
    drive.do(Tick(), GIVE_UP_SECONDS / 2)
    assert drive.machine.failure is not None
    assert "has not come back" in drive.machine.failure.what
    drive.stop_answers()


def test_a_rank_that_ends_is_enough(start: Callable[..., Drive]) -> None:
    """The launcher may live on and wait for it; before it has served the launcher's own end says more."""
    early = start()
    early.until("ranks_confirmed")
    assert early.do(Exited("b", "rank", -1)) == []
    drive = serving(start)
    actions = drive.do(Exited("b", "rank", -1))
    assert isinstance(actions[0], SetGateway)
    assert "A rank's process on b ended" in actions[0].reason
    fenced(drive)
    assert comes_up(drive) == [SetGateway("ready")]
    assert drive.do(Exited("b", "rank", -1)) == []
    assert drive.do(Exited("b", "rank.2", -1)) != []

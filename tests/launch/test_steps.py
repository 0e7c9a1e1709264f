"""A launch that goes well, phase by phase, with both executors, in our own Ray and in one that we joined."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from driving import NODES, Drive, checked_drives, copy, evidence, launcher_line, reference, take_down

from longspan.deployment import NodeSpec
from longspan.launch.actions import Ask, Call, SetGateway, Start, StartAgents, StopAll
from longspan.launch.events import AgentJoined, DownAsked
from longspan.launch.steps import FRONT, PHASES


@pytest.fixture
def start() -> Iterator[Callable[..., Drive]]:
    """Machines whose invariants are checked when the test is over."""
    with checked_drives() as make:
        yield make


@pytest.mark.parametrize("executor", ["ray", "mp"])
def test_the_whole_way(start: Callable[..., Drive], executor: str) -> None:
    """Every phase is entered once and in order, and it ends serving with a proof in which every layer passed."""
    drive = start(executor=executor)
    for stage in drive.stages():
        stage()
    assert drive.machine.phase == "serving"
    assert [p for p in drive.machine.started if p in PHASES] == list(PHASES)
    assert drive.r0.group.proof is not None
    assert drive.r0.group.proof.verdict == "verified"
    assert [drive.r0.group.ranks[rank].address for rank in (0, 1)] == ["10.0.0.1", "10.0.0.2"]
    take_down(drive)


def test_agents_come_first(start: Callable[..., Drive]) -> None:
    """Nothing is asked of any node before all agents, the front's too, have joined."""
    drive = start()
    assert drive.begin() == [StartAgents()]
    assert drive.do(AgentJoined("b")) == []
    assert drive.do(AgentJoined("a")) == []
    calls = drive.do(AgentJoined(FRONT))
    assert sorted(c.call for c in calls if isinstance(c, Call)) == sorted(
        f"{what}:{node}" for what in ("facts", "write", "ports", "digest") for node in ("a", "b")
    )


def test_ray_starts_head_first(start: Callable[..., Drive]) -> None:
    """The other nodes' Ray, the gateway and the launcher start once the head's Ray says that it runs."""
    drive = start()
    drive.agents()
    (head,) = drive.checkpoint()
    assert isinstance(head, Start)
    assert (head.node, head.process.name, "--head" in head.process.argv) == ("a", "ray", True)
    assert drive.say("b", "ray", "Ray runtime started.") == []
    actions = drive.say("a", "ray", "\x1b[32mRay runtime started.\x1b[0m")
    assert [(a.node, a.process.name) for a in actions if isinstance(a, Start)] == [
        ("b", "ray"), (FRONT, "gateway"), ("a", "launcher"),
    ]  # fmt: skip
    assert actions.index(SetGateway("out", "the engine is starting")) < actions.index(
        next(a for a in actions if isinstance(a, Start) and a.process.name == "gateway")
    )


def test_a_head_without_gpu(start: Callable[..., Drive]) -> None:
    """It gets an agent, files and Ray's head with no GPU, but no copy of the model and no rank; the launcher stays with rank 0."""
    head = NodeSpec("h", "10.0.0.9", 0, ssh="h")
    drive = start(ray_head=head, ray_first_port=20100)
    calls = {action.call for action in drive.agents() if isinstance(action, Call)}
    assert {"facts:h", "write:h", "ports:h", "digest:a"} <= calls
    assert "digest:h" not in calls
    (ray,) = drive.checkpoint()
    assert isinstance(ray, Start)
    assert (ray.node, "--head" in ray.process.argv, "--num-gpus=0" in ray.process.argv) == ("h", True, True)
    actions = drive.say("h", "ray", "Ray runtime started.")
    started = [(action.node, action.process.name) for action in actions if isinstance(action, Start)]
    assert started == [("a", "ray"), ("b", "ray"), (FRONT, "gateway"), ("a", "launcher")]
    follower = next(action.process for action in actions if isinstance(action, Start) and action.node == "b")
    assert "--address=10.0.0.9:20100" in follower.argv
    size = drive.machine.spec.world_size
    drive.say("a", "launcher", launcher_line("gpus", have=size, want=size, nodes=[]))
    for stage in drive.stages()[3:]:
        stage()
    assert drive.machine.phase == "serving"
    assert {action.node for action in drive.do(DownAsked()) if isinstance(action, StopAll)} == {
        FRONT,
        "h",
        "a",
        "b",
    }


def test_a_joined_ray_is_not_started(start: Callable[..., Drive]) -> None:
    """In a Ray that somebody else started only the gateway and the launcher are processes of ours."""
    drive = start(ray_address="10.0.0.9:6379")
    for stage in drive.stages():
        stage()
    assert drive.machine.phase == "serving"
    assert sorted(drive.started()) == [("a", "launcher"), (FRONT, "gateway")]


def test_mp_ranks_start_once_all_gpus_are_held(start: Callable[..., Drive]) -> None:
    """With mp each node gets one process with its own rank, interface and the GPUs that Ray gave its holders."""
    nodes = (replace(NODES[0], gpus=2), replace(NODES[1], gpus=2))
    drive = start(executor="mp", tp=2, pp=2, nodes=nodes, device="cuda")
    drive.until("ray")
    spec = drive.machine.spec
    bundles = [node.address for node in spec.rank_nodes()]
    assert drive.say("a", "launcher", launcher_line("reserved", placement_group="pg", bundles=bundles)) == []
    holders = [{"pid": 1, "node_id": "x", "gpu_ids": [gpu]} for gpu in (3, 1, 0, 2)]
    first, second = drive.say("a", "launcher", launcher_line("holders", holders=holders))
    assert isinstance(first, Start)
    assert isinstance(second, Start)
    assert first.process.env["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert second.process.env["CUDA_VISIBLE_DEVICES"] == "0,2"
    assert (first.process.env["NCCL_SOCKET_IFNAME"], second.process.env["NCCL_SOCKET_IFNAME"]) == (
        "eth0",
        "ib0",
    )
    assert ("--headless" in first.process.argv, "--headless" in second.process.argv) == (False, True)
    head_ports = [7000, 7001]  # Ray's and the engine's, which the rendezvous must leave alone
    for process in (first.process, second.process):
        assert int(process.argv[process.argv.index("--master-port") + 1]) not in head_ports
    assert drive.say("a", "launcher", launcher_line("holders", holders=holders)) == []


def test_gpus_that_are_named_by_uuid(start: Callable[..., Drive]) -> None:
    """Where CUDA_VISIBLE_DEVICES holds UUIDs, as of MIG slices, Ray hands out those, and the ranks get them unchanged."""
    drive = start(executor="mp", tp=2, pp=1, nodes=(replace(NODES[0], gpus=2),), device="cuda")
    drive.until("ray")
    reserved = launcher_line("reserved", placement_group="pg", bundles=["10.0.0.1"] * 2)
    assert drive.say("a", "launcher", reserved) == []
    slices = ["MIG-b1", "MIG-a0"]
    holders = [{"pid": 1, "node_id": "x", "gpu_ids": [name]} for name in slices]
    (started,) = drive.say("a", "launcher", launcher_line("holders", holders=holders))
    assert isinstance(started, Start)
    assert started.process.env["CUDA_VISIBLE_DEVICES"] == "MIG-a0,MIG-b1"


def test_no_traffic_before_the_ranks_are_confirmed(start: Callable[..., Drive]) -> None:
    """The engine's own readiness opens nothing: each node must first find the ranks among its processes."""
    drive = start()
    drive.until("ranks_join")
    drive.gateway()
    calls = drive.ready()
    assert [c.call for c in calls if isinstance(c, Call)] == ["ranks:a", "ranks:b"]
    assert drive.answer("ranks:a", {"100": []}) == []
    assert drive.answer("ranks:b", {"101": []}) == [SetGateway("ready"), Ask("first_token:", "first_token")]


def test_the_gateway_may_be_late(start: Callable[..., Drive]) -> None:
    """The first token is asked for once both the ranks are confirmed and the gateway listens, in either order."""
    drive = start()
    assert drive.until("ranks_confirmed") == [SetGateway("ready")]
    assert drive.gateway() == [Ask("first_token:", "first_token")]
    assert drive.gateway() == []


def test_answers_that_nobody_asked_for(start: Callable[..., Drive]) -> None:
    """An answer before its question, or a second one, opens no gateway, asks nothing again and proves nothing."""
    drive = start()
    drive.until("ranks_join")
    assert drive.ranks_confirmed() == []
    assert drive.first_token() == []
    assert drive.proof() == []
    assert drive.machine.phase == "engine"
    for stage in drive.stages()[5:9]:
        stage()
    assert drive.first_token() == []
    assert drive.ranks_confirmed() == []
    assert drive.machine.phase == "verified"


def test_engine_phases_go_forward_only(start: Callable[..., Drive]) -> None:
    """A line of an earlier phase that arrives late does not turn the engine's phase back."""
    drive = start()
    drive.until("ranks_join")
    assert drive.r0.group.engine_phase == "joined"
    drive.say(
        "a", "launcher", "INFO Starting to load model /m...", "INFO Warming up model for the compilation..."
    )
    drive.say("a", "launcher", "INFO Loading weights took 3.1 seconds")
    assert drive.r0.group.engine_phase == "warm-up"


def test_pids_that_coincide_on_two_hosts(start: Callable[..., Drive]) -> None:
    """Where both hosts have a process of that number, the address in the rank's own line decides."""
    drive = start()
    drive.until("ready")
    drive.answer("ranks:a", {"100": [], "101": []})
    assert drive.answer("ranks:b", {"100": [], "101": []}) == [SetGateway("ready")]


def test_one_rank_on_one_node(start: Callable[..., Drive]) -> None:
    """A single rank on a single node serves too; its digests have nothing to compare, which the proof says."""
    drive = start(pp=1, nodes=NODES[:1])
    for stage in drive.stages():
        stage()
    assert drive.machine.phase == "serving"
    assert drive.r0.group.proof is not None
    assert drive.r0.group.proof.verdict == "partly verified"


def test_three_ranks_on_two_nodes(start: Callable[..., Drive]) -> None:
    """Uneven counts: TP=3 over a node with two GPUs and one with one."""
    drive = start(tp=3, pp=1, nodes=(replace(NODES[0], gpus=2), NODES[1]))
    for stage in drive.stages():
        stage()
    assert drive.machine.phase == "serving"


def test_a_file_more_that_no_engine_reads_is_a_warning(start: Callable[..., Drive]) -> None:
    """One node's extra notes.txt is reported with the proof and stops nothing."""
    more = copy()
    more["files"] = [*more["files"], copy("x", "notes.txt")["files"][0]]
    drive = start(nodes=(*NODES, NodeSpec("c", "10.0.0.3", 1)), pp=3)
    drive.agents()
    drive.checkpoint(digests={"c": more})
    for stage in drive.stages()[2:]:
        stage()
    assert drive.machine.phase == "serving"
    assert [(f.subject, f.severity) for f in drive.machine.findings] == [("c", "warning")]


def test_a_reference_that_cannot_be_made_is_said(start: Callable[..., Drive]) -> None:
    """No spare rank, or one whose engine fails: the deployment serves, and its proof says what is missing and why."""
    for answer in ({"value": {"skipped": "no GPU of this node is free"}}, {"error": "it died"}):
        drive = start()
        drive.until("first_token")
        drive.answer("evidence:", evidence())
        drive.answer("reference:a", **answer)
        assert drive.machine.phase == "serving"
        assert drive.r0.group.proof is not None
        assert drive.r0.group.proof.verdict == "partly verified"


def test_the_reference_may_be_first(start: Callable[..., Drive]) -> None:
    """Evidence and reference come in either order."""
    drive = start()
    drive.until("first_token")
    drive.answer("reference:a", reference(-1.0))
    assert drive.machine.phase == "verified"
    drive.answer("evidence:", evidence())
    assert drive.machine.phase == "serving"


def test_stopping_closes_the_gateway_first(start: Callable[..., Drive]) -> None:
    """Down takes the replica out of traffic and tells every agent once; asked again it does nothing."""
    drive = start()
    drive.until("proof")
    actions = drive.do(DownAsked())
    assert actions[0] == SetGateway("out", "the deployment is being stopped")
    assert actions[1:] == [StopAll(FRONT), StopAll("a"), StopAll("b")]
    assert drive.do(DownAsked()) == []
    drive.stop_answers()
    assert drive.machine.phase == "gone"
    assert drive.machine.failure is None

"""What goes wrong in each phase: the kind and the words of the failure, and that everything is stopped and gone."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from driving import FACTS, NODES, Drive, checked_drives, copy, evidence, launcher_line, reference

from longspan.launch.actions import Call, SetGateway, Start, StopAll, Sweep
from longspan.launch.events import AgentJoined, AgentSilent, DownAsked, Exited, StartFailed, Suspected, Tick
from longspan.launch.failure import Failure
from longspan.launch.replicas import QUIET_SECONDS as REPLICA_QUIET
from longspan.launch.steps import FRONT, QUIET_SECONDS, SILENT_SECONDS
from longspan.launch.stopping import COLLECT_SECONDS, SWEEP_SECONDS
from longspan.launch.verdict import Evidence

STAGES = [
    "agents", "checkpoint", "ray", "reserved", "ranks_join", "ready", "ranks_confirmed", "gateway", "first_token",
    "proof",
]  # fmt: skip


@pytest.fixture
def start() -> Iterator[Callable[..., Drive]]:
    """Machines whose invariants are checked when the test is over."""
    with checked_drives() as make:
        yield make


def failed(drive: Drive) -> Failure:
    """The failure, after everything has been taken down."""
    assert drive.machine.phase in {"stopping", "gone"}
    drive.stop_answers()
    assert drive.machine.phase == "gone"
    assert drive.machine.failure is not None
    return drive.machine.failure


@pytest.mark.parametrize("executor", ["ray", "mp"])
@pytest.mark.parametrize("stage", STAGES)
def test_down_in_every_phase(start: Callable[..., Drive], stage: str, executor: str) -> None:
    """Ctrl-C or `down` after any step stops every agent that joined, ends gone, and is no failure."""
    drive = start(executor=executor)
    drive.until(stage)
    drive.do(DownAsked())
    assert {a.node for a in drive.actions if isinstance(a, StopAll)} == {FRONT, "a", "b"}
    drive.stop_answers()
    assert drive.machine.phase == "gone"
    assert drive.machine.failure is None


def test_down_before_any_agent_joined(start: Callable[..., Drive]) -> None:
    """Agents that are still being started are waited for and stopped as soon as they answer."""
    drive = start()
    drive.begin()
    assert drive.do(DownAsked()) == []
    assert drive.do(AgentJoined("b")) == [StopAll("b")]
    assert drive.do(AgentJoined("b")) == []
    drive.do(StartFailed("a", "no route"))
    drive.answer("stopped:b", {"left": []})
    assert drive.machine.phase == "stopping"
    assert drive.do(AgentJoined(FRONT)) == [StopAll(FRONT)]
    drive.answer(f"stopped:{FRONT}", {"left": []})
    assert drive.machine.phase == "gone"
    assert drive.machine.findings == []


def test_an_agent_that_never_comes_does_not_hold_up_the_end(start: Callable[..., Drive]) -> None:
    """After a while its node is swept, and a finding names it where that cannot be done."""
    drive = start()
    drive.begin()
    drive.do(AgentJoined(FRONT))
    drive.do(DownAsked())
    drive.answer(f"stopped:{FRONT}", {"left": []})
    drive.do(Tick())
    assert drive.machine.phase == "stopping"
    assert drive.do(Tick(), 60) == [Sweep("a", "swept:a"), Sweep("b", "swept:b")]
    drive.answer("swept:a", {"left": []})
    assert drive.machine.phase == "stopping"
    drive.answer("swept:b", error="Connection refused")
    assert drive.machine.phase == "gone"
    ((subject, cause, summary),) = [(f.subject, f.cause, f.summary) for f in drive.machine.findings]
    assert (subject, cause) == ("b", "agent-silent")
    assert "Connection refused" in summary


def test_an_agent_that_beats_but_does_not_confirm(start: Callable[..., Drive]) -> None:
    """A stuck agent holds up the end for a bounded time: its node is swept, and a sweep that hangs is given up too."""
    drive = start()
    drive.until("first_token")
    drive.do(DownAsked())
    drive.answer("stopped:a", {"left": []})
    drive.answer(f"stopped:{FRONT}", {"left": []})
    assert drive.do(Tick(), 80) == []
    assert drive.do(Tick(), 20) == [Sweep("b", "swept:b")]
    drive.answer("stopped:b", {"left": []})
    assert drive.machine.phase == "stopping"
    drive.do(Tick(), SWEEP_SECONDS + 1)
    assert drive.machine.phase == "gone"
    assert [(f.subject, f.cause) for f in drive.machine.findings] == [("b", "agent-silent")]


def test_an_agent_that_joined_is_waited_for_though_ssh_broke_off(start: Callable[..., Drive]) -> None:
    """A start that "failed" after its agent had joined does not take that agent out of the end."""
    drive = start()
    drive.until("agents")
    drive.do(StartFailed("b", "b did not answer within 60 s"))
    drive.answer("stopped:a", {"left": []})
    drive.answer(f"stopped:{FRONT}", {"left": []})
    assert drive.machine.phase == "stopping"
    drive.answer("stopped:b", {"left": []})
    assert drive.machine.phase == "gone"


def test_what_an_agent_could_not_end_is_a_finding(start: Callable[..., Drive]) -> None:
    """A pid that survives SIGKILL, and an agent that never confirms, are named by node."""
    drive = start()
    drive.until("agents")
    drive.do(DownAsked())
    drive.answer("stopped:a", {"left": ["pid 9 does not end, even on SIGKILL"]})
    drive.answer(f"stopped:{FRONT}", {"left": []})
    drive.do(AgentSilent("a", 40))
    drive.do(AgentSilent("b", 29))
    assert drive.machine.phase == "stopping"
    assert drive.do(AgentSilent("b", 31)) == [Sweep("b", "swept:b")]
    drive.answer("swept:b", {"left": [7]})
    assert drive.machine.phase == "gone"
    assert [(f.subject, f.cause) for f in drive.machine.findings] == [
        ("a", "process-left"),
        ("b", "process-left"),
    ]


def test_an_agent_cannot_be_started(start: Callable[..., Drive]) -> None:
    """The host and ssh's reason are named; the agent that did start is stopped."""
    drive = start()
    drive.begin()
    drive.do(AgentJoined("a"))
    assert drive.do(StartFailed("b", "b cannot be reached: Connection refused")) == [StopAll("a")]
    drive.do(AgentJoined(FRONT))
    failure = failed(drive)
    assert (failure.kind, failure.phase) == ("host", "agents")
    assert "b could not be started: b cannot be reached: Connection refused" in failure.what


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"b": {**FACTS, "ray": "2.59.0"}}, "b has Ray 2.59.0, a has 2.60.0"),
        ({"b": {**FACTS, "python": "3.12.1"}}, "b has Python 3.12.1, a has 3.11.2"),
        ({"b": {**FACTS, "vllm": "0.22.0"}}, "vLLM 0.22.0 is older than 0.23, which is the least"),
        ({"b": {**FACTS, "vllm": ""}}, "vLLM is not installed for /opt/b/python on b"),
        (
            {"a": {**FACTS, "vllm": ""}, "b": {**FACTS, "vllm": ""}},
            "vLLM is not installed for /opt/a/python on a",
        ),
    ],
)
def test_versions_differ(start: Callable[..., Drive], facts: dict[str, Any], words: str) -> None:
    """Other versions than the first node's, or none at all, end the launch before Ray starts, naming node and both."""
    drive = start()
    drive.agents()
    drive.checkpoint(facts=facts)
    assert drive.started() == []
    failure = failed(drive)
    assert failure.kind == "host"
    assert words in failure.what


def test_a_copy_differs(start: Callable[..., Drive]) -> None:
    """Other bytes on one node end the launch before anything loads, naming node and file."""
    drive = start()
    drive.agents()
    drive.checkpoint(digests={"b": copy("other")})
    assert drive.started() == []
    failure = failed(drive)
    assert (failure.kind, failure.phase) == ("proof", "checkpoint")
    assert "model.safetensors on b" in failure.what
    assert "rsync" in failure.remedy


def test_a_node_lacks_the_checkpoint(start: Callable[..., Drive]) -> None:
    """The agent's own words are passed on with its node."""
    drive = start()
    drive.agents()
    drive.answer("digest:b", error="/models/m holds no checkpoint")
    failure = failed(drive)
    assert failure.what == "digest on b failed: /models/m holds no checkpoint"


@pytest.mark.parametrize(
    ("node", "process", "code", "kind"),
    [("a", "ray", 1, "ray"), ("b", "ray", 1, "ray"), ("a", "launcher", 1, "launch"), (FRONT, "gateway", 14, "port"),
     (FRONT, "gateway", 50, "launch")],
)  # fmt: skip
def test_a_process_ends(start: Callable[..., Drive], node: str, process: str, code: int, kind: str) -> None:
    """Any process that ends during the launch ends it: with its node, status, phase and the first error of its log."""
    drive = start()
    drive.until("ray")
    drive.say(node, process, "INFO fine", "ValueError: the cause", "RuntimeError: the wrapper")
    drive.do(Exited(node, process, code))
    failure = failed(drive)
    assert failure.kind == kind
    assert f"{process} on {node} ended with status {code} in phase reservation" in failure.what
    assert "ValueError: the cause" in failure.what


def test_a_follower_of_mp_ends(start: Callable[..., Drive]) -> None:
    """A headless rank that dies in silence ends the launch too; its last line is shown where no error is."""
    drive = start(executor="mp")
    drive.until("ranks_join")
    drive.say("b", "engine", "last words", "")
    drive.do(Exited("b", "engine", -9))
    assert "engine on b ended with status -9 in phase engine" in failed(drive).what


def test_an_end_while_serving(start: Callable[..., Drive]) -> None:
    """Ray's end while serving takes the replica out of traffic, with its last line, and begins to build it again."""
    drive = start()
    drive.until("proof")
    drive.say("b", "ray", "killed by the kernel: out of memory", "  ")
    actions = drive.do(Exited("b", "ray", 137))
    what = "Ray on b ended with status 137 while serving. Its last line: killed by the kernel: out of memory"
    assert actions[0] == SetGateway("out", f"the engine is being restarted: {what}")
    assert [one.what for one in actions if isinstance(one, Call) and one.call == "end_ray:b#2"] == [
        "end_group"
    ]


def test_gpus_do_not_come(start: Callable[..., Drive]) -> None:
    """The launcher's count is told with the nodes that are missing."""
    drive = start()
    drive.until("checkpoint")
    drive.say("a", "ray", "Ray runtime started.")
    line = launcher_line("error", kind="gpus", have=1, want=2, missing=["10.0.0.2"], alive=["10.0.0.1"])
    drive.say("a", "launcher", line)
    failure = failed(drive)
    assert failure.kind == "capacity"
    assert "needs 2 GPUs, the Ray nodes that joined offer 1. 10.0.0.2 did not join." in failure.what


def test_gpus_are_taken(start: Callable[..., Drive]) -> None:
    """A reservation that somebody else's work prevents is a matter of capacity."""
    drive = start()
    drive.until("ray")
    drive.say("a", "launcher", launcher_line("error", kind="reserve", want=2, available=1.0, nodes={}))
    failure = failed(drive)
    assert (failure.kind, failure.phase) == ("capacity", "reservation")
    assert "2 GPUs could not be reserved: 1 are free" in failure.what


def test_bundles_elsewhere(start: Callable[..., Drive]) -> None:
    """Bundles on other nodes than planned end the launch, and what follows in the same batch starts nothing."""
    drive = start(executor="mp")
    drive.until("ray")
    holders = launcher_line("holders", holders=[{"pid": 1, "node_id": "x", "gpu_ids": [0]}] * 2)
    actions = drive.say(
        "a",
        "launcher",
        launcher_line("reserved", placement_group="pg", bundles=["10.0.0.2", "10.0.0.1"]),
        holders,
    )
    assert [a for a in actions if isinstance(a, Start)] == []
    assert "['10.0.0.2', '10.0.0.1']" in failed(drive).what


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"kind": 1}', '{"event": "gpus"}', '{"event": "error", "kind": "gpus"}']
)
def test_a_launcher_that_speaks_nonsense(start: Callable[..., Drive], line: str) -> None:
    """An event that cannot be read ends the launch with the line, instead of being waited for."""
    drive = start()
    drive.until("ray")
    drive.say("a", "launcher", f"longspan-event {line}")
    failure = failed(drive)
    assert failure.kind == "launch"
    assert line in failure.what


def test_fewer_holders_than_ranks(start: Callable[..., Drive]) -> None:
    """Holders that do not match the ranks start nothing."""
    drive = start(executor="mp")
    drive.until("ray")
    drive.say(
        "a", "launcher", launcher_line("reserved", placement_group="pg", bundles=["10.0.0.1", "10.0.0.2"])
    )
    drive.say("a", "launcher", launcher_line("holders", holders=[{"gpu_ids": [0]}]))
    assert failed(drive).kind == "launch"


def test_ranks_elsewhere(start: Callable[..., Drive]) -> None:
    """Ranks whose processes are not where the plan wants them get no traffic."""
    drive = start()
    drive.until("ready")
    drive.answer("ranks:a", {"101": []})
    actions = drive.answer("ranks:b", {"100": []})
    assert SetGateway("ready") not in actions
    assert "{0: '10.0.0.2', 1: '10.0.0.1'}" in failed(drive).what


def test_a_rank_that_never_announced_itself(start: Callable[..., Drive]) -> None:
    """A ready engine of which one rank was never seen is not believed."""
    drive = start()
    for stage in drive.stages()[:4]:
        stage()
    drive.ranks_join(only=1)
    drive.ready()
    drive.answer("ranks:a", {"100": []})
    drive.answer("ranks:b", {})
    assert "{0: '10.0.0.1'}, the plan says {0: '10.0.0.1', 1: '10.0.0.2'}" in failed(drive).what


def test_no_token(start: Callable[..., Drive]) -> None:
    """A ready engine without a token through the gateway is a failed launch."""
    drive = start()
    drive.until("gateway")
    drive.answer("first_token:", error="HTTP 502: no replica")
    failure = failed(drive)
    assert (failure.kind, failure.phase) == ("launch", "first token")
    assert "HTTP 502: no replica" in failure.what


def test_no_evidence(start: Callable[..., Drive]) -> None:
    """Where the evidence cannot be taken, the proof has failed."""
    drive = start()
    drive.until("first_token")
    drive.answer("evidence:", error="the engine went away")
    assert (failed(drive).kind, drive.machine.phase) == ("proof", "gone")


def test_a_proof_that_fails_asks_every_node(start: Callable[..., Drive]) -> None:
    """Where the deployment disagrees with the head's reference, every copy is asked once, and the damaged one is named."""
    drive = start()
    drive.until("first_token")
    drive.answer("evidence:", evidence(-1.5))
    (call,) = drive.answer("reference:a", reference(-1.0))
    assert isinstance(call, Call)
    assert (call.node, call.what) == ("b", "reference")
    assert call.arguments["python"] == "/opt/b/python"
    assert drive.machine.phase == "verified"
    drive.answer("reference:b", reference(-2.0))
    failure = failed(drive)
    assert failure.kind == "proof"
    assert "The copy of the checkpoint on b gives other log-probabilities" in failure.what
    assert [f.subject for f in drive.machine.findings if f.cause == "proof-node-copy-differs"] == ["b"]


def test_a_proof_that_fails_on_one_node(start: Callable[..., Drive]) -> None:
    """With a single node there is nobody else to ask; a broken answer is not asked about either."""
    drive = start(pp=1, nodes=NODES[:1])
    drive.until("first_token")
    drive.answer("evidence:", evidence(-2.0))
    assert not [a for a in drive.answer("reference:a", reference(-1.0)) if isinstance(a, Call)]
    assert failed(drive).kind == "proof"
    drive = start()
    drive.until("first_token")
    drive.answer(
        "evidence:", Evidence(evidence().completion, deployed_error="NaN in the answer", paths_error="NaN")
    )
    assert not [a for a in drive.answer("reference:a", reference(-1.0)) if isinstance(a, Call)]
    assert "NaN" in failed(drive).what


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (0, "in phase agents. No word from the agent on front, b."),
        (1, "in phase checkpoint. Not answered: digest:a"),
        (2, "in phase ray."),
        (3, "in phase reservation."),
        (4, "in phase starting. Ranks [1] (on b) never joined."),
        (8, "in phase first token. Not answered: first_token:."),
    ],
)
def test_silence(start: Callable[..., Drive], stages: int, words: str) -> None:
    """A phase without a sign of life ends the launch, naming who is missing; not a moment before its time."""
    drive = start()
    if stages == 0:
        drive.begin()
        drive.do(AgentJoined("a"))
    for stage in drive.stages()[:stages]:
        stage()
    if stages == 4:
        drive.ranks_join(only=1)
    limit = (QUIET_SECONDS | REPLICA_QUIET)[drive.machine.phase]
    drive.do(Tick(), limit - 1)
    assert drive.machine.failure is None
    drive.do(Tick(), 1)
    what = failed(drive).what
    assert words in what
    assert f"for {limit:.0f} s" in what


@pytest.mark.parametrize(
    ("node", "process", "line"),
    [
        ("a", "launcher", "(RayWorkerProc pid=7) INFO 11-30 20:{:02}:01 [shm_broadcast.py:542] No available shared memory"),
        ("front", "gateway", '{{"event": "request", "id": {}}}'),
    ],
)  # fmt: skip
def test_what_is_said_again_and_again_is_no_sign_of_life(
    start: Callable[..., Drive], node: str, process: str, line: str
) -> None:
    """An engine that hangs writes once a minute that it waits, and clients go on asking: it is given up all the same."""
    drive = start()
    drive.until("reserved")
    for minute in range(60):
        if drive.machine.failure:
            break
        drive.say(node, process, line.format(minute))
        drive.do(Tick(), 59)
    assert "No sign of progress" in failed(drive).what


def test_a_line_that_is_new_is_a_sign_of_life(start: Callable[..., Drive]) -> None:
    """A log that says something new keeps the launch; serving has no limit."""
    drive = start()
    drive.until("reserved")
    for number in range(3):
        drive.say("b", "ray", f"Loading safetensors checkpoint shards: {number}% Completed")
        drive.do(AgentSilent("b", 5))
        drive.do(Tick(), 1700)
    for stage in drive.stages()[4:]:
        stage()
    drive.do(Tick(), 1e6)
    assert drive.machine.phase == "serving"


def test_an_agent_falls_silent(start: Callable[..., Drive]) -> None:
    """A lease that may still hold is a suspicion, more ends a launch, and the node is named."""
    drive = start()
    drive.until("ranks_join")
    assert drive.do(AgentSilent("b", SILENT_SECONDS - 0.1)) == []
    drive.do(AgentSilent("b", SILENT_SECONDS))
    failure = failed(drive)
    assert failure.kind == "host"
    assert "The agent on b has not answered for 40 s" in failure.what


def test_the_first_failure_counts(start: Callable[..., Drive]) -> None:
    """What fails because everything is being stopped does not replace the cause."""
    drive = start()
    drive.until("ranks_join")
    drive.do(Exited("b", "ray", 1))
    drive.do(Exited("a", "launcher", 1))
    drive.answer("ranks:a", error="gone")
    assert "ray on b" in failed(drive).what


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            [
                "ray.exceptions.RayTaskError: ray::EngineFrontEnd.serve() (pid=1, ip=127.0.0.2)",
                "(APIServer pid=1) WARNING errors like `OSError: [Errno 24] Too many open files`",
                "\x1b[36m(EngineFrontEnd pid=1)\x1b[0m pydantic_core._pydantic_core.ValidationError: 1 validation error",
                "\x1b[36m(EngineFrontEnd pid=1)\x1b[0m   Value error, max_model_len (9) is greater",
                "RuntimeError: Engine core initialization failed. See root cause above.",
            ],
            "ValidationError: 1 validation error Value error, max_model_len (9) is greater",
        ),
        (
            ["(a pid=1) (EngineCore pid=2) ERROR 11-30 17:48:21 [core.py:1510] KeyError: 'bundles'"],
            "KeyError: 'bundles'",
        ),
        (["all is well", "", "bye"], "Its last line: bye"),
    ],
)
def test_the_cause_in_a_log(start: Callable[..., Drive], lines: list[str], said: str) -> None:
    """A process that ends is told with the first exception of its log: no wrapper, no warning that mentions one."""
    drive = start()
    drive.until("reserved")
    drive.say("a", "launcher", *lines)
    drive.do(Exited("a", "launcher", 1))
    assert said in failed(drive).what


@pytest.mark.parametrize("stage", ["ray", "reserved", "ranks_join", "ready", "gateway"])
def test_evidence_is_taken_before_anything_is_ended(start: Callable[..., Drive], stage: str) -> None:
    """A failure while ranks may live asks every node for what runs there; agents are told to stop once all have answered,
    in words or with an error."""
    drive = start()
    drive.until(stage)
    asked = [a for a in drive.do(Exited("a", "ray", 1)) if isinstance(a, Call)]
    assert [(a.node, a.what) for a in asked] == [("a", "collect"), ("b", "collect")]
    if drive.r0.group.ranks:
        assert asked[1].arguments["pids"] == {str(drive.r0.group.ranks[1].pid): 1}
    assert drive.answer("collect:b", error="py-spy is missing") == []
    assert drive.answer("collect:a", {}) == [StopAll(FRONT), StopAll("a"), StopAll("b")]
    assert drive.answer("collect:a", {}) == []
    failed(drive)


def test_evidence_is_not_waited_for_for_long(start: Callable[..., Drive]) -> None:
    """A node that does not answer holds the end up by seconds, a second `down` or a silent agent not even that."""
    drive = start()
    drive.until("ranks_join")
    drive.do(Exited("a", "launcher", 1))
    assert drive.do(Tick(), COLLECT_SECONDS - 1) == []
    assert drive.do(Tick(), 2) == [StopAll(FRONT), StopAll("a"), StopAll("b")]
    impatient = start()
    impatient.until("ranks_join")
    impatient.do(Exited("a", "launcher", 1))
    assert impatient.do(DownAsked()) == [StopAll(FRONT), StopAll("a"), StopAll("b")]
    dead = start()
    dead.until("ranks_join")
    dead.do(AgentSilent("b", SILENT_SECONDS))
    assert dead.do(AgentSilent("b", SILENT_SECONDS + 1)) == [Sweep("b", "swept:b")]
    assert dead.answer("collect:a", {}) == [StopAll(FRONT), StopAll("a"), StopAll("b")]


def test_suspicion_moves_traffic_and_no_more(start: Callable[..., Drive]) -> None:
    """While anything speaks against the replica the gateway sends it nothing and says why; nothing is ended for that."""
    drive = start()
    drive.until("proof")
    assert drive.do(Suspected("b", "b has not answered for 3 s")) == [
        SetGateway("out", "b has not answered for 3 s")
    ]
    both = drive.do(Suspected("r0", "nothing within 5 s"))
    assert both == [SetGateway("out", "b has not answered for 3 s; nothing within 5 s")]
    assert drive.do(Suspected("b", "")) == [SetGateway("out", "nothing within 5 s")]
    assert drive.do(Suspected("r0", "")) == [SetGateway("ready")]
    assert drive.do(Suspected("r0", "")) == []
    assert drive.machine.phase == "serving"


def test_a_launch_is_not_held_up_by_suspicion(start: Callable[..., Drive]) -> None:
    """Before it serves nothing is changed; a suspicion that is still there then counts from then on."""
    drive = start()
    drive.until("first_token")
    assert drive.do(Suspected("b", "b has not answered for 3 s")) == []
    assert drive.proof() == [SetGateway("out", "b has not answered for 3 s")]
    assert drive.do(Suspected("b", "")) == [SetGateway("ready")]


@pytest.mark.parametrize("stage", ["agents", "checkpoint"])
def test_nothing_is_asked_where_nothing_runs(start: Callable[..., Drive], stage: str) -> None:
    """Before Ray starts, or on a wanted `down`, the agents are told to stop at once."""
    drive = start()
    drive.until(stage)
    drive.do(DownAsked())
    assert [a for a in drive.actions if isinstance(a, Call) and a.what == "collect"] == []

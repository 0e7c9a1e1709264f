"""The life of one deployment as a pure state machine: events in, actions out, no clock and no I/O.

`Steps.handle(event, now)` returns the actions to carry out. Every event is kept in `history`, so that a run can be
replayed. The controller's loop feeds it and does what it says; a test feeds it by hand.

    agents -> checkpoint -> ray -> reservation -> engine -> gateway -> first token -> verified -> serving
                                       any failure or "down" -> stopping -> gone
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.finding import Finding
from longspan.launch import commands, verdict
from longspan.launch.checkpoint import CheckpointDigest, compare_copies
from longspan.launch.commands import Process
from longspan.launch.phases import (
    EnginePhase,
    RankSeen,
    later,
    phase_seen,
    rank_of_title,
    rank_seen,
    strip_colour,
)
from longspan.launch.proof import Proof
from longspan.launch.verdict import Evidence
from longspan.launch.words import EVENT_MARK, KEY_FILE_VARIABLE, MARK_VARIABLE

PHASES = ("agents", "checkpoint", "ray", "reservation", "engine", "gateway", "first token", "verified")
Phase = Literal[
    "agents", "checkpoint", "ray", "reservation", "engine", "gateway", "first token", "verified",
    "serving", "failed", "stopping", "gone",
]  # fmt: skip

# How long a phase may show no sign of life. The engine's is long: weights of hundreds of GiB load in silence, and
# a process that dies ends the wait at once anyway.
QUIET_SECONDS: dict[str, float] = {
    "agents": 60, "checkpoint": 1800, "ray": 180, "reservation": 180, "engine": 1800, "gateway": 60,
    "first token": 300, "verified": 1800,
}  # fmt: skip
# While everything is being stopped: how long an agent may be silent, and how long one that was being started is
# waited for. Longer than ssh takes to give up a host that does not answer (10 s).
STOP_SILENT_SECONDS = 30.0
STOP_JOIN_SECONDS = 20.0
# Phases whose processes may still live when something fails: what they wait for is taken down before they are ended, for
# so long at most. Shorter than STOP_JOIN_SECONDS, and than the agents' patience with a function.
LIVE_PHASES = frozenset({"ray", "reservation", "engine", "gateway", "first token", "verified", "serving"})
COLLECT_SECONDS = 15.0
# Longer than the lease after which an agent ends its own ranks: only then is it sure that none of them is left.
SILENT_SECONDS = 40.0
FRONT = "front"  # the agent on the controller's machine, which runs the gateway


# ---- events
@dataclass(frozen=True, slots=True)
class AgentJoined:
    """An agent answers for the first time."""

    node: str


@dataclass(frozen=True, slots=True)
class AgentSilent:
    """No beat from an agent for `seconds`."""

    node: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StartFailed:
    """An agent could not be started."""

    node: str
    error: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a `Call` or an `Ask`; `error` is empty on success."""

    call: str
    value: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Exited:
    """A process of an agent's ended."""

    node: str
    process: str
    code: int


@dataclass(frozen=True, slots=True)
class Lines:
    """New lines in the log of an agent's process."""

    node: str
    process: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DownAsked:
    """The operator wants it gone."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = AgentJoined | AgentSilent | StartFailed | Answered | Exited | Lines | DownAsked | Tick


# ---- actions
@dataclass(frozen=True, slots=True)
class StartAgents:
    """Start the agents of all nodes and the front agent."""


@dataclass(frozen=True, slots=True)
class Start:
    """Let a node's agent start a process."""

    node: str
    process: Process


@dataclass(frozen=True, slots=True)
class Call:
    """Let a node's agent run one of its functions; the answer comes as `Answered`."""

    call: str
    node: str
    what: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """Let the controller ask the endpoint itself; the answer comes as `Answered`."""

    call: str
    what: Literal["first_token", "evidence"]
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetGateway:
    """Write the gateway's configuration: the replica's state and why."""

    state: Literal["ready", "draining", "out"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StopAll:
    """Let a node's agent end everything it started, then itself. Answered as `stopped:<node>`."""

    node: str


Action = StartAgents | Start | Call | Ask | SetGateway | StopAll


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the deployment failed. `kind` chooses the error class and exit code."""

    kind: Literal["host", "ray", "capacity", "launch", "proof", "port"]
    phase: str
    what: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """For the status document."""
        return {"kind": self.kind, "phase": self.phase, "what": self.what, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class Paths:
    """Where things lie; the same on every node.

    Attributes:
        run_dir: short-lived files of this start (Ray's temporary directory, tokens); removed by `down`.
        gateway_config: on the controller's machine.
    """

    run_dir: str
    gateway_config: str

    @property
    def ray_token(self) -> str:
        """Ray's cluster token, mode 0600."""
        return f"{self.run_dir}/ray-token"

    @property
    def engine_key(self) -> str:
        """The key that the engine asks of the gateway, mode 0600."""
        return f"{self.run_dir}/engine-key"

    @property
    def vllm_config(self) -> str:
        """The directory with ray_non_carry_over_env_vars.json."""
        return f"{self.run_dir}/vllm"

    @property
    def ray_temp(self) -> str:
        """Below it one directory a node. Short, because Ray puts sockets there, whose paths have 107 characters at most."""
        return f"{self.run_dir}/ray"


class Ports(NamedTuple):
    """Free ports of one node, all different: a rendezvous on Ray's own port ends the engine (EADDRINUSE)."""

    ray: int
    engine: int
    ray_client: int
    ray_agent: int
    rendezvous: int


@dataclass(slots=True)
class Steps:
    """The state machine. Change it through `handle` only.

    Attributes:
        mark: identifies the processes of this start on every node.
        secrets: contents of the token and key files, by path; written by the agents, never printed.
        joined: agents that answer; `not_started`: those that could not be started.
        waiting: calls and questions without an answer yet; any other answer is dropped. While stopping, the evidence that
            is awaited before anything is ended.
        stopping: while stopping, the agents whose confirmation is awaited; `stopped_in`: the phase before.
        started: phase -> the time it began; `ended`: phase -> the time it was done.
        ranks: rank -> what its own process said.
        facts: node -> what its agent found there.
        proof: the layers of the proof, once there are any.
    """

    spec: DeploymentSpec
    paths: Paths
    mark: str
    secrets: dict[str, str]
    python: str
    nonce: str
    phase: Phase = "agents"
    started: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    engine_phase: EnginePhase = "starting"
    engine_times: dict[str, float] = field(default_factory=dict)
    joined: set[str] = field(default_factory=set)
    not_started: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    stopping: set[str] = field(default_factory=set)
    stopped_in: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, CheckpointDigest | None] = field(default_factory=dict)
    ports: dict[str, Ports] = field(default_factory=dict)
    ray_address: str = ""
    gpus_seen: str = ""
    placement_group: str = ""
    bundles: list[str] = field(default_factory=list)
    gpu_ids: list[list[int]] = field(default_factory=list)
    ranks: dict[int, RankSeen] = field(default_factory=dict)
    rank_devices: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    gateway_address: str = ""
    gateway_up: bool = False
    engine_url: str = ""
    first_token: dict[str, Any] = field(default_factory=dict)
    references: dict[str, Any] = field(default_factory=dict)
    evidence: Evidence | None = None
    asked_all: bool = False
    proof: Proof | None = None
    findings: list[Finding] = field(default_factory=list)
    failure: Failure | None = None
    last_sign: float = 0.0
    tails: dict[str, list[str]] = field(default_factory=dict)
    history: list[tuple[float, Event]] = field(default_factory=list)
    now: float = 0.0

    # ---- entry
    def begin(self, now: float) -> list[Action]:
        """The first actions."""
        self.now = now
        self.last_sign = now
        self.started["agents"] = now
        if self.spec.ray_address:
            self.ray_address = self.spec.ray_address
        return [StartAgents()]

    def handle(self, event: Event, now: float) -> list[Action]:
        """Takes one event, returns what to do about it. What changed nothing but the clock is not kept in `history`."""
        self.now = now
        before = self.phase, len(self.findings)
        actions = self._handle(event)
        clock = isinstance(event, Tick | AgentSilent)
        if not clock or actions or before != (self.phase, len(self.findings)):
            self.history.append((now, event))
            del self.history[:-20_000]
        return actions

    def _handle(self, event: Event) -> list[Action]:
        if isinstance(event, DownAsked):
            return self._stop()
        if self.phase in {"stopping", "gone"}:
            return self._while_stopping(event)
        handlers: dict[type, Callable[[Any], list[Action]]] = {
            AgentJoined: self._agent_joined,
            AgentSilent: self._agent_silent,
            StartFailed: self._start_failed,
            Answered: self._answered,
            Exited: self._exited,
            Lines: self._lines,
            Tick: self._tick,
        }
        if not isinstance(event, Tick | AgentSilent):
            self.last_sign = self.now
        return handlers[type(event)](event)

    # ---- helpers
    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes in use, the first rank's first."""
        return self.spec.used_nodes()

    @property
    def head(self) -> NodeSpec:
        """The node of rank 0, where Ray's head (if ours) and the engine's front end run."""
        return self.nodes[0]

    @property
    def agents(self) -> list[str]:
        """The names of all agents."""
        return [FRONT, *(node.name for node in self.nodes)]

    def _enter(self, phase: Phase) -> None:
        if self.phase in PHASES:
            self.ended[self.phase] = self.now
        self.phase = phase
        self.started[phase] = self.now

    def fail(self, kind: Any, what: str, remedy: str = "") -> list[Action]:
        """Remembers why and takes everything down; the controller reports it."""
        if self.failure is None:
            self.failure = Failure(kind, self.phase, what, remedy)
        return self._stop(collect=kind != "proof")  # the ranks of a deployment that answers hang nowhere

    def _stop(self, *, collect: bool = False) -> list[Action]:
        """Takes everything down; with `collect` after the nodes have given what explains a silence."""
        if self.phase in {"stopping", "gone"}:
            return [] if collect else self._end_agents()
        self.stopped_in = self.phase
        self._enter("stopping")
        self.waiting.clear()
        # An agent that is being started is waited for: nobody else would end it before its lease.
        self.stopping = set(self.agents) - self.not_started
        actions: list[Action] = []
        if self.gateway_up:
            actions.append(SetGateway("out", "the deployment is being stopped"))
        asked = self._collect() if collect and self.stopped_in in LIVE_PHASES else []
        actions += asked or self._stop_all()
        if not self.stopping:
            self._enter("gone")
        return actions

    def _collect(self) -> list[Action]:
        """Asks every node for the stacks, sockets and counters of what still runs there."""
        actions: list[Action] = []
        for node in self.nodes:
            if node.name in self.joined:
                pids = {str(s.pid): rank for rank, s in self.ranks.items() if s.address == node.address}
                arguments = {
                    "name": node.name, "mark": self.mark, "joined": bool(self.spec.ray_address), "pids": pids,
                    "tp": self.spec.tp, "age_seconds": self.now - self.started["agents"],
                }  # fmt: skip
                actions.append(self._call(node.name, "collect", arguments))
        return actions

    def _stop_all(self) -> list[Action]:
        return [StopAll(name) for name in self.agents if name in self.joined]

    def _collected(self, call: str) -> list[Action]:
        """One node's evidence came or is given up; with the last of them everything is ended."""
        if self.waiting == {call}:
            return self._end_agents()
        self.waiting.discard(call)
        return []

    def _end_agents(self) -> list[Action]:
        """Ends the wait for evidence, if there is one."""
        if not self.waiting:
            return []
        self.waiting.clear()
        return self._stop_all()

    def _while_stopping(self, event: Event) -> list[Action]:
        actions: list[Action] = []
        match event:
            case AgentJoined(node) if node in self.agents and node not in self.joined:
                self.joined.add(node)
                self.stopping.add(node)
                actions = [] if self.waiting else [StopAll(node)]
            case Answered(call) if call in self.waiting:
                actions = self._collected(call)
            case StartFailed(node):
                self.not_started.add(node)
                self.stopping.discard(node)
            case Answered(call, value) if call.startswith("stopped:") and call[8:] in self.stopping:
                self.stopping.discard(call[8:])
                for text in (value or {}).get("left", []):
                    self.findings.append(Finding(call[8:], "error", "process-left", text))
            case AgentSilent(node, seconds) if seconds > STOP_SILENT_SECONDS and node in self.stopping:
                actions = self._collected(f"collect:{node}")
                self._not_confirmed(node)
            case Tick():
                if self.now - self.started["stopping"] > COLLECT_SECONDS:
                    actions = self._end_agents()
                late = self.now - self.started["stopping"] > STOP_JOIN_SECONDS
                for node in sorted(self.stopping - self.joined) if late else ():
                    self._not_confirmed(node)
        if not self.stopping and self.phase == "stopping":
            self._enter("gone")
        return actions

    def _not_confirmed(self, node: str) -> None:
        self.stopping.discard(node)
        self.findings.append(
            Finding(node, "error", "agent-silent", f"{node} did not confirm that it stopped",
                    remedy="Its agent ends its own processes when it has lost the controller for its lease.")
        )  # fmt: skip

    # ---- agents
    def _agent_joined(self, event: AgentJoined) -> list[Action]:
        self.joined.add(event.node)
        if self.phase != "agents" or not set(self.agents) <= self.joined:
            return []
        self._enter("checkpoint")
        actions: list[Action] = []
        for node in self.nodes:
            files = {path: text for path, text in self.secrets.items() if text}
            actions += [
                self._call(node.name, "facts", {"address": node.address, "model": self.spec.model}),
                self._call(node.name, "write", {"files": files}),
                self._call(node.name, "ports", {"address": node.address, "count": len(Ports._fields)}),
                self._call(
                    node.name, "digest",
                    {"model": self.spec.model, "nonce": self.nonce, "full": self.spec.full_digest},
                ),
            ]  # fmt: skip
        return actions

    def _call(self, node: str, what: str, arguments: dict[str, Any]) -> Call:
        call = Call(f"{what}:{node}", node, what, arguments)
        self.waiting.add(call.call)
        return call

    def _agent_silent(self, event: AgentSilent) -> list[Action]:
        if event.seconds < SILENT_SECONDS or event.node not in self.joined:
            return []
        return self.fail(
            "host",
            f"The agent on {event.node} has not answered for {event.seconds:.0f} s, so the state of its ranks is unknown.",
            "Check that the host runs and that it reaches this machine; its agent ends its own ranks by itself.",
        )

    def _start_failed(self, event: StartFailed) -> list[Action]:
        self.not_started.add(event.node)
        return self.fail("host", f"The agent on {event.node} could not be started: {event.error}")

    # ---- answers
    def _answered(self, event: Answered) -> list[Action]:
        if event.call not in self.waiting:
            return []  # a second answer, or one to a question of another time
        self.waiting.discard(event.call)
        what, _, node = event.call.partition(":")
        if event.error:
            return self._call_failed(what, node, event.error)
        if what == "facts":
            self.facts[node] = event.value
        elif what == "digest":
            self.digests[node] = CheckpointDigest.from_json(event.value) if event.value else None
        elif what == "ports":
            self.ports[node] = Ports(*event.value)
        elif what == "first_token":
            return self._first_token(event.value)
        elif what == "workers":
            return self._workers_answered(node, event.value)
        elif what == "ranks":
            return self._ranks_answered(node, event.value)
        elif what == "reference":
            self.references[node] = event.value
            return self._judge()
        elif what == "evidence":
            self.evidence = event.value
            return self._judge()
        if self.phase == "checkpoint" and not self.waiting:
            return self._checkpoint_done()
        return []

    def _call_failed(self, what: str, node: str, error: str) -> list[Action]:
        if what == "reference":
            self.references[node] = {"skipped": error}
            return self._judge()
        if what == "first_token":
            return self.fail(
                "launch", f"The engine says it is ready, but no token came through the gateway: {error}"
            )
        if what == "evidence":
            return self.fail(
                "proof", f"A token came, but the evidence for the proof could not be taken: {error}"
            )
        return self.fail("host", f"{what} on {node} failed: {error}")

    def _checkpoint_done(self) -> list[Action]:
        # Warnings (a file more that no engine reads as weights) come with the proof's digest layer.
        found = compare_copies(self.digests, self.head.name) if any(self.digests.values()) else ()
        differing = [finding for finding in found if finding.severity == "error"]
        if differing:
            self.findings += differing
            return self.fail(
                "proof", " ".join(finding.summary for finding in differing[:3]), differing[0].remedy
            )
        if problem := self._versions_differ():
            return self.fail("host", *problem)
        self._enter("ray")
        if self.spec.ray_address:
            return self._ray_ready()
        return [self._ray_start(self.head, head=True)]

    def _versions_differ(self) -> tuple[str, str] | None:
        """What is wrong with the versions of engine, Ray and Python on the nodes, and what to do; None if nothing."""
        head = self.head.name
        for key, name in (("vllm", "vLLM"), ("ray", "Ray"), ("python", "Python")):
            there = self.facts[head][key]
            for node in self.nodes:
                here = self.facts[node.name][key]
                if not here:
                    return (
                        f"{name} is not installed for {node.python} on {node.name}.",
                        f"Install {name} there.",
                    )
                if here != there:
                    what = f"{node.name} has {name} {here}, {head} has {there or 'none'}"
                    return (
                        f"{what}: ranks of one replica must run the same versions.",
                        f"Install {name} {there} on {node.name}.",
                    )
        return None

    def _ray_start(self, node: NodeSpec, *, head: bool) -> Start:
        port = self.ports[self.head.name].ray
        self.ray_address = f"{self.head.address}:{port}"
        return Start(
            node.name,
            commands.ray_start(
                node, head=head, head_address=self.head.address, port=port,
                own_ports=(self.ports[node.name].ray_client, self.ports[node.name].ray_agent),
                temp_dir=f"{self.paths.ray_temp}/{node.name}", token_file=self.paths.ray_token,
            ),
        )  # fmt: skip

    # ---- process events
    def _exited(self, event: Exited) -> list[Action]:
        tail = self.tails.get(f"{event.node}/{event.process}", [])
        last = next((line for line in reversed(tail) if line.strip()), "")
        if self.phase == "serving":
            return self.fail(
                "launch",
                f"{event.process} on {event.node} ended with status {event.code} while serving. Its last line: {last}",
                "The logs stand in the state directory that `longspan status` names.",
            )
        kind = (
            "ray"
            if event.process == "ray"
            else "port"
            if event.process == "gateway" and event.code == 14
            else "launch"
        )
        return self.fail(
            kind,
            f"{event.process} on {event.node} ended with status {event.code} in phase {self.phase}. {_cause(tail)}",
        )

    def _lines(self, event: Lines) -> list[Action]:
        tail = self.tails.setdefault(f"{event.node}/{event.process}", [])
        tail += event.lines
        del tail[:-400]
        actions: list[Action] = []
        for raw in event.lines:
            actions += self._line(event.node, event.process, strip_colour(raw))
            if self.phase in {"stopping", "gone"}:
                break  # what stands behind the line that failed must not start anything
        return actions

    def _line(self, node: str, process: str, line: str) -> list[Action]:
        if process == "ray":
            return self._ray_line(node, line)
        try:
            if process == "gateway":
                return self._gateway_line(line)
            if process == "launcher" and line.startswith(EVENT_MARK):
                return self._launcher_event(json.loads(line[len(EVENT_MARK) :]))
        except (LookupError, TypeError, ValueError) as error:
            return self.fail(
                "launch",
                f"A line of {process} on {node} is not the event that it should be"
                f" ({type(error).__name__}: {error}): {line[:200]}",
            )
        return self._engine_line(node, line) if process in {"launcher", "engine"} else []

    def _ray_line(self, node: str, line: str) -> list[Action]:
        if self.phase == "ray" and node == self.head.name and "Ray runtime started" in line:
            starts: list[Action] = [self._ray_start(other, head=False) for other in self.nodes[1:]]
            return [*starts, *self._ray_ready()]
        return []

    def _ray_ready(self) -> list[Action]:
        """The head answers: the launcher waits for the other nodes' GPUs, the gateway starts beside it."""
        spec, paths = self.spec, self.paths
        host, port = self.head.address, self.ports[self.head.name].engine
        self.engine_url = f"http://{host}:{port}"
        front_env = commands.front_environment(
            spec, ray_address=self.ray_address, key_file=paths.engine_key, config_dir=paths.vllm_config
        )
        launcher = commands.launcher(
            spec,
            ray_address=self.ray_address,
            arguments=commands.engine_arguments(spec, host=host, port=port),
            front_env=front_env,
            mark={MARK_VARIABLE: self.mark},
            token_file=None if spec.ray_address else paths.ray_token,
        )
        gateway = Process(
            "gateway", (self.python, "-m", "longspan.gateway", "--config", paths.gateway_config), "gateway"
        )
        return [
            SetGateway("out", "the engine is starting"),
            Start(FRONT, gateway),
            Start(self.head.name, launcher),
        ]

    def _launcher_event(self, event: dict[str, Any]) -> list[Action]:
        kind = event["event"]
        if kind == "gpus":
            self.gpus_seen = f"{event['have']} of {event['want']} GPUs"
            if self.phase == "ray" and event["have"] >= event["want"]:
                self._enter("reservation")
        elif kind == "error":
            return self._launcher_error(event)
        elif kind == "reserved" and self.phase in {"ray", "reservation"}:
            return self._reserved(event)
        elif kind == "ranks":
            self._ranks_found([(int(r["rank"]), int(r["pid"]), str(r["address"])) for r in event["ranks"]])
        elif kind == "holders" and self.phase == "engine" and not self.gpu_ids:
            self.gpu_ids = [[int(i) for i in holder["gpu_ids"]] for holder in event["holders"]]
            return self._start_mp_ranks()
        return []

    def _launcher_error(self, event: dict[str, Any]) -> list[Action]:
        if event["kind"] == "gpus":
            missing = f" {', '.join(event['missing'])} did not join." if event["missing"] else ""
            return self.fail(
                "capacity",
                f"The plan needs {event['want']} GPUs, the Ray nodes that joined offer {event['have']}.{missing}",
                "`ray status` shows what each node offers; its log is in the state directory.",
            )
        return self.fail(
            "capacity",
            f"{event['want']} GPUs could not be reserved: {event['available']:.0f} are free in the Ray cluster.",
            "Something else holds them; `ray status` shows what.",
        )

    def _reserved(self, event: dict[str, Any]) -> list[Action]:
        self.placement_group = event["placement_group"]
        self.bundles = event["bundles"]
        wanted = [node.address for node in self.spec.rank_nodes()]
        if self.bundles != wanted:
            return self.fail("launch", f"Ray placed the bundles on {self.bundles}, the plan says {wanted}.")
        self._enter("engine")
        self.engine_times["starting"] = self.now
        return []

    def _start_mp_ranks(self) -> list[Action]:
        spec = self.spec
        arguments = commands.engine_arguments(
            spec, host=self.head.address, port=self.ports[self.head.name].engine
        )
        actions: list[Action] = []
        for node_rank, node in enumerate(self.nodes):
            held = [self.gpu_ids[rank] for rank, at in enumerate(spec.rank_nodes()) if at.name == node.name]
            process = commands.mp_rank(
                spec, node, node_rank=node_rank, master_port=self.ports[self.head.name].rendezvous, arguments=arguments,
                gpu_ids=[gpu for ids in held for gpu in ids],
                env={KEY_FILE_VARIABLE: self.paths.engine_key},
            )  # fmt: skip
            actions.append(Start(node.name, process))
        return actions

    def _engine_line(self, node: str, line: str) -> list[Action]:
        seen = rank_seen(line)
        if seen and seen.world_size == self.spec.world_size:
            address = seen.address or next(n.address for n in self.nodes if n.name == node)
            self.ranks[seen.rank] = RankSeen(seen.rank, seen.world_size, seen.pid, address)
            if len(self.ranks) == self.spec.world_size:
                self._engine_reached("joined")
        phase = phase_seen(line)
        if phase:
            self._engine_reached(phase)
            if phase == "ready" and self.phase == "engine":
                return self._engine_ready()
        return []

    def _ranks_found(self, found: list[tuple[int, int, str]]) -> None:
        """Ranks as Ray's actor table or the process titles have them: (rank, pid, address)."""
        for rank, pid, address in found:
            self.ranks[rank] = RankSeen(rank, self.spec.world_size, pid, address)
        if len(self.ranks) == self.spec.world_size:
            self._engine_reached("joined")

    def _engine_reached(self, phase: EnginePhase) -> None:
        self.engine_phase = later(self.engine_phase, phase)
        self.engine_times.setdefault(phase, self.now)

    def _engine_ready(self) -> list[Action]:
        """Before traffic: where are the ranks? Under mp only the first rank of a node says so in its log (vLLM 0.32),
        so the agents read the process titles that vLLM gives its workers."""
        self._enter("gateway")
        if self.spec.executor == "mp":
            arguments = {"mark": self.mark, "joined": bool(self.spec.ray_address)}
            return [self._call(node.name, "workers", arguments) for node in self.nodes]
        return self._confirm_ranks()

    def _workers_answered(self, node: str, titles: dict[str, str]) -> list[Action]:
        address = next(n.address for n in self.nodes if n.name == node)
        named = [(rank_of_title(title, self.spec.tp), int(pid)) for pid, title in titles.items()]
        self._ranks_found([(rank, pid, address) for rank, pid in named if rank is not None])
        if any(call.startswith("workers:") for call in self.waiting):
            return []
        return self._confirm_ranks()

    def _confirm_ranks(self) -> list[Action]:
        """Every node is asked which of the announced ranks really are its processes, and on which GPUs."""
        pids = [seen.pid for seen in self.ranks.values()]
        arguments = {"pids": pids, "mark": self.mark, "joined": bool(self.spec.ray_address)}
        return [self._call(node.name, "ranks", arguments) for node in self.nodes]

    def _ranks_answered(self, node: str, pids: dict[str, list[str]]) -> list[Action]:
        self.rank_devices[node] = pids
        if len(self.rank_devices) < len(self.nodes):
            return []
        addresses = {n.name: n.address for n in self.nodes}
        for rank, seen in list(self.ranks.items()):
            here = [addresses[name] for name, found in self.rank_devices.items() if str(seen.pid) in found]
            # Pids of two hosts can coincide; then the address in the rank's own log line decides.
            address = here[0] if len(here) == 1 else seen.address
            self.ranks[rank] = replace(seen, address=address)
        wanted = {rank: node.address for rank, node in enumerate(self.spec.rank_nodes())}
        found = {rank: seen.address for rank, seen in sorted(self.ranks.items())}
        if self.spec.world_size > 1 and found != wanted:
            return self.fail("launch", f"The engine's ranks run on {found}, the plan says {wanted}.")
        return [SetGateway("ready"), *self._when_gateway_up()]

    def _gateway_line(self, line: str) -> list[Action]:
        if line.startswith('{"event"'):
            event = json.loads(line)
            if event.get("event") == "listening":
                self.gateway_up = True
                self.gateway_address = event["address"]
                return self._when_gateway_up()
        return []

    def _when_gateway_up(self) -> list[Action]:
        if self.phase != "gateway" or not self.gateway_up or len(self.rank_devices) < len(self.nodes):
            return []
        self._enter("first token")
        return [self._ask("first_token")]

    # ---- proof
    def _first_token(self, value: dict[str, Any]) -> list[Action]:
        self.first_token = value
        self._enter("verified")
        return [self._ask("evidence"), self._reference(self.head)]

    def _reference(self, node: NodeSpec) -> Call:
        return self._call(
            node.name, "reference",
            {"model": self.spec.model, "revision": self.spec.revision, "device": self.spec.device,
             "python": node.python, "vllm_arguments": list(self.spec.vllm_arguments),
             "exact": node.name == self.head.name},
        )  # fmt: skip

    def _ask(self, what: Literal["first_token", "evidence"]) -> Ask:
        self.waiting.add(f"{what}:")
        return Ask(f"{what}:", what)

    def _judge(self) -> list[Action]:
        """Once the evidence and all references asked for are there; asks every node's copy where they disagree."""
        if self.evidence is None or self.head.name not in self.references:
            return []
        if self.asked_all and len(self.references) < len(self.nodes):
            return []
        ordered = {
            node.name: self.references[node.name] for node in self.nodes if node.name in self.references
        }
        found = verdict.conclude(
            self.digests, self.head.name, self.evidence, verdict.references_from_json(ordered)
        )
        self.proof = found
        reference_failed = any(
            layer.name == "reference" and layer.state == "failed" for layer in found.layers
        )
        if (
            reference_failed
            and not self.asked_all
            and len(self.nodes) > 1
            and not self.evidence.deployed_error
        ):
            self.asked_all = True
            return [self._reference(node) for node in self.nodes[1:]]
        self.findings += found.findings
        if found.verdict == "failed":
            texts = [finding.summary for finding in found.findings] or [verdict.summary(found)]
            remedy = next((finding.remedy for finding in found.findings if finding.remedy), "")
            return self.fail("proof", " ".join(texts), remedy)
        self._enter("serving")
        return []

    # ---- time
    def _tick(self, _: Tick) -> list[Action]:
        limit = QUIET_SECONDS.get(self.phase)
        if limit is None or self.now - self.last_sign < limit:
            return []
        where = self.engine_phase if self.phase == "engine" else self.phase
        return self.fail(
            "launch", f"No sign of progress for {limit:.0f} s in phase {where}.{self._awaited()}"
        )

    def _awaited(self) -> str:
        """Whom the phase waits for, as a sentence with a blank before it; empty where it cannot be told."""
        if self.phase == "agents":
            return f" No word from the agent on {', '.join(n for n in self.agents if n not in self.joined)}."
        if self.phase == "engine":
            missing = sorted(set(range(self.spec.world_size)) - set(self.ranks))
            names = [self.spec.rank_nodes()[rank].name for rank in missing]
            return f" Ranks {missing} (on {', '.join(names)}) never joined." if missing else ""
        return f" Not answered: {', '.join(sorted(self.waiting))}." if self.waiting else ""


_PREFIX = re.compile(r"^(?:\([^)]*\) ?)+")
_EXCEPTION = re.compile(
    r"^(?:\([^)]*\) ?)*(?:[\w.]+\.)?\w*(?:Error|Exception|Exit)\b: \S|\bERROR\b.*\b\w+(?:Error|Exception)\b: "
)

# Wrappers around what went wrong, and warnings that only mention an exception.
_NOT_THE_CAUSE = re.compile(
    r" WARNING |RayTaskError|RayActorError|EngineDeadError|Engine core initialization failed"
)


def _cause(tail: list[str]) -> str:
    """The lines of a log that most likely say why: the first exception's, not the last wrapper's."""
    lines = [strip_colour(line).rstrip() for line in tail]
    for index, line in enumerate(lines):
        if _EXCEPTION.search(line) and not _NOT_THE_CAUSE.search(line):
            # pydantic says what is wrong in the line below, indented.
            below = lines[index + 1] if index + 1 < len(lines) else ""
            below = _PREFIX.sub("", below)
            more = below.strip() if below[:1].isspace() else ""
            return f"Its log says: {_PREFIX.sub('', line)} {more}".rstrip()[:600]
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f"Its last line: {last.strip()[:400]}" if last else "It wrote no log."

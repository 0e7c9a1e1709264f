"""The life of one deployment as a pure state machine: events in, actions out, no clock and no I/O.

`Steps.handle(event, now)` returns the actions to carry out. Every event is kept in `history`, so that a run can be
replayed. The controller's loop feeds it and does what it says; a test feeds it by hand. It owns agents, Ray and the
gateway; from the reservation to the proof the engine's `Group` is at work inside it.

    agents -> checkpoint -> ray -> reservation -> engine -> gateway -> first token -> verified -> serving
                             ^---------------------------- fencing <---- the engine fails once it has served
                                       any other failure or "down" -> stopping -> gone
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from longspan.deployment import DeploymentSpec, NodeSpec, RayPorts
from longspan.finding import Finding
from longspan.launch import commands
from longspan.launch.actions import Action, Call, SetGateway, Start, StartAgents, call_of, call_to
from longspan.launch.checkpoint import CheckpointDigest, compare_copies
from longspan.launch.commands import Process, named
from longspan.launch.events import (
    AgentJoined,
    AgentSilent,
    Answered,
    DownAsked,
    Event,
    Exited,
    Lines,
    StartFailed,
    Struck,
    Suspected,
    Tick,
    Wished,
)
from longspan.launch.failure import Failure, FailureKind, cause
from longspan.launch.fence import MAX_RESTARTS, PAUSE_SECONDS, SETTLED_SECONDS, Fence
from longspan.launch.group import ENGINE_PROCESSES, Group, GroupPhase
from longspan.launch.lost_node import LostNode
from longspan.launch.phases import said, strip_colour
from longspan.launch.requirements import unfit
from longspan.launch.run_dir import Paths, Ports
from longspan.launch.stopping import Stopping
from longspan.launch.traffic import ENGINE, WISHES, Traffic
from longspan.launch.words import EVENT_MARK

PHASES = ("agents", "checkpoint", "ray", "reservation", "engine", "gateway", "first token", "verified")
Phase = Literal[
    "agents", "checkpoint", "ray", "reservation", "engine", "gateway", "first token", "verified",
    "serving", "fencing", "failed", "stopping", "gone",
]  # fmt: skip

# How long a phase may show no sign of life. The engine's is long: weights of hundreds of GiB load in silence, and
# a process that dies ends the wait at once anyway.
QUIET_SECONDS: dict[str, float] = {
    "agents": 60, "checkpoint": 1800, "ray": 180, "reservation": 180, "engine": 1800, "gateway": 60,
    "first token": 300, "verified": 1800,
}  # fmt: skip
# A group's processes may still live when something fails in one of its phases: what they wait for is taken down first.
GROUP_PHASES: tuple[GroupPhase, ...] = get_args(GroupPhase)
# The gateway is ended by nothing of ours while it serves; one that ends again and again cannot run here.
MAX_GATEWAYS = 5
MAX_RESTARTS_TOLD = 100
# Longer than the lease after which an agent ends its own ranks: only then is it sure that none of them is left.
SILENT_SECONDS = 40.0
MAX_TOLD = 10_000
MAX_HISTORY = 20_000
# A log that goes on while it serves never ends: each node keeps its own, and here only the last of it stays.
SERVING_HISTORY = 2_000
SERVING_LINES = 20
REPLICA = "r0"  # as the gateway names it
FRONT = "front"  # the agent on the controller's machine, which runs the gateway


@dataclass(slots=True)
class Steps:
    """The state machine. Change it through `handle` only.

    Attributes:
        mark: identifies the processes of this start on every node.
        secrets: contents of the token and key files, by path; written by the agents, never printed.
        joined: agents that answer; `not_started`: those that could not be started.
        waiting: calls without an answer yet; any other answer is dropped. The group has its own.
        stopped_in: the phase in which the end began; `stopping` is that end.
        started: phase -> the time it began; `ended`: phase -> the time it was done.
        facts: node -> what its agent found there.
        group: the engine's ranks, from the moment Ray is there.
        gateway_admin: where the gateway tells its figures, HOST:PORT.
        strikes: how many faults drills have made; nobody waits for their answers.
        traffic: what keeps requests from the replica.
        told: what the logs have said so far, without the time at which they said it.
        followed: how much of the group's timeline has been taken over.
        lost: hosts that are being brought back; `losses` counts them.
        restarts: when the engine was fenced once it had served, and why; `tries`: those since it last settled.
        fence: the end of the last group, until the next one starts. gateways: how many were started.
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
    joined: set[str] = field(default_factory=set)
    not_started: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    stopping: Stopping | None = None
    stopped_in: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, CheckpointDigest | None] = field(default_factory=dict)
    ports: dict[str, Ports] = field(default_factory=dict)
    ray_address: str = ""
    group: Group | None = None
    followed: int = 0
    served: bool = False
    restarts: list[tuple[float, str]] = field(default_factory=list)
    tries: int = 0
    fence: Fence | None = None
    lost: dict[str, LostNode] = field(default_factory=dict)
    losses: int = 0
    gateways: int = 1
    gateway_address: str = ""
    gateway_up: bool = False
    gateway_admin: str = ""
    traffic: Traffic = field(default_factory=Traffic)
    strikes: int = 0
    findings: list[Finding] = field(default_factory=list)
    failure: Failure | None = None
    last_sign: float = 0.0
    told: set[str] = field(default_factory=set)
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
        if self.phase == "serving" and isinstance(event, Lines):
            event = replace(event, lines=event.lines[-SERVING_LINES:])
        actions = self._handle(event)
        clock = isinstance(event, Tick | AgentSilent)
        if not clock or actions or before != (self.phase, len(self.findings)):
            self.history.append((now, event))
            del self.history[: -MAX_HISTORY if self.phase != "serving" else -SERVING_HISTORY]
        return actions

    def _handle(self, event: Event) -> list[Action]:
        if isinstance(event, DownAsked):
            return self._stop()
        if self.stopping:
            actions = self.stopping.handle(event, self.now)
            self._end_if_done()
            return actions
        handlers: dict[type, Callable[[Any], list[Action]]] = {
            AgentJoined: self._agent_joined,
            AgentSilent: self._agent_silent,
            StartFailed: self._start_failed,
            Answered: self._answered,
            Exited: self._exited,
            Lines: self._lines,
            Suspected: self._suspected,
            Wished: self._wished,
            Struck: self._struck,
            Tick: self._tick,
        }
        if self.phase in QUIET_SECONDS and self._is_sign_of_life(event):
            self.last_sign = self.now
        return handlers[type(event)](event)

    # ---- helpers
    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes in use, the first rank's first."""
        return self.spec.used_nodes()

    @property
    def head(self) -> NodeSpec:
        """The node of rank 0, where the engine's front end runs, and our Ray's head unless a node was named for it."""
        return self.nodes[0]

    @property
    def agents(self) -> list[str]:
        """The names of all agents."""
        return [FRONT, *(node.name for node in self.spec.ray_nodes())]

    @property
    def _files(self) -> dict[str, str]:
        """What every agent writes: the keys that there are, by path."""
        return {path: text for path, text in self.secrets.items() if text}

    def _enter(self, phase: Phase) -> None:
        if self.phase in PHASES:
            self.ended[self.phase] = self.now
        self.phase = phase
        self.started[phase] = self.last_sign = self.now

    def _follow(self, actions: list[Action]) -> list[Action]:
        """Takes over what the group has come to; `actions` are what it wants done."""
        group = self.group
        assert group is not None
        for phase, at in group.timeline[self.followed :]:
            self.ended[self.phase] = self.started[phase] = self.last_sign = at
            self.phase = phase
            if phase == "serving":
                self.served = True
                if not self.traffic.is_free:
                    actions = [
                        *(one for one in actions if one != SetGateway("ready")),
                        self.traffic.setting(),
                    ]
        self.followed = len(group.timeline)
        self.findings += group.findings
        group.findings.clear()
        if group.failure:
            failed = group.failure
            return [*actions, *self._engine_failed(failed.kind, failed.what, failed.remedy)]
        return actions

    def fail(self, kind: FailureKind, what: str, remedy: str = "") -> list[Action]:
        """Remembers why and takes everything down; the controller reports it."""
        if self.failure is None:
            self.failure = Failure(kind, self.phase, what, remedy)
        return self._stop(collect=kind != "proof")  # the ranks of a deployment that answers hang nowhere

    # ---- an engine that fails once it has served
    def _engine_failed(self, kind: FailureKind, what: str, remedy: str = "") -> list[Action]:
        """Fences the group and lets a next one start; fails where it never served, or was tried often enough."""
        group = self.group
        if group is None or not self.served or kind == "proof":
            return self.fail(kind, what, remedy)
        if self.phase == "serving" and self.now - self.started["serving"] >= SETTLED_SECONDS:
            self.tries = 0
        if self.tries >= MAX_RESTARTS:
            return self.fail(kind, f"{what} It had been restarted {self.tries} times before.", remedy)
        pause = PAUSE_SECONDS[self.tries]
        self.tries += 1
        self.restarts.append((self.now, what))
        del self.restarts[:-MAX_RESTARTS_TOLD]
        for phase in GROUP_PHASES:
            self.started.pop(phase, None)
            self.ended.pop(phase, None)
        self._enter("fencing")
        group.waiting.clear()
        self.traffic.forget_engine()
        self.fence = Fence(
            self.nodes, self.mark, group.id, group.epoch + 1, self.spec.joins_ray, self.now,
            self.now + pause, len(Ports._fields), absent=set(self.lost),
        )  # fmt: skip
        out = SetGateway("out", f"the engine is being restarted: {what}")
        return [out, *self.fence.begin(self._collect(group.epoch + 1))]

    def _fenced(self, actions: list[Action]) -> list[Action]:
        """What follows from the fence's news: the next group, or the end."""
        fence, old = self.fence, self.group
        assert fence is not None
        assert old is not None
        if fence.broken:
            what = f"The engine cannot be restarted: {fence.broken}."
            return [
                *actions,
                *self.fail("host", what, "Its GPUs may still be in use: look at that host first."),
            ]
        if fence.step != "done":
            return actions
        self.fence = None
        # Ray goes on where it is.
        self.ports[self.head.name] = Ports(*fence.ports)._replace(ray=self.ports[self.head.name].ray)
        self.group = self._new_group(fence.epoch)
        self.group.references = dict(old.references)
        self.followed = 0
        for name in [name for name in self.tails if self._is_past(*named(name.rpartition("/")[2]))]:
            del self.tails[name]
        self._enter("ray")
        return [*actions, *self.group.start()]

    def _new_group(self, epoch: int) -> Group:
        return Group(
            self.spec, self.paths, self.mark, self.ray_address, self.ports[self.head.name], self.digests, self.now,
            gateway_up=self.gateway_up, epoch=epoch,
        )  # fmt: skip

    def _stop(self, *, collect: bool = False) -> list[Action]:
        """Takes everything down; with `collect` after the nodes have given what explains a silence."""
        if self.phase in {"stopping", "gone"}:
            return self.stopping.hurry() if self.stopping and not collect else []
        self.stopped_in = self.phase
        self._enter("stopping")
        self.waiting.clear()
        self.fence = None
        self.lost.clear()
        if self.group:
            self.group.waiting.clear()
        # An agent that is being started is waited for: nobody else would end it before its lease.
        self.stopping = Stopping(
            tuple(self.agents),
            self.joined,
            set(self.agents) - self.not_started,
            self.now,
            findings=self.findings,
        )
        actions: list[Action] = []
        if self.gateway_up:
            actions.append(SetGateway("out", "the deployment is being stopped"))
        actions += self.stopping.begin(self._collect() if collect and self.stopped_in in GROUP_PHASES else [])
        self._end_if_done()
        return actions

    def _collect(self, epoch: int = 1) -> list[Call]:
        """Asks every node for the stacks, sockets and counters of what still runs there."""
        ranks = self.group.ranks if self.group else {}
        calls = []
        for node in self.nodes:
            if node.name in self.joined:
                pids = {str(s.pid): rank for rank, s in ranks.items() if s.address == node.address}
                arguments = {
                    "name": node.name, "mark": self.mark, "joined": self.spec.joins_ray, "pids": pids,
                    "tp": self.spec.tp, "age_seconds": self.now - self.started["agents"],
                }  # fmt: skip
                calls.append(call_to(node.name, "collect", arguments, epoch))
        return calls

    def _end_if_done(self) -> None:
        if self.phase == "stopping" and self.stopping and self.stopping.done:
            self._enter("gone")

    # ---- agents
    def _agent_joined(self, event: AgentJoined) -> list[Action]:
        self.joined.add(event.node)
        if event.node in self.lost:
            return self.lost[event.node].joined()
        if self.phase != "agents" or not set(self.agents) <= self.joined:
            return []
        self._enter("checkpoint")
        actions: list[Action] = []
        for node in self.spec.ray_nodes():
            actions += [
                self._call(node.name, "facts", {"python": node.python}),
                self._call(node.name, "write", {"files": self._files}),
                self._call(node.name, "ports", {"address": node.address, "count": len(Ports._fields)}),
            ]
            if node in self.nodes:  # a head without ranks needs no copy
                arguments = {
                    "model": self.spec.model, "revision": self.spec.revision, "nonce": self.nonce,
                    "full": self.spec.full_digest,
                }  # fmt: skip
                actions.append(self._call(node.name, "digest", arguments))
        return actions

    def _call(self, node: str, what: str, arguments: dict[str, Any]) -> Call:
        call = call_to(node, what, arguments)
        self.waiting.add(call.call)
        return call

    def _agent_silent(self, event: AgentSilent) -> list[Action]:
        if event.seconds < SILENT_SECONDS or event.node not in self.joined:
            return []
        what = f"The agent on {event.node} has not answered for {event.seconds:.0f} s, so the state of its ranks is unknown."
        remedy = "Check that the host runs and that it reaches this machine; its agent ends its own ranks by itself."
        _, *followers = self.spec.ray_nodes()
        node = next((one for one in followers if one.name == event.node), None)
        # Without Ray's head there is no Ray to come back to, and in a joined one the agent's way there is that Ray's. What
        # shares a machine with others must not be swept.
        if not self.served or self.spec.ray_address or node is None or node.ssh is None or node.container:
            return self.fail("host", what, remedy)
        return self._node_lost(node, what, remedy)

    # ---- a host that is lost
    def _node_lost(self, node: NodeSpec, what: str, remedy: str) -> list[Action]:
        """Ends the group on the nodes that are left, and begins to bring the host back."""
        self.joined.discard(node.name)
        self.losses += 1
        # A host that comes and goes has one patience for all of it.
        since = self.fence.lost_at.get(node.name, self.now) if self.fence else self.now
        lost = LostNode(node, self.losses + 1, since, self._files, len(Ports._fields))
        self.lost[node.name] = lost
        if self.fence is None:
            actions = self._engine_failed("host", what, remedy)
        else:
            actions = self._fenced(self.fence.lost(node.name, self.now))
        return actions if self.stopping else [*actions, *lost.tick(self.now)]

    def _bring_back(self, lost: LostNode, actions: list[Action]) -> list[Action]:
        """What follows from the news of a lost host."""
        name = lost.node.name
        if lost.broken:
            return self.fail("host", f"{name} was lost and cannot be brought back: {lost.broken}.")
        if lost.step != "back":
            return actions
        del self.lost[name]
        self.ports[name] = Ports(*lost.ports)
        started = [*actions, self._ray_start(lost.node, head=False, epoch=lost.number)]
        return self._fenced([*started, *self.fence.returned(name, self.now)]) if self.fence else started

    def _suspected(self, event: Suspected) -> list[Action]:
        """Takes the replica out of traffic while anything speaks against it, and back once nothing does."""
        if event.subject == ENGINE and self.phase != "serving":
            return []  # of a group that is being ended or started
        changed = self.traffic.suspect(event.subject, event.reason, self.now)
        return [self.traffic.setting()] if self.phase == "serving" and changed else []

    @property
    def subjects(self) -> tuple[str, ...]:
        """What the operator can take out of traffic: the replica, and the nodes that hold its ranks."""
        return (REPLICA, *(node.name for node in self.nodes))

    def _wished(self, event: Wished) -> list[Action]:
        """A replica lives and is kept out of traffic as a whole, so that of a node's is the same."""
        if event.subject not in self.subjects or event.wish not in WISHES:
            return []
        self.traffic.hold(event.subject, event.wish, all_of_it=event.subject == REPLICA)
        return [self.traffic.setting()] if self.phase == "serving" else []

    def _struck(self, event: Struck) -> list[Action]:
        """A drill's fault is an event like any other, so that the history tells it from a real one."""
        if self.phase != "serving" or event.node not in self.agents:
            return []
        self.strikes += 1
        arguments = {**event.arguments, "mark": self.mark, "joined": self.spec.joins_ray}
        return [call_to(event.node, "strike", arguments, self.strikes)]

    def _start_failed(self, event: StartFailed) -> list[Action]:
        if event.node in self.lost:
            self.lost[event.node].failed()
            return []
        if event.node not in self.joined:  # else ssh broke off after it had started
            self.not_started.add(event.node)
        return self.fail("host", f"The agent on {event.node} could not be started: {event.error}")

    # ---- answers
    def _answered(self, event: Answered) -> list[Action]:
        if self.group and event.call in self.group.waiting:
            return self._follow(self.group.answered(event.call, event.value, event.error, self.now))
        for lost in self.lost.values():
            if event.call in lost.waiting:
                return self._bring_back(lost, lost.answered(event.call, event.value, event.error))
        if self.fence and event.call in self.fence.waiting:
            return self._fenced(self.fence.answered(event.call, event.value, event.error, self.now))
        if event.call not in self.waiting:
            return []  # a second answer, or one to a question of another time
        self.waiting.discard(event.call)
        what, node = call_of(event.call)
        if event.error:
            return self.fail("host", f"{what} on {node} failed: {event.error}")
        if what == "facts":
            self.facts[node] = event.value
        elif what == "digest":
            self.digests[node] = CheckpointDigest.from_json(event.value) if event.value else None
        elif what == "ports":
            self.ports[node] = Ports(*event.value)
        if self.phase == "checkpoint" and not self.waiting:
            return self._checkpoint_done()
        return []

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
        return [self._ray_start(self.spec.ray_nodes()[0], head=True)]

    def _versions_differ(self) -> tuple[str, str] | None:
        """What is wrong with the versions of engine, Ray and Python on the nodes, and what to do; None if nothing."""
        if problem := unfit(self.nodes, self.facts, self.spec.device):
            return problem
        head = self.head.name
        for key, name in (("vllm", "vLLM"), ("ray", "Ray"), ("python", "Python")):
            there = self.facts[head][key]
            for node in self.nodes if key == "vllm" else self.spec.ray_nodes():
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

    def _ray_start(self, node: NodeSpec, *, head: bool, epoch: int = 1) -> Start:
        first = self.spec.ray_nodes()[0]
        fixed = RayPorts(self.spec.ray_first_port) if self.spec.ray_first_port else None
        port = fixed.gcs if fixed else self.ports[first.name].ray
        self.ray_address = f"{first.address}:{port}"
        return Start(
            node.name,
            commands.ray_start(
                node, head=head, head_address=first.address, port=port,
                own_ports=(self.ports[node.name].ray_client, self.ports[node.name].ray_agent),
                temp_dir=self.paths.ray_dir(node.name), token_file=self.paths.ray_token, fixed=fixed,
                epoch=epoch,
            ),
        )  # fmt: skip

    # ---- process events
    def _exited(self, event: Exited) -> list[Action]:
        process, epoch = named(event.process)
        if self._is_past(process, epoch):
            return []
        if process == "gateway" and self.served and self.gateways < MAX_GATEWAYS:
            return self._restart_gateway()
        if process == "rank":
            # Its own log is that of the launcher or engine, whose end says more; but that may never come while the other
            # ranks wait for this one in a collective (seen: 45 s until a token was missed).
            text = f"A rank's process on {event.node} ended while serving."
            return self._engine_failed("launch", text) if self.phase == "serving" else []
        tail = self.tails.get(f"{event.node}/{event.process}", [])
        last = next((line for line in reversed(tail) if line.strip()), "")
        if self.phase == "serving":
            failed = self._engine_failed if process in ENGINE_PROCESSES else self.fail
            return failed(
                "launch",
                f"{event.process} on {event.node} ended with status {event.code} while serving. Its last line: {last}",
                "The logs stand in the state directory that `longspan status` names.",
            )
        kind: FailureKind = "launch"
        if process == "ray":
            kind = "ray"
        elif process == "gateway" and event.code == 14:
            kind = "port"
        failed = self._engine_failed if process in ENGINE_PROCESSES else self.fail
        return failed(
            kind,
            f"{event.process} on {event.node} ended with status {event.code} in phase {self.phase}. {cause(tail)}",
        )

    def _is_past(self, process: str, epoch: int) -> bool:
        """Whether a process is of a group that was ended or is being ended, or a gateway that was replaced."""
        if process == "gateway":
            return epoch != self.gateways
        if process not in ENGINE_PROCESSES:
            return False
        return self.fence is not None or epoch != (self.group.epoch if self.group else 1)

    def _restart_gateway(self) -> list[Action]:
        """On the address that clients know; the engine does not notice."""
        self.gateways += 1
        self.gateway_up = False
        return [Start(FRONT, self._gateway())]

    def _gateway(self) -> Process:
        argv = (self.python, "-m", "longspan.gateway", "--config", self.paths.gateway_config)
        return Process(commands.process_name("gateway", self.gateways), argv)

    def _lines(self, event: Lines) -> list[Action]:
        if self._is_past(*named(event.process)):
            return []
        tail = self.tails.setdefault(f"{event.node}/{event.process}", [])
        tail += event.lines
        del tail[:-400]
        actions: list[Action] = []
        for raw in event.lines:
            actions += self._line(event.node, event.process, strip_colour(raw))
            if self.phase in {"stopping", "gone"}:
                break  # what stands behind the line that failed must not start anything
        return actions

    def _is_sign_of_life(self, event: Event) -> bool:
        match event:
            case Tick() | AgentSilent():
                return False
            case Lines():
                return self._something_new(event)
            case _:
                return True

    def _something_new(self, event: Lines) -> bool:
        """Whether a log says anything that it has not said before. What waits for ever also writes: vLLM once a minute
        that no message has come (shm_broadcast.py), the gateway whatever its clients ask meanwhile."""
        if named(event.process)[0] == "gateway":
            return False
        texts = {said(line) for line in event.lines} - self.told
        if len(self.told) > MAX_TOLD:
            self.told.clear()
        self.told |= texts
        return bool(texts)

    def _line(self, node: str, process: str, line: str) -> list[Action]:
        process, _ = named(process)
        if process == "ray":
            return self._ray_line(node, line)
        try:
            if process == "gateway":
                return self._gateway_line(line)
            if self.group and process == "launcher" and line.startswith(EVENT_MARK):
                event = json.loads(line[len(EVENT_MARK) :])
                return self._follow(self.group.launcher_event(event, self.now))
        except (LookupError, TypeError, ValueError) as error:
            return self.fail(
                "launch",
                f"A line of {process} on {node} is not the event that it should be"
                f" ({type(error).__name__}: {error}): {line[:200]}",
            )
        if self.group and process in ENGINE_PROCESSES:
            return self._follow(self.group.engine_line(node, line, self.now))
        return []

    def _ray_line(self, node: str, line: str) -> list[Action]:
        first, *others = self.spec.ray_nodes()
        if self.phase == "ray" and node == first.name and "Ray runtime started" in line:
            starts: list[Action] = [self._ray_start(other, head=False) for other in others]
            return [*starts, *self._ray_ready()]
        return []

    def _ray_ready(self) -> list[Action]:
        """The head answers: the engine's group begins, and the gateway starts beside it."""
        self.group = self._new_group(1)
        gateway = Start(FRONT, self._gateway())
        return [SetGateway("out", "the engine is starting"), gateway, *self.group.start()]

    def _gateway_line(self, line: str) -> list[Action]:
        if line.startswith('{"event"'):
            event = json.loads(line)
            if event.get("event") == "listening":
                self.gateway_up = True
                self.gateway_address = event["address"]
                self.gateway_admin = str(event.get("admin", ""))
                if self.group and not self.fence:
                    return self._follow(self.group.gateway_listens(self.now))
        return []

    # ---- time
    def _tick(self, _: Tick) -> list[Action]:
        for lost in list(self.lost.values()):
            actions = self._bring_back(lost, lost.tick(self.now))
            if actions or self.stopping:
                return actions
        if self.fence:
            return self._fenced(self.fence.tick(self.now))
        if self.phase == "serving" and self.traffic.is_convicted(self.now):
            reason = self.traffic.suspicions[ENGINE]
            return self._engine_failed("launch", f"The engine was out of traffic for too long: {reason}.")
        limit = QUIET_SECONDS.get(self.phase)
        if limit is None or self.now - self.last_sign < limit:
            return []
        where = self.group.engine_phase if self.group and self.phase == "engine" else self.phase
        return self._engine_failed(
            "launch", f"No sign of progress for {limit:.0f} s in phase {where}.{self._awaited()}"
        )

    def _awaited(self) -> str:
        """Whom the phase waits for, as a sentence with a blank before it; empty where it cannot be told."""
        if self.phase == "agents":
            return f" No word from the agent on {', '.join(n for n in self.agents if n not in self.joined)}."
        if self.group:
            return self.group.awaited()
        return f" Not answered: {', '.join(sorted(self.waiting))}." if self.waiting else ""

"""The life of one deployment as a pure state machine: events in, actions out, no clock and no I/O.

`Steps.handle(event, now)` returns the actions to carry out. Every event is kept in `history`, so that a run can be
replayed. The controller's loop feeds it and does what it says; a test feeds it by hand. It owns agents, Ray and the
gateway; from the reservation to the proof, and through every restart, each `Replica` is a machine of its own inside it.

    agents -> checkpoint -> ray -> reservation -> engine -> gateway -> first token -> verified -> serving
                             ^------------------------------ a replica that fails once all have served, by itself
                                       any other failure or "down" -> stopping -> gone
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.finding import Finding
from longspan.launch import commands
from longspan.launch.actions import Action, Call, Start, StartAgents, call_of, call_to
from longspan.launch.checkpoint import CheckpointDigest, compare_copies
from longspan.launch.commands import Process, named
from longspan.launch.events import (
    AgentJoined,
    AgentSilent,
    Answered,
    Changed,
    Compared,
    DownAsked,
    Drained,
    Event,
    Exited,
    Lines,
    Scaled,
    StartFailed,
    Struck,
    Suspected,
    Tick,
    Wished,
)
from longspan.launch.failure import Failure, FailureKind, cause
from longspan.launch.group import ENGINE_PROCESSES
from longspan.launch.lost_node import LostNode
from longspan.launch.own_ray import STARTED, OwnRay
from longspan.launch.phases import phase_seen, rank_seen, said, strip_colour
from longspan.launch.replica import Ground, Replica, collect_arguments
from longspan.launch.replicas import GROUP_PHASES, Replicas
from longspan.launch.requirements import unfit, versions_differ
from longspan.launch.rolling import Rolling, not_now
from longspan.launch.run_dir import Paths, Ports
from longspan.launch.stopping import Stopping
from longspan.launch.words import EVENT_MARK

PHASES = ("agents", "checkpoint", "ray", "reservation", "engine", "gateway", "first token", "verified")
Phase = Literal[
    "agents", "checkpoint", "ray", "reservation", "engine", "gateway", "first token", "verified",
    "serving", "fencing", "drained", "failed", "stopping", "gone",
]  # fmt: skip

# How long a phase of all may show no sign of life; replicas have patience of their own.
QUIET_SECONDS: dict[str, float] = {"agents": 60, "checkpoint": 1800, "ray": 180}
# The gateway is ended by nothing of ours while it serves; one that ends again and again cannot run here.
MAX_GATEWAYS = 5
# Longer than the lease after which an agent ends its own ranks: only then is it sure that none of them is left.
SILENT_SECONDS = 40.0
MAX_TOLD = 10_000
MAX_HISTORY = 20_000
# A log that goes on while it serves never ends: each node keeps its own, and here only the last of it stays.
SERVING_HISTORY = 2_000
TAIL_LINES = 400
STANDBY = "standby"  # the second gateway's program, on a node
FRONT = "front"  # the agent on the controller's machine, which runs the gateway


@dataclass(slots=True)
class Steps:
    """The state machine. Change it through `handle` only.

    Attributes:
        mark: identifies the processes of this start on every node.
        secrets: contents of the token and key files, by path; written by the agents, never printed.
        not_started: agents that could not be started.
        waiting: calls without an answer yet; any other answer is dropped. Replicas have their own.
        stopped_in: the phase in which the end began; `stopping` is that end.
        started: phase -> the time it began; `ended`: phase -> the time it was done.
        facts: node -> what its agent found there.
        ground: what all replicas stand on. ray: the one that we start; with one that is joined it does nothing.
        gateway_admin: where the gateway tells its figures, HOST:PORT.
        strikes: how many faults drills have made; nobody waits for their answers.
        told: what the logs have said so far, without the time at which they said it.
        losses: how many hosts were lost so far.
        gateways: how many were started; standbys: second gateways.
        rolling: the last change while it served; once that is done, `spec` is the changed one.
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
    not_started: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    stopping: Stopping | None = None
    stopped_in: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    ground: Ground = field(init=False)
    replicas: Replicas = field(init=False)
    ray: OwnRay = field(init=False)
    losses: int = 0
    rolling: Rolling | None = None
    gateways: int = 1
    standbys: int = 0
    gateway_address: str = ""
    gateway_admin: str = ""
    strikes: int = 0
    findings: list[Finding] = field(default_factory=list)
    failure: Failure | None = None
    last_sign: float = 0.0
    told: set[str] = field(default_factory=set)
    tails: dict[str, list[str]] = field(default_factory=dict)
    history: list[tuple[float, Event]] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.ground = Ground(self.paths, self.mark, self.head.name, ray_address=self.spec.ray_address or "")
        self.replicas = Replicas(self.spec, self.ground)
        self.ray = OwnRay(self.spec, self.ground, self.paths.ray_token)

    # ---- entry
    def begin(self, now: float) -> list[Action]:
        """The first actions."""
        self.now = now
        self.last_sign = self.ground.began = now
        self.started["agents"] = now
        return [StartAgents()]

    def handle(self, event: Event, now: float) -> list[Action]:
        """Takes one event, returns what to do about it. What changed nothing but the clock, or the ends of logs that only the
        words of a failure come from, is not kept in `history`."""
        self.now = now
        before = self._standing()
        if isinstance(event, Lines):
            self._keep_tail(event)
            if self._goes_on(event.process):
                event = replace(event, lines=tuple(line for line in event.lines if _tells(line)))
                if not event.lines:
                    return []
        elif isinstance(event, Exited) and not event.said:
            event = replace(event, said=tuple(self.tails.get(f"{event.node}/{event.process}", ())))
        actions = self._handle(event)
        clock = isinstance(event, Tick | AgentSilent)
        if not clock or actions or before != self._standing():
            self.history.append((now, event))
            del self.history[: -MAX_HISTORY if self.phase != "serving" else -SERVING_HISTORY]
        return actions

    def _keep_tail(self, event: Lines) -> None:
        if not self._is_past(event.node, *named(event.process)):
            tail = self.tails.setdefault(f"{event.node}/{event.process}", [])
            tail += event.lines
            del tail[:-TAIL_LINES]

    def _goes_on(self, process: str) -> bool:
        """Whether a log is of what serves. It never ends, so it is recorded nowhere but on its node; what is not recorded decides
        nothing, else who reads the record would come to another state. Of such a log only the lines are taken that tell."""
        what, epoch = named(process)
        if self.phase != "serving":
            return False
        if what in ENGINE_PROCESSES:
            replica = self.replicas.of(epoch)
            return replica is None or replica.phase == "serving"
        return all(one.phase == "serving" or one.is_at_rest for one in self.replicas)

    def _standing(self) -> tuple[Any, ...]:
        """What time alone may change."""
        return self.phase, len(self.findings), self.replicas.phases, self.rolling and self.rolling.standing

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
            Suspected: lambda e: self.replicas.suspect(e.subject, e.reason, self.now),
            Wished: lambda e: self._led(self.replicas.wish(e.subject, e.wish, self.now)),
            Scaled: lambda e: (
                [] if self._is_changing else self._led(self.replicas.scale(e.replicas, self.now))
            ),
            Changed: self._changed,
            Compared: self._compared,
            Drained: lambda e: self._led(self.replicas.drained(e.replica, self.now)),
            Struck: self._struck,
            Tick: self._tick,
        }
        self._note_sign_of_life(event)
        actions = handlers[type(event)](event)
        if self.rolling and not self.stopping:
            actions = [*actions, *self._led(self.rolling.advance(self.replicas, self.now))]
            if self.rolling.stage == "changed":
                self.spec = self.replicas.spec = self.rolling.new
        self._settle()
        return actions

    # ---- a change while it serves
    @property
    def _is_changing(self) -> bool:
        return self.rolling is not None and not self.rolling.is_over

    def _changed(self, event: Changed) -> list[Action]:
        if not_now(self.replicas, self.ground, self.rolling, outage=event.outage):
            return []
        new = DeploymentSpec.from_json(event.spec)
        self.rolling = Rolling(self.spec, new, event.watch_seconds, event.outage, self.now)
        return self.rolling.begin(self.ground, self.nonce)

    def _compared(self, event: Compared) -> list[Action]:
        if self.rolling:
            self.rolling.compared(event.figures)
        return []

    # ---- helpers
    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes in use, the first rank's first."""
        return self.spec.used_nodes()

    @property
    def head(self) -> NodeSpec:
        """The node of r0's rank 0, which is our Ray's head too unless a node was named for it."""
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

    def _led(self, actions: list[Action]) -> list[Action]:
        """Takes over what the replicas have come to; `actions` are what they want done."""
        self.findings += self.replicas.findings
        self.replicas.findings.clear()
        if any(one.fence for one in self.replicas):
            self._forget_tails()
        doom, self.replicas.doom = self.replicas.doom, None
        if doom and not self.stopping:
            return [*actions, *self.fail(doom.kind, doom.what, doom.remedy, doom.phase)]
        return actions

    def fail(self, kind: FailureKind, what: str, remedy: str = "", phase: str = "") -> list[Action]:
        """Remembers why and in which phase, and takes everything down; the controller reports it."""
        if self.failure is None:
            self.failure = Failure(kind, phase if phase in PHASES else self.phase, what, remedy)
        return self._stop(collect=kind != "proof")  # the ranks of a deployment that answers hang nowhere

    def _settle(self) -> None:
        """Where the deployment as a whole stands, out of where its replicas do."""
        if self.phase in {"agents", "checkpoint", "stopping", "gone"}:
            return
        found: Any = self.replicas.whole()
        if found is None or found == self.phase:
            return
        if found == "fencing":
            for phase in GROUP_PHASES:
                self.started.pop(phase, None)
                self.ended.pop(phase, None)
        if self.phase in PHASES:  # several can be passed with one event
            last = PHASES.index(found) if found in PHASES else len(PHASES) if found == "serving" else 0
            for passed in PHASES[PHASES.index(self.phase) + 1 : last]:
                self.started[passed] = self.ended[passed] = self.now
        self._enter(found)

    def _stop(self, *, collect: bool = False) -> list[Action]:
        """Takes everything down; with `collect` after the nodes have given what explains a silence."""
        if self.phase in {"stopping", "gone"}:
            return self.stopping.hurry() if self.stopping and not collect else []
        self.stopped_in = self.phase
        self._enter("stopping")
        self.waiting.clear()
        self.ground.lost.clear()
        self.replicas.halt()
        # An agent that is being started is waited for: nobody else would end it before its lease.
        self.stopping = Stopping(
            tuple(self.agents),
            self.ground.joined,
            set(self.agents) - self.not_started,
            self.now,
            findings=self.findings,
        )
        actions: list[Action] = []
        if self.ground.gateway_up:
            actions += self.replicas.out("the deployment is being stopped")
        actions += self.stopping.begin(self._collect() if collect and self.stopped_in in GROUP_PHASES else [])
        self._end_if_done()
        return actions

    def _collect(self) -> list[Call]:
        """Asks every node for the stacks, sockets and counters of what still runs there."""
        calls = []
        for node in self.nodes:
            if node.name not in self.ground.joined:
                continue
            groups = [one.group for one in self.replicas if one.group]
            pids = {str(s.pid): s.rank for g in groups for s in g.ranks.values() if s.address == node.address}
            arguments = collect_arguments(self.spec, self.ground, node, pids, self.now)
            calls.append(call_to(node.name, "collect", arguments))
        return calls

    def _end_if_done(self) -> None:
        if self.phase == "stopping" and self.stopping and self.stopping.done:
            self._enter("gone")

    # ---- agents
    def _agent_joined(self, event: AgentJoined) -> list[Action]:
        self.ground.joined.add(event.node)
        if event.node in self.ground.lost:
            return self.ground.lost[event.node].joined()
        if self.phase != "agents" or not set(self.agents) <= self.ground.joined:
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
        if event.seconds < SILENT_SECONDS or event.node not in self.ground.joined:
            return []
        what = f"The agent on {event.node} has not answered for {event.seconds:.0f} s, so the state of its ranks is unknown."
        remedy = "Check that the host runs and that it reaches this machine; its agent ends its own ranks by itself."
        _, *followers = self.spec.ray_nodes()
        node = next((one for one in followers if one.name == event.node), None)
        # Without Ray's head there is no Ray to come back to, and in a joined one the agent's way there is that Ray's. What
        # shares a machine with others must not be swept.
        if (
            not self.replicas.served
            or self.spec.ray_address
            or node is None
            or node.ssh is None
            or node.container
        ):
            return self.fail("host", what, remedy)
        return self._node_lost(node, what, remedy)

    # ---- a host that is lost
    def _node_lost(self, node: NodeSpec, what: str, remedy: str) -> list[Action]:
        """Ends the group on the nodes that are left, and begins to bring the host back."""
        self.ground.joined.discard(node.name)
        self.losses += 1
        # A host that comes and goes has one patience for all of it.
        fences = [one.fence for one in self.replicas if one.fence]
        since = min([fence.lost_at.get(node.name, self.now) for fence in fences], default=self.now)
        lost = LostNode(node, self.losses + 1, since, self._files, len(Ports._fields))
        self.ground.lost[node.name] = lost
        actions = self._led(self.replicas.node_lost(node.name, what, remedy, self.now))
        if self.stopping:
            return actions
        return [*actions, *self.ray.host_lost(node.name, self.now), *lost.tick(self.now)]

    def _bring_back(self, lost: LostNode, actions: list[Action]) -> list[Action]:
        """What follows from the news of a lost host."""
        name = lost.node.name
        if lost.broken:
            return self.fail("host", f"{name} was lost and cannot be brought back: {lost.broken}.")
        if lost.step != "back":
            return actions
        del self.ground.lost[name]
        self.ground.ports[name] = Ports(*lost.ports)
        actions = [*actions, *self.ray.host_back(name, self.now)]
        if name == self.spec.standby_node:
            actions += self._start_standby()
        return [*actions, *self._led(self.replicas.node_returned(name, self.now))]

    def _struck(self, event: Struck) -> list[Action]:
        """A drill's fault is an event like any other, so that the history tells it from a real one."""
        if self.phase != "serving" or event.node not in self.agents:
            return []
        self.strikes += 1
        arguments = {**event.arguments, "mark": self.mark, "joined": self.spec.joins_ray}
        if "program" in arguments:  # one of Ray's
            arguments["group"] = self.ray.group(event.node)
        # Of two replicas on one node only one is struck.
        struck = self.replicas.get(arguments.pop("replica", ""))
        if struck:
            arguments["group"] = struck.group_id
        return [call_to(event.node, "strike", arguments, self.strikes)]

    def _start_failed(self, event: StartFailed) -> list[Action]:
        if event.node in self.ground.lost:
            self.ground.lost[event.node].failed()
            return []
        if event.node not in self.ground.joined:  # else ssh broke off after it had started
            self.not_started.add(event.node)
        return self.fail("host", f"The agent on {event.node} could not be started: {event.error}")

    # ---- answers
    def _answered(self, event: Answered) -> list[Action]:
        found = self.replicas.answered(event.call, event.value, event.error, self.now)
        if found is not None:
            return self._led(found)
        if self.rolling and event.call in self.rolling.waiting:
            self.rolling.answered(event.call, event.value, event.error, self.facts)
            return []
        for lost in self.ground.lost.values():
            if event.call in lost.waiting:
                return self._bring_back(lost, lost.answered(event.call, event.value, event.error))
        if event.call in self.ray.waiting:
            return self._unless_broken(self.ray.answered(event.call, event.value, event.error, self.now))
        if event.call not in self.waiting:
            return []  # a second answer, or one to a question of another time
        self.waiting.discard(event.call)
        what, node = call_of(event.call)
        if event.error:
            return self.fail("host", f"{what} on {node} failed: {event.error}")
        if what == "facts":
            self.facts[node] = event.value
        elif what == "digest":
            self.ground.digests[node] = CheckpointDigest.from_json(event.value) if event.value else None
        elif what == "ports":
            self.ground.ports[node] = Ports(*event.value)
        if self.phase == "checkpoint" and not self.waiting:
            return self._checkpoint_done()
        return []

    def _checkpoint_done(self) -> list[Action]:
        # Warnings (a file more that no engine reads as weights) come with the proof's digest layer.
        found = (
            compare_copies(self.ground.digests, self.head.name) if any(self.ground.digests.values()) else ()
        )
        differing = [finding for finding in found if finding.severity == "error"]
        if differing:
            self.findings += differing
            return self.fail(
                "proof", " ".join(finding.summary for finding in differing[:3]), differing[0].remedy
            )
        problem = unfit(self.nodes, self.facts, self.spec.device)
        if problem := problem or versions_differ(self.nodes, self.spec.ray_nodes(), self.facts):
            return self.fail("host", *problem)
        self._enter("ray")
        if self.spec.ray_address:
            return self._ray_ready()
        return self.ray.begin()

    def _unless_broken(self, actions: list[Action]) -> list[Action]:
        """`actions`, or the end of all where Ray cannot be built again."""
        if not self.ray.broken:
            return actions
        return self.fail("ray", f"Ray ended while serving and is not back: {self.ray.broken}.")

    def _ray_lost(self, event: Exited) -> list[Action]:
        """Groups with ranks where Ray is away are fenced, and what is left of it is ended, before it starts again."""
        last = next((line for line in reversed(event.said) if line.strip()), "")
        what = f"Ray on {event.node} ended with status {event.code} while serving. Its last line: {last}"
        gone = self.ray.lost(event.node, self.now)
        actions = self._led(self.replicas.ray_lost(gone, what, self.now))
        if self.stopping:
            return actions
        return [*actions, *self._unless_broken(self.ray.rebuild(self.now))]

    # ---- process events
    def _exited(self, event: Exited) -> list[Action]:
        process, epoch = named(event.process)
        if self._is_past(event.node, process, epoch):
            return []
        replica = self.replicas.of(epoch) if process in ENGINE_PROCESSES else None
        if process == "gateway" and self.replicas.served and self.gateways < MAX_GATEWAYS:
            return self._restart_gateway()
        if process == "ray" and self.replicas.served:
            return self._ray_lost(event)
        if process == STANDBY:
            return self._start_standby() if self.standbys < MAX_GATEWAYS else []
        if process == "rank":
            # Its own log is that of the launcher or engine, whose end says more; but that may never come while the other
            # ranks wait for this one in a collective (seen: 45 s until a token was missed).
            text = f"A rank's process on {event.node} ended while serving."
            serves = replica is not None and replica.phase == "serving"
            return self._replica_failed(replica, "launch", text) if replica and serves else []
        tail = event.said
        last = next((line for line in reversed(tail) if line.strip()), "")
        phase = replica.phase if replica else self.phase
        if phase == "serving":
            what = f"{event.process} on {event.node} ended with status {event.code} while serving. Its last line: {last}"
            remedy = "The logs stand in the state directory that `longspan status` names."
            return (
                self._replica_failed(replica, "launch", what, remedy)
                if replica
                else self.fail("launch", what, remedy)
            )
        kind: FailureKind = "launch"
        if process == "ray":
            kind = "ray"
        elif process == "gateway" and event.code == 14:
            kind = "port"
        what = (
            f"{event.process} on {event.node} ended with status {event.code} in phase {phase}. {cause(tail)}"
        )
        return self._replica_failed(replica, kind, what) if replica else self.fail(kind, what)

    def _replica_failed(
        self, replica: Replica, kind: FailureKind, what: str, remedy: str = ""
    ) -> list[Action]:
        return self._led(self.replicas.failed(replica, kind, what, remedy, self.now))

    def _is_past(self, node: str, process: str, epoch: int) -> bool:
        """Whether a process is of a group that was ended or is being ended, or a gateway or Ray that was replaced."""
        if process == "gateway":
            return epoch != self.gateways
        if process == "ray":
            return self.ray.is_past(node, epoch)
        if process == STANDBY:
            return epoch != self.standbys
        if process not in ENGINE_PROCESSES:
            return False
        return self.replicas.of(epoch) is None

    def _forget_tails(self) -> None:
        """What groups said that are no more."""
        for name in list(self.tails):
            process, epoch = named(name.rpartition("/")[2])
            if process in ENGINE_PROCESSES and self.replicas.of(epoch) is None:
                del self.tails[name]

    def _restart_gateway(self) -> list[Action]:
        """On the address that clients know; the engine does not notice."""
        self.gateways += 1
        self.ground.gateway_up = False
        return [Start(FRONT, self._gateway())]

    def _gateway(self) -> Process:
        argv = (self.python, "-m", "longspan.gateway", "--config", self.paths.gateway_config)
        return Process(commands.process_name("gateway", self.gateways), argv)

    def _start_standby(self) -> list[Action]:
        """The program that keeps the second gateway running; it fails nothing but itself."""
        node = next((one for one in self.spec.ray_nodes() if one.name == self.spec.standby_node), None)
        if node is None:
            return []
        self.standbys += 1
        argv = (node.python, "-m", "longspan.daemon.standby", self.paths.standby)
        return [Start(node.name, Process(commands.process_name(STANDBY, self.standbys), argv))]

    def _lines(self, event: Lines) -> list[Action]:
        if self._is_past(event.node, *named(event.process)):
            return []
        actions: list[Action] = []
        for raw in event.lines:
            actions += self._line(event.node, event.process, strip_colour(raw))
            if self.phase in {"stopping", "gone"}:
                break  # what stands behind the line that failed must not start anything
        return actions

    def _note_sign_of_life(self, event: Event) -> None:
        """Whose patience begins anew: the replica's that an event is about, else that of all that are on their way."""
        match event:
            case Tick() | AgentSilent() | Suspected() | Drained() | Compared():
                return
            case Lines() if not self._something_new(event):
                return
            case Lines() | Exited() if named(event.process)[0] in ENGINE_PROCESSES:
                concerned = self.replicas.of(named(event.process)[1])
                if concerned:
                    concerned.last_sign = self.now
                return
        self.last_sign = self.now
        if not isinstance(event, Answered):  # a replica notes its own
            for replica in self.replicas:
                replica.last_sign = self.now

    def _something_new(self, event: Lines) -> bool:
        """Whether a log says anything that it has not said before. What waits for ever also writes: vLLM once a minute
        that no message has come (shm_broadcast.py), the gateway whatever its clients ask meanwhile."""
        if named(event.process)[0] in {"gateway", STANDBY}:
            return False
        texts = {said(line) for line in event.lines} - self.told
        if len(self.told) > MAX_TOLD:
            self.told.clear()
        self.told |= texts
        return bool(texts)

    def _line(self, node: str, process: str, line: str) -> list[Action]:
        process, epoch = named(process)
        if process == "ray":
            return self._ray_line(node, epoch, line)
        replica = self.replicas.of(epoch) if process in ENGINE_PROCESSES else None
        try:
            if process == "gateway":
                return self._gateway_line(line)
            if replica and replica.group and process == "launcher" and line.startswith(EVENT_MARK):
                event = json.loads(line[len(EVENT_MARK) :])
                found = replica.group.launcher_event(event, self.now)
                return self._led(self.replicas.after(replica, replica.follow(found), self.now))
        except (LookupError, TypeError, ValueError) as error:
            return self.fail(
                "launch",
                f"A line of {process} on {node} is not the event that it should be"
                f" ({type(error).__name__}: {error}): {line[:200]}",
            )
        if replica and replica.group:
            found = replica.follow(replica.group.engine_line(node, line, self.now))
            return self._led(self.replicas.after(replica, found, self.now))
        return []

    def _ray_line(self, node: str, epoch: int, line: str) -> list[Action]:
        found = self.ray.line(node, epoch, line, self.now)
        if found is None:
            return []
        if self.phase == "ray" and not self.replicas.served and node == self.ray.head.name:
            return [*found, *self._ray_ready()]
        return [*found, *self._led(self.replicas.ray_returned(node, self.now))]

    def _ray_ready(self) -> list[Action]:
        """The head answers: the replicas' groups begin, and the gateway starts beside them."""
        gateway = Start(FRONT, self._gateway())
        groups = self._led(self.replicas.begin(self.now))
        return [*self.replicas.out("the engine is starting"), gateway, *self._start_standby(), *groups]

    def _gateway_line(self, line: str) -> list[Action]:
        if line.startswith('{"event"'):
            event = json.loads(line)
            if event.get("event") == "listening":
                self.ground.gateway_up = True
                self.gateway_address = event["address"]
                self.gateway_admin = str(event.get("admin", ""))
                return self._led(self.replicas.gateway_listens(self.now))
        return []

    # ---- time
    def _tick(self, _: Tick) -> list[Action]:
        actions: list[Action] = []
        for lost in list(self.ground.lost.values()):
            actions += self._bring_back(lost, lost.tick(self.now))
            if self.stopping:
                return actions
        actions += self._led(self.replicas.tick(self.now))
        if self.stopping:
            return actions
        self.ray.tick(self.now)
        if self.ray.broken:
            return [*actions, *self._unless_broken([])]
        limit = QUIET_SECONDS.get(self.phase)
        begun = self.replicas.whole() is not None
        if begun or limit is None or self.now - self.last_sign < limit:
            return actions
        what = f"No sign of progress for {limit:.0f} s in phase {self.phase}.{self._awaited()}"
        return [*actions, *self.fail("launch", what)]

    def _awaited(self) -> str:
        """Whom the phase waits for, as a sentence with a blank before it; empty where it cannot be told."""
        if self.phase == "agents":
            return f" No word from the agent on {', '.join(n for n in self.agents if n not in self.ground.joined)}."
        return f" Not answered: {', '.join(sorted(self.waiting))}." if self.waiting else ""


def _tells(line: str) -> bool:
    """Whether a line of a log can change anything while what wrote it serves."""
    plain = strip_colour(line)
    return (
        plain.startswith((EVENT_MARK, '{"event"'))
        or STARTED in plain
        or rank_seen(plain) is not None
        or phase_seen(plain) is not None
    )

"""One replica's life as a pure state machine inside that of the deployment: its engine groups, one after the other.

    waiting -> ports -> ray ... serving -> fencing -> ports -> ray ... serving
                                              |-> failed | drained | gone

A replica starts, fails, is fenced and is replaced as a whole, and concerns no other one. `launch.steps` routes to it what
is its own, tells the time, and decides what its end means for the deployment.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.finding import Finding
from longspan.launch import commands
from longspan.launch.actions import Action, Call, SetGateway, call_to
from longspan.launch.checkpoint import CheckpointDigest
from longspan.launch.failure import Failure, FailureKind
from longspan.launch.fence import MAX_RESTARTS, PAUSE_SECONDS, SETTLED_SECONDS, Fence
from longspan.launch.group import Group, GroupPhase
from longspan.launch.lost_node import LostNode
from longspan.launch.run_dir import Paths, Ports
from longspan.launch.traffic import CHANGE, SCALE, Traffic
from longspan.launch.trial import Next, Trial

ReplicaPhase = Literal["waiting", "ports", GroupPhase, "fencing", "failed", "drained", "gone"]
# Streams of a long answer may go on for minutes; who drains a node waits for it.
DRAIN_SECONDS = 600.0
# What follows once the group has ended everywhere.
Then = Literal["ports", "failed", "drained", "gone"]
# Neither a group nor a way to one: the operator decides.
AT_REST = frozenset({"waiting", "failed", "drained", "gone"})
MAX_RESTARTS_TOLD = 100


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a specification's checkpoint: node -> its copy; node -> what one rank says of it; whose word counts."""

    digests: dict[str, CheckpointDigest | None]
    references: dict[str, Any]
    yardstick: str


@dataclass(slots=True)
class Ground:
    """What all replicas of a deployment stand on; `launch.steps` keeps it true.

    Attributes:
        starts: how many groups were started or ended; each has a number of its own, by which all that is its own is told.
        ports: node -> its free ports, as it named them last; of a head also those of its first group.
        joined: agents that answer; lost: hosts that are being brought back; rayless: nodes whose Ray is.
        references: node -> what one rank says there of the checkpoint; what one replica learned holds for all.
        yardstick: the node whose reference is asked for.
        known: the same of later specifications, by their identity.
    """

    paths: Paths
    mark: str
    yardstick: str
    ray_address: str = ""
    gateway_up: bool = False
    starts: int = 0
    began: float = 0.0
    digests: dict[str, CheckpointDigest | None] = field(default_factory=dict)
    ports: dict[str, Ports] = field(default_factory=dict)
    joined: set[str] = field(default_factory=set)
    lost: dict[str, LostNode] = field(default_factory=dict)
    rayless: set[str] = field(default_factory=set)
    references: dict[str, Any] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)

    def of(self, spec: DeploymentSpec) -> Known:
        """What is known of a specification's checkpoint."""
        return self.known.get(spec.identity) or Known(self.digests, self.references, self.yardstick)

    def next_start(self) -> int:
        """A number that no other group of this deployment has."""
        self.starts += 1
        return self.starts


@dataclass(slots=True)
class Replica:
    """The state of one replica. What it is told to do returns actions; `problem` says that it needs a decision.

    Attributes:
        spec: what it sees: itself alone, on its own GPUs.
        epoch: the number of its group, or of the one to come; its calls and processes are told by it.
        since: when its phase began; last_sign: of life, while it is on its way.
        followed: how much of the group's timeline has been taken over.
        problem: what its group failed of, until `launch.steps` has decided; failure: why it is given up.
        restarts: when the engine was fenced once it had served, and why; tries: those since it last settled.
        then: what follows the end of the group that is being fenced.
        leaving: it is drained for good.
        draining_since: since when the gateway sends it nothing new, so that its GPUs can be released.
        held: ports of a group that waits for Ray on its nodes.
        next: what it is started with once its group has ended; trial: of the engine that it has, while that is not trusted.
    """

    name: str
    spec: DeploymentSpec
    ground: Ground
    phase: ReplicaPhase = "waiting"
    epoch: int = 0
    since: float = 0.0
    last_sign: float = 0.0
    group: Group | None = None
    followed: int = 0
    fence: Fence | None = None
    then: Then = "ports"
    waiting: set[str] = field(default_factory=set)
    traffic: Traffic = field(init=False)
    problem: Failure | None = None
    failure: Failure | None = None
    restarts: list[tuple[float, str]] = field(default_factory=list)
    tries: int = 0
    leaving: bool = False
    draining_since: float | None = None
    held: Ports | None = None
    next: Next | None = None
    trial: Trial | None = None
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.traffic = Traffic(self.name)

    # ---- helpers
    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes that hold its ranks, the first rank's first."""
        return self.spec.used_nodes()

    @property
    def head(self) -> NodeSpec:
        """The node of its rank 0."""
        return self.nodes[0]

    def is_on(self, node: str) -> bool:
        """Whether one of its ranks belongs on a node."""
        return any(one.name == node for one in self.nodes)

    @property
    def is_at_rest(self) -> bool:
        """It has no engine and is on its way to none."""
        return self.phase in AT_REST

    @property
    def group_id(self) -> str:
        """See `commands.group_id`."""
        return commands.group_id(self.ground.mark, self.epoch)

    def awaits(self, call: str) -> bool:
        """Whether a call's answer is for it."""
        return (
            call in self.waiting
            or (self.group is not None and call in self.group.waiting)
            or (self.fence is not None and call in self.fence.waiting)
        )

    def _enter(self, phase: ReplicaPhase, now: float) -> None:
        self.phase = phase
        self.since = self.last_sign = now

    # ---- the way up
    def begin(self, now: float, ports: Ports | None = None) -> list[Action]:
        """Its first group, or one after it was at rest; ports that are known need not be asked for."""
        self.failure = None
        self.tries = 0
        return self._begin(self.ground.next_start(), now, ports)

    def _begin(self, epoch: int, now: float, ports: Ports | None) -> list[Action]:
        self.epoch = epoch
        if ports is None:
            self._enter("ports", now)
            arguments = {"address": self.head.address, "count": len(Ports._fields)}
            call = call_to(self.head.name, "ports", arguments, epoch)
            self.waiting = {call.call}
            return [call]
        ground = self.ground
        checkpoint = ground.of(self.spec)
        # Ray goes on where it is.
        known = ground.ports.get(self.head.name, ports)
        self.group = Group(
            self.spec, ground.paths, ground.mark, ground.ray_address, ports._replace(ray=known.ray), checkpoint.digests, now,
            gateway_up=ground.gateway_up, epoch=epoch, replica=self.name, references=checkpoint.references,
            yardstick=checkpoint.yardstick,
        )  # fmt: skip
        self.followed = 0
        self._enter("ray", now)
        return [*self.group.start()]

    def follow(self, actions: list[Action]) -> list[Action]:
        """Takes over what the group has come to; `actions` are what it wants done."""
        group = self.group
        assert group is not None
        for phase, at in group.timeline[self.followed :]:
            self._enter(phase, at)
            if phase == "serving" and not self.traffic.is_free:
                ready = SetGateway("ready", replica=self.name)
                actions = [*(one for one in actions if one != ready), *self._setting(at)]
        self.followed = len(group.timeline)
        self.findings += group.findings
        group.findings.clear()
        if group.failure:
            self.problem = group.failure
        return actions

    def answered(self, call: str, value: Any, error: str, now: float) -> list[Action]:
        """The answer to one of its calls."""
        self.last_sign = now
        if self.fence and call in self.fence.waiting:
            return self._fenced(self.fence.answered(call, value, error, now), now)
        if self.group and call in self.group.waiting:
            return self.follow(self.group.answered(call, value, error, now))
        self.waiting.discard(call)
        if error:
            text = f"{self.head.name} has no ports for the engine: {error}"
            self.problem = Failure("host", self.phase, text)
            return []
        self.held = Ports(*value)
        return self._begin_held(now)

    def _begin_held(self, now: float) -> list[Action]:
        """The group whose ports are known, as soon as Ray runs where it belongs."""
        if self.held is None or self._rayless:
            return []
        ports, self.held = self.held, None
        return self._begin(self.epoch, now, ports)

    @property
    def _rayless(self) -> set[str]:
        return self.ground.rayless & {node.name for node in self.nodes}

    # ---- the way down
    def failed(self, kind: FailureKind, what: str, remedy: str, now: float) -> list[Action]:
        """Fences the group and lets a next one start; gives up, by `failure`, where that was tried often enough."""
        if self.phase == "serving" and now - self.since >= SETTLED_SECONDS:
            self.tries = 0
        self.traffic.hold(CHANGE, "restore", all_of_it=False)
        if self.trial and kind not in {"host", "ray"}:  # these say nothing of what runs there
            return self._go_back(self.trial, what, now)
        if kind == "proof" or self.tries >= MAX_RESTARTS:
            before = f" It had been restarted {self.tries} times before." if self.tries else ""
            self.failure = Failure(kind, self.phase, f"{what}{before}", remedy)
            return []
        pause = PAUSE_SECONDS[self.tries]
        self.tries += 1
        self._note_restart(what, now)
        out = SetGateway("out", f"the engine is being restarted: {what}", self.name)
        # What was to be drained has nothing left to finish.
        return [out, *self._end(self._then(), now, pause, collect=True)]

    def _note_restart(self, why: str, now: float) -> None:
        self.restarts.append((now, why))
        del self.restarts[:-MAX_RESTARTS_TOLD]

    def _then(self) -> Then:
        return "gone" if self.leaving else "drained" if self.traffic.is_draining else "ports"

    def _go_back(self, trial: Trial, what: str, now: float) -> list[Action]:
        """The changed engine failed: the one before is started again, or one that was there for the change only leaves."""
        trial.failed = what
        self.tries = 0
        self.next = Next(trial.old) if trial.old else None
        self.leaving = self.leaving or trial.old is None
        self._note_restart(what, now)
        out = SetGateway("out", f"the change is taken back: {what}", self.name)
        return [out, *self._end(self._then(), now, 0.0, collect=True)]

    def change(self, wanted: Next, now: float) -> list[Action]:
        """Starts it with another specification: once its streams have ended, or where it is at rest the next time."""
        self.next = wanted
        if self.phase == "serving":
            self.traffic.hold(CHANGE, "drain", all_of_it=False)
            return self._setting(now)
        if self.is_at_rest:
            self._take_next()
            return []
        return [] if self.fence else self.release(now)  # on its way up it has no streams

    def _take_next(self) -> None:
        if self.next:
            self.spec, self.trial, self.next = self.next.spec, self.next.trial, None
            self.tries = 0

    def abandon(self, now: float) -> list[Action]:
        """It is given up while others serve: its processes end, and it stays out until it is restored."""
        assert self.failure is not None
        out = SetGateway("out", f"given up: {self.failure.what}", self.name)
        return [out, *self._end("failed", now, 0.0, collect=self.failure.kind != "proof")]

    def release(self, now: float) -> list[Action]:
        """Nothing of its streams is left: its GPUs are given back, or hold what comes next."""
        self.traffic.hold(CHANGE, "restore", all_of_it=False)
        then = self._then() if self.next else "gone" if self.leaving else "drained"
        why = "it is being changed" if then == "ports" else "drained: its GPUs are released"
        return [SetGateway("out", why, self.name), *self._end(then, now, 0.0, collect=False)]

    def leave(self, now: float) -> list[Action]:
        """It is not wanted any more: as soon as its streams have ended, so does it."""
        self.leaving = True
        self.traffic.hold(SCALE, "drain", all_of_it=False)
        if self.phase == "serving":
            return self._setting(now)
        if self.fence:
            self.then = "gone"
            self.fence.next_wanted = False
            return self._fenced(self.fence.tick(now), now)
        if self.is_at_rest:
            self._enter("gone", now)
            return [SetGateway("gone", replica=self.name)]
        return self.release(now)  # on its way up it has no streams

    def stay(self, now: float) -> list[Action]:
        """It is wanted after all; one whose end has begun comes back after it."""
        self.leaving = False
        self.traffic.hold(SCALE, "restore", all_of_it=False)
        return self._setting(now) if self.phase == "serving" else []

    def _end(self, then: Then, now: float, pause: float, *, collect: bool) -> list[Action]:
        if self.group:
            self.group.waiting.clear()
        self.waiting.clear()
        self.held = None
        self.traffic.forget_engine()
        self.draining_since = None
        self.then = then
        epoch = self.ground.next_start()
        own = {node.name for node in self.nodes}
        self.fence = Fence(
            self.nodes, self.ground.mark, self.group_id, epoch, self.spec.joins_ray, now,
            now + pause, len(Ports._fields), absent=self.ground.lost.keys() & own, rayless=self._rayless,
            next_wanted=then == "ports",
        )  # fmt: skip
        evidence = self._collect(epoch, now) if collect else []
        self._enter("fencing", now)
        return self._fenced(self.fence.begin(evidence), now)

    def _collect(self, epoch: int, now: float) -> list[Call]:
        ranks = self.group.ranks if self.group else {}
        calls = []
        for node in self.nodes:
            if node.name in self.ground.joined:
                pids = {str(s.pid): rank for rank, s in ranks.items() if s.address == node.address}
                arguments = collect_arguments(self.spec, self.ground, node, pids, now)
                calls.append(call_to(node.name, "collect", arguments, epoch))
        return calls

    def _fenced(self, actions: list[Action], now: float) -> list[Action]:
        """What follows from the fence's news."""
        fence = self.fence
        assert fence is not None
        if fence.broken:
            self.fence = None
            self.failure = Failure(
                "host", self.phase, f"The engine cannot be restarted: {fence.broken}.",
                "Its GPUs may still be in use: look at that host first.",
            )  # fmt: skip
            self._enter("failed", now)
            return [*actions, SetGateway("out", self.failure.what, self.name)]
        if fence.step != "done":
            return actions
        self.fence = None
        self.group = None
        self._take_next()
        if self.then == "ports":
            return [*actions, *self._begin(fence.epoch, now, Ports(*fence.ports))]
        self._enter(self.then, now)
        if self.then == "gone":
            return [*actions, SetGateway("gone", replica=self.name)]
        return actions

    def halt(self) -> None:
        """The deployment ends: nothing of this is waited for any more."""
        self.fence = None
        self.waiting.clear()
        if self.group:
            self.group.waiting.clear()

    # ---- hosts that come and go
    def lost(self, node: str, now: float) -> list[Action]:
        """A host of a group that is being ended is gone."""
        assert self.fence is not None
        return self._fenced(self.fence.lost(node, now), now)

    def returned(self, node: str, now: float) -> list[Action]:
        """It is back, and offers its GPUs to Ray."""
        return self._fenced(self.fence.returned(node, now), now) if self.fence else []

    def ray_lost(self, node: str) -> None:
        """Ray is away on a node of a group that is being ended."""
        if self.fence:
            self.fence.rayless.add(node)

    def ray_returned(self, node: str, now: float) -> list[Action]:
        """Ray runs there again."""
        if self.fence:
            return self._fenced(self.fence.ray_returned(node, now), now)
        return self._begin_held(now)

    # ---- traffic
    def _setting(self, now: float) -> list[Action]:
        self.draining_since = (self.draining_since or now) if self.traffic.is_draining else None
        return [self.traffic.setting()]

    def suspect(self, subject: str, reason: str, now: float) -> list[Action]:
        """Out of traffic while anything speaks against it, and back once nothing does."""
        changed = self.traffic.suspect(subject, reason, now)
        return self._setting(now) if changed and self.phase == "serving" else []

    def wish(self, subject: str, wish: str, now: float) -> list[Action]:
        """The operator's drain, isolate or restore. What was drained or has failed is started again by a restore."""
        self.traffic.hold(subject, wish, all_of_it=subject == self.name)
        if wish == "restore" and not self.traffic.is_draining:
            if self.phase in {"drained", "failed"}:
                return self.begin(now)
            if self.fence and self.then == "drained":
                self.then, self.fence.next_wanted = "ports", True
        return self._setting(now) if self.phase == "serving" else []

    def drained(self, now: float) -> list[Action]:
        """The gateway has none of its requests any more."""
        return self.release(now) if self.phase == "serving" and self.traffic.is_draining else []

    # ---- time
    def tick(self, now: float) -> list[Action]:
        """Time passed; `problem` tells of a suspicion that has lasted."""
        if self.fence:
            return self._fenced(self.fence.tick(now), now)
        if self.phase != "serving":
            return []
        if self.draining_since is not None and now - self.draining_since >= DRAIN_SECONDS:
            text = f"{self.name} still had requests {DRAIN_SECONDS / 60:.0f} minutes after it was drained; they were cut off."
            self.findings.append(Finding(self.name, "warning", "drain-cut-off", text))
            return self.release(now)
        if self.traffic.is_convicted(now):
            what = f"The engine was out of traffic for too long: {self.traffic.against_engine}."
            self.problem = Failure("launch", self.phase, what)
        return []


def collect_arguments(
    spec: DeploymentSpec, ground: Ground, node: NodeSpec, pids: dict[str, int], now: float
) -> dict[str, Any]:
    """Of the call for the stacks, sockets and counters of what runs on a node. pids: its ranks' -> their numbers."""
    return {
        "name": node.name, "mark": ground.mark, "joined": spec.joins_ray, "pids": pids, "tp": spec.tp,
        "age_seconds": now - ground.began,
    }  # fmt: skip

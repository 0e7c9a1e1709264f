"""All replicas of a deployment together: pure. Each is a machine of its own (`replica.py`); here is what concerns several.

Which of them an event is about, where the deployment stands as a whole, how many there are to be, and whether the end of one is the
end of all, which `doom` tells `launch.steps`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from longspan.deployment import DeploymentSpec
from longspan.finding import Finding
from longspan.launch.actions import Action, SetGateway
from longspan.launch.failure import Failure, FailureKind
from longspan.launch.group import GroupPhase
from longspan.launch.replica import Ground, Replica
from longspan.launch.traffic import CHANGE, ENGINE, WISHES

GROUP_PHASES: tuple[GroupPhase, ...] = get_args(GroupPhase)
# How far a replica is on its way; of several on theirs the least advanced tells where the launch stands.
_WAY: tuple[str, ...] = ("waiting", "failed", "drained", "fencing", "ports", *GROUP_PHASES)
# How long a phase may show no sign of life. The engine's is long: weights of hundreds of GiB load in silence, and
# a process that dies ends the wait at once anyway.
QUIET_SECONDS: dict[str, float] = {
    "ports": 60, "ray": 180, "reservation": 180, "engine": 1800, "gateway": 60, "first token": 300, "verified": 1800,
}  # fmt: skip


@dataclass(slots=True)
class Replicas:
    """The replicas by name; those that are gone are left out.

    Attributes:
        wanted: how many there are to be.
        served: all of the launch were verified once: from then on each lives by itself.
        doom: why the deployment cannot go on; nothing is decided here any more once it is set.
    """

    spec: DeploymentSpec
    ground: Ground
    by_name: dict[str, Replica] = field(default_factory=dict)
    wanted: int = 1
    served: bool = False
    doom: Failure | None = None
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.wanted = self.spec.replicas
        for number in range(self.wanted):
            self._add(number)

    # ---- who there is
    def __iter__(self) -> Iterator[Replica]:
        """Those of now, whatever becomes of them meanwhile."""
        return iter(list(self.by_name.values()))

    def __len__(self) -> int:
        return len(self.by_name)

    def get(self, name: str) -> Replica | None:
        """One by its name."""
        return self.by_name.get(name)

    def of(self, epoch: int) -> Replica | None:
        """Whose group has this number and is not being ended."""
        return next((one for one in self.by_name.values() if one.epoch == epoch and not one.fence), None)

    def least_advanced(self) -> Replica | None:
        """The one that has the longest way to go; None where all are at rest."""
        under_way = [one for one in self if not one.is_at_rest]
        return min(under_way, key=lambda one: _WAY.index(one.phase), default=None)

    @property
    def phases(self) -> list[str]:
        """Where each stands."""
        return [one.phase for one in self.by_name.values()]

    @property
    def suspected(self) -> dict[str, str]:
        """Nodes and replicas that something speaks against -> what."""
        return {
            one.name if subject == ENGINE else subject: reason
            for one in self
            for subject, reason in one.traffic.suspicions.items()
        }

    @property
    def held(self) -> dict[str, str]:
        """What the operator keeps out of traffic -> "drain" or "isolate"."""
        return {name: wish for one in self for name, wish in one.traffic.held.items() if name != CHANGE}

    @property
    def restarts(self) -> list[tuple[float, str, str]]:
        """(time, replica, reason) of all of them, in their order."""
        return sorted((at, one.name, why) for one in self for at, why in one.restarts)

    @property
    def subjects(self) -> tuple[str, ...]:
        """What the operator can take out of traffic: replicas, and the nodes that hold their ranks."""
        return (*self.by_name, *dict.fromkeys(node.name for one in self for node in one.nodes))

    def whole(self) -> str | None:
        """Where the deployment as a whole stands; None before the first group begins."""
        phases = self.phases
        if "waiting" in phases:
            return None
        if all(phase == "serving" for phase in phases):
            self.served = True
        if "serving" in phases and self.served:
            return "serving"
        if set(phases) <= {"drained", "failed"}:
            return "drained"
        # Until all have served the least advanced counts, afterwards the one that will serve first.
        found = (max if self.served else min)(phases, key=_WAY.index)
        return "ray" if found == "ports" else found

    # ---- coming and going
    def _add(self, number: int) -> Replica:
        replica = Replica(f"r{number}", self.spec.of_replica(number), self.ground)
        self.by_name[replica.name] = replica
        return replica

    def _start(self, number: int, now: float) -> list[Action]:
        replica = self._add(number)
        return self.after(replica, replica.begin(now), now)

    def begin(self, now: float) -> list[Action]:
        """Ray answers: every group begins; the first one's ports are known."""
        actions: list[Action] = []
        for number, replica in enumerate(self):
            ports = self.ground.ports[replica.head.name] if number == 0 else None
            actions += self.after(replica, replica.begin(now, ports), now)
        return actions

    def scale(self, wanted: int, now: float) -> list[Action]:
        """More on the nodes that were checked for them, or fewer: the last ones leave once their streams have ended."""
        if not self.served or not 1 <= wanted <= self.spec.max_replicas:
            return []
        self.wanted = wanted
        actions: list[Action] = []
        for number in range(self.spec.max_replicas):
            replica = self.get(f"r{number}")
            if number < wanted and replica is None:
                actions += self._start(number, now)
            elif replica is None:
                continue
            elif number < wanted and replica.leaving:
                actions += self.after(replica, replica.stay(now), now)
            elif number >= wanted and not replica.leaving:
                actions += self.after(replica, replica.leave(now), now)
        return actions

    def halt(self) -> None:
        """The deployment ends."""
        for replica in self:
            replica.halt()

    # ---- news
    def after(self, replica: Replica, actions: list[Action], now: float) -> list[Action]:
        """Takes over a replica's news; `actions` are what it wants done."""
        self.findings += replica.findings
        replica.findings.clear()
        problem, replica.problem = replica.problem, None
        if problem:
            actions = [*actions, *self.failed(replica, problem.kind, problem.what, problem.remedy, now)]
        elif replica.phase == "failed" and replica.failure and not self._others(replica):
            self.doom = replica.failure  # what could not be ended, while nobody else serves
        if replica.phase == "gone" and replica.name in self.by_name:
            del self.by_name[replica.name]
            number = int(replica.name[1:])
            if number < self.wanted:
                actions = [*actions, *self._start(number, now)]
        for other in self:
            if self.doom:
                break
            # What one's reference says, others may be waiting for.
            if other is not replica and other.phase == "verified" and other.group and not other.fence:
                actions = [*actions, *other.follow(other.group.judge(now))]
                if other.problem:
                    actions = self.after(other, actions, now)
        return actions

    def _others(self, replica: Replica) -> bool:
        """Whether any other one serves or is on its way to it."""
        return any(not one.is_at_rest for one in self if one is not replica)

    def failed(self, replica: Replica, kind: FailureKind, what: str, remedy: str, now: float) -> list[Action]:
        """Its group is fenced and a next one started, while others go on; the launch or the last one takes all with it."""
        if not self.served:
            text = f"{replica.name}: {what}" if len(self) > 1 else what
            self.doom = Failure(kind, replica.phase, text, remedy)
            return []
        actions = replica.failed(kind, what, remedy, now)
        if replica.failure is None:
            return self.after(replica, actions, now)
        gave_up = replica.failure
        if not self._others(replica):
            self.doom = gave_up
            return []
        text = f"{replica.name} was given up and stays out of traffic: {gave_up.what}"
        remedy = f"{gave_up.remedy} `longspan restore {replica.name}` starts it again.".lstrip()
        self.findings.append(Finding(replica.name, "error", "replica-given-up", text, remedy=remedy))
        return self.after(replica, [*actions, *replica.abandon(now)], now)

    def answered(self, call: str, value: Any, error: str, now: float) -> list[Action] | None:
        """The answer to one of their calls; None where it is nobody's."""
        for replica in self:
            if replica.awaits(call):
                return self.after(replica, replica.answered(call, value, error, now), now)
        return None

    def gateway_listens(self, now: float) -> list[Action]:
        """It can be asked from now on."""
        actions: list[Action] = []
        for replica in self:
            if replica.group and not replica.fence and not self.doom:
                found = replica.follow(replica.group.gateway_listens(now))
                actions += self.after(replica, found, now)
        return actions

    # ---- traffic
    def suspect(self, subject: str, reason: str, now: float) -> list[Action]:
        """Takes those concerned out of traffic while anything speaks against them, and back once nothing does."""
        actions: list[Action] = []
        for replica in self:
            if subject == replica.name and replica.phase == "serving":
                actions += replica.suspect(ENGINE, reason, now)
            elif replica.is_on(subject):
                actions += replica.suspect(subject, reason, now)
        return actions

    def wish(self, subject: str, wish: str, now: float) -> list[Action]:
        """A replica lives and is kept out of traffic as a whole, so a node means all that have ranks there."""
        if wish not in WISHES:
            return []
        actions: list[Action] = []
        for replica in self:
            if (subject == replica.name or replica.is_on(subject)) and replica.phase != "waiting":
                actions += self.after(replica, replica.wish(subject, wish, now), now)
        return actions

    def drained(self, name: str, now: float) -> list[Action]:
        """The gateway has none of its requests any more."""
        replica = self.get(name)
        return self.after(replica, replica.drained(now), now) if replica else []

    def out(self, reason: str) -> list[Action]:
        """All of them out of traffic."""
        return [SetGateway("out", reason, name) for name in self.by_name]

    # ---- hosts that come and go
    def node_lost(self, node: str, what: str, remedy: str, now: float) -> list[Action]:
        """Those that have ranks there are ended where somebody answers."""
        actions: list[Action] = []
        for replica in self:
            if self.doom or not replica.is_on(node):
                continue
            if replica.fence:
                actions += self.after(replica, replica.lost(node, now), now)
            elif not replica.is_at_rest:
                actions += self.failed(replica, "host", what, remedy, now)
        return actions

    def node_returned(self, node: str, now: float) -> list[Action]:
        """It is back, and offers its GPUs to Ray."""
        actions: list[Action] = []
        for replica in self:
            if replica.is_on(node) and not self.doom:
                actions += self.after(replica, replica.returned(node, now), now)
        return actions

    def ray_lost(self, nodes: Sequence[str], what: str, now: float) -> list[Action]:
        """Ray is away there: groups with ranks there are ended, and none begins before it is back."""
        actions: list[Action] = []
        for replica in self:
            where = [node for node in nodes if replica.is_on(node)]
            if self.doom or not where:
                continue
            if replica.fence:
                for node in where:
                    replica.ray_lost(node)
            elif replica.group and not replica.is_at_rest:
                actions += self.failed(replica, "ray", what, "", now)
        return actions

    def ray_returned(self, node: str, now: float) -> list[Action]:
        """Ray runs there again."""
        actions: list[Action] = []
        for replica in self:
            if replica.is_on(node) and not self.doom:
                actions += self.after(replica, replica.ray_returned(node, now), now)
        return actions

    # ---- time
    def tick(self, now: float) -> list[Action]:
        """Time passed for each."""
        actions: list[Action] = []
        for replica in self:
            actions += self.after(replica, replica.tick(now), now)
            limit = QUIET_SECONDS.get(replica.phase)
            waits = replica.held is not None  # for Ray, with whose patience
            if not self.doom and not waits and limit is not None and now - replica.last_sign >= limit:
                group = replica.group
                where = group.engine_phase if group and replica.phase == "engine" else replica.phase
                what = f"No sign of progress for {limit:.0f} s in phase {where}.{group.awaited() if group else ''}"
                actions += self.failed(replica, "launch", what, "", now)
            if self.doom:
                break
        return actions

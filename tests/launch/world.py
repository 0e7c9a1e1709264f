"""A cluster that does what `Steps` wants, in simulated time: answers calls, lets processes say what real ones say, and can be
broken. What must hold at every moment is checked as it happens."""

import heapq
import json
from dataclasses import dataclass, field
from typing import Any

from driving import FACTS, copy, evidence, launcher_line, reference

from longspan.deployment import DeploymentSpec
from longspan.launch.actions import (
    Action,
    Ask,
    Call,
    SetGateway,
    Start,
    StartAgent,
    StartAgents,
    StopAll,
    Sweep,
)
from longspan.launch.commands import named
from longspan.launch.events import (
    AgentJoined,
    AgentSilent,
    Answered,
    Drained,
    Event,
    Exited,
    Lines,
    StartFailed,
    Tick,
)
from longspan.launch.steps import FRONT, SILENT_SECONDS, Steps

# A good cluster's delays in seconds.
CALL_SECONDS = 0.05
LOAD_SECONDS = 30.0


@dataclass(slots=True)
class World:
    """The machine and its world.

    Attributes:
        queue: (when, number, event): what will happen.
        live: epoch -> node -> ranks of a group whose processes run there.
        gateway: replica -> what the gateway was told last.
        streams: replica -> until when the gateway has requests of it running.
        rays: node -> the process name of the Ray that runs there. silent: agent -> since when it is not heard.
        dead: nodes that answer nothing. broken: replicas whose engines end while they load. lying: those whose answers are wrong.
        mute: nodes whose Ray does not start. stubborn: nodes whose old Ray does not end.
        faulty: specifications, by identity, whose engines end while they load; wrong: those whose answers are.
        standbys: where second gateways were started, and their processes' names.
    """

    machine: Steps
    now: float = 0.0
    queue: list[tuple[float, int, Event]] = field(default_factory=list)
    numbers: int = 0
    ports: int = 7000
    live: dict[int, dict[str, int]] = field(default_factory=dict)
    gateway: dict[str, str] = field(default_factory=dict)
    streams: dict[str, float] = field(default_factory=dict)
    rays: dict[str, str] = field(default_factory=dict)
    silent: dict[str, float] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    lying: set[str] = field(default_factory=set)
    mute: set[str] = field(default_factory=set)
    stubborn: set[str] = field(default_factory=set)
    faulty: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)
    standbys: list[tuple[str, str]] = field(default_factory=list)
    events: int = 0

    # ---- time
    def begin(self) -> None:
        """The first actions."""
        self._do(self.machine.begin(self.now))

    def later(self, seconds: float, event: Event) -> None:
        """Something will happen."""
        self.numbers += 1
        heapq.heappush(self.queue, (self.now + seconds, self.numbers, event))

    def run(self, seconds: float, tick_seconds: float = 1.0) -> None:
        """Lets time pass, with the controller's clock in it."""
        end = self.now + seconds
        while self.now < end:
            until = min(end, self.now + tick_seconds)
            while self.queue and self.queue[0][0] <= until:
                self.now = max(self.now, self.queue[0][0])
                self.tell(heapq.heappop(self.queue)[2])
            self.now = until
            self._drain()
            self._miss()
            self.tell(Tick())

    def tell(self, event: Event) -> None:
        """One event, its actions carried out."""
        self.events += 1
        self._do(self.machine.handle(event, self.now))
        self.check()

    def _miss(self) -> None:
        """As the controller does: an agent that was heard of and is silent is missed."""
        for node in self.machine.agents:
            if node not in self.dead or node not in self.machine.ground.joined:
                self.silent.pop(node, None)
            elif self.now - self.silent.setdefault(node, self.now) >= SILENT_SECONDS:
                self.tell(AgentSilent(node, self.now - self.silent[node]))

    def _drain(self) -> None:
        """As the controller does: what the gateway is done with is told."""
        for name, replica in list(self.machine.replicas.by_name.items()):
            done = self.streams.get(name, 0.0) <= self.now and self.gateway.get(name) != "ready"
            if replica.draining_since is not None and done:
                self.tell(Drained(name))

    # ---- what the cluster does
    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, StartAgents | StartAgent):
                names = self.machine.agents if isinstance(action, StartAgents) else [action.node]
                for name in names:
                    dead = name in self.dead
                    self.later(0.5, StartFailed(name, "no route") if dead else AgentJoined(name))
            elif isinstance(action, SetGateway):
                assert not (self.machine.stopping and action.state == "ready"), action
                self.gateway[action.replica] = action.state
            elif isinstance(action, Ask):
                lies = action.replica in self.lying or self._identity(action.replica) in self.wrong
                value = (
                    {"detail": "' Paris'"}
                    if action.what == "first_token"
                    else evidence(-3.0 if lies else -1.0)
                )
                self.later(CALL_SECONDS, Answered(action.call, value))
            elif isinstance(action, StopAll):
                self.later(CALL_SECONDS, Answered(f"stopped:{action.node}", {"left": []}))
            elif isinstance(action, Sweep) and action.node in self.dead:
                self.later(10.0, Answered(action.call, error="HostError: no route"))
            elif action.node not in self.dead:
                self._on_node(action)

    def _on_node(self, action: Call | Start | Sweep) -> None:
        """What an agent, or ssh, does there."""
        if isinstance(action, Start):
            self._start(action.node, action.process.name, action.process.stdin)
        elif isinstance(action, Call):
            value = self._answer(action.node, action.what, action.arguments)
            self.later(CALL_SECONDS, Answered(action.call, value))
        else:
            for nodes in self.live.values():
                nodes.pop(action.node, None)
            self.rays.pop(action.node, None)
            self.later(CALL_SECONDS, Answered(action.call, {"left": []}))

    def _answer(self, node: str, what: str, arguments: dict[str, Any]) -> Any:
        match what:
            case "facts":
                return FACTS
            case "ports":
                self.ports += 5
                return [self.ports + i for i in range(5)]
            case "digest":
                return copy()
            case "end_group" if "/ray" in arguments["group"]:
                if node in self.stubborn:
                    return {"left": [77]}
                if self.rays.get(node) == arguments["group"].partition("/")[2].partition("@")[0]:
                    del self.rays[node]
                return {"left": []}
            case "end_group":
                self.live.get(int(arguments["group"].rpartition("/")[2]), {}).pop(node, None)
                return {"left": []}
            case "ranks":
                epoch = int(arguments["group"].rpartition("/")[2])
                spec = self._spec(epoch)
                return {
                    str(1000 * epoch + r): [] for r, at in enumerate(spec.rank_nodes()) if at.name == node
                }
            case "reference":
                return reference(-1.0)
            case _:
                return {}

    def _spec(self, epoch: int) -> DeploymentSpec:
        return next(one.spec for one in self.machine.replicas if one.epoch == epoch)

    def _identity(self, replica: str) -> str:
        found = self.machine.replicas.get(replica)
        return found.spec.identity if found else ""

    def _start(self, node: str, name: str, stdin: str) -> None:
        what, epoch = named(name)
        if what == "standby":
            self.standbys.append((node, name))
        elif what == "gateway":
            self.later(0.2, Lines(FRONT, name, ('{"event": "listening", "address": "127.0.0.1:1"}',)))
        elif what == "ray":
            assert node not in self.rays, f"two Rays on {node}"
            head = self.machine.ray.head.name
            assert node == head or head not in self.machine.ground.rayless, f"{node} joins nothing"
            if node != head and head not in self.rays:  # it has ended just now
                self.later(5.0, Exited(node, name, 1))
                return
            assert node != head or not self.rays, f"an old Ray meets the new head: {self.rays}"
            if node in self.mute:
                return
            self.rays[node] = name
            self.later(2.0, Lines(node, name, ("Ray runtime started.",)))
        else:
            self._load(node, name, epoch, json.loads(stdin))

    def _load(self, node: str, name: str, epoch: int, wanted: dict[str, Any]) -> None:
        """The launcher: reservation, ranks, weights, ready."""
        spec = self._spec(epoch)
        where = {one.name for one in spec.used_nodes()}
        assert not where & self.machine.ground.rayless, "a group begins where Ray is known to be away"
        if not where <= self.rays.keys():
            self.later(5.0, Exited(node, name, 1))
            return
        addresses = wanted["rank_addresses"]
        replica = next(one.name for one in self.machine.replicas if one.epoch == epoch)
        ranks = [{"rank": r, "pid": 1000 * epoch + r, "address": a} for r, a in enumerate(addresses)]
        names = [at.name for at in spec.rank_nodes()]
        self.live[epoch] = {one: names.count(one) for one in names}
        self.later(
            1.0,
            Lines(
                node,
                name,
                (
                    launcher_line("gpus", have=len(ranks), want=len(ranks), nodes=[]),
                    launcher_line("reserved", placement_group="pg", bundles=addresses),
                ),
            ),
        )
        self.later(3.0, Lines(node, name, (launcher_line("ranks", ranks=ranks),)))
        if replica in self.broken or spec.identity in self.faulty:
            self.later(LOAD_SECONDS, Exited(node, name, 1))
        else:
            self.later(LOAD_SECONDS, Lines(node, name, ("INFO:     Application startup complete.",)))

    # ---- what breaks
    def kill_rank(self, replica: str) -> None:
        """One of its ranks ends; the launcher follows."""
        found = self.machine.replicas.get(replica)
        if found is None or found.epoch not in self.live:
            return
        suffix = "" if found.epoch == 1 else f".{found.epoch}"
        self.later(0.1, Exited(found.nodes[-1].name, f"rank{suffix}", -9))
        self.later(5.0, Exited(found.head.name, f"launcher{suffix}", 1))

    def lose(self, node: str) -> None:
        """Its host answers nothing; what ran there its agent has ended by the end of its lease."""
        self.dead.add(node)
        self.rays.pop(node, None)
        self.tell(AgentSilent(node, SILENT_SECONDS))

    def kill_ray(self, node: str) -> None:
        """Ray ends there; its ranks follow, and without the head all of it half a minute later, as far as it is not ended before."""
        if node in self.dead or node not in self.rays:
            return
        name = self.rays.pop(node)
        for replica in self.machine.replicas:
            if replica.is_on(node):
                self.kill_rank(replica.name)
        self.later(0.5, Exited(node, name, 1))
        if node == self.machine.ray.head.name:
            for other, named_so in self.rays.items():
                self.later(30.0, Exited(other, named_so, 1))

    # ---- what must hold at every moment
    def check(self) -> None:
        """Never two groups on one GPU; never traffic to what is not proved."""
        machine = self.machine
        used: dict[str, int] = {}
        for nodes in self.live.values():
            for node, ranks in nodes.items():
                used[node] = used.get(node, 0) + ranks
        for node in machine.spec.nodes:
            assert used.get(node.name, 0) <= node.gpus, (node.name, self.live)
        if machine.stopping:
            return
        for name, state in self.gateway.items():
            replica = machine.replicas.get(name)
            if state == "ready":
                assert replica is not None
                proved = replica.group is not None and replica.group.proof is not None
                assert replica.epoch == 1 or proved, (name, replica.phase)
                assert replica.phase == "serving" or not machine.replicas.served, (name, replica.phase)
            if replica is None:
                assert state in {"gone", "out"}
        again = [one.epoch for one in machine.replicas if one.phase != "waiting"]
        assert len(again) == len(set(again))

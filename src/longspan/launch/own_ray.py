"""The Ray that we start on the nodes, and how it is built again when a part of it ends while the deployment serves: pure.

Without its head (GCS) a Ray is none: what is left of it on every node is ended, then the head starts, then the others join. A node
whose own Ray ended loses only that: it is started there again. Groups with ranks where Ray is away wait for it (`Ground.rayless`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from longspan.deployment import DeploymentSpec, NodeSpec, RayPorts
from longspan.launch import commands
from longspan.launch.actions import Action, Call, Start, call_id, call_of
from longspan.launch.replica import Ground

STARTED = "Ray runtime started"
# As patient as with the first start; what is ended has 90 s in a fence, and Ray holds no GPU memory of its own.
QUIET_SECONDS = 180.0
# A Ray that ends for the fourth time within ten minutes would end again.
MAX_LOSSES = 3
WITHIN_SECONDS = 600.0

Step = Literal["ending", "held", "starting"]


@dataclass(slots=True)
class OwnRay:
    """Where Ray runs, and where it is on its way back.

    Attributes:
        starts: counts the starts; each has process names and ports of its own, as `RayPorts.flags` says why.
        epochs: node -> the start whose process is there now; what another one says is past.
        steps: node -> how far it is on its way back; none where Ray runs. "held": it waits for the head, or for its host.
        since: when the last step was taken.
        losses: when parts of it ended.
        broken: why it cannot be built again.
    """

    spec: DeploymentSpec
    ground: Ground
    token_file: str
    starts: int = 1
    epochs: dict[str, int] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    since: float = 0.0
    losses: list[float] = field(default_factory=list)
    broken: str = ""

    @property
    def nodes(self) -> Sequence[NodeSpec]:
        """Where it runs, the head first."""
        return self.spec.ray_nodes()

    @property
    def head(self) -> NodeSpec:
        """Where its GCS runs."""
        return self.nodes[0]

    def is_past(self, node: str, epoch: int) -> bool:
        """Whether a process is of a start that was given up."""
        return self.epochs.get(node, 1) != epoch

    # ---- starting
    def begin(self) -> list[Action]:
        """The first start: the head; the others join once it says that it runs."""
        fixed = RayPorts(self.spec.ray_first_port) if self.spec.ray_first_port else None
        port = fixed.gcs if fixed else self.ground.ports[self.head.name].ray
        self.ground.ray_address = f"{self.head.address}:{port}"
        return [self._start(self.head)]

    def _start(self, node: NodeSpec) -> Start:
        epoch = self.epochs.setdefault(node.name, 1)
        ports = self.ground.ports[node.name]
        process = commands.ray_start(
            node, head=node is self.head, head_address=self.head.address, port=int(self.ground.ray_address.rpartition(":")[2]),
            own_ports=(ports.ray_client, ports.ray_agent), temp_dir=self.ground.paths.ray_dir(node.name), token_file=self.token_file,
            fixed=RayPorts(self.spec.ray_first_port) if self.spec.ray_first_port else None, epoch=epoch,
            group=self.group(node.name, epoch),
        )  # fmt: skip
        return Start(node.name, process)

    def group(self, node: str, epoch: int | None = None) -> str:
        """What the processes of a start carry, by default of the last one there; nodes may share a machine."""
        if epoch is None:
            epoch = self.epochs.get(node, 1)
        return f"{self.ground.mark}/{commands.process_name('ray', epoch)}@{node}"

    def line(self, node: str, epoch: int, line: str, now: float) -> list[Action] | None:
        """A line of its log; None unless it says that Ray runs there now."""
        if STARTED not in line or self.is_past(node, epoch):
            return None
        if self.steps.get(node) == "starting":
            del self.steps[node]
            self.ground.rayless.discard(node)
            self.since = now
        if node != self.head.name:
            return []
        return self._join(now)

    def _join(self, now: float) -> list[Action]:
        """The head runs: the others start, but for hosts that are lost."""
        actions: list[Action] = []
        for node in self.nodes[1:]:
            first = node.name not in self.epochs
            if first or (self.steps.get(node.name) == "held" and node.name not in self.ground.lost):
                if not first:
                    self._step(node.name, "starting", now)
                actions.append(self._start(node))
        return actions

    def _step(self, node: str, step: Step, now: float) -> None:
        self.steps[node] = step
        self.since = now

    # ---- what ends
    def lost(self, node: str, now: float) -> list[str]:
        """Ray ended on a node: the nodes that are without it now. `rebuild` follows, once their groups have been told."""
        self.losses = [at for at in self.losses if now - at < WITHIN_SECONDS] + [now]
        if len(self.losses) > MAX_LOSSES:
            self.broken = f"Ray ended {len(self.losses)} times within {WITHIN_SECONDS / 60:.0f} minutes"
        self.starts += 1
        gone = [one.name for one in self.nodes] if node == self.head.name else [node]
        for name in gone:
            self._step(name, "held" if name in self.ground.lost else "ending", now)
        self.ground.rayless |= set(gone)
        return gone

    def rebuild(self, now: float) -> list[Action]:
        """Ends what is left of it where it was lost."""
        actions: list[Action] = []
        for node, step in self.steps.items():
            before = self.epochs.get(node, 1)
            if step != "ending" or before == self.starts:
                continue
            self.epochs[node] = self.starts
            call = call_id("end_ray", node, self.starts)
            self.waiting.add(call)
            arguments = {"group": self.group(node, before), "mark": self.ground.mark, "joined": False}
            actions.append(Call(call, node, "end_group", arguments))
        return actions or self._go_on(now)

    def answered(self, call: str, value: Any, error: str, now: float) -> list[Action]:
        """The answer to one of `waiting`."""
        self.waiting.discard(call)
        _, node = call_of(call)
        left = (value or {}).get("left", [])
        if error or left:
            why = error or f"pid {', '.join(map(str, left))} does not end"
            self.broken = f"what was left of Ray on {node} could not be ended: {why}"
            return []
        if self.steps.get(node) == "ending" and call == call_id("end_ray", node, self.epochs[node]):
            self._step(node, "held", now)
        return self._go_on(now)

    def _go_on(self, now: float) -> list[Action]:
        """The head as soon as nothing of the old Ray is left anywhere, which would meet it with another cluster's name; a node
        whose head runs, at once."""
        head = self.head.name
        if head not in self.steps:
            return self._join(now)
        if self.steps[head] == "held" and "ending" not in self.steps.values():
            self._step(head, "starting", now)
            return [self._start(self.head)]
        return []

    # ---- hosts that come and go
    def host_lost(self, node: str, now: float) -> list[Action]:
        """Nothing of it answers; what was asked of it is not waited for."""
        self.waiting = {call for call in self.waiting if call_of(call)[1] != node}
        if node not in self.steps:
            return []
        self._step(node, "held", now)
        return self._go_on(now)

    def host_back(self, node: str, now: float) -> list[Action]:
        """It was swept, and has an agent: its Ray joins, at once or as soon as there is a head."""
        self.starts += 1
        self.epochs[node] = self.starts
        if self.head.name in self.steps:
            self._step(node, "held", now)
            return []
        self.steps.pop(node, None)
        self.ground.rayless.discard(node)
        return [self._start(next(one for one in self.nodes if one.name == node))]

    # ---- time
    def tick(self, now: float) -> None:
        """Loses patience; a host that is lost is another's to wait for."""
        under_way = sorted(node for node, step in self.steps.items() if step != "held")
        if under_way and now - self.since > QUIET_SECONDS:
            self.broken = f"Ray did not come back on {', '.join(under_way)} within {QUIET_SECONDS:.0f} s"

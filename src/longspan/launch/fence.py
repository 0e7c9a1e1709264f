"""Ending one engine group that has served, so that the next one finds its GPUs free: pure.

First what explains the failure is collected, then each node ends the group's processes and gives their memory back, then
a pause that grows with each try. Nothing of the next group is started before every node has confirmed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from longspan.deployment import NodeSpec
from longspan.launch.actions import Action, Call, call_of, call_to

# An engine of 700 GB takes minutes to come up: who fails three times in a row will fail a fourth time.
MAX_RESTARTS = 3
PAUSE_SECONDS = (1.0, 10.0, 30.0)
# A group that served for so long starts with a clean record.
SETTLED_SECONDS = 600.0
COLLECT_SECONDS = 15.0
# A large engine needs some for its end, and the driver up to 30 s more for the memory.
END_SECONDS = 90.0
PORTS_SECONDS = 30.0

Step = Literal["collecting", "ending", "pausing", "ports", "done"]


@dataclass(slots=True)
class Fence:
    """One group's end. Over once `step` is "done"; `broken` says why it cannot be.

    Attributes:
        nodes: those that hold its ranks; the first one's new ports are asked for.
        group: what its processes carry in their environment.
        epoch: of the group to come; its calls are told by it.
        since: when the step began; `pause_until`: before that nothing is started.
        waiting: calls without an answer yet.
        absent: nodes that are lost. Their ranks are ended, and nothing starts before they are back.
        rayless: nodes without Ray, on which nothing starts either.
        lost_at: when they were first lost during this fence.
        ports: the new ones.
        next_wanted: whether another group is to start; without one it is over once every node has confirmed.
    """

    nodes: tuple[NodeSpec, ...]
    mark: str
    group: str
    epoch: int
    joined: bool
    since: float
    pause_until: float
    port_count: int
    step: Step = "collecting"
    waiting: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    rayless: set[str] = field(default_factory=set)
    lost_at: dict[str, float] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    broken: str = ""
    next_wanted: bool = True

    def begin(self, evidence: Sequence[Call]) -> list[Action]:
        """Asks for the evidence; where there is none to ask for, ends the group at once."""
        self.lost_at = dict.fromkeys(self.absent, self.since)
        self.waiting = {call.call for call in evidence}
        return [*evidence] or self._end(self.since)

    def _call(self, node: NodeSpec, what: str, arguments: dict[str, Any]) -> Call:
        call = call_to(node.name, what, arguments, self.epoch)
        self.waiting.add(call.call)
        return call

    def _end(self, now: float) -> list[Action]:
        self.step, self.since = "ending", now
        self.waiting.clear()
        arguments = {"group": self.group, "mark": self.mark, "joined": self.joined}
        calls = [
            self._call(node, "end_group", arguments) for node in self.nodes if node.name not in self.absent
        ]
        return [*calls] or self._ended_everywhere(now)

    def answered(self, call: str, value: Any, error: str, now: float) -> list[Action]:
        """The answer to one of `waiting`."""
        self.waiting.discard(call)
        what, node = call_of(call)
        match what:
            case "collect" if not self.waiting:
                return self._end(now)
            case "end_group":
                self._ended(node, value, error)
                if not self.waiting:
                    return self._ended_everywhere(now)
            case "ports" if error:
                self.broken = f"{node} has no ports for the next start: {error}"
            case "ports":
                self.ports = [int(port) for port in value]
                self._done_if_all_there()
        return []

    def _ended_everywhere(self, now: float) -> list[Action]:
        self.step, self.since = "pausing", now
        return self.tick(now)

    def lost(self, node: str, now: float) -> list[Action]:
        """A node that is lost answers nothing any more, and has no ranks."""
        self.absent.add(node)
        self.lost_at.setdefault(node, now)
        gone = {call for call in self.waiting if call_of(call)[1] == node}
        self.waiting -= gone
        if not gone or self.waiting:
            return []
        return self._end(now) if self.step == "collecting" else self._ended_everywhere(now)

    def returned(self, node: str, now: float) -> list[Action]:
        """It is back, and offers its GPUs to Ray."""
        self.absent.discard(node)
        self._done_if_all_there()
        return self.tick(now)

    def ray_returned(self, node: str, now: float) -> list[Action]:
        """Ray runs there again."""
        self.rayless.discard(node)
        self._done_if_all_there()
        return self.tick(now)

    def _done_if_all_there(self) -> None:
        """A host can be lost while the ports are asked for; nothing starts without it."""
        if self.step == "ports" and self.ports and not self.absent and not self.rayless:
            self.step = "done"

    def _ended(self, node: str, value: Any, error: str) -> None:
        left = (value or {}).get("left", [])
        if error:
            self.broken = f"{node} could not end what was left of the engine: {error}"
        elif left:
            pids = ", ".join(map(str, left))
            self.broken = f"pid {pids} on {node} does not end, even on SIGKILL, or keeps its GPU memory"

    def tick(self, now: float) -> list[Action]:
        """Time passed."""
        waited = now - self.since
        if self.step == "collecting" and waited > COLLECT_SECONDS:
            return self._end(now)
        if not self.next_wanted and self.step in {"pausing", "ports"} and not self.broken:
            self.step = "done"
            self.waiting.clear()
            return []
        if (
            self.step == "pausing"
            and now >= self.pause_until
            and not self.absent | self.rayless
            and not self.broken
        ):
            self.step, self.since = "ports", now
            head = self.nodes[0]
            return [self._call(head, "ports", {"address": head.address, "count": self.port_count})]
        limit = {"ending": END_SECONDS, "ports": PORTS_SECONDS}.get(self.step)
        if limit is not None and self.waiting and waited > limit:
            silent = ", ".join(sorted({call_of(call)[1] for call in self.waiting}))
            self.broken = f"{silent} did not answer within {limit:.0f} s"
        return []

"""Bringing back a host that was lost while its deployment served: pure.

Its agent has not answered for longer than its lease, so its ranks are ended, by the agent itself or because the host is gone.
Again and again: sweep it (what a lost agent left), start an agent, give it its files, join it to Ray.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from longspan.deployment import NodeSpec
from longspan.launch.actions import Action, Call, StartAgent, Sweep, call_id, call_of

RETRY_SECONDS = 30.0
# A server with eight GPUs takes five to ten minutes to boot.
GIVE_UP_SECONDS = 1800.0

Step = Literal["sweeping", "starting", "preparing", "back"]


@dataclass(slots=True)
class LostNode:
    """One host's way back. `step` is "back" once its Ray may be started; `broken` says why that cannot be.

    Attributes:
        number: of this loss, by which its calls are told from those of others.
        files: what its agent must write; port_count: how many ports are asked for.
        tried_at: when the last try began; None before the first, and once one has failed `RETRY_SECONDS` are waited for.
        ports: the new ones.
    """

    node: NodeSpec
    number: int
    since: float
    files: dict[str, str] = field(repr=False)
    port_count: int
    step: Step = "sweeping"
    tried_at: float | None = None
    waiting: set[str] = field(default_factory=set)
    ports: list[int] = field(default_factory=list)
    broken: str = ""

    def tick(self, now: float) -> list[Action]:
        """Begins the first try, and another one after each that failed."""
        if now - self.since > GIVE_UP_SECONDS:
            self.broken = f"{self.node.name} has not come back for {GIVE_UP_SECONDS / 60:.0f} minutes"
        if (
            self.broken
            or self.step == "back"
            or (self.tried_at is not None and now - self.tried_at < RETRY_SECONDS)
        ):
            return []
        if self.step == "preparing" or self.waiting:
            return []  # under way; a silent agent is another loss
        self.step, self.tried_at = "sweeping", now
        call = call_id("swept", self.node.name, self.number)
        self.waiting = {call}
        return [Sweep(self.node.name, call)]

    def failed(self) -> None:
        """The agent could not be started; `tick` tries again."""
        self.step = "sweeping"

    def joined(self) -> list[Action]:
        """Its agent answers."""
        if self.step != "starting":
            return []
        self.step = "preparing"
        name = self.node.name
        wanted: tuple[tuple[str, dict[str, Any]], ...] = (
            ("write", {"files": self.files}),
            ("ports", {"address": self.node.address, "count": self.port_count}),
        )
        # A replica that begins there meanwhile may ask for ports under the same number.
        calls = [
            Call(call_id(f"back-{what}", name, self.number), name, what, arguments)
            for what, arguments in wanted
        ]
        self.waiting = {call.call for call in calls}
        return [*calls]

    def answered(self, call: str, value: Any, error: str) -> list[Action]:
        """The answer to one of `waiting`."""
        self.waiting.discard(call)
        what, name = call_of(call)
        if what == "swept":
            if error:
                return []  # not there yet
            if left := (value or {}).get("left", []):
                pids = ", ".join(map(str, left))
                self.broken = f"pid {pids} on {name} does not end, even on SIGKILL"
                return []
            self.step = "starting"
            return [StartAgent(name)]
        if error:
            self.broken = f"{what.removeprefix('back-')} on {name} failed: {error}"
        elif what == "back-ports":
            self.ports = [int(port) for port in value]
        if not self.waiting and not self.broken:
            self.step = "back"
        return []

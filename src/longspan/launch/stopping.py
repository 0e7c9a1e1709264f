"""Taking a deployment down: every agent is told, its confirmation awaited, and swept after where it does not come. Pure."""

from dataclasses import dataclass, field
from typing import Any

from longspan.finding import Finding
from longspan.launch.actions import Action, StopAll, Sweep
from longspan.launch.events import AgentJoined, AgentSilent, Answered, Event, StartFailed, Tick

# How long an agent may be silent, and how long one that was being started is waited for: longer than ssh takes to give
# up a host that does not answer (10 s).
SILENT_SECONDS = 30.0
JOIN_SECONDS = 20.0
# An agent that beats but has not confirmed by now is stuck (a hung file system); ending a large engine takes seconds.
CONFIRM_SECONDS = 90.0
SWEEP_SECONDS = 120.0


@dataclass(slots=True)
class Stopping:
    """The end of a deployment. It is over once `done`, whatever the agents do.

    Attributes:
        agents: all of the deployment.
        joined: those that have answered at any time.
        awaited: those whose confirmation is still to come.
        sweeping: nodes where somebody else ends what a silent agent left -> since when.
    """

    agents: tuple[str, ...]
    joined: set[str]
    awaited: set[str]
    began: float
    sweeping: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Nothing is awaited any more."""
        return not self.awaited and not self.sweeping

    def begin(self) -> list[Action]:
        """Tells every agent that there is."""
        return [StopAll(name) for name in self.agents if name in self.joined]

    def handle(self, event: Event, now: float) -> list[Action]:
        """Takes one event, returns what to do about it."""
        match event:
            case AgentJoined(node) if node in self.agents and node not in self.joined:
                self.joined.add(node)
                self.awaited.add(node)
                return [StopAll(node)]
            case StartFailed(node) if node not in self.joined:
                self.awaited.discard(node)
            case Answered(call, value, error):
                self._answered(call, value, error)
            case AgentSilent(node, seconds) if seconds > SILENT_SECONDS and node in self.awaited:
                return self._sweep([node], now)
            case Tick():
                return self._tick(now)
        return []

    def _answered(self, call: str, value: Any, error: str) -> None:
        what, _, node = call.partition(":")
        if what == "stopped" and node in self.awaited:
            self.awaited.discard(node)
            for text in (value or {}).get("left", []):
                self.findings.append(Finding(node, "error", "process-left", text))
        elif what == "swept" and node in self.sweeping:
            self._swept(node, value, error)

    def _tick(self, now: float) -> list[Action]:
        for node, since in list(self.sweeping.items()):
            if now - since > SWEEP_SECONDS:
                self._swept(node, None, f"no answer for {SWEEP_SECONDS:.0f} s")
        waited = now - self.began
        late = [n for n in self.awaited if waited > (CONFIRM_SECONDS if n in self.joined else JOIN_SECONDS)]
        return self._sweep(sorted(late), now)

    def _sweep(self, nodes: list[str], now: float) -> list[Action]:
        """Their agents do not confirm: they may be dead, and what they started would live on."""
        for node in nodes:
            self.awaited.discard(node)
            self.sweeping[node] = now
        return [Sweep(node) for node in nodes]

    def _swept(self, node: str, value: Any, error: str) -> None:
        del self.sweeping[node]
        if error:
            self.findings.append(
                Finding(
                    node, "error", "agent-silent",
                    f"{node} did not confirm that it stopped, and could not be looked at: {error}",
                    remedy="If its agent lives, it ends its own processes when it has lost the controller for its lease.",
                )
            )  # fmt: skip
        for pid in (value or {}).get("left", []):
            text = f"pid {pid} does not end, even on SIGKILL"
            self.findings.append(Finding(node, "error", "process-left", text))

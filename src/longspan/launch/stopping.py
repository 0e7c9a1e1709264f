"""Taking a deployment down, pure: first what explains a failure is collected, then every agent is told to end
everything, its confirmation awaited, and its node swept where that does not come."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from longspan.finding import Finding
from longspan.launch.actions import Action, Call, StopAll, Sweep, call_id, call_of
from longspan.launch.events import AgentJoined, AgentSilent, Answered, Event, StartFailed, Tick

# How long an agent may be silent, and how long one that was being started is waited for: longer than ssh takes to give
# up a host that does not answer (10 s).
SILENT_SECONDS = 30.0
JOIN_SECONDS = 20.0
# An agent that beats but has not confirmed by now is stuck (a hung file system); ending a large engine takes seconds.
CONFIRM_SECONDS = 90.0
SWEEP_SECONDS = 120.0
# For the evidence; shorter than JOIN_SECONDS, and than the agents' patience with a function.
COLLECT_SECONDS = 15.0


@dataclass(slots=True)
class Stopping:
    """The end of a deployment. It is over once `done`, whatever the agents do.

    Attributes:
        agents: all of the deployment.
        joined: those that have answered at any time.
        awaited: those whose confirmation is still to come.
        evidence: calls whose answers are awaited before anything is ended.
        sweeping: nodes where somebody else ends what a silent agent left -> since when.
    """

    agents: tuple[str, ...]
    joined: set[str]
    awaited: set[str]
    began: float
    evidence: set[str] = field(default_factory=set)
    sweeping: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Nothing is awaited any more."""
        return not self.awaited and not self.sweeping

    def begin(self, collect: Sequence[Call]) -> list[Action]:
        """Asks for the evidence; where there is none to ask for, tells every agent that there is."""
        self.evidence = {call.call for call in collect}
        return [*collect] or self._tell_all()

    def _tell_all(self) -> list[Action]:
        self.evidence.clear()
        return [StopAll(name) for name in self.agents if name in self.joined]

    def hurry(self) -> list[Action]:
        """The operator wants it gone: evidence is not waited for any longer."""
        return self._tell_all() if self.evidence else []

    def _collected(self, call: str) -> list[Action]:
        """One node's evidence came or is given up; with the last of them everything is ended."""
        if self.evidence == {call}:
            return self._tell_all()
        self.evidence.discard(call)
        return []

    def handle(self, event: Event, now: float) -> list[Action]:
        """Takes one event, returns what to do about it."""
        match event:
            case AgentJoined(node) if node in self.agents and node not in self.joined:
                self.joined.add(node)
                self.awaited.add(node)
                return [] if self.evidence else [StopAll(node)]
            case StartFailed(node) if node not in self.joined:
                self.awaited.discard(node)
            case Answered(call) if call in self.evidence:
                return self._collected(call)
            case Answered(call, value, error):
                self._answered(call, value, error)
            case AgentSilent(node, seconds) if seconds > SILENT_SECONDS and node in self.awaited:
                return [*self._collected(call_id("collect", node)), *self._sweep([node], now)]
            case Tick():
                return self._tick(now)
        return []

    def _answered(self, call: str, value: Any, error: str) -> None:
        what, node = call_of(call)
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
        told = self.hurry() if waited > COLLECT_SECONDS else []
        return [*told, *self._sweep(sorted(late), now)]

    def _sweep(self, nodes: list[str], now: float) -> list[Action]:
        """Their agents do not confirm: they may be dead, and what they started would live on."""
        for node in nodes:
            self.awaited.discard(node)
            self.sweeping[node] = now
        return [Sweep(node, call_id("swept", node)) for node in nodes]

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

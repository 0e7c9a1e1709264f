"""Whether a replica that serves gets requests: what speaks against it, and what its operator holds back. Pure.

Suspicion moves traffic at once and convicts only when it lasts: a load of the model takes minutes, a blip seconds.
"""

from dataclasses import dataclass, field

from longspan.launch.actions import SetGateway

# Less than a load of the model by far, and longer than any blip should take.
CONVICTION_SECONDS = 15.0
ENGINE = "engine"
# What holds a replica that is not wanted any more, beside the names of replicas and nodes.
SCALE = "scale"
# What holds one that is to be started anew with another specification.
CHANGE = "change"
_OURS = frozenset({SCALE, CHANGE})
WISHES = ("drain", "isolate", "restore")


@dataclass(slots=True)
class Traffic:
    """What keeps requests from a replica.

    Attributes:
        replica: its name.
        suspicions: node or "engine" -> what speaks against it.
        held: what the operator keeps out -> "drain" or "isolate".
        distrusted_at: since when the engine is suspected.
    """

    replica: str = "r0"
    suspicions: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    distrusted_at: float | None = None

    @property
    def is_free(self) -> bool:
        """Nothing keeps requests from it."""
        return not self.suspicions and not self.held

    def suspect(self, subject: str, reason: str, now: float) -> bool:
        """Takes an opinion in, an empty reason for a good one. Returns whether it may have changed the setting."""
        before = bool(self.suspicions)
        if reason:
            self.suspicions[subject] = reason
        else:
            self.suspicions.pop(subject, None)
        if ENGINE not in self.suspicions:
            self.distrusted_at = None
        elif self.distrusted_at is None:
            self.distrusted_at = now
        return before or bool(self.suspicions)

    def hold(self, subject: str, wish: str, *, all_of_it: bool) -> None:
        """The operator's wish for a subject; "restore" of all of it lifts what was asked of its parts, too."""
        if wish != "restore":
            self.held[subject] = wish
        elif all_of_it:
            self.held = {name: kept for name, kept in self.held.items() if name in _OURS}
        else:
            self.held.pop(subject, None)

    def forget_engine(self) -> None:
        """The engine that was suspected is no more."""
        self.suspicions.pop(ENGINE, None)
        self.distrusted_at = None

    def setting(self) -> SetGateway:
        """What the gateway is told."""
        if self.suspicions:
            return SetGateway("out", "; ".join(self.suspicions.values()), self.replica)
        isolated = [name for name, wish in self.held.items() if wish == "isolate"]
        if isolated:
            return SetGateway("out", f"isolated by the operator: {', '.join(isolated)}", self.replica)
        if set(self.held) == {CHANGE}:
            return SetGateway("draining", "it is being changed", self.replica)
        if self.held:
            return SetGateway("draining", f"drained by the operator: {', '.join(self.held)}", self.replica)
        return SetGateway("ready", replica=self.replica)

    @property
    def is_draining(self) -> bool:
        """Its GPUs are to be released once its streams have ended."""
        return "drain" in self.held.values()

    @property
    def against_engine(self) -> str:
        """What speaks against the engine itself."""
        return self.suspicions.get(ENGINE, "")

    def is_convicted(self, now: float) -> bool:
        """The engine was suspected for so long that it is worth a load of the model. While a node is silent nothing can be
        ended there: it comes back, or its lease ends."""
        if self.distrusted_at is None or set(self.suspicions) != {ENGINE}:
            return False
        return now - self.distrusted_at >= CONVICTION_SECONDS

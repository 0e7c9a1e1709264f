"""Rules over the picture, and when one of them becomes an alarm: levels and times in both directions. Pure.

A rule fires at one level and lets go at a lower one, both for a while, so that a value at the edge does not ring. What nobody can
see is not over: an alarm about a node or replica whose figures are old stands until they are new again.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from longspan.finding import Evidence, Finding, Severity
from longspan.monitor.objectives import Objectives
from longspan.monitor.view import SILENT_SECONDS, AlarmView, ClusterView, NodeView, ReplicaView

SERVING = frozenset({"serving", "suspected"})  # phases in which a replica should give tokens


@dataclass(frozen=True, slots=True)
class Scene:
    """What a rule sees.

    Attributes:
        quiet_seconds: replica -> since when nothing moved in it although requests run.
    """

    view: ClusterView
    objectives: Objectives = field(default_factory=Objectives)
    quiet_seconds: Mapping[str, float] = field(default_factory=dict)

    def nodes_of(self, replica: ReplicaView) -> list[NodeView]:
        """The nodes of a replica that the picture knows."""
        return [node for node in self.view.nodes if node.name in replica.nodes]

    def fresh_nodes_of(self, replica: ReplicaView) -> list[NodeView]:
        """Those of them whose figures are fresh."""
        return [node for node in self.nodes_of(replica) if fresh(node.age_seconds)]

    @property
    def serving(self) -> list[ReplicaView]:
        """Replicas that should give tokens and whose figures are fresh."""
        return [r for r in self.view.replicas if r.phase in SERVING and fresh(r.age_seconds)]

    @property
    def nodes(self) -> list[NodeView]:
        """Nodes whose figures are fresh."""
        return [node for node in self.view.nodes if fresh(node.age_seconds)]


def fresh(age_seconds: float | None) -> bool:
    """Whether figures of that age say anything about now."""
    return age_seconds is not None and age_seconds <= SILENT_SECONDS


@dataclass(frozen=True, slots=True)
class Hit:
    """One thing that a rule sees now.

    Attributes:
        about: the node or replica whose figures it comes from, or "gateway"; empty for what the controller knows itself.
        firm: at the level at which an alarm begins; otherwise only at that at which it stays.
    """

    subject: str
    summary: str
    evidence: tuple[Evidence, ...]
    remedy: str
    firm: bool = True
    about: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: what it looks for, and how long it takes to become an alarm and to stop being one.

    Attributes:
        meaning: one sentence for the table in docs/monitor.md. source: where it is known from.
    """

    cause: str
    severity: Severity
    meaning: str
    check: Callable[[Scene], Iterable[Hit]]
    raise_after_seconds: float = 10.0
    clear_after_seconds: float = 30.0
    source: str = ""


def level(value: float | None, begin: float, keep: float) -> bool | None:
    """Whether a value is at the level where an alarm begins (True), only at that where it stays (False), or neither (None).

    Args:
        begin, keep: where `begin` is the smaller one, low values are the bad ones.
    """
    if value is None:
        return None
    over, stays = (value >= begin, value >= keep) if begin >= keep else (value <= begin, value <= keep)
    return True if over else (False if stays else None)


def seen(what: str, text: str) -> Evidence:
    """A figure as evidence: where it comes from and what it said."""
    return Evidence(what, 0, text)


@dataclass(slots=True)
class _State:
    """One key's way: `pending_since` while it is firm and no alarm yet, `gone_since` while an alarm sees nothing."""

    about: str
    pending_since: float | None = None
    raised: AlarmView | None = None
    gone_since: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """An alarm that came (`raised`) or went."""

    alarm: AlarmView
    raised: bool


@dataclass(slots=True)
class AlarmBook:
    """The alarms that stand. Feed it a picture about once a second.

    Attributes:
        moved: replica -> (what showed work, since when it has not changed).
    """

    rules: tuple[Rule, ...]
    states: dict[str, _State] = field(default_factory=dict)
    moved: dict[str, tuple[tuple[float | None, ...], float]] = field(default_factory=dict)

    @property
    def alarms(self) -> tuple[AlarmView, ...]:
        """Those that stand, errors first, then the oldest."""
        order = {"error": 0, "warning": 1, "info": 2}
        found = [state.raised for state in self.states.values() if state.raised]
        return tuple(sorted(found, key=lambda a: (order[a.finding.severity], a.since_unix_seconds, a.key)))

    def observe(self, view: ClusterView, objectives: Objectives, now: float) -> list[Change]:
        """Another picture, at a time on a steady clock. Returns what came and what went."""
        scene = Scene(view, objectives, self._quiet(view, now))
        blind = {n.name for n in view.nodes if not fresh(n.age_seconds)}
        # One that does not serve any more has not got what it had while it did.
        blind |= {r.name for r in view.replicas if r.phase in SERVING and not fresh(r.age_seconds)}
        blind |= set() if fresh(view.gateway.age_seconds) else {"gateway"}
        changes: list[Change] = []
        hit_keys: set[str] = set()
        for rule in self.rules:
            for hit in rule.check(scene):
                key = f"{rule.cause}:{hit.subject}"
                hit_keys.add(key)
                changes += self._hit(key, rule, hit, view.taken_at_unix_seconds, now)
        for key in [key for key in self.states if key not in hit_keys]:
            changes += self._missed(key, blind, now)
        return changes

    def _quiet(self, view: ClusterView, now: float) -> dict[str, float]:
        """Since when each replica with work shows none. A long prefill moves no counter, only the use of the KV cache."""
        found = {}
        for replica in view.replicas:
            rates = (replica.prompt_tokens_per_second or 0.0, replica.generation_tokens_per_second or 0.0)
            signs = (replica.kv_use_share, replica.running, replica.waiting)
            was = self.moved.get(replica.name)
            working = bool((replica.running or 0) + (replica.waiting or 0))
            if was is None or was[0] != signs or any(rates) or not working or not fresh(replica.age_seconds):
                self.moved[replica.name] = (signs, now)
            else:
                found[replica.name] = now - was[1]
        return found

    def _hit(self, key: str, rule: Rule, hit: Hit, wall: float, now: float) -> list[Change]:
        state = self.states.setdefault(key, _State(hit.about))
        state.gone_since = None
        finding = Finding(hit.subject, rule.severity, rule.cause, hit.summary, hit.evidence, hit.remedy, source=rule.source)  # fmt: skip
        if state.raised:
            state.raised = replace(state.raised, finding=finding)  # the newest figures
            return []
        if not hit.firm:
            state.pending_since = None
            return []
        if state.pending_since is None:
            state.pending_since = now
        if now - state.pending_since < rule.raise_after_seconds:
            return []
        state.raised = AlarmView(key, wall, finding)
        return [Change(state.raised, True)]

    def _missed(self, key: str, blind: set[str], now: float) -> list[Change]:
        state = self.states[key]
        if state.raised and state.about in blind:
            state.gone_since = None
            return []
        if not state.raised:
            del self.states[key]
            return []
        state.gone_since = state.gone_since if state.gone_since is not None else now
        cause = state.raised.finding.cause
        patience = next((r.clear_after_seconds for r in self.rules if r.cause == cause), 0.0)
        if now - state.gone_since < patience:
            return []
        del self.states[key]
        return [Change(state.raised, False)]

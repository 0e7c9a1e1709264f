"""A deployment's change while it serves, one replica at a time: pure.

    checking -> changing -> changed
        |          |-> going back -> went back
        |-> refused

The first replica is the canary: it gives its proof, takes traffic and is watched before the next one is touched. Where there is a free
place, it is one more replica, so that none is missing meanwhile. One that fails goes back by itself (`replica.py`), and with it all that
had been changed. `launch.steps` calls `advance` after every event.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from longspan.deployment import DeploymentSpec
from longspan.launch.actions import Action, Call, call_of, call_to
from longspan.launch.changeable import Refusal, changes
from longspan.launch.checkpoint import CheckpointDigest, compare_copies
from longspan.launch.replica import Ground, Known, Replica
from longspan.launch.replicas import Replicas
from longspan.launch.requirements import unfit, versions_differ
from longspan.launch.trial import Figures, Next, Trial, worse

DEFAULT_WATCH_SECONDS = 60.0
# Whole copies of large checkpoints are read for many minutes.
CHECK_SECONDS = 1800.0
# A canary that is suspected again and again never gets through its time.
LEAST_LIMIT_SECONDS = 300.0
LIMIT_FACTOR = 10

Stage = Literal["checking", "changing", "going back", "changed", "went back", "refused"]
OVER = frozenset({"changed", "went back", "refused"})


@dataclass(slots=True)
class Rolling:
    """One change. `stage` is in `OVER` once nothing of it is left to do.

    Attributes:
        outage: the operator accepts that nobody serves meanwhile.
        waiting: calls of the check without an answer yet; facts and digests: what they brought.
        current: the replica that is being changed, or goes back.
        canary: the first one; trusted: it has served well for its time.
        surge: the replica that is there for the change only.
        watched_since: since when the current one takes traffic without anything against it; served_since: since when it serves.
        before: the gateway's figures when the watch began; latest: the last ones.
        reason: why it was refused or goes back. waits: for what, while it does.
    """

    old: DeploymentSpec
    new: DeploymentSpec
    watch_seconds: float
    outage: bool
    began: float
    stage: Stage = "checking"
    waiting: set[str] = field(default_factory=set)
    facts: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, CheckpointDigest | None] = field(default_factory=dict)
    current: str = ""
    canary: str = ""
    trusted: bool = False
    surge: str = ""
    watched_since: float | None = None
    served_since: float | None = None
    before: Figures | None = None
    latest: Figures = field(default_factory=dict)
    reason: str = ""
    waits: str = ""
    ended: float | None = None

    # ---- what one sees of it
    @property
    def is_over(self) -> bool:
        """Nothing is left to do."""
        return self.stage in OVER

    @property
    def standing(self) -> tuple[Any, ...]:
        """What time alone may change."""
        return self.stage, self.current, self.trusted, self.watched_since, self.served_since, self.waits

    def watches(self) -> bool:
        """Whether the gateway's figures count now."""
        return self.stage == "changing" and self.watched_since is not None

    def document(self, replicas: Replicas, now: float) -> dict[str, Any]:
        """For the status."""
        changed = [
            one.name
            for one in replicas
            if one.spec.identity == self.new.identity and one.name != self.current
        ]
        return {
            "stage": self.stage, "what": changes(self.old, self.new), "replica": self.current or None, "canary": self.canary or None,
            "watching": self.watches() and not self.trusted, "changed": changed, "reason": self.reason, "waits": self.waits,
            "seconds": round((self.ended if self.ended is not None else now) - self.began, 1),
        }  # fmt: skip

    # ---- the check: nothing is touched before every node's copy and versions are known
    def begin(self, ground: Ground, nonce: str) -> list[Action]:
        """Asks every node that holds ranks."""
        number = ground.next_start()
        calls: list[Call] = []
        for node in self.new.used_nodes():
            digest = {
                "model": self.new.model, "revision": self.new.revision, "nonce": nonce, "full": self.new.full_digest,
            }  # fmt: skip
            calls += [
                call_to(node.name, "facts", {"python": node.python}, number),
                call_to(node.name, "digest", digest, number),
            ]
        self.waiting = {call.call for call in calls}
        return [*calls]

    def answered(self, call: str, value: Any, error: str, running: Any) -> None:
        """The answer to one of `waiting`. `running`: node -> what its agent found when the deployment was started."""
        self.waiting.discard(call)
        what, node = call_of(call)
        if error:
            self._refuse(f"{what} on {node} failed: {error}")
        elif what == "facts":
            self.facts[node] = value
        else:
            self.digests[node] = CheckpointDigest.from_json(value) if value else None
        if not self.waiting and self.stage == "checking":
            self._checked(running)

    def _checked(self, running: Any) -> None:
        nodes = self.new.used_nodes()
        found = compare_copies(self.digests, nodes[0].name) if any(self.digests.values()) else ()
        if differing := [finding.summary for finding in found if finding.severity == "error"]:
            return self._refuse(" ".join(differing[:3]))
        if problem := unfit(nodes, self.facts, self.new.device) or versions_differ(nodes, nodes, self.facts):
            return self._refuse(" ".join(problem))
        for node in nodes:
            for key, name in (("ray", "Ray"), ("python", "Python")):
                here, there = running[node.name][key], self.facts[node.name][key]
                if here != there:
                    return self._refuse(
                        f"{node.name} runs {name} {here} in this deployment's Ray, the new environment has {there}: one Ray cannot"
                        " join the two."
                    )
        self.stage = "changing"
        return None

    def _refuse(self, why: str) -> None:
        self.stage, self.reason = "refused", why
        self.waiting.clear()

    # ---- the way on
    def compared(self, figures: Figures) -> None:
        """What the gateway counts, while somebody is watched."""
        if self.watches():
            self.before = figures if self.before is None else self.before
            self.latest = figures

    def advance(self, replicas: Replicas, now: float) -> list[Action]:
        """What follows from how the replicas stand now."""
        before = self.stage
        actions = self._advance(replicas, now)
        if self.is_over and self.ended is None:
            self.ended = now
        return actions if before == self.stage or self.is_over else [*actions, *self.advance(replicas, now)]

    def _advance(self, replicas: Replicas, now: float) -> list[Action]:
        if self.stage == "checking" and now - self.began > CHECK_SECONDS:
            self._refuse(f"Not answered: {', '.join(sorted(self.waiting))}.")
        if self.stage not in {"changing", "going back"}:
            return []
        actions: list[Action] = []
        if self.current:
            actions = self._settle(replicas, now)
        return actions if self.current else [*actions, *self._next(replicas, now)]

    def _settle(self, replicas: Replicas, now: float) -> list[Action]:
        """Whether the current one has arrived."""
        replica = replicas.get(self.current)
        if replica is None:  # a surge that has left
            self.current = ""
            return []
        if replica.trial:
            return self._judge(replicas, replica, replica.trial, now)
        if replica.next is None and (
            replica.is_at_rest or (replica.phase == "serving" and not replica.leaving)
        ):
            self.current = ""
        return []

    def _judge(self, replicas: Replicas, replica: Replica, trial: Trial, now: float) -> list[Action]:
        if trial.failed:
            replica.trial = None  # it is on its way back already
            self._turn(f"{replica.name}: {trial.failed}")
            return []
        if replica.is_at_rest or (replica.phase == "serving" and replica.traffic.held):
            why = replica.failure.what if replica.failure else "it was taken out of traffic by the operator"
            return self._back(replicas, replica, why, now)
        if replica.phase != "serving":
            self.watched_since = self.served_since = None
            return []
        self.served_since = self.served_since if self.served_since is not None else now
        wanted = 0.0 if self.trusted else self.watch_seconds
        if replica.traffic.suspicions:
            self.watched_since = None
            if now - self.served_since > max(LEAST_LIMIT_SECONDS, LIMIT_FACTOR * wanted):
                return self._back(replicas, replica, "it is suspected again and again", now)
            return []
        self.watched_since = self.watched_since if self.watched_since is not None else now
        over = now - self.watched_since >= wanted
        if why := worse(replica.name, self.before or {}, self.latest, at_the_end=over):
            return self._back(replicas, replica, why, now)
        if over:
            replica.trial = None
            self.trusted = True
            self._leave_current()
        return []

    def _leave_current(self) -> None:
        self.current, self.before, self.latest = "", None, {}
        self.watched_since = self.served_since = None

    def _turn(self, why: str) -> None:
        self.stage, self.reason = "going back", why
        self.watched_since = self.served_since = None

    def _back(self, replicas: Replicas, replica: Replica, why: str, now: float) -> list[Action]:
        """It does not do, although it runs: its streams may end."""
        assert replica.trial is not None
        old, replica.trial = replica.trial.old, None
        self._turn(f"{replica.name}: {why}")
        found = replica.change(Next(old), now) if old else replica.leave(now)
        return replicas.after(replica, found, now)

    def _next(self, replicas: Replicas, now: float) -> list[Action]:
        """Begins with the next one, as soon as all others are well."""
        self.waits = ""
        target = self.new if self.stage == "changing" else self.old
        left = [
            one for one in replicas if one.name != self.surge and one.spec.identity != target.identity and one.next is None
        ]  # fmt: skip
        if unwell := [one.name for one in replicas if not _is_well(one)]:
            self.waits = f"until {', '.join(unwell)} is well"
            return []
        if not left:
            return self._finish(replicas, now)
        if self.stage == "changing" and not self.canary and replicas.wanted < self.old.max_replicas:
            return self._begin_surge(replicas, now)
        ready = [one for one in left if one.phase == "serving" and (self.trusted or one.traffic.is_free)]
        if not ready and self.stage == "changing" and not self.trusted:
            self.waits = "until a replica serves that can be the canary"
            return []
        # The last one first: it is the one that others lean on least where replicas come and go by scaling.
        chosen = ready[-1] if ready else left[0]
        free = [one for one in replicas if one.phase == "serving" and one.traffic.is_free]
        if free == [chosen] and not self.outage:
            self.waits = f"until another replica than {chosen.name} takes traffic"
            return []
        if not chosen.is_at_rest:
            self.current = chosen.name
        spec = target.of_replica(int(chosen.name[1:]))
        # What the operator isolated gets no traffic that could be judged; its proof it gives all the same.
        tried = self.stage == "changing" and chosen.phase == "serving" and chosen.traffic.is_free
        trial = Trial(chosen.spec) if tried else None
        self._choose(chosen, replicas.ground)
        found = replicas.after(chosen, chosen.change(Next(spec, trial), now), now)
        return [*found, *([] if self.current else self._next(replicas, now))]

    def _choose(self, replica: Replica, ground: Ground) -> None:
        """The first one is the canary; what its first node says of the checkpoint is what the others are held to."""
        if not self.canary:
            self.canary = replica.name
            ground.known[self.new.identity] = Known(self.digests, {}, replica.head.name)

    def _begin_surge(self, replicas: Replicas, now: float) -> list[Action]:
        number = replicas.wanted
        made = Replica(f"r{number}", self.new.of_replica(number), replicas.ground, trial=Trial(None))
        self.surge = self.current = made.name
        self._choose(made, replicas.ground)
        replicas.by_name[made.name] = made
        return replicas.after(made, made.begin(now), now)

    def _finish(self, replicas: Replicas, now: float) -> list[Action]:
        extra = replicas.get(self.surge)
        if extra is not None and not (
            extra.leaving and extra.is_at_rest
        ):  # else its end failed, and it stays as it is
            self.current = self.surge
            return [] if extra.leaving else replicas.after(extra, extra.leave(now), now)
        self.stage = "changed" if self.stage == "changing" else "went back"
        return []


def _is_well(replica: Replica) -> bool:
    """It serves without a suspicion, or is at rest: what it is meant to do, it does."""
    return replica.is_at_rest or (
        replica.phase == "serving" and not replica.traffic.suspicions and not replica.leaving
    )


def not_now(replicas: Replicas, ground: Ground, current: Rolling | None, *, outage: bool) -> Refusal | None:
    """Why a change cannot begin at this moment, and what to do; None where it can."""
    if current is not None and not current.is_over:
        return (
            "Another change is under way.",
            "`longspan status` shows it; isolating the replica on trial makes it go back.",
        )
    if not replicas.served:
        return "The deployment has not served yet.", "Wait until `longspan status` says that it serves."
    if ground.lost:
        return (
            f"{', '.join(ground.lost)} is lost and being brought back.",
            "Wait until `longspan status` says that it is there.",
        )
    if leaving := [one.name for one in replicas if one.leaving]:
        return f"{', '.join(leaving)} is leaving.", "Wait until it is gone."
    serving = [one for one in replicas if one.phase == "serving"]
    if not serving:
        return "No replica serves that could be the canary.", "`longspan restore` starts one."
    room = replicas.wanted < replicas.spec.max_replicas
    if len(serving) == 1 and not room and not outage:
        return (
            f"Only {serving[0].name} serves and there is no room for another one: until it has loaded again, nobody would serve.",
            "Accept that with --outage, or start with --max-replicas 2 on GPUs for two.",
        )
    return None

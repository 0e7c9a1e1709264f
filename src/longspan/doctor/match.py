"""From the events to a diagnosis: which cause explains the attempt, what else could, and what only followed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from longspan.doctor.causes import CAUSES, Cause
from longspan.doctor.deciders import DECIDERS
from longspan.doctor.faults import Outcome, Remaining, remaining
from longspan.doctor.hints import Hint, hints
from longspan.doctor.rules.marks import PHASES
from longspan.doctor.rules.rule import Rule
from longspan.doctor.scan import Record
from longspan.doctor.scene import Guess, Scene, rule_of
from longspan.doctor.silence import silent
from longspan.doctor.timeline import Event, Moment, moments, order, skews
from longspan.finding import Evidence, Finding, Severity

# How far a kind of text is trusted beside the rule's own weight.
TRUST = {"root": 1.0, "symptom": 0.85, "wait": 0.8, "generic": 0.6, "wrapper": 0.0}
SURFACE_PENALTY = 0.15
LATER_PENALTY = 0.05
# Causes that a restart meets because of what failed before it.
FOLLOW_UPS = frozenset(
    {
        "port-in-use",
        "gpu-memory-taken",
        "stale-placement-group",
        "placement-group-unsatisfied",
        "ray-head-unreachable",
    }
)
FOLLOW_UP_SECONDS = 45.0
ALTERNATIVES = 2
WORTH_SAYING = 0.1
NOT_ENOUGH, FAINT = 0.6, 0.35
EVIDENCE_LINES = 4


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor says.

    Attributes:
        findings: most confident first; empty for a healthy log.
        consequences: lines that only repeat the failure, for the reader who saw them first.
        outcome: how the last attempt stands at the end of the log.
        attempts: number of launches that the log holds.
        skew_seconds: node -> how far its clock is ahead.
    """

    findings: tuple[Finding, ...]
    consequences: tuple[Evidence, ...] = ()
    outcome: Outcome = "open"
    attempts: int = 1
    skew_seconds: dict[str, float] = field(default_factory=dict)
    timeline: tuple[Moment, ...] = ()
    hints: tuple[Hint, ...] = ()
    lines: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _Candidate:
    cause: str
    score: float
    first: int
    events: list[Event]
    guess: Guess
    root: bool
    when: float | None
    questions: list[str] = field(default_factory=list)


def diagnose_record(record: Record) -> Diagnosis:
    """Judges everything that a scan found."""
    events = order(record)
    attempts = max((e.attempt for e in events), default=0) + 1
    skew = skews(record.hits)
    judged: tuple[list[Finding], Remaining] = ([], Remaining((), "open", False, False))
    scene = Scene([])
    for number in range(attempts - 1, -1, -1):
        scene = Scene([e for e in events if e.attempt == number])
        judged = _judge(scene)
        conclusive = judged[0] or judged[1].ready
        if conclusive or number == 0:
            break
    findings, left = judged
    wrapped = tuple(
        _evidence(e) for e in left.faults if (r := rule_of(e)) is not None and r.kind == "wrapper"
    )
    timeline = tuple(moments(scene.events, PHASES))
    findings = [_with_skew(f, skew) for f in findings]
    return Diagnosis(
        tuple(findings),
        wrapped[:12],
        left.outcome,
        attempts,
        skew,
        timeline,
        hints(events),
        record.lines,
        record.size_bytes,
    )


def _with_skew(finding: Finding, skew: dict[str, float]) -> Finding:
    """A node that is declared dead while its clock is wrong may only be late by its clock."""
    if finding.cause != "ray-node-lost" or not skew:
        return finding
    clocks = "; ".join(f"{node or 'the driver'} {seconds:+.0f} s" for node, seconds in skew.items())
    return replace(
        finding, summary=f"{finding.summary} The clocks differ ({clocks}): set up NTP on every node."
    )


def _judge(scene: Scene) -> tuple[list[Finding], Remaining]:
    left = remaining(scene)
    candidates = _candidates(scene, left.faults)
    quiet = silent(scene, left.stopped)
    if quiet is not None and not any(c.root for c in candidates):
        guess = quiet.guess
        if not candidates or all(
            c.cause == "insufficient-evidence" or c.score < guess.weight for c in candidates
        ):
            candidates.insert(
                0, _Candidate(guess.cause, guess.weight, 0, list(quiet.evidence), guess, False, None)
            )
    if not candidates:
        failed = [
            e
            for e in left.faults
            if (r := rule_of(e)) is not None and r.kind in ("wrapper", "generic") and r.id != "server-error"
        ]
        if not failed:
            return [], left
        return [_insufficient(failed, scene)], left
    return _findings(candidates), left


def _candidates(scene: Scene, faults: Sequence[Event]) -> list[_Candidate]:
    found: dict[str, _Candidate] = {}
    for place, event in enumerate(faults):
        rule = rule_of(event)
        if rule is None or not rule.cause:
            continue
        guess = DECIDERS[rule.decide](event, rule, scene)
        score = guess.weight * TRUST[rule.kind]
        if score < WORTH_SAYING:
            continue
        known = found.get(guess.cause)
        if known is None:
            found[guess.cause] = _Candidate(
                guess.cause, score, place, [event], guess, rule.kind == "root" and guess.weight >= 0.5, event.when_seconds,
                [rule.question] if rule.question else [],
            )  # fmt: skip
            continue
        known.events.append(event)
        known.root = known.root or (rule.kind == "root" and guess.weight >= 0.5)
        if score > known.score:
            known.score, known.guess = score, guess
            known.questions = [rule.question] if rule.question else known.questions
    return sorted(_weighed(list(found.values())), key=lambda c: (-c.score, c.first))


def _weighed(candidates: list[_Candidate]) -> list[_Candidate]:
    """Applies what holds between causes: the earliest root leads, the deeper one beats the surface, symptoms follow."""
    roots = sorted((c for c in candidates if c.root), key=lambda c: c.first)
    deep = any(not CAUSES[c.cause].surface for c in roots)
    for place, candidate in enumerate(roots):
        candidate.score -= min(LATER_PENALTY * place, 0.15)
        if deep and CAUSES[candidate.cause].surface:
            candidate.score -= SURFACE_PENALTY
        if _followed_up(candidate, candidates):
            candidate.score -= 0.4
    if roots and max(c.score for c in roots) >= 0.5:
        best = max(c.score for c in roots)
        for candidate in candidates:
            if not candidate.root and not any(_followed_up(r, [candidate]) for r in roots):
                candidate.score = min(candidate.score * 0.6, best - 0.1)
    others = max((c.score for c in candidates if c.cause != "insufficient-evidence"), default=0.0)
    for candidate in candidates:
        if candidate.cause == "insufficient-evidence":
            # Beside nothing but faint guesses "not enough to tell" is the verdict; beside a cause it is a reservation.
            candidate.score = candidate.score * 0.5 if others >= FAINT else NOT_ENOUGH
    return candidates


def _followed_up(candidate: _Candidate, others: Sequence[_Candidate]) -> bool:
    """Whether something else had failed well before a cause that restarts typically meet."""
    if candidate.cause not in FOLLOW_UPS or candidate.when is None:
        return False
    return any(
        o.when is not None
        and candidate.when - o.when > FOLLOW_UP_SECONDS
        and o.cause not in FOLLOW_UPS
        and o.cause != "insufficient-evidence"
        for o in others
    )


def _findings(candidates: Sequence[_Candidate]) -> list[Finding]:
    top = candidates[0]
    findings = [_finding(c) for c in candidates if c.score >= 0.1]
    if not findings:
        findings = [_finding(top)]
    named = {f.cause for f in findings}
    room = max(0, 3 - len(findings))
    confidence = findings[0].confidence
    for number, cause in enumerate(
        [a for a in top.guess.also if a not in named and a in CAUSES][: min(ALTERNATIVES, room)]
    ):
        findings.append(
            _alternative(top, CAUSES[cause], round(max(0.05, confidence * (0.35 - 0.1 * number)), 2))
        )
    findings.sort(key=lambda f: -f.confidence)
    return _strictly_falling(findings)


def _strictly_falling(findings: list[Finding]) -> list[Finding]:
    """No two findings with one confidence: the order is the answer."""
    result: list[Finding] = []
    for finding in findings:
        limit = result[-1].confidence - 0.01 if result else 1.0
        result.append(replace(finding, confidence=round(max(0.01, min(finding.confidence, limit)), 2)))
    return result


def _severity(cause: str, confidence: float) -> Severity:
    if cause == "insufficient-evidence":
        return "warning"
    return "error" if confidence >= 0.5 else "warning"


def _subject(events: Sequence[Event]) -> str:
    head = events[0].hit.head
    parts = [p for p in (events[0].hit.node, head.process) if p]
    if head.rank >= 0:
        parts.append(f"rank {head.rank}")
    return " ".join(parts) or events[0].hit.file


def _evidence(event: Event) -> Evidence:
    return Evidence(event.hit.file, event.hit.line, event.hit.text)


def _finding(candidate: _Candidate) -> Finding:
    cause = CAUSES[candidate.cause]
    confidence = round(min(0.97, max(0.05, candidate.score)), 2)
    summary = cause.summary
    if candidate.guess.note:
        summary += f" Here: {candidate.guess.note}."
    if confidence < 0.75 and candidate.questions:
        summary += f" To be sure: {candidate.questions[0]}"
    elif confidence < 0.75 and cause.ask:
        summary += f" To be sure, send {cause.ask}."
    # A traceback quotes the source line that raised; the message itself says more.
    best = sorted(candidate.events, key=lambda e: (" raise " in f" {e.hit.text} ", e.rule.id == "traceback"))[
        :EVIDENCE_LINES
    ]
    rule = rule_of(candidate.events[0])
    remedy = candidate.guess.remedy or cause.remedy
    return Finding(
        _subject(candidate.events), _severity(cause.id, confidence), cause.id, summary, tuple(_evidence(e) for e in best), remedy,
        cause.undo, rule.source if isinstance(rule, Rule) else "", confidence,
    )  # fmt: skip


def _alternative(top: _Candidate, cause: Cause, confidence: float) -> Finding:
    summary = f"{cause.summary} The same text has this cause too."
    if top.questions:
        summary += f" What tells them apart: {top.questions[0]}"
    return Finding(
        _subject(top.events), "warning", cause.id, summary, (_evidence(top.events[0]),), cause.remedy, cause.undo, "", confidence,
    )  # fmt: skip


def _insufficient(faults: Sequence[Event], scene: Scene) -> Finding:
    cause = CAUSES["insufficient-evidence"]
    asks = ["the lines above the first error"]
    if not scene.nodes() or len(scene.nodes()) < 2:
        asks.append("every other rank's and node's log (Ray: /tmp/ray/session_latest/logs of each node)")
    asks.append("a run with NCCL_DEBUG=INFO if it failed while ranks were connecting")
    summary = (
        f"{cause.summary} All that is here are lines that repeat another process's failure. Send "
        + "; ".join(asks)
        + "."
    )
    return Finding(
        _subject(faults), "warning", cause.id, summary, tuple(_evidence(e) for e in faults[:EVIDENCE_LINES]), cause.remedy, "", "", 0.6,
    )  # fmt: skip

"""Joins the evidence about one deployment into its proof. Pure; `proof.py` says what each layer can see."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longspan.launch import judge, proof
from longspan.launch.checkpoint import CheckpointDigest
from longspan.launch.logprobs import Reference, TokenLogprobs
from longspan.launch.proof import Layer, Proof, Tolerance

DEFAULT_TOLERANCE = Tolerance(
    proof.DEFAULT_TOLERANCE_NATS, "a guess: no float32 run of one rank was possible"
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the deployment itself answered.

    Attributes:
        deployed: its teacher-forced log-probabilities of the proof's texts, or the error in words.
        generated, scored: the same tokens generated, and sent back as a prompt; empty with `paths_error`.
    """

    completion: Layer
    deployed: tuple[TokenLogprobs, ...] = ()
    deployed_error: str = ""
    generated: tuple[TokenLogprobs, ...] = ()
    scored: tuple[TokenLogprobs, ...] = ()
    paths_error: str = ""


@dataclass(frozen=True, slots=True)
class References:
    """What one rank says, by the node whose copy it read.

    Attributes:
        own: in the deployment's dtype.
        exact: in float32, of the head's copy; None where it was not possible.
        reason: why there is none at all.
    """

    own: Mapping[str, Reference]
    exact: Reference | None = None
    reason: str = ""

    @property
    def tolerance(self) -> Tolerance:
        """Twice the honest noise where it was measured."""
        head = next(iter(self.own.values()), None)
        if head is None or self.exact is None:
            return DEFAULT_TOLERANCE
        return proof.measured_tolerance(head, self.exact)


def references_from_json(answers: Mapping[str, Mapping[str, Any]]) -> References:
    """The agents' answers, the head's first: {"own": …, "exact": …} or {"skipped": why}."""
    own = {node: Reference.from_json(answer["own"]) for node, answer in answers.items() if answer.get("own")}
    exact = next((Reference.from_json(a["exact"]) for a in answers.values() if a.get("exact")), None)
    reason = next((str(a["skipped"]) for a in answers.values() if a.get("skipped")), "")
    return References(own, exact, reason)


def conclude(
    digests: Mapping[str, CheckpointDigest | None], head: str, evidence: Evidence, references: References
) -> Proof:
    """All layers, in the order in which their evidence was taken."""
    if not any(digest and digest.files for digest in digests.values()):
        digest_layer = proof.skipped(
            "digests", "no node had a copy before the start; each fetched the same commit from the hub"
        )
    else:
        digest_layer = judge.digest_layer(digests, head)
    tolerance = references.tolerance
    if evidence.paths_error:
        paths = proof.failed("paths", evidence.paths_error)
    else:
        paths = judge.paths_layer(evidence.generated, evidence.scored, tolerance)
    if evidence.deployed_error:
        reference = proof.failed("reference", evidence.deployed_error)
    elif head not in references.own:
        reference = proof.skipped("reference", f"no one-rank reference: {references.reason}")
    else:
        reference = judge.reference_layer(evidence.deployed, references.own, head, tolerance)
    return Proof((digest_layer, evidence.completion, paths, reference))


def summary(found: Proof) -> str:
    """One line: how many layers passed, and which did not."""
    by_state: dict[str, list[str]] = {}
    for layer in found.layers:
        by_state.setdefault(layer.state, []).append(layer.name)
    parts = [f"{len(by_state.get('passed', []))} of {len(found.layers)} layers passed"]
    parts += [f"{', '.join(by_state[state])} {state}" for state in ("failed", "skipped") if state in by_state]
    return f"{found.verdict}: {'; '.join(parts)}"

"""Which node's copy is wrong, when a deployment's log-probabilities are not those of the checkpoint. Pure."""

from collections.abc import Mapping, Sequence

from longspan.finding import Evidence, Finding
from longspan.launch.logprobs import Reference, TokenLogprobs, agreement
from longspan.launch.proof import Tolerance

# A damaged copy finds ordinary text less likely, if the damage is large: measured 5.5 standard errors of the mean over the
# proof's tokens with layer 15 dead, but 2.4 with layer 25 and 1.1 with layer 5,
# where honest runs of the same copy show 1.0 (docs/proof.md).
_LESS_LIKELY_ERRORS = 4.0


def which_node(
    head: str, references: Mapping[str, Reference], deployed: Sequence[TokenLogprobs], tolerance: Tolerance
) -> tuple[Finding, ...]:
    """Says whose copy is wrong, from one-rank references that every node made of its own copy.

    The references agree within the tolerance where the copies are the same, whatever their digests claim. Where most nodes
    agree, those that do not are named. Of two, nothing outvotes the other: then the copy that finds the texts clearly less
    likely is named, else the one that is not the head's. If all agree, the copies are not the cause, and the finding says that.

    Args:
        head: the node whose reference counts where nothing else decides.
        references: node name to the reference made on it with its own copy; must hold the head's.
        deployed: the deployment's values, for the evidence.

    Raises:
        ProofError: a reference is about other tokens.
    """
    judge, grounds, confidence = _whose_counts(head, references, tolerance)
    limit = tolerance.mean_abs_nats
    findings = []
    for node, own in references.items():
        apart = agreement(own.texts, references[judge].texts)
        if apart.mean_abs <= limit:
            continue
        from_deployment = agreement(deployed, own.texts).mean_abs
        findings.append(
            Finding(
                subject=node,
                severity="error",
                cause="proof-node-copy-differs",
                summary=f"The copy of the checkpoint on {node} gives other log-probabilities than that on {judge}: "
                f"{apart.mean_abs:.4f} apart on average, where {limit:.4f} is honest. Its weights are damaged or of another "
                f"revision, whatever its digests say. {node} is named because {grounds}.",
                evidence=(
                    Evidence("reference", 0, f"{node} against {judge}: {apart.to_json()}"),
                    Evidence("deployment", 0, f"{from_deployment:.4f} apart from {node}'s reference"),
                ),
                remedy=f"Copy the checkpoint to {node} again from {judge}, and start again.",
                source="one-rank reference made on each node",
                confidence=confidence,
            )
        )
    return tuple(findings) or (_copies_agree(references),)


def _whose_counts(
    head: str, references: Mapping[str, Reference], tolerance: Tolerance
) -> tuple[str, str, float]:
    """The node whose copy counts as right, on what grounds the others are named, and how sure that is."""
    near = {
        node: sum(
            agreement(own.texts, other.texts).mean_abs <= tolerance.mean_abs_nats
            for other in references.values()
        )
        for node, own in references.items()
    }
    largest = max(near.values())
    if 2 * largest > len(references):
        judge = head if near[head] == largest else next(n for n, size in near.items() if size == largest)
        return judge, "most of the nodes agree with each other and not with it", 0.95
    best, gain = head, _LESS_LIKELY_ERRORS
    for node, own in references.items():
        apart = agreement(own.texts, references[head].texts)
        if apart.mean_error and apart.mean / apart.mean_error > gain:
            best, gain = node, apart.mean / apart.mean_error
    least = agreement(references[head].texts, min(references.values(), key=_likelihood).texts)
    if best != head or (least.mean_error and least.mean / least.mean_error > _LESS_LIKELY_ERRORS):
        return best, "its copy finds the texts clearly less likely, as damaged weights do", 0.85
    return head, "it is not the head; nothing tells which of the copies is right", 0.6


def _likelihood(reference: Reference) -> float:
    return sum(sum(text.logprobs) for text in reference.texts)


def _copies_agree(references: Mapping[str, Reference]) -> Finding:
    return Finding(
        subject="deployment",
        severity="error",
        cause="proof-copies-agree",
        summary=f"Every node's own copy gives the same log-probabilities ({', '.join(references)}), so the copies are not "
        "the cause. What remains is what only the deployment has: sharding, its kernels and arguments, or a collective "
        "that returns wrong sums.",
        remedy="Run `longspan check` for the collectives; try --enforce-eager, then another attention backend.",
        source="one-rank reference made on each node",
    )

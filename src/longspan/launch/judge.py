"""Judges what was seen: each function turns the evidence of one kind into a `Layer`. Pure; see `proof.py` for the order."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from longspan.errors import ProofError
from longspan.finding import Finding
from longspan.launch.checkpoint import CheckpointDigest, compare_copies
from longspan.launch.logprobs import Reference, TokenLogprobs, agreement
from longspan.launch.proof import Layer, Tolerance, failed
from longspan.launch.suspects import which_node
from longspan.units import format_bytes


def digest_layer(digests: Mapping[str, CheckpointDigest | None], head: str) -> Layer:
    """Judges the copies of all nodes. One copy agrees with itself, so a single node is skipped, not passed.

    Raises:
        ValueError: as `compare_copies`.
    """
    findings = compare_copies(digests, head)
    known = [digest for digest in digests.values() if digest and digest.files]
    later = [node for node, digest in digests.items() if digest and not digest.files]
    coverage = min((digest.coverage for digest in known), default=0.0)
    figures: dict[str, float | int | str] = {
        "nodes": len(digests),
        "files": max((len(digest.files) for digest in known), default=0),
        "read_bytes": max((digest.bytes_read for digest in known), default=0),
        "coverage": round(coverage, 6),
    }
    read = "every byte" if coverage == 1 else f"{coverage:.2%} of the bytes, at places drawn for this start"
    amount = f"{figures['files']} files, {format_bytes(float(figures['read_bytes']))} read ({read})"
    if any(finding.severity == "error" for finding in findings):
        return Layer("digests", "failed", "; ".join(f.summary for f in findings), figures, findings)
    if later:
        amount += f"; not compared: {', '.join(later)}, which had no copy yet and fetches the same commit from the hub"
    if len(known) == 1:
        return Layer("digests", "skipped", f"one node holds the only copy: {amount}", figures, findings)
    return Layer("digests", "passed", f"{len(known)} nodes hold the same copy: {amount}", figures, findings)


def reference_layer(
    deployed: Sequence[TokenLogprobs], references: Mapping[str, Reference], head: str, tolerance: Tolerance
) -> Layer:
    """Judges the deployment's teacher-forced log-probabilities by one-rank runs of the same checkpoint.

    It passes if the deployment agrees with the reference of every node that made one. Otherwise, with one reference the
    deployment is blamed; with several, the node whose copy differs is named, or the copies are cleared (`which_node`).

    Args:
        deployed: what the deployment says of the proof's texts.
        references: node name to the reference made there of its own copy; must hold the head's.
        head: the node whose reference counts where no majority does.
    """
    try:
        found = {node: agreement(deployed, reference.texts) for node, reference in references.items()}
    except ProofError:
        finding = Finding(
            subject="deployment",
            severity="error",
            cause="proof-tokens-differ",
            summary="The deployment reads the proof's texts as other tokens than the reference does: its tokenizer differs.",
            remedy="Compare tokenizer.json and tokenizer_config.json on the node that runs the engine's API server.",
        )
        return Layer("reference", "failed", finding.summary, {}, (finding,))
    limit = tolerance.mean_abs_nats
    node, worst = max(found.items(), key=lambda item: item[1].mean_abs)
    figures: dict[str, float | int | str] = {
        **worst.to_json(),
        "limit_nats": round(limit, 5),
        "nodes": len(found),
    }
    seen = (
        f"log-probabilities of {worst.count} given tokens differ from a one-rank run on {node} "
        f"({references[node].made_by}, dtype {references[node].dtype}) by {worst.mean_abs:.4f} on average, "
        f"{worst.max_abs:.2f} at most; limit {limit:.4f}, {tolerance.source}"
    )
    if worst.mean_abs <= limit:
        return Layer("reference", "passed", seen, figures)
    if len(references) > 1:
        return Layer("reference", "failed", seen, figures, which_node(head, references, deployed, tolerance))
    finding = Finding(
        subject="deployment",
        severity="error",
        cause="proof-logprobs-differ",
        summary=f"The deployment does not give this checkpoint's answers: {seen}.",
        remedy="Digest the copies with --full, and make a reference on every node to see whose copy differs.",
        source="one-rank reference",
    )
    return Layer("reference", "failed", seen, figures, (finding,))


def paths_layer(
    generated: Sequence[TokenLogprobs], scored: Sequence[TokenLogprobs], tolerance: Tolerance
) -> Layer:
    """Judges generated tokens' log-probabilities by those of the same tokens sent back as a prompt. Needs no reference."""
    try:
        found = agreement(generated, scored)
    except ProofError as error:
        return failed("paths", f"generated tokens came back as others: {error}")
    limit = tolerance.mean_abs_nats
    figures: dict[str, float | int | str] = {
        key: value for key, value in found.to_json().items() if "perplexity" not in key
    }
    figures["limit_nats"] = round(limit, 5)
    seen = (
        f"log-probabilities of {found.count} generated tokens differ from those of the same tokens sent back as a prompt "
        f"by {found.mean_abs:.4f} on average, {found.max_abs:.2f} at most; limit {limit:.4f}"
    )
    if found.mean_abs <= limit:
        return Layer("paths", "passed", seen, figures)
    return replace(failed("paths", seen), figures=figures)


def completion_layer(text: str, tokens: int, seconds: float) -> Layer:
    """A completion that came through the gateway; no text or no token is a failure."""
    figures: dict[str, float | int | str] = {"tokens": tokens, "seconds": round(seconds, 4)}
    if tokens < 1 or not text:
        return replace(failed("completion", "the completion through the gateway is empty"), figures=figures)
    shown = " ".join(text.split())[:60]
    return Layer("completion", "passed", f"{tokens} tokens came back: “{shown}”", figures)

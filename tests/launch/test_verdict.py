"""The evidence about one deployment joined into its proof."""

from recorded import paths, reference, run

from longspan.launch.checkpoint import CheckpointDigest, FileDigest
from longspan.launch.judge import completion_layer
from longspan.launch.logprobs import NotMade
from longspan.launch.proof import Proof
from longspan.launch.verdict import Evidence, References, conclude, references_from_json, summary

COPY = CheckpointDigest("/m", "n", (FileDigest("model.safetensors", 10, "a", "whole", 10),))
COMPLETION = completion_layer(" Paris", 2, 0.1)
OWN = reference("tp1-bfloat16")
EXACT = reference("tp1-float32", "float32")


def evidence(name: str) -> Evidence:
    """What a deployment like the recorded run answers."""
    generated, scored = paths("tp3-bfloat16")
    return Evidence(COMPLETION, run(name), "", tuple(generated), tuple(scored))


def states(proof: Proof) -> dict[str, str]:
    """Layer name to state."""
    return {layer.name: layer.state for layer in proof.layers}


def test_everything_passes() -> None:
    """Equal copies, TP=3's answers and a reference with its noise measured: verified."""
    found = conclude({"a": COPY, "b": COPY}, "a", evidence("tp3-bfloat16"), References({"a": OWN}, EXACT))
    assert found.verdict == "verified"
    assert summary(found) == "verified: 4 of 4 layers passed"


def test_without_a_reference_the_proof_is_partial() -> None:
    """A model too large for one rank is skipped with the reason, and the proof does not claim more."""
    answers = {"a": {"skipped": NotMade("one rank needs 1.4 TiB").reason}}
    found = conclude({"a": COPY, "b": COPY}, "a", evidence("tp3-bfloat16"), references_from_json(answers))
    assert found.verdict == "partly verified"
    assert states(found)["reference"] == "skipped"
    assert "1.4 TiB" in found.layers[-1].seen


def test_a_dead_layer_behind_a_forged_digest() -> None:
    """The digests agree, the log-probabilities do not: failed, and with every node's reference the node is named."""
    answers = {
        "a": {"own": OWN.to_json(), "exact": EXACT.to_json()},
        "b": {"own": reference("dead-15").to_json(), "exact": None},
    }
    found = conclude({"a": COPY, "b": COPY}, "a", evidence("dead-15"), references_from_json(answers))
    assert states(found) == {
        "digests": "passed", "completion": "passed", "paths": "passed", "reference": "failed",
    }  # fmt: skip
    assert [finding.subject for finding in found.findings] == ["b"]


def test_errors_are_evidence() -> None:
    """An endpoint that refuses to score fails both layers, with its words."""
    refused = Evidence(COMPLETION, deployed_error="answered 401", paths_error="answered 401")
    found = conclude({"a": COPY, "b": COPY}, "a", refused, References({"a": OWN}))
    assert found.verdict == "failed"
    assert states(found)["paths"] == states(found)["reference"] == "failed"


def test_a_guessed_limit_still_catches_a_dead_layer() -> None:
    """Without a float32 run the limit is a guess, and says so."""
    for name, verdict in (("tp3-bfloat16", "verified"), ("dead-25", "failed")):
        found = conclude({"a": COPY, "b": COPY}, "a", evidence(name), References({"a": OWN}))
        assert found.verdict == verdict
        assert "a guess" in found.layers[-1].seen

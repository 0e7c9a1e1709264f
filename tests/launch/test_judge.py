"""Verdicts on recorded runs of a real engine: what must pass passes, what must fail fails and names the node."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import paths, reference, run

from longspan.launch.checkpoint import CheckpointDigest, FileDigest
from longspan.launch.judge import completion_layer, digest_layer, paths_layer, reference_layer
from longspan.launch.logprobs import TokenLogprobs, perplexity
from longspan.launch.proof import Layer, Proof, failed, measured_tolerance, skipped
from longspan.launch.suspects import which_node
from longspan.launch.verdict import DEFAULT_TOLERANCE

MEASURED = measured_tolerance(reference("tp1-bfloat16"), reference("tp1-float32", "float32"))
DEFAULT = DEFAULT_TOLERANCE
HONEST = ["tp1-bfloat16", "tp1-float32", "tp3-bfloat16", "pp2-bfloat16"]
DEAD = ["dead-5", "dead-15", "dead-25"]


def copy_with(digest: str) -> CheckpointDigest:
    """A copy of one file."""
    return CheckpointDigest("/m", "n", (FileDigest("model.safetensors", 10, digest, "whole", 10),))


@pytest.mark.parametrize("tolerance", [MEASURED, DEFAULT], ids=["measured", "default"])
@pytest.mark.parametrize("name", HONEST)
def test_honest_deployments_pass(name: str, tolerance: object) -> None:
    """The same checkpoint under another layout or dtype passes, TP=3 too, whose greedy text differs."""
    layer = reference_layer(run(name), {"a": reference("tp1-bfloat16")}, "a", tolerance)  # type: ignore[arg-type]
    assert layer.state == "passed", layer.seen
    assert "limit" in layer.seen
    assert not layer.findings


@pytest.mark.parametrize("tolerance", [MEASURED, DEFAULT], ids=["measured", "default"])
@pytest.mark.parametrize("name", DEAD)
def test_a_dead_layer_fails(name: str, tolerance: object) -> None:
    """One zeroed attention output among thirty layers fails by a wide margin."""
    layer = reference_layer(run(name), {"a": reference("tp1-bfloat16")}, "a", tolerance)  # type: ignore[arg-type]
    assert layer.state == "failed"
    assert layer.figures["mean_abs_nats"] > 1.5 * layer.figures["limit_nats"]  # type: ignore[operator]
    (finding,) = layer.findings
    assert (finding.subject, finding.cause) == ("deployment", "proof-logprobs-differ")


def test_margins_are_wide_on_both_sides() -> None:
    """Measured limit: honest runs stay below two thirds of it, dead layers above twice it."""
    base = {"a": reference("tp1-bfloat16")}

    def distance(name: str) -> float:
        return float(reference_layer(run(name), base, "a", MEASURED).figures["mean_abs_nats"])

    assert max(map(distance, HONEST)) < MEASURED.mean_abs_nats * 2 / 3
    assert min(map(distance, DEAD)) > MEASURED.mean_abs_nats * 2


def test_perplexity_alone_would_miss_it() -> None:
    """Layer 5 dead moves the perplexity by 1.3 %, less than the choice of another text would, and far less than the limit."""
    assert perplexity(run("dead-5")) / perplexity(run("tp1-bfloat16")) == pytest.approx(1.013, abs=0.002)


def test_another_tokenizer_is_said_so() -> None:
    """Other token ids are a finding of their own, not a distance."""
    other = tuple(TokenLogprobs(tuple(i + 1 for i in t.token_ids), t.logprobs) for t in run("tp1-bfloat16"))
    layer = reference_layer(other, {"a": reference("tp1-bfloat16")}, "a", MEASURED)
    assert (layer.state, layer.findings[0].cause) == ("failed", "proof-tokens-differ")


def test_the_limit_has_a_floor() -> None:
    """A float32 deployment has no noise of its own to measure, yet is not held to zero."""
    exact = reference("tp1-float32", "float32")
    assert measured_tolerance(exact, exact).mean_abs_nats == 0.01


def test_a_guessed_limit_is_called_a_guess() -> None:
    """Where the noise was not measured, the layer says that its limit is a guess, and why."""
    layer = reference_layer(run("tp3-bfloat16"), {"a": reference("tp1-bfloat16")}, "a", DEFAULT)
    assert "a guess" in layer.seen
    assert "no float32 run" in layer.seen


@given(st.permutations(["n0", "n1", "n2", "n3"]), st.sampled_from(DEAD))
def test_among_several_nodes_the_damaged_copy_is_named(names: list[str], dead: str) -> None:
    """Whoever holds the dead layer is named by majority, the head included, whatever its digests said."""
    references = {"n0": reference("tp1-bfloat16"), "n1": reference("tp1-bfloat16")}
    references |= {"n2": reference("tp3-bfloat16"), "n3": reference("tp1-bfloat16")}
    references[names[0]] = reference(dead)
    layer = reference_layer(run(dead), references, "n0", MEASURED)
    assert layer.state == "failed"
    (finding,) = layer.findings
    assert (finding.subject, finding.cause) == (names[0], "proof-node-copy-differs")
    assert finding.confidence > 0.9


@pytest.mark.parametrize("damaged", ["head", "far"])
def test_of_two_the_less_likely_copy_is_named(damaged: str) -> None:
    """Two copies cannot outvote each other; one that finds ordinary text clearly less likely is named, head or not."""
    references = {
        name: reference("dead-15" if name == damaged else "tp1-bfloat16") for name in ("head", "far")
    }
    (finding,) = which_node("head", references, run("dead-15"), MEASURED)
    assert finding.subject == damaged
    assert "less likely" in finding.summary


def test_of_two_equally_likely_copies_the_head_counts() -> None:
    """Where the likelihood does not tell, as with layer 5, the other node is named and the finding says how weak that is."""
    references = {"head": reference("tp1-bfloat16"), "far": reference("dead-5")}
    (finding,) = which_node("head", references, run("dead-5"), MEASURED)
    assert finding.subject == "far"
    assert "nothing tells" in finding.summary
    assert finding.confidence < 0.7


def test_copies_that_agree_are_cleared() -> None:
    """If every node's own copy is right, the finding points at sharding, kernels and collectives."""
    references = {"a": reference("tp1-bfloat16"), "b": reference("tp3-bfloat16")}
    layer = reference_layer(run("dead-15"), references, "a", MEASURED)
    assert [f.cause for f in layer.findings] == ["proof-copies-agree"]


@pytest.mark.parametrize("name", ["tp3-bfloat16", "pp2-bfloat16"])
def test_honest_paths_agree(name: str) -> None:
    """Tokens generated step by step have nearly the log-probabilities that they have when read at once."""
    layer = paths_layer(*paths(name), MEASURED)
    assert layer.state == "passed", layer.seen
    assert layer.figures["tokens"] == 144


def test_a_broken_path_fails() -> None:
    """Values that belong to the token before, as a cache off by one slot gives them, fail."""
    generated, scored = paths("tp3-bfloat16")
    shifted = [TokenLogprobs(t.token_ids, t.logprobs[1:] + t.logprobs[:1]) for t in generated]
    layer = paths_layer(shifted, scored, MEASURED)
    assert layer.state == "failed"
    assert layer.findings[0].cause == "proof-paths-failed"
    assert layer.figures["mean_abs_nats"] > layer.figures["limit_nats"]  # type: ignore[operator]


def test_tokens_that_come_back_as_others_fail() -> None:
    """An endpoint that reads back other tokens than it generated fails, without a crash."""
    generated, scored = paths("tp3-bfloat16")
    assert paths_layer(generated, scored[:-1], MEASURED).state == "failed"


def test_digest_layer() -> None:
    """Equal copies pass with their coverage; a difference fails with the node; one copy alone proves nothing."""
    good, bad = copy_with("a"), copy_with("b")
    passed = digest_layer({"a": good, "b": good}, "a")
    assert passed.state == "passed"
    assert "every byte" in passed.seen
    broken = digest_layer({"a": good, "b": bad}, "a")
    assert broken.state == "failed"
    assert broken.findings[0].subject == "b"
    assert digest_layer({"a": good, "b": None}, "a").state == "failed"
    assert digest_layer({"a": good}, "a").state == "skipped"
    part = CheckpointDigest("/m", "n", (FileDigest("w", 1000, "d", "sampled", 25),))
    assert "2.50% of the bytes" in digest_layer({"a": part, "b": part}, "a").seen


def test_an_empty_completion_fails() -> None:
    """No token is no answer."""
    assert completion_layer(" Paris", 2, 0.1).state == "passed"
    for text, tokens in (("", 0), ("", 3), ("x", 0)):
        assert completion_layer(text, tokens, 0.1).state == "failed"


def test_the_verdict_needs_every_layer() -> None:
    """Verified only with all kinds of evidence; a skipped one makes it partial, a failed one failed."""
    good = [Layer(name, "passed", "ok") for name in ("digests", "completion", "reference", "paths")]  # type: ignore[arg-type]
    assert Proof(tuple(good)).verdict == "verified"
    assert Proof(tuple(good[:3])).verdict == "partly verified"
    partial = Proof((*good[:2], skipped("reference", "one rank needs 1.4 TiB"), good[3]))
    assert partial.verdict == "partly verified"
    assert "skipped: reference" in partial.summary
    bad = Proof((*good[:3], failed("paths", "broken")))
    assert bad.verdict == "failed"
    assert [f.cause for f in bad.findings] == ["proof-paths-failed"]


def test_a_proof_says_what_it_cannot_see() -> None:
    """Each layer in `--json` carries what was seen, what it can and what it cannot see."""
    layer = reference_layer(run("tp3-bfloat16"), {"a": reference("tp1-bfloat16")}, "a", MEASURED)
    data = json.loads(json.dumps(Proof((layer, skipped("paths", "not asked"))).to_json()))
    for item in data["layers"]:
        assert item["seen"]
        assert item["can_see"]
        assert item["cannot_see"]
    assert data["layers"][0]["figures"]["tokens"] == 782

"""The proof that a deployment gives the checkpoint's answers: layers, each with what was seen, what it can see and what it cannot.

How the controller makes one (`judge.py` decides, `digest.py`, `prover.py` and `reference.py` ask):

1. before loading: every agent runs `digest_checkpoint(path, nonce)`; `digest_layer(digests, head)`
2. after readiness: `completion_layer`, `paths_layer` (decode against prefill) and, off the critical path where a rank can be
   spared, `make_reference` on one node and `reference_layer`
3. where that failed: `make_reference` on every node that has a copy, and `reference_layer` again with all of them, which names
   the node whose copy differs
4. `Proof(layers)`

The tolerance. Two honest runs in bfloat16 under different orders of summation each deviate from the exact values by about the same
mean d, so from each other by up to about sqrt(2) d. The limit is twice d, with d measured for this very checkpoint as the mean
distance between one-rank runs in the deployment's dtype and in float32. Measured with vLLM 0.32 on CPU, SmolLM2-135M-Instruct and
the proof's texts (782 tokens): d = 0.034, so the limit is 0.067; TP=3 is 0.039 from TP=1, a dead layer 0.15 to 0.26 (docs/proof.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from longspan.finding import Finding
from longspan.launch.logprobs import Reference, agreement

State = Literal["passed", "failed", "skipped"]
LayerName = Literal["digests", "completion", "reference", "paths"]

# Honest runs differ by up to sqrt(2) of the noise; a dead attention output by four to eight times it (docs/proof.md).
NOISE_FACTOR = 2.0
# Where the dtype is float32 itself the measured noise is zero, yet orders of summation still differ a little.
TOLERANCE_FLOOR_NATS = 0.01
# A guess for a checkpoint whose noise cannot be measured: midway (as a ratio) between the honest distance and the least that a
# dead layer makes on SmolLM2 (docs/proof.md).
DEFAULT_TOLERANCE_NATS = 0.08

# What each layer can see and what it cannot, for people who decide how far to trust it.
_SIGHT: dict[LayerName, tuple[str, str]] = {
    "digests": (
        "any difference in the bytes that were read, and which node and file",
        "bytes that were not read, a copy that is the same wrong one everywhere, a node that lies, damage after reading",
    ),
    "completion": (
        "that a request passes gateway, engine and every rank, and that tokens come back",
        "whether the tokens are right",
    ),
    "reference": (
        "gross damage anywhere in weights, sharding, kernels or collectives: a dead layer, swapped or missing shards",
        (
            "small damage (1 % of one matrix moves less than honest noise), damage in the very copy that the reference was made of,"
            " and what the texts do not exercise"
        ),
    ),
    "paths": (
        "a broken decode path or KV cache: what was generated step by step against the same tokens read at once",
        "wrong weights, and anything that breaks both paths alike",
    ),
}


@dataclass(frozen=True, slots=True)
class Layer:
    """One kind of evidence.

    Attributes:
        seen: one sentence with the figures.
        figures: the same for machines; units are in the names.
    """

    name: LayerName
    state: State
    seen: str
    figures: Mapping[str, float | int | str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def can_see(self) -> str:
        """What this kind of evidence can tell."""
        return _SIGHT[self.name][0]

    @property
    def cannot_see(self) -> str:
        """What this kind of evidence cannot tell."""
        return _SIGHT[self.name][1]

    def to_json(self) -> dict[str, Any]:
        """The form that `--json` prints."""
        return {
            "name": self.name,
            "state": self.state,
            "seen": self.seen,
            "can_see": self.can_see,
            "cannot_see": self.cannot_see,
            "figures": dict(self.figures),
            "findings": [finding.to_json() for finding in self.findings],
        }


@dataclass(frozen=True, slots=True)
class Proof:
    """All layers of one deployment, in the order in which they were made."""

    layers: tuple[Layer, ...]

    @property
    def verdict(self) -> Literal["verified", "partly verified", "failed"]:
        """Failed if any layer failed; verified only if every kind of evidence was there and passed."""
        if any(layer.state == "failed" for layer in self.layers):
            return "failed"
        passed = {layer.name for layer in self.layers if layer.state == "passed"}
        return "verified" if passed == set(_SIGHT) else "partly verified"

    @property
    def summary(self) -> str:
        """The verdict with the layers that stand behind it, in one line."""
        names = {
            state: ", ".join(layer.name for layer in self.layers if layer.state == state)
            for state in ("failed", "passed", "skipped")
        }
        return "; ".join([self.verdict, *(f"{state}: {found}" for state, found in names.items() if found)])

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that was found, over all layers."""
        return tuple(finding for layer in self.layers for finding in layer.findings)

    def to_json(self) -> dict[str, Any]:
        """The form that `--json` prints."""
        return {
            "verdict": self.verdict,
            "summary": self.summary,
            "layers": [layer.to_json() for layer in self.layers],
        }


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far apart the means of honest runs may be, and where that number comes from."""

    mean_abs_nats: float
    source: str


def skipped(name: LayerName, reason: str) -> Layer:
    """A layer that was not made; the proof then is partial, and says why."""
    return Layer(name, "skipped", reason)


def failed(name: LayerName, seen: str) -> Layer:
    """A layer that failed, with one finding about the deployment as a whole."""
    finding = Finding(
        subject="deployment",
        severity="error",
        cause=f"proof-{name}-failed",
        summary=f"{seen[:1].upper()}{seen[1:]}.",
        remedy="Do not send traffic to this deployment. Try another attention backend or start without prefix caching."
        if name == "paths"
        else "Do not send traffic to this deployment; `longspan doctor` reads its logs.",
    )
    return Layer(name, "failed", seen, {}, (finding,))


def measured_tolerance(reference: Reference, exact: Reference) -> Tolerance:
    """The limit for this checkpoint, from one-rank runs in its own dtype and in float32.

    Raises:
        ProofError: the two runs are about different tokens.
    """
    noise = agreement(reference.texts, exact.texts).mean_abs
    limit = max(NOISE_FACTOR * noise, TOLERANCE_FLOOR_NATS)
    source = f"twice this checkpoint's own noise of {noise:.4f} ({reference.dtype} against float32)"
    if limit == TOLERANCE_FLOOR_NATS:
        source = f"the least that is allowed; this checkpoint's noise against float32 is {noise:.4f}"
    return Tolerance(limit, source)

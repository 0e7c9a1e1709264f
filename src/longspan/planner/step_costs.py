"""The calibrated step costs by GPU family, and how far estimates made with them are off.

Fitted by `scripts/calibrate_latency.py` to the aggregated vLLM points of NVIDIA's aiconfigurator (silicon_sample.csv at
commit 095f58a, Apache-2.0): MiniMax-M2.5, gpt-oss-120b, Llama-3.1-70B and 8B, Kimi-K2.5, Qwen3-32B and Qwen3-235B on H100, H200, B200 and B300 at TP 1 to 8,
vLLM 0.12 to 0.19. Families without points carry Hopper's efficiencies over and are called guesses.
"""

from dataclasses import dataclass, replace
from math import sqrt

from longspan.cluster.catalog import GpuType
from longspan.planner.steptime import StepCosts

_POINTS = "silicon points of aiconfigurator @095f58a, cross-validated by configuration"

HOPPER = StepCosts(
    dense_read=0.85, expert_read=0.243, cache_read=0.735,
    multiply={"bf16": 0.503, "fp8": 0.85, "fp4": 0.503, "mxfp4": 0.85, "int8": 0.85},
    expert_multiply={
        "bf16": 0.177, "fp8": 0.217, "fp4": 0.113, "mxfp4": 0.215,
        "int8": 0.217,
    },
    attend=0.748, layer_seconds=18.5e-6, expert_layer_seconds=16.2e-6,
    prefill_layer_seconds=17.2e-6, mixed_seconds=0.282e-3,
    step_seconds=33.9e-6, request_seconds=0.829e-6, prompt_seconds=7.41e-3,
    reduce_seconds=20.9e-6, reduce_growth=1.7e-6, link_share=0.411, expert_skew=0.656,
    source=_POINTS,
)  # fmt: skip
# What follows the host, vLLM and the collectives is one fit for both families; the rest is Blackwell's own.
BLACKWELL = replace(
    HOPPER,
    dense_read=0.703, expert_read=0.393, cache_read=0.82,
    multiply={"bf16": 0.757, "fp8": 0.446, "fp4": 0.252, "mxfp4": 0.446, "int8": 0.446},
    expert_multiply={
        "bf16": 0.177, "fp8": 0.115, "fp4": 0.113, "mxfp4": 0.419,
        "int8": 0.115,
    },
    attend=0.441, layer_seconds=20.8e-6, expert_layer_seconds=18.2e-6,
    prefill_layer_seconds=200e-6, mixed_seconds=0.823e-3,
)  # fmt: skip
# `prompt_seconds` of the points that were measured warm (vLLM 0.12): without the stall that later points show.
WARM_PROMPT_SECONDS = 0.182e-3


@dataclass(frozen=True, slots=True)
class Spread:
    """Ratios of the 10th and 90th percentile of measurements to the estimate."""

    p10: float
    p90: float

    def widened(self, factor: float) -> "Spread":
        """The same on a logarithmic scale, `factor` times as wide."""
        return Spread(self.p10**factor, self.p90**factor)

    @property
    def inverse(self) -> "Spread":
        """Of a quantity that is one over this one."""
        return Spread(1 / self.p90, 1 / self.p10)


def _spreads(ttft: Spread, tpot: Spread, throughput: Spread) -> dict[str, Spread]:
    return {
        "ttft": ttft, "tpot": tpot, "throughput": throughput, "e2el": throughput.inverse, "user_speed": tpot.inverse,
    }  # fmt: skip


# Measured over estimated, 10th and 90th percentile of the points that the fit did not see (docs/calibration.md).
SPREADS = {
    "hopper": _spreads(Spread(0.745, 1.578), Spread(0.830, 1.136), Spread(0.881, 1.200)),
    "blackwell": _spreads(Spread(0.792, 1.386), Spread(0.872, 1.165), Spread(0.852, 1.148)),
}
# What is not calibrated is wider: another GPU family, links that nobody measured, several pipeline stages.
UNCALIBRATED_FACTOR = 2.5
# The points are means of closed loops under vLLM 0.12 to 0.19. How much wider what was not measured is, by judgement: medians of
# TTFT (a cold start is in the mean), Poisson arrivals, and engines before V1 became what was measured.
MEDIAN_TTFT_FACTOR, OPEN_LOOP_FACTOR, OLD_ENGINE_FACTOR = 1.6, 1.5, 1.8


def together(*factors: float) -> float:
    """Several reasons for a wider interval as one factor: independent errors add in squares, on the logarithmic scale."""
    return sqrt(1 + sum(factor**2 - 1 for factor in factors))


def family(gpu: GpuType) -> str:
    """hopper, blackwell, ampere, ada (and consumer Blackwell), volta or amd, by compute capability."""
    major, _, minor = gpu.compute_capability.partition(".")
    if gpu.vendor == "amd":
        return "amd"
    if major == "9":
        return "hopper"
    if major == "10":
        return "blackwell"
    if (major, minor) == ("8", "0"):
        return "ampere"
    return "volta" if major == "7" else "ada"


def spread(gpu: GpuType, quantity: str) -> Spread:
    """How far estimates for a GPU's family were off; families without points take Hopper's."""
    return SPREADS.get(family(gpu), SPREADS["hopper"])[quantity]


def step_costs(gpu: GpuType) -> StepCosts:
    """The costs of a GPU's family."""
    name = family(gpu)
    if name == "hopper":
        return HOPPER
    if name == "blackwell":
        return BLACKWELL
    return replace(HOPPER, source=f"guess: {name} with Hopper's efficiencies")

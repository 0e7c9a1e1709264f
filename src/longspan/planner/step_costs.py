"""The calibrated step costs by GPU family, and how far estimates made with them are off.

Fitted by `scripts/calibrate_latency.py` to the aggregated vLLM points of NVIDIA's aiconfigurator (silicon_sample.csv at
commit 095f58a, Apache-2.0): MiniMax-M2.5, gpt-oss-120b, Llama-3.1-70B and 8B, Kimi-K2.5, Qwen3-32B and Qwen3-235B on H100, H200, B200 and B300 at TP 1 to 8,
vLLM 0.12 to 0.19. Families without points carry Hopper's efficiencies over and are called guesses.
"""

from dataclasses import dataclass, replace

from longspan.cluster.catalog import GpuType
from longspan.planner.steptime import StepCosts

_POINTS = "silicon points of aiconfigurator @095f58a, cross-validated by configuration"

HOPPER = StepCosts(
    dense_read=0.855, expert_read=0.263, cache_read=0.742,
    multiply={"bf16": 0.501, "fp8": 0.85, "fp4": 0.501, "mxfp4": 0.85, "int8": 0.85},
    expert_multiply={"bf16": 0.175, "fp8": 0.202, "fp4": 0.114, "mxfp4": 0.214, "int8": 0.202},
    attend=0.741, layer_seconds=21.3e-6, expert_layer_seconds=17.1e-6,
    prefill_layer_seconds=17.4e-6, mixed_seconds=0.304e-3,
    step_seconds=21.2e-6, request_seconds=0.809e-6, prompt_seconds=7.62e-3,
    reduce_seconds=20.3e-6, reduce_growth=1.51e-6, link_share=0.416, expert_skew=0.682,
    source=_POINTS,
)  # fmt: skip
BLACKWELL = StepCosts(
    dense_read=0.711, expert_read=0.425, cache_read=0.827,
    multiply={"bf16": 0.743, "fp8": 0.446, "fp4": 0.252, "mxfp4": 0.446, "int8": 0.446},
    expert_multiply={"bf16": 0.175, "fp8": 0.114, "fp4": 0.114, "mxfp4": 0.43, "int8": 0.114},
    attend=0.439, layer_seconds=23.3e-6, expert_layer_seconds=18.7e-6,
    prefill_layer_seconds=200e-6, mixed_seconds=0.976e-3,
    step_seconds=21.2e-6, request_seconds=0.809e-6, prompt_seconds=7.62e-3,
    reduce_seconds=20.3e-6, reduce_growth=1.51e-6, link_share=0.416, expert_skew=0.682,
    source=_POINTS,
)  # fmt: skip
# `prompt_seconds` of the points that were measured warm (vLLM 0.12): without the stall that later points show.
WARM_PROMPT_SECONDS = 0.181e-3


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


# Measured over estimated, 10th and 90th percentile of 692 points that the fit did not see (docs/latency.md).
SPREAD = {"ttft": Spread(0.796, 1.473), "tpot": Spread(0.881, 1.144), "throughput": Spread(0.874, 1.133)}
SPREAD |= {"e2e": SPREAD["throughput"].inverse, "user_speed": SPREAD["tpot"].inverse}
# What is not calibrated is wider: another GPU family, links that nobody measured, several pipeline stages.
UNCALIBRATED_FACTOR = 2.5
# The points are means of closed loops under vLLM 0.12 to 0.19. How much wider what was not measured is, by judgement: medians of
# TTFT (a cold start is in the mean), Poisson arrivals, and engines before V1 became what was measured.
MEDIAN_TTFT_FACTOR, OPEN_LOOP_FACTOR, OLD_ENGINE_FACTOR = 1.6, 1.5, 1.8


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


def step_costs(gpu: GpuType) -> StepCosts:
    """The costs of a GPU's family."""
    name = family(gpu)
    if name == "hopper":
        return HOPPER
    if name == "blackwell":
        return BLACKWELL
    return replace(HOPPER, source=f"guess: {name} with Hopper's efficiencies")

"""The calibrated step costs by GPU family, and how far estimates made with them are off.

Fitted by `scripts/calibrate_latency.py` to the aggregated vLLM points of NVIDIA's aiconfigurator (silicon_sample.csv at
commit 095f58a, Apache-2.0): MiniMax-M2.5, gpt-oss-120b, Llama-3.1-70B, Kimi-K2.5 and Qwen3-32B on H100, H200, B200 and B300 at TP 1 to 8,
vLLM 0.12 to 0.19. Families without points carry Hopper's efficiencies over and are called guesses.
"""

from dataclasses import dataclass, replace

from longspan.cluster.catalog import GpuType
from longspan.planner.steptime import StepCosts

_POINTS = "silicon points of aiconfigurator @095f58a, cross-validated by configuration"

HOPPER = StepCosts(
    dense_read=0.863, expert_read=0.342, cache_read=0.706,
    multiply={"bf16": 0.674, "fp8": 0.798, "fp4": 0.674, "mxfp4": 0.674, "int8": 0.7},
    expert_multiply={"bf16": 0.152, "fp8": 0.0952, "fp4": 0.152, "mxfp4": 0.196, "int8": 0.0952},
    attend=0.56, layer_seconds=26.2e-6, expert_layer_seconds=20.2e-6, prefill_layer_seconds=25.2e-6,
    mixed_seconds=0.672e-3, step_seconds=37e-6, request_seconds=1.14e-6, prompt_seconds=7.98e-3,
    reduce_seconds=17.9e-6, reduce_growth=1.62e-6, link_share=0.421, expert_skew=0.738, source=_POINTS,
)  # fmt: skip
BLACKWELL = StepCosts(
    dense_read=0.712, expert_read=0.499, cache_read=0.903,
    multiply={"bf16": 0.703, "fp8": 0.435, "fp4": 0.239, "mxfp4": 0.435, "int8": 0.435},
    expert_multiply={"bf16": 0.152, "fp8": 0.101, "fp4": 0.0977, "mxfp4": 0.374, "int8": 0.101},
    attend=0.505, layer_seconds=26.8e-6, expert_layer_seconds=20.6e-6, prefill_layer_seconds=200e-6,
    mixed_seconds=1.15e-3, step_seconds=37e-6, request_seconds=1.14e-6, prompt_seconds=7.98e-3,
    reduce_seconds=17.9e-6, reduce_growth=1.62e-6, link_share=0.421, expert_skew=0.738, source=_POINTS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spread:
    """Ratios of the 10th and 90th percentile of measurements to the estimate."""

    p10: float
    p90: float

    def widened(self, factor: float) -> "Spread":
        """The same on a logarithmic scale, `factor` times as wide."""
        return Spread(self.p10**factor, self.p90**factor)


# Measured over estimated, 10th and 90th percentile of 692 points that the fit did not see (docs/latency.md).
SPREAD = {"ttft": Spread(0.796, 1.473), "tpot": Spread(0.881, 1.144), "throughput": Spread(0.874, 1.133)}
# What is not calibrated is wider: another GPU family, links that nobody measured, several pipeline stages.
UNCALIBRATED_FACTOR = 2.5


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

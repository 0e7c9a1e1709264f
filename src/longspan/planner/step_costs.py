"""The calibrated step costs by GPU family, and how far estimates made with them are off.

Fitted by `tools/calibrate_latency.py` to the aggregated vLLM points of NVIDIA's aiconfigurator (silicon_sample.csv at
commit 095f58a, Apache-2.0): MiniMax-M2.5, gpt-oss-120b, Llama-3.1-70B, Kimi-K2.5 and Qwen3-32B on H100, H200, B200 and B300 at TP 1 to 8,
vLLM 0.12 to 0.19. Families without points carry Hopper's efficiencies over and are called guesses.
"""

from dataclasses import dataclass, replace

from longspan.cluster.catalog import GpuType
from longspan.planner.steptime import StepCosts

_POINTS = "silicon points of aiconfigurator @095f58a, cross-validated by configuration"

HOPPER = StepCosts(
    dense_read=0.8, expert_read=0.347, cache_read=0.827,
    multiply={"bf16": 0.569, "fp8": 0.826, "fp4": 0.569, "mxfp4": 0.569, "int8": 0.6},
    expert_multiply={"bf16": 0.16, "fp8": 0.1, "fp4": 0.16, "mxfp4": 0.2, "int8": 0.1},
    attend=0.516, layer_seconds=26e-6, expert_layer_seconds=21.3e-6, prefill_layer_seconds=27e-6, mixed_seconds=0.7e-3,
    step_seconds=0.02e-3, request_seconds=0.9e-6, prompt_seconds=8.1e-3,
    reduce_seconds=17.8e-6, reduce_growth=1.6e-6, link_share=0.4, expert_skew=0.745, source=_POINTS,
)  # fmt: skip
BLACKWELL = HOPPER


@dataclass(frozen=True, slots=True)
class Spread:
    """Ratios of the 10th and 90th percentile of measurements to the estimate."""

    p10: float
    p90: float

    def widened(self, factor: float) -> "Spread":
        """The same on a logarithmic scale, `factor` times as wide."""
        return Spread(self.p10**factor, self.p90**factor)


# Held-out residuals by quantity.
SPREAD = {"ttft": Spread(0.8, 1.3), "tpot": Spread(0.88, 1.14), "throughput": Spread(0.88, 1.14)}
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

"""How long one engine step takes on one GPU: the calibrated time of the work that `work` counts.

    step = matrices + experts + attention + collectives + fixed time per layer + time of the host

Matrices and experts take the slower of reading and multiplying, with a soft corner between the two. The formulas use
plain arithmetic only, so that the calibration (`scripts/calibrate_latency.py`) can evaluate them on arrays.
"""

from dataclasses import dataclass

from longspan.cluster.catalog import GpuType
from longspan.planner.profile import Matrices
from longspan.planner.simulate import Load
from longspan.planner.work import StageWork

# Sharpness of the corner of the roofline; 1 adds reading and multiplying, infinity takes the larger.
_CORNER = 2.0


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Measured efficiencies of one GPU family under vLLM, and what a step costs beside its work.

    Attributes:
        dense_read, expert_read, cache_read: share of the datasheet bandwidth that weights, experts and caches reach.
        multiply: share of the dense peak by compute type (bf16, fp8, fp4, mxfp4, int8); `expert_multiply` likewise.
        attend: share of the BF16 peak in prefill attention.
        layer_seconds, expert_layer_seconds: fixed time of kernels of a layer, and of a mixture's beside it.
        prefill_layer_seconds: more of it in steps with prompts, which run outside full CUDA graphs.
        mixed_seconds: what such a step costs besides (planning of attention kernels, synchronisation).
        step_seconds, request_seconds, prompt_seconds: of the host for a step, each running request and each prompt.
        reduce_seconds: latency of an all-reduce over two GPUs on the fabric; `reduce_growth` for each doubling.
        link_share: of the link's rate that large collectives reach.
        expert_skew: routing is uneven: a batch of T tokens reaches as many experts as T**skew even ones would.
        source: where it was calibrated; starts with "guess" where it is carried over from another family.
    """

    dense_read: float
    expert_read: float
    cache_read: float
    multiply: dict[str, float]
    expert_multiply: dict[str, float]
    attend: float
    layer_seconds: float
    expert_layer_seconds: float
    prefill_layer_seconds: float
    mixed_seconds: float
    step_seconds: float
    request_seconds: float
    prompt_seconds: float
    reduce_seconds: float
    reduce_growth: float
    link_share: float
    expert_skew: float = 1.0
    source: str = "guess"


def peak_flops(gpu: GpuType, compute: str) -> float:
    """Operations a second of this compute type; 16-bit where the chip has no such unit (weight-only kernels)."""
    if compute == "fp8":
        return gpu.fp8_flops or gpu.bf16_flops
    if compute == "fp4":
        return gpu.fp4_flops or gpu.bf16_flops
    if compute == "mxfp4":
        return gpu.fp8_flops if gpu.fp4_flops else gpu.bf16_flops
    if compute == "int8":
        return gpu.int8_ops or gpu.bf16_flops
    return gpu.bf16_flops


def _corner(first: float, second: float) -> float:
    total: float = (first**_CORNER + second**_CORNER) ** (1 / _CORNER)
    return total


def _smaller(first: float, second: float) -> float:
    return 0.5 * (first + second - abs(first - second))


def matrices_seconds(
    part: Matrices, rows: float, gpu: GpuType, read: float, multiply: dict[str, float], coverage: float = 1.0
) -> float:
    """Time to multiply `rows` activations with a group of matrices, `coverage` of which is read at all."""
    reading = part.weight_bytes * coverage / (gpu.memory_bandwidth_bytes_per_second * read)
    operations = 2 * part.values * rows
    return _corner(reading, operations / (peak_flops(gpu, part.compute) * multiply[part.compute]))


def compute_seconds(work: StageWork, load: Load, gpu: GpuType, cal: StepCosts) -> float:
    """Everything of a step that happens inside one GPU, without collectives and without the host."""
    tokens = load.prefill_tokens + load.decode_requests
    total = work.layers * cal.layer_seconds
    for part in work.dense:
        total = total + matrices_seconds(part, tokens, gpu, cal.dense_read, cal.multiply)
    if work.head is not None:
        rows = load.decode_requests + load.prefill_requests
        total = total + matrices_seconds(work.head, rows, gpu, cal.dense_read, cal.multiply)
    experts = work.experts
    if experts is not None:
        routed = tokens * experts.groups
        coverage = 1 - (1 - experts.top_k / experts.count) ** (routed**cal.expert_skew)
        rows = routed * experts.top_k / experts.count
        total = total + experts.layers * cal.expert_layer_seconds
        total = total + matrices_seconds(
            experts.matrices, rows, gpu, cal.expert_read, cal.expert_multiply, coverage
        )
    bandwidth = gpu.memory_bandwidth_bytes_per_second * cal.cache_read
    for cache in work.caches:
        pairs, context = load.prefill_pairs, load.context_tokens
        if cache.window is not None:
            pairs = _smaller(pairs, load.prefill_tokens * cache.window)
            context = _smaller(context, load.decode_requests * cache.window)
        total = total + cache.prefill_flops * pairs / (gpu.bf16_flops * cal.attend)
        total = total + _corner(
            cache.bytes_per_token * context / bandwidth,
            cache.decode_flops * context / (gpu.bf16_flops * cal.attend),
        )
    total = total + 2 * work.state_bytes * (load.decode_requests + load.prefill_requests) / bandwidth
    in_prefill = load.prefill_requests > 0
    return total + (work.layers * cal.prefill_layer_seconds + cal.mixed_seconds) * in_prefill


def host_seconds(load: Load, cal: StepCosts) -> float:
    """Scheduling, sampling and detokenising of a step, as far as they do not overlap with the GPU."""
    return (
        cal.step_seconds
        + load.decode_requests * cal.request_seconds
        + load.prefill_requests * cal.prompt_seconds
    )

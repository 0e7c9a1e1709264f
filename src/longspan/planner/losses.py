"""What the model of an engine loses to links and to pipeline bubbles in a mean step. Pure.

The mean step of a steady closed loop: every running request gets one token, and so many prompts take part as requests end. Its load is priced as
one step, though real steps have a whole prompt or none.
"""

from dataclasses import dataclass, replace

from longspan.planner.engine_model import EngineModel
from longspan.planner.simulate import Load
from longspan.planner.steptime import compute_seconds, host_seconds


@dataclass(frozen=True, slots=True)
class Losses:
    """Shares of a step, 0 to 1, of the mean GPU: time on links, and waiting for other stages."""

    communication_share: float
    bubble_share: float


def mean_load(running: float, prompt_tokens: float, output_tokens: float) -> Load:
    """The load of the mean step with so many running requests of these lengths."""
    prompts = running / max(output_tokens, 1.0)
    return Load(
        prefill_tokens=prompts * prompt_tokens, prefill_pairs=prompts * prompt_tokens * prompt_tokens / 2,
        prefill_requests=prompts, decode_requests=running,
        context_tokens=running * (prompt_tokens + output_tokens / 2),
    )  # fmt: skip


def losses(engine: EngineModel, load: Load) -> Losses:
    """Communication and bubbles of one step, each of the mean GPU.

    A GPU's own part is its stage's compute and collectives and the hop behind it, once per batch in flight; what the step lasts beyond the mean
    part (and the host's time, which is neither) is bubble.
    """
    whole = engine.step_seconds(load)
    stages = len(engine.stages)
    requests = load.prefill_requests + load.decode_requests
    batches = max(min(stages, int(requests)), 1)
    part = replace(
        load, prefill_tokens=load.prefill_tokens / batches, prefill_pairs=load.prefill_pairs / batches,
        prefill_requests=load.prefill_requests / batches, decode_requests=load.decode_requests / batches,
        context_tokens=load.context_tokens / batches,
    )  # fmt: skip
    compute = batches * sum(compute_seconds(one.work, part, one.site.gpu, one.costs) for one in engine.stages)
    links = batches * engine.communication_seconds(part)
    pipeline = whole - host_seconds(load, engine.stages[-1].costs)
    bubble = max(0.0, pipeline - (compute + links) / stages) if stages > 1 else 0.0
    return Losses(links / stages / whole, bubble / whole)

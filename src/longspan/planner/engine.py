"""Engine settings as vLLM would resolve them: what the user gave, else the defaults of that version and GPU."""

from dataclasses import dataclass

from longspan.model.facts import ModelFacts
from longspan.planner.versions import LATEST, Version
from longspan.units import GIB

# gpu_memory_utilization was 0.90 before 0.22 and 0.92 since.
UTILISATION_RAISED: Version = (0, 22, 0)
# V1 became the engine in 0.8; before, a batch held one whole prompt and at most 256 requests.
V1_DEFAULT: Version = (0, 8, 0)


@dataclass(frozen=True)
class GpuMemory:
    """What the receipt must know of a GPU: memory as CUDA reports it, in bytes, its name, and whether a fabric joins its node."""

    name: str
    total_bytes: int
    fabric: bool = True


@dataclass(frozen=True)
class EngineSettings:
    """vLLM's settings that decide memory. None takes the default of `version` on that GPU.

    Args:
        version: vLLM's. utilisation: `--gpu-memory-utilization`. max_model_len: tokens, None for the model's own limit.
        kv_dtype: `auto` or `fp8`. eager: no CUDA graphs. redundant_experts: EPLB's.
        capture_limit: largest captured batch, None for vLLM's default.
    """

    version: Version = LATEST
    utilisation: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_dtype: str = "auto"
    block_size: int | None = None
    eager: bool = False
    redundant_experts: int = 0
    encoder_data_parallel: bool = False


@dataclass(frozen=True)
class Resolved:
    """Settings without gaps."""

    version: Version
    utilisation: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_dtype: str
    block_size: int | None
    eager: bool


def resolve(settings: EngineSettings, facts: ModelFacts, gpu: GpuMemory) -> Resolved:
    """Fills in vLLM's defaults (`EngineArgs.get_batch_defaults`, API server).

    1024 requests and 8192 tokens from 70 GiB on (16384 tokens from 160 GiB on), 256 and 2048 on smaller GPUs and on A100.
    """
    large = gpu.total_bytes >= 70 * GIB and "a100" not in gpu.name.lower()
    seqs = settings.max_num_seqs or (1024 if large and settings.version >= V1_DEFAULT else 256)
    length = settings.max_model_len or facts.max_position
    tokens = settings.max_num_batched_tokens
    if tokens is None:
        tokens = 16384 if gpu.total_bytes >= 160 * GIB else 8192 if large else 2048
        if settings.version < V1_DEFAULT:
            # Chunked prefill was on for long contexts only; otherwise a batch held a whole prompt.
            tokens = 2048 if length > 32768 else max(2048, length)
    tokens = max(tokens, seqs) if settings.max_num_batched_tokens is None else tokens
    default = 0.92 if settings.version >= UTILISATION_RAISED else 0.90
    return Resolved(
        version=settings.version,
        utilisation=settings.utilisation or default,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        kv_dtype=settings.kv_dtype,
        block_size=settings.block_size,
        eager=settings.eager,
    )

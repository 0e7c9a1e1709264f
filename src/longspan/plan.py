"""The nouns of a plan: layouts, rank budgets, estimates and rejections. Frozen values, no decisions."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Layout:
    """How one replica is split.

    Args:
        tp: tensor-parallel size. pp: pipeline stages. dp: data-parallel ranks of one replica (DP attention for MoE).
        ep: whether routed experts are divided as whole experts over `tp * dp` ranks (`--enable-expert-parallel`).
        dcp: decode-context-parallel size, a divisor of tp. partition: layers per stage, empty for vLLM's own split.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: bool = False
    dcp: int = 1
    partition: tuple[int, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.dp

    @property
    def ep_size(self) -> int:
        """Ranks over which whole experts are divided; 1 without expert parallelism."""
        return self.tp * self.dp if self.ep else 1

    def __str__(self) -> str:
        parts = [f"TP{self.tp}"]
        parts += [
            f"{label}{size}"
            for label, size in (("PP", self.pp), ("DP", self.dp), ("DCP", self.dcp))
            if size > 1
        ]
        parts += ["EP"] if self.ep else []
        return " x ".join(parts)


@dataclass(frozen=True)
class Estimate:
    """A number with its interval and where its calibration comes from.

    Args:
        p50: the best guess. p10, p90: a tenth of outcomes lie below and above; equal to p50 where it is exact.
        unit: `GiB`, `ms`, `tokens`, ... source: the calibration behind it, or "guess".
    """

    p50: float
    p10: float
    p90: float
    unit: str = ""
    source: str = "guess"


@dataclass(frozen=True)
class Part:
    """One line of a rank's receipt: bytes and the formula that gave them."""

    name: str
    size_bytes: float
    formula: str = ""


@dataclass(frozen=True)
class MemoryBudget:
    """What lies in one rank's GPU memory, in bytes.

    `requested_bytes` is the share that vLLM may use (`gpu_memory_utilization` of the physical memory); the KV pool is what is
    left of it after weights, activation peak, non-torch memory and, from the version on that subtracts it, CUDA graphs.
    """

    pp_rank: int
    tp_rank: int
    total_bytes: int
    requested_bytes: int
    weights_bytes: float
    weights_parts: tuple[Part, ...]
    activation_bytes: float
    non_torch_bytes: float
    cuda_graph_bytes: float
    cuda_graph_subtracted: bool
    kv_pool_bytes: float
    kv_bytes_per_token: float
    outside_bytes: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether anything is left for the cache."""
        return self.kv_pool_bytes > 0


@dataclass(frozen=True)
class Receipt:
    """The memory of one replica: every distinct rank, which one binds, and what the engine will log.

    Args:
        ranks: one budget for each pipeline stage (TP ranks of a stage are equal).
        binding: index in `ranks` of the stage with the fewest cache blocks.
        kv_tokens: as vLLM logs it ("GPU KV cache size"), per DP rank. blocks: cache blocks per group.
        max_concurrency: requests of `max_model_len` tokens at once, as logged.
        largest_max_model_len: the longest context that fits one request; 0 if none.
        max_model_len: the context that concurrency and work areas were computed for.
        groups: block tables that draw from the one pool of blocks (more than one in hybrid and sliding-window models).
    """

    ranks: tuple[MemoryBudget, ...]
    binding: int
    kv_tokens: int
    blocks: int
    block_size: int
    max_concurrency: float
    largest_max_model_len: int
    vllm_version: str
    groups: int = 1
    max_model_len: int = 0
    estimates: dict[str, Estimate] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rejection:
    """Why a layout is not possible.

    Args:
        layout: the layout refused. rule: short name of the rule, `heads`, `kv-heads`, `experts`, ...
        message: what vLLM would print. why: the arithmetic in plain words with the legal values.
        legal: legal values of the offending size, ascending. source: where in vLLM the rule stands.
    """

    layout: Layout
    rule: str
    message: str
    why: str
    legal: tuple[int, ...] = ()
    source: str = ""

    def __str__(self) -> str:
        return f"{self.why} vLLM says: {self.message}"


@dataclass(frozen=True)
class Place:
    """One rank's GPU: the node's name and the index there."""

    node: str
    gpu: int


@dataclass(frozen=True)
class Replica:
    """One vLLM engine group of a plan.

    Args:
        name: unique in the plan, `r0`, `r1`, ...
        layout: its split. places: the GPU of every rank in vLLM's order: data-parallel groups, then stages, then TP.
        executor: `ray` or `mp`; `uni` for a single GPU. max_model_len, max_num_seqs: as given to vLLM; 0 leaves its default.
        arguments: further words of `vllm serve`, such as `--enable-expert-parallel`.
        environment: variables of every rank, such as `VLLM_PP_LAYER_PARTITION`.
    """

    name: str
    layout: Layout
    places: tuple[Place, ...]
    executor: str = "ray"
    max_model_len: int = 0
    max_num_seqs: int = 0
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes it stands on, in rank order."""
        return tuple(dict.fromkeys(place.node for place in self.places))


@dataclass(frozen=True)
class Plan:
    """A model's replicas on named GPUs, with what they are expected to do.

    Args:
        model: the name given to vLLM. replicas: all engine groups. vllm_version: the version it was made for.
        environment: variables by node that differ from node to node, such as the network interface.
        estimates: by name: `output_tokens_per_second`, `ttft_p95_seconds`, ... of all replicas together.
        notes: what a person should know before using it.
    """

    model: str
    replicas: tuple[Replica, ...]
    vllm_version: str = ""
    environment: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    estimates: tuple[tuple[str, Estimate], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def gpu_count(self) -> int:
        """GPUs in use."""
        return sum(len(replica.places) for replica in self.replicas)

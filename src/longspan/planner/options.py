"""The question put to the planner and the options it weighs."""

from dataclasses import dataclass, field

from longspan.cluster.inventory import Cluster
from longspan.model.facts import ModelFacts
from longspan.plan import Layout, Receipt, Rejection
from longspan.planner.engine import EngineSettings
from longspan.planner.engine_model import EngineModel
from longspan.planner.latency import Statistics, Steady
from longspan.planner.layout import Slot
from longspan.planner.simulate import Limits
from longspan.workload import Workload

# Clients per GPU when the user states no load: enough that throughput and not an empty machine decides.
DEFAULT_CLIENTS_PER_GPU = 16


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        goal: `throughput` ranks by tokens per second, `latency` by time per token, `cost` by the fewest GPUs that meet the
            workload's objectives.
        settings: vLLM's settings; `max_model_len` None means what the workload needs, at least 8192 tokens.
    """

    facts: ModelFacts
    cluster: Cluster
    workload: Workload
    settings: EngineSettings = field(default_factory=EngineSettings)
    executor: str = "ray"
    goal: str = "throughput"

    @property
    def clients(self) -> int:
        """Requests in the system, as stated or by default."""
        per_gpu = 1 if self.goal == "latency" else DEFAULT_CLIENTS_PER_GPU
        return self.workload.concurrency or per_gpu * max(self.cluster.gpu_count, 1)

    @property
    def context_tokens(self) -> int:
        """The context every plan must be able to hold."""
        wanted = self.settings.max_model_len or max(self.workload.max_context_tokens, 8192)
        return min(wanted, self.facts.max_position)


@dataclass(frozen=True)
class Option:
    """One way that works: `copies` replicas of a layout on one pool.

    Attributes:
        groups: the slots of each replica. receipt, engine, limits: of one replica (all are alike).
        steady: one replica under its share of the load. statistics: the simulation, for the best options only.
        held_requests_per_second: the highest rate of all replicas together that keeps the objectives, where it was sought.
    """

    pool: str
    layout: Layout
    groups: tuple[tuple[Slot, ...], ...]
    receipt: Receipt
    engine: EngineModel
    limits: Limits
    steady: Steady
    statistics: Statistics | None = None
    held_requests_per_second: float | None = None

    @property
    def copies(self) -> int:
        """Replicas."""
        return len(self.groups)

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.copies * self.layout.gpus

    @property
    def output_tokens_per_second(self) -> float:
        """Of all replicas, simulated where it was."""
        if self.statistics is not None:
            return self.statistics.output_tokens_per_second * self.copies * self.layout.dp
        return self.steady.batch / self.steady.tpot_seconds * self.copies * self.layout.dp

    @property
    def tpot_seconds(self) -> float:
        """Mean time per output token."""
        return self.statistics.tpot.mean if self.statistics is not None else self.steady.tpot_seconds

    def __str__(self) -> str:
        return f"{self.copies} x {self.layout}" if self.copies > 1 else str(self.layout)


@dataclass(frozen=True)
class Refused:
    """One way that does not work: vLLM would refuse it, or the memory does not suffice. `why` is for people."""

    pool: str
    layout: Layout
    rule: str
    why: str
    rejection: Rejection | None = None
    receipt: Receipt | None = None


@dataclass(frozen=True)
class Answer:
    """All options, best first, and everything refused."""

    question: Question
    options: tuple[Option, ...]
    refused: tuple[Refused, ...]

    @property
    def best(self) -> Option | None:
        """The plan, or None if nothing works."""
        return self.options[0] if self.options else None

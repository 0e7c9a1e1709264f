"""One placed replica as a machine with a step time: stages of work on GPUs, joined by paths."""

from dataclasses import dataclass, replace

from longspan.cluster.catalog import GpuType
from longspan.model.facts import ModelFacts
from longspan.plan import Layout
from longspan.planner.links import Path, exchange_seconds, hop_seconds, reduce_seconds
from longspan.planner.simulate import Load
from longspan.planner.step_costs import step_costs
from longspan.planner.steptime import StepCosts, compute_seconds, host_seconds
from longspan.planner.work import StageWork, stage_work

# What a pipeline loses to uneven batches and hand-over between the processes of its stages. A guess.
_PIPELINE_LOSS = 1.1


@dataclass(frozen=True, slots=True)
class Site:
    """Where one pipeline stage runs: its slowest GPU, the path of its TP group, and the path to the next stage."""

    gpu: GpuType
    group: Path
    hop: Path | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage with its work and costs."""

    work: StageWork
    site: Site
    costs: StepCosts


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A replica's stages. `exchange`: the path among all ranks of its expert group, for DP layouts."""

    layout: Layout
    stages: tuple[Stage, ...]
    exchange: Path

    @property
    def is_calibrated(self) -> bool:
        """Whether every cost in it was measured: a known GPU family, one stage, a known path."""
        return (
            len(self.stages) == 1
            and self.layout.dp == 1
            and not self.stages[0].costs.source.startswith("guess")
            and (self.layout.tp == 1 or self.stages[0].site.group.is_calibrated)
        )

    def stage_seconds(self, stage: Stage, load: Load) -> float:
        """One stage's time for one batch: compute and collectives."""
        tokens = load.prefill_tokens + load.decode_requests
        work, site = stage.work, stage.site
        total = compute_seconds(work, load, site.gpu, stage.costs)
        if work.reductions:
            message = work.hidden_bytes * tokens
            total += work.reductions * reduce_seconds(message, self.layout.tp, site.group, stage.costs)
        if work.exchanges:
            ranks = self.layout.tp * self.layout.dp
            sent = work.sent_bytes * tokens / self.layout.tp
            total += work.exchanges * exchange_seconds(sent, ranks, self.exchange, stage.costs)
        return total

    def step_seconds(self, load: Load) -> float:
        """The time until every request of the load has its next token.

        With several stages the requests travel in as many batches as there are stages: one round takes the slowest stage
        once per batch, or the whole way of one batch if that is longer (pipeline bubbles).
        """
        host = self.stages[-1].costs
        if len(self.stages) == 1:
            return self.stage_seconds(self.stages[0], load) + host_seconds(load, host)
        requests = load.prefill_requests + load.decode_requests
        batches = max(min(len(self.stages), int(requests)), 1)
        part = replace(
            load,
            prefill_tokens=load.prefill_tokens / batches,
            prefill_pairs=load.prefill_pairs / batches,
            prefill_requests=load.prefill_requests / batches,
            decode_requests=load.decode_requests / batches,
            context_tokens=load.context_tokens / batches,
        )
        times = [self.stage_seconds(stage, part) for stage in self.stages]
        tokens = part.prefill_tokens + part.decode_requests
        hops = [
            hop_seconds(stage.work.hidden_bytes * tokens, stage.site.hop)
            for stage in self.stages
            if stage.site.hop is not None
        ]
        way = sum(times) + sum(hops)
        slowest = max(time + (hops[min(i, len(hops) - 1)] if hops else 0.0) for i, time in enumerate(times))
        return max(way, slowest * batches) * _PIPELINE_LOSS + host_seconds(load, host)

    def communication_seconds(self, load: Load) -> float:
        """The part of a step that goes to links: what a faster fabric could save."""
        tokens = load.prefill_tokens + load.decode_requests
        total = 0.0
        for stage in self.stages:
            message = stage.work.hidden_bytes * tokens
            total += stage.work.reductions * reduce_seconds(
                message, self.layout.tp, stage.site.group, stage.costs
            )
            if stage.work.exchanges:
                sent = stage.work.sent_bytes * tokens / self.layout.tp
                ranks = self.layout.tp * self.layout.dp
                total += stage.work.exchanges * exchange_seconds(sent, ranks, self.exchange, stage.costs)
            if stage.site.hop is not None:
                total += hop_seconds(message, stage.site.hop)
        return total


def engine_model(
    facts: ModelFacts,
    layout: Layout,
    sites: tuple[Site, ...],
    exchange: Path | None = None,
    kv_value_bytes: float | None = None,
) -> EngineModel:
    """Builds the model of one replica; `sites` has one entry per pipeline stage."""
    stages = tuple(
        Stage(stage_work(facts, layout, number, kv_value_bytes), site, step_costs(site.gpu))
        for number, site in enumerate(sites)
    )
    return EngineModel(layout, stages, exchange or sites[0].group)

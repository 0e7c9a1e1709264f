"""Work and step times: what TP shards and what it does not, and that more work never takes less time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.cluster.catalog import catalog, require_gpu
from longspan.model.fetch import load_model
from longspan.plan import Layout
from longspan.planner.engine_model import Site, engine_model
from longspan.planner.links import Path, exchange_seconds, group_path, hop_seconds, node_path, reduce_seconds
from longspan.planner.simulate import Load
from longspan.planner.step_costs import family, step_costs
from longspan.planner.work import stage_work

LLAMA = load_model("meta-llama/Meta-Llama-3-70B-Instruct", None, offline=True)
DEEPSEEK = load_model("deepseek-ai/DeepSeek-V3", None, offline=True)
H100 = require_gpu("H100")
NVLINK = Path("nvlink", 450e9)


def test_tp_divides_what_it_shards() -> None:
    """Dense weights, cache and pair operations halve from TP 4 to TP 8; KV heads stop at one per rank."""
    four, eight, sixteen = (stage_work(LLAMA, Layout(tp), 0) for tp in (4, 8, 16))
    assert eight.dense[0].weight_bytes == pytest.approx(four.dense[0].weight_bytes / 2)
    assert eight.caches[0].bytes_per_token == four.caches[0].bytes_per_token / 2
    assert sixteen.caches[0].bytes_per_token == eight.caches[0].bytes_per_token
    assert eight.reductions == 160


def test_latent_cache_is_not_divided() -> None:
    """MLA keeps the same cache on every TP rank."""
    assert (
        stage_work(DEEPSEEK, Layout(1), 0).caches[0].bytes_per_token
        == stage_work(DEEPSEEK, Layout(8), 0).caches[0].bytes_per_token
    )


def test_experts_divide_over_tp_and_dp() -> None:
    """Routed experts are spread over all ranks; attention repeats over DP."""
    tp, dp = stage_work(DEEPSEEK, Layout(8), 0), stage_work(DEEPSEEK, Layout(1, 1, 8, ep=True), 0)
    assert tp.experts is not None
    assert dp.experts is not None
    assert dp.experts.matrices.weight_bytes == pytest.approx(tp.experts.matrices.weight_bytes)
    assert sum(part.values for part in dp.dense) > 3 * sum(part.values for part in tp.dense)
    assert dp.exchanges > 0
    assert tp.exchanges == 0


def test_stages_add_up() -> None:
    """Pipeline stages together have the model's layers and one head."""
    stages = [stage_work(LLAMA, Layout(2, 3), stage) for stage in range(3)]
    assert sum(stage.layers for stage in stages) == 80
    assert [stage.head is not None for stage in stages] == [False, False, True]


loads = st.builds(
    Load,
    st.integers(0, 8192),
    st.integers(0, 10**7),
    st.integers(0, 8),
    st.integers(1, 256),
    st.integers(0, 10**6),
)


@given(
    loads, st.sampled_from(["H100", "B200", "A100", "L40S", "MI300X", "RTX-4090"]), st.sampled_from([1, 2, 8])
)
def test_more_work_takes_no_less_time(load: Load, gpu: str, tp: int) -> None:
    """A load with more decodes and more context is never faster."""
    engine = engine_model(LLAMA, Layout(tp), (Site(require_gpu(gpu), NVLINK),))
    more = Load(
        load.prefill_tokens,
        load.prefill_pairs,
        load.prefill_requests,
        load.decode_requests * 2,
        load.context_tokens * 2,
    )
    assert 0 < engine.step_seconds(load) <= engine.step_seconds(more)


@pytest.mark.parametrize("gpu", catalog().values(), ids=lambda gpu: gpu.name)
def test_every_gpu_has_costs(gpu: object) -> None:
    """Each catalogue type has step costs; only measured families call them calibrated."""
    costs = step_costs(gpu)  # type: ignore[arg-type]
    assert costs.source.startswith("guess") == (family(gpu) not in ("hopper", "blackwell"))  # type: ignore[arg-type]


@given(
    st.integers(2, 64),
    st.floats(1e3, 1e9),
    st.sampled_from(["nvlink", "xgmi", "pcie", "pcie-host", "rdma", "tcp"]),
)
def test_collectives_grow(ranks: int, message: float, kind: str) -> None:
    """A bigger message or group never costs less, and one rank costs nothing."""
    path, costs = Path(kind, 25e9, 2 if kind in ("rdma", "tcp") else 1), step_costs(H100)
    assert reduce_seconds(message, 1, path, costs) == 0
    assert reduce_seconds(message, ranks, path, costs) <= reduce_seconds(2 * message, ranks, path, costs)
    assert (
        reduce_seconds(message, ranks, path, costs) <= reduce_seconds(message, 2 * ranks, path, costs) + 1e-12
    )
    assert hop_seconds(message, path) > 0
    assert exchange_seconds(message, ranks, path, costs) > 0


def test_networks_are_slower_than_links() -> None:
    """NVLink < PCIe < RDMA < TCP for a small all-reduce; a group over nodes takes the slowest network."""
    from longspan.cluster.inventory_file import parse_shorthand

    costs = step_costs(H100)
    times = [reduce_seconds(1e4, 8, Path(kind, 25e9, 1), costs) for kind in ("nvlink", "pcie", "rdma", "tcp")]
    assert times == sorted(times)
    one, two = parse_shorthand("8xH100", "ib:400").nodes[0], parse_shorthand("8xH100", "eth:10").nodes[0]
    assert group_path([one]) == node_path(one.link)
    from dataclasses import replace

    assert group_path([one, replace(two, name="other")]).kind == "tcp"


def test_a_measured_link_counts_as_calibrated() -> None:
    """What a probe measured replaces the guess."""
    guess, measured = Path("pcie", 28e9), Path("pcie", 28e9, 1, 9e-6)
    assert not guess.is_calibrated
    assert measured.is_calibrated
    assert reduce_seconds(100, 2, measured, step_costs(H100)) < reduce_seconds(
        100, 2, guess, step_costs(H100)
    )

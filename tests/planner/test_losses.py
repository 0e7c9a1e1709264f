"""What an engine's model loses to links and bubbles: shares of a step, nothing on one GPU, more on slower links."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.cluster.catalog import require_gpu
from longspan.model.fetch import load_model
from longspan.plan import Layout
from longspan.planner.engine_model import EngineModel, Site, engine_model
from longspan.planner.links import Path
from longspan.planner.losses import losses, mean_load

LLAMA = load_model("meta-llama/Meta-Llama-3-70B-Instruct", None, offline=True)
H100 = require_gpu("H100")
NVLINK, TCP = Path("nvlink", 450e9), Path("tcp", 1.25e9, 2)


def engine(tp: int, pp: int, group: Path = NVLINK) -> EngineModel:
    """A replica of it."""
    sites = tuple(Site(H100, group, None if stage == pp - 1 else TCP) for stage in range(pp))
    return engine_model(LLAMA, Layout(tp, pp), sites)


@given(
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.floats(1, 512), st.integers(1, 8000), st.integers(1, 2000)
)  # fmt: skip
def test_losses_are_shares_of_a_step(tp: int, pp: int, running: float, prompt: int, output: int) -> None:
    """Both lie in 0 to 1 and together leave something for the work; without stages there is no bubble."""
    found = losses(engine(tp, pp), mean_load(running, prompt, output))
    assert 0 <= found.communication_share < 1
    assert 0 <= found.bubble_share < 1
    assert found.communication_share + found.bubble_share < 1
    assert pp > 1 or found.bubble_share == 0


def test_one_gpu_sends_nothing_and_slow_links_take_more() -> None:
    """No share without other ranks; TCP takes more of a step than NVLink."""
    load = mean_load(16, 512, 128)
    assert losses(engine(1, 1), load).communication_share == 0
    assert (
        losses(engine(8, 1, TCP), load).communication_share
        > 2 * losses(engine(8, 1), load).communication_share
    )


def test_a_lone_request_leaves_all_stages_but_one_idle() -> None:
    """With four equal stages and one request three quarters of a step are bubble, less what is lost in hand-over."""
    found = losses(engine(1, 4), mean_load(1, 16, 2000))
    assert found.bubble_share == pytest.approx(0.75, abs=0.05)
    assert losses(engine(1, 4), mean_load(64, 16, 2000)).bubble_share < 0.3

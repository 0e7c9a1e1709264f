"""What vLLM's log lines prove: phases, and ranks with their processes and addresses."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.launch.phases import ORDER, RankSeen, later, phase_seen, rank_of_title, rank_seen, strip_colour

# The form of vLLM 0.32's lines: vllm/distributed/parallel_state.py, v1/worker/*.py, uvicorn.
ASSIGNED = (
    "INFO 11-30 17:02:11 [parallel_state.py:2350] rank {} in world size {} is assigned as DP rank 0, PP rank 1, PCP rank 0,"
    " TP rank 0, ETP rank 0, EP rank N/A, EPLB rank N/A"
)


@pytest.mark.parametrize(
    ("prefix", "pid", "address"),
    [
        ("(RayWorkerProc pid=812, ip=10.0.0.2) ", 812, "10.0.0.2"),
        ("(RayWorkerProc pid=812) ", 812, ""),
        ("\x1b[36m(RayWorkerProc pid=812, ip=10.0.0.2)\x1b[0m ", 812, "10.0.0.2"),
        ("\x1b[36m(EngineFrontEnd pid=5)\x1b[0m \x1b[0;36m(EngineCore pid=77)\x1b[0;0m (RayWorkerProc pid=812, ip=10.0.0.2) ",
         812, "10.0.0.2"),
        ("(EngineFrontEnd pid=5, ip=10.0.0.9) (EngineCore pid=77) (RayWorkerProc pid=812, ip=fd00::2) ", 812, "fd00::2"),
        ("(Worker_PP1 pid=3) ", 3, ""),
        ("(Worker_TP0_PP1 pid=31) ", 31, ""),
        ("(Worker pid=4) ", 4, ""),
        ("(EngineCore_DP0 pid=9) ", 9, ""),
        ("\x1b[1;36m(Worker_PP1 pid=3)\x1b[0;0m ", 3, ""),
        ("", 0, ""),
    ],
)  # fmt: skip
def test_a_rank_announces_itself(prefix: str, pid: int, address: str) -> None:
    """Ray's and mp's prefixes, nested and coloured, give the rank's own pid, and its address where there is one."""
    assert rank_seen(strip_colour(prefix + ASSIGNED.format(1, 2))) == RankSeen(1, 2, pid, address)


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("INFO 11-30 [cpu_model_runner.py:68] Starting to load model /models/m...", "loading"),
        ("Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.02s/it]", "loading"),
        ("INFO [default_loader.py:502] Loading weights took 12.31 seconds", "loading"),
        ("INFO [cpu_model_runner.py:87] Warming up model for the compilation...", "warm-up"),
        ("INFO [kv_cache_utils.py:1] GPU KV cache size: 29,120 tokens", "warm-up"),
        ("INFO [core.py:386] init engine (profile, create kv cache, warmup model) took 9.21 s", "warm-up"),
        ("Capturing CUDA graphs (decode, FULL):  50%|#####     | 3/6", "warm-up"),
        ("(EngineFrontEnd pid=5) INFO:     Application startup complete.", "ready"),
        ("INFO:     Waiting for application startup.", None),
        ("INFO [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s", None),
        ("", None),
    ],
)
def test_phases(line: str, phase: str | None) -> None:
    """Each phase is known by vLLM's own words, and no other line moves it."""
    assert phase_seen(line) == phase


@given(st.sampled_from(ORDER), st.sampled_from(ORDER))
def test_later_is_the_order(one: str, other: str) -> None:
    """The later of two phases is the one further down the order, whichever way it is asked."""
    found = later(one, other)  # type: ignore[arg-type]
    assert found == later(other, one)  # type: ignore[arg-type]
    assert ORDER.index(found) == max(ORDER.index(one), ORDER.index(other))  # type: ignore[arg-type]


@given(st.text())
def test_any_line_can_be_read(line: str) -> None:
    """No line makes the readers fail; without vLLM's words there is no rank."""
    strip_colour(line)
    phase_seen(line)
    assert rank_seen(line) is None or re.search("is assigned as", line)


@pytest.mark.parametrize(
    ("title", "tp", "rank"),
    [
        ("VLLM::Worker_TP2", 3, 2),
        ("VLLM::Worker_PP1", 1, 1),
        ("VLLM::Worker_PP1_TP0", 4, 4),
        ("VLLM::Worker_DP0_PP1_TP3_EP3", 4, 7),
        ("VLLM::Worker", 1, 0),
        ("vllm_Worker_3f2a_TP1_PP1", 2, 3),
        ("vllm_Worker_TP9ab", 1, 0),
        ("VLLM::EngineCore", 1, None),
        ("python -m VLLM::Worker", 1, None),
    ],
)
def test_rank_of_title(title: str, tp: int, rank: int | None) -> None:
    """A worker's title or actor name gives its rank; what is no worker gives none."""
    assert rank_of_title(title, tp) == rank

"""What of a plan is run without its GPUs, and what is said of it afterwards."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.launch.owned_flags import owned_flag
from longspan.launch.rehearsal import EVERYWHERE, ON_CPU, LeftOut, adapted, carried, scaled, spread
from longspan.launch.rehearsal_report import LIMITS, Scene, report

SIZES = st.integers(1, 64)


def scene(**changes: Any) -> Scene:
    """A rehearsal here of a plain dense model at its own size."""
    given: dict[str, Any] = {
        "cpu": True, "here": True, "executor": "ray", "real": (2, 2), "rehearsed": (2, 2), "nodes": 2, "weights_bytes": 1 << 20,
        "weights_reason": "", "own_tokenizer": True, "quantisation": "", "head_sizes": (128, 128), "layers": (2, 2),
        "experts": False, "encoder": False, "arguments": ("--seed", "3"),
    }  # fmt: skip
    return Scene(**{**given, **changes})


def status(**changes: Any) -> dict[str, Any]:
    """The document of a deployment that serves, with two ranks."""
    names = ("agents", "checkpoint", "ray", "reservation", "engine", "gateway", "first token", "verified")
    ranks = [
        {"rank": rank, "pid": 100 + rank, "planned_node": f"n{rank}", "planned_address": f"10.0.0.{rank}",
         "bundle_address": f"10.0.0.{rank}"}
        for rank in (0, 1)
    ]  # fmt: skip
    layers = [{"name": "completion", "state": "passed", "seen": "16 tokens came back"}]
    found = {
        "phases": [{"phase": name, "state": "done"} for name in names],
        "ranks": ranks,
        "proof": {"layers": layers},
        "failure": None,
    }
    return {**found, **changes}


@given(tp=SIZES, pp=SIZES, ranks=SIZES)
def test_a_scaled_layout_fits_and_keeps_what_it_can(tp: int, pp: int, ranks: int) -> None:
    """It takes no more ranks than there are, its TP divides the real one, and both splits stay while four ranks allow it."""
    small_tp, small_pp = scaled(tp, pp, ranks)
    assert small_tp * small_pp <= ranks
    assert tp % small_tp == 0
    assert 1 <= small_pp <= pp
    if tp * pp <= ranks:
        assert (small_tp, small_pp) == (tp, pp)
    if ranks >= 4 and tp % 2 == 0 and pp >= 2 and tp & (tp - 1) == 0:
        assert small_tp >= 2
        assert small_pp >= 2
    if ranks >= 2 and pp >= 2:
        assert small_pp >= 2


@pytest.mark.parametrize(
    ("real", "ranks", "small"),
    [((8, 2), 4, (2, 2)), ((16, 4), 4, (2, 2)), ((8, 1), 4, (4, 1)), ((3, 3), 4, (1, 3)), ((1, 8), 3, (1, 3)),
     ((6, 2), 6, (3, 2)), ((7, 1), 4, (1, 1)), ((4, 2), 1, (1, 1))],
)  # fmt: skip
def test_the_rule(real: tuple[int, int], ranks: int, small: tuple[int, int]) -> None:
    """The stated rule on layouts that people use."""
    assert scaled(*real, ranks) == small


@given(tp=SIZES, pp=SIZES, nodes=SIZES)
def test_ranks_are_spread_evenly(tp: int, pp: int, nodes: int) -> None:
    """All ranks have a node, all nodes equally many, and no TP group lies partly on a node with another one's."""
    counts = spread(tp, pp, nodes)
    assert sum(counts) == tp * pp
    assert len(set(counts)) == 1
    assert len(counts) <= nodes
    assert counts[0] % tp == 0 or tp % counts[0] == 0


def test_arguments_that_need_gpus_are_left_out_with_a_reason() -> None:
    """Every spelling: a value behind or at the flag, underscores, dots, --no-; what remains is what stood there."""
    given = (
        "--seed", "3", "--enable-expert-parallel", "--kv_cache_dtype", "fp8", "--gpu-memory-utilization=0.95", "-O3",
        "--compilation-config.mode", "3", "--no-enable-prefix-caching", "--quantization", "fp8", "--tool-call-parser",
        "hermes", "--generation-config", "vllm", "--no-enable-dbo",
    )  # fmt: skip
    kept, left = adapted(given, cpu=True, own_tokenizer=False)
    assert kept == (
        "--seed", "3", "--no-enable-prefix-caching", "--generation-config", "vllm", "--max-model-len", "2048",
        "--max-num-seqs", "64",
    )  # fmt: skip
    assert [item.what for item in left] == [
        "--enable-expert-parallel", "--kv_cache_dtype fp8", "--gpu-memory-utilization=0.95", "-O3",
        "--compilation-config.mode 3", "--quantization fp8", "--tool-call-parser hermes", "--no-enable-dbo",
    ]  # fmt: skip
    assert all(item.reason for item in left)


def test_on_gpus_only_what_the_model_makes_impossible_is_left_out() -> None:
    """Kernels, memory, experts and lengths are the real ones there."""
    given = (
        "--enable-expert-parallel",
        "--kv-cache-dtype",
        "fp8",
        "--max-model-len",
        "32k",
        "--quantization",
        "fp8",
    )
    kept, left = adapted(given, cpu=False, own_tokenizer=True)
    assert kept == given[:5]
    assert [item.what for item in left] == ["--quantization fp8"]


@pytest.mark.parametrize(
    ("value", "kept", "said"),
    [("512", "512", False), ("2048", "2048", False), ("32k", "2048", True), ("1.5K", "1536", False), ("auto", "2048", False)],
)  # fmt: skip
def test_long_contexts_are_cut_for_the_small_cache(value: str, kept: str, said: bool) -> None:
    """vLLM's spellings of numbers; whoever asked for more hears of it."""
    arguments, left = adapted(("--max-model-len", value), cpu=True, own_tokenizer=True)
    assert arguments[:2] == ("--max-model-len", kept)
    assert bool(left) is said


def test_a_flag_that_up_refuses_needs_no_reason_here() -> None:
    """The tables name no flag that Longspan owns: those never come so far."""
    assert [flag for flag in (*EVERYWHERE, *ON_CPU) if not flag.endswith("-") and owned_flag(flag)] == []


def test_variables_of_the_real_nodes_stay_there() -> None:
    """NICs, devices and kernels are not this machine's; the rest is the same environment."""
    env = {"NCCL_SOCKET_IFNAME": "ens5", "VLLM_HOST_IP": "10.0.0.1", "VLLM_ATTENTION_BACKEND": "FLASHINFER",
           "VLLM_PP_LAYER_PARTITION": "3,4", "HF_HOME": "/data/hf", "VLLM_LOGGING_LEVEL": "DEBUG"}  # fmt: skip
    kept, left = carried(env)
    assert kept == {"HF_HOME": "/data/hf", "VLLM_LOGGING_LEVEL": "DEBUG"}
    assert [item.what for item in left] == ["NCCL_SOCKET_IFNAME", "VLLM_HOST_IP", "VLLM_ATTENTION_BACKEND"]


def states(found: Mapping[str, Any] | None, left: list[str] | None) -> dict[str, str]:
    """Claim -> its state."""
    return {claim.name: claim.state for claim in report(scene(), found, left=left).claims}


def test_a_rehearsal_that_worked_proves_everything() -> None:
    """Each claim has its evidence, the ranks by node among it."""
    found = report(scene(), status(), left=[])
    assert found.passed
    assert {claim.state for claim in found.claims} == {"proved"}
    evidence = {claim.name: claim.evidence for claim in found.claims}
    assert evidence["ranks"] == "each on its node (n0: rank 0; n1: rank 1)"
    assert "--seed 3" in evidence["arguments"]
    assert "16 tokens" in evidence["proof: completion"]


def test_a_failed_engine_proves_what_came_before_it() -> None:
    """The failing phase says why; what comes after it was not reached."""
    phases = [
        {"phase": "agents", "state": "done"},
        {"phase": "engine", "state": "failed"},
        {"phase": "gateway", "state": "waiting"},
    ]
    broken = status(phases=phases, proof=None, failure={"what": "rank 1 died"})
    found = report(scene(), broken, left=[])
    assert not found.passed
    by_name = {claim.name: claim for claim in found.claims}
    assert (by_name["nodes"].state, by_name["gateway"].state, by_name["proof"].state) == (
        "proved", "not reached", "not reached",
    )  # fmt: skip
    assert by_name["rendezvous"].evidence == "rank 1 died"


def test_a_rank_on_the_wrong_node_and_a_process_left_behind_are_failures() -> None:
    """Neither is hidden by a token that came."""
    wrong = status()
    wrong["ranks"][1]["bundle_address"] = "10.0.0.0"
    assert states(wrong, [])["ranks"] == "failed"
    assert states(status(), ["node-1: pid 7 does not end"])["end"] == "failed"
    assert states(None, None)["end"] == "not reached"


def test_every_limit_is_said_exactly_where_it_holds() -> None:
    """A plain rehearsal has the fewest limits; each circumstance adds its own, with a reason."""
    plain = {limit.name for limit in report(scene(cpu=False, here=False), status(), left=[]).limits}
    assert plain == {"memory", "speed", "answers", "time to load", "kernels", "failures"}
    worst = scene(
        rehearsed=(1, 2), weights_reason="no class", own_tokenizer=False, quantisation="fp8", head_sizes=(128, 32),
        layers=(61, 3), experts=True, encoder=True, left_out=(LeftOut("--x", "because"),),
    )  # fmt: skip
    limits = report(worst, status(), left=[]).limits
    assert {limit.name for limit in limits} == {name for name, _, _ in LIMITS} | {"--x"}
    assert all(limit.reason for limit in limits)

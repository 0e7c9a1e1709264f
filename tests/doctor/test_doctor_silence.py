"""Silence: the phase model names who is missing, and stacks, sockets and counters say why."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.doctor.launches import difference, with_difference, with_ranks
from longspan.doctor.live import Target, examine
from longspan.doctor.rules.marks import PHASES
from longspan.doctor.silence import BUDGET_SECONDS, GpuReading, RankState, deadlock_fingerprint, late
from longspan.doctor.stacks import (
    Collected,
    judge,
    parse_gpus,
    parse_py_spy,
    parse_sockets,
    recent_kernel,
    where,
)
from longspan.finding import Finding
from longspan.host import Completed, RecordedHost

PY_SPY = """Process 4211: VLLM::Worker_TP3
Python v3.12.3 (/usr/bin/python3.12)

Thread 4211 (active): "MainThread"
    {function} (vllm/distributed/device_communicators/pynccl_wrapper.py:311)
    __init__ (vllm/distributed/device_communicators/pynccl.py:99)
    init_worker_distributed_environment (vllm/v1/worker/gpu_worker.py:880)
Thread 4300 (idle): "Thread-1"
    wait (threading.py:355)
"""
SS = """State    Recv-Q Send-Q Local Address:Port  Peer Address:Port Process
ESTAB    0      0      10.0.0.12:40112     10.0.0.11:6379
SYN-SENT 0      1      10.0.0.12:40230     10.0.0.11:43905
"""
SPIN = "97, 0, 71.2\n96, 0, 70.8\n"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 11), st.floats(0, 5000)), min_size=1, max_size=32))
def test_the_slowest_ranks_are_named(states: list[tuple[int, float]]) -> None:
    """Exactly the ranks of the lowest phase, whatever the others do; overdue exactly beyond the budget."""
    ranks = [RankState(i, f"host-{i // 8}", phase, since) for i, (phase, since) in enumerate(states)]
    verdict = late(ranks)
    slowest = min(phase for phase, _ in states)
    assert verdict.phase == PHASES[slowest]
    assert verdict.ranks == tuple(i for i, (phase, _) in enumerate(states) if phase == slowest)
    longest = max(since for phase, since in states if phase == slowest)
    assert (verdict.over_seconds > 0) == (longest > BUDGET_SECONDS[slowest])


def test_own_launches_replace_the_budgets() -> None:
    """A deployment that loads in a minute is overdue after ten, where the default waits for thirty."""
    ranks = [RankState(0, "a", 5, 600.0)]
    assert late(ranks).over_seconds < 0
    assert late(ranks, {5: 90.0}).over_seconds == pytest.approx(510)


def test_every_phase_has_a_budget_and_a_probe() -> None:
    """No phase is left without an answer."""
    assert set(BUDGET_SECONDS) == set(range(len(PHASES)))
    for phase in range(len(PHASES)):
        assert late([RankState(0, "a", phase, 0.0)]).next_probe


def test_the_deadlock_fingerprint() -> None:
    """All GPUs spin without memory traffic while requests run; work, idleness or one working GPU is none."""
    spin = GpuReading(96, 0, 75, 60)
    assert deadlock_fingerprint([spin] * 8, 4, 0.0)
    assert not deadlock_fingerprint([spin] * 8, 0, 0.0)
    assert not deadlock_fingerprint([spin] * 8, 4, 12.0)
    assert not deadlock_fingerprint([spin] * 7 + [replace(spin, memory_percent=60, power_watts=500)], 4, 0.0)
    assert not deadlock_fingerprint([], 4, 0.0)


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        ("ncclCommInitRank", "nccl-init-hang"),
        ("all_reduce", "collective-hang"),
        ("init_custom_ar", "custom-allreduce-failed"),
    ],
)
def test_a_stack_tells_what_a_rank_does(function: str, cause: str) -> None:
    """From the innermost frame that tells."""
    stuck = where(parse_py_spy(PY_SPY.format(function=function)))
    assert stuck is not None
    assert stuck.cause == cause


def test_sockets_and_counters_are_read() -> None:
    """Peers that never answered, and the GPUs' readings; rubbish is skipped."""
    assert parse_sockets(SS) == [("10.0.0.12:40230", "10.0.0.11:43905")]
    assert [g.sm_percent for g in parse_gpus(SPIN + "[N/A]\n")] == [97, 96]


def test_a_lone_rank_elsewhere_is_said() -> None:
    """Seven ranks wait in a collective and one loads weights: both are in the summary."""
    stacks = {r: PY_SPY.format(function="all_reduce") for r in range(7)} | {
        7: PY_SPY.format(function="safe_open")
    }
    finding = judge([RankState(r, "a", 9, 1.0) for r in range(8)], [Collected("a", stacks)])[0]
    assert finding.cause == "collective-hang"
    assert "rank 7 reads weights" in finding.summary


def test_examine_asks_every_host_and_bears_missing_programs() -> None:
    """One host has py-spy and ss, the other has nothing: the answer comes from what there is."""
    full = RecordedHost("node-b", {
        ("py-spy", "dump", "--pid", "4211"): Completed(0, PY_SPY.format(function="ncclCommInitRank"), ""),
        ("ss", "-tan"): Completed(0, SS, ""),
    })  # fmt: skip
    bare = RecordedHost("node-a", {})
    ranks = [RankState(0, "node-a", 3, 500.0), RankState(1, "node-b", 3, 500.0)]
    findings, collected = examine([Target(bare, {0: 4100}), Target(full, {1: 4211})], ranks)
    assert {f.cause for f in findings} == {"port-blocked", "nccl-init-hang", "insufficient-evidence"}
    assert [c.host for c in collected] == ["node-a", "node-b"]
    assert any("rank 0, 1 on node-a, node-b" in f.summary for f in findings)


def test_the_last_good_launch_is_compared() -> None:
    """Only what changed is told, and only where it can explain the cause."""
    changes = difference(
        {"n1/driver": "570", "n1/nccl": "2.28"}, {"n1/driver": "580", "n1/nccl": "2.28", "n1/nic": "eth0"}
    )
    assert changes == [("n1/driver", "570", "580"), ("n1/nic", "-", "eth0")]
    told = with_difference(
        [Finding("n1", "error", "driver-too-old", "Too old."), Finding("n1", "error", "disk-full", "Full.")],
        changes,
    )
    assert "n1/driver 570 -> 580" in told[0].summary
    assert told[1].summary == "Full."


def test_findings_get_the_plans_names() -> None:
    """What the log calls by address, the plan calls by name."""
    named = with_ranks(
        [Finding("10.0.0.12 Worker_PP1_TP5", "error", "disk-full", "x")], {"10.0.0.12": "gpu-2"}
    )
    assert named[0].subject == "gpu-2 (10.0.0.12) Worker_PP1_TP5"


def test_kernel_messages_of_other_days_are_left_out() -> None:
    """By the host's own uptime, whatever its clock says; without an uptime nothing is believed."""
    text = "1000.5 7000.1\n[  100.000001] NVRM: Xid 79\n<4>[  900.5] oom-kill\nno stamp\n[ 1000.4] last"
    assert recent_kernel(text, 200) == "<4>[  900.5] oom-kill\n[ 1000.4] last"
    assert recent_kernel("[ 1000.4] last", 200) == ""
    assert recent_kernel("", 200) == ""

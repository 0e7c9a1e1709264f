"""Every rule fires on what it is for, does not fire just before it, and says what to do."""

from dataclasses import replace

import pytest

from longspan.monitor.alarms import AlarmBook, Scene
from longspan.monitor.objectives import Objectives
from longspan.monitor.rules import RULES
from longspan.monitor.slow import diagnose
from longspan.monitor.view import DiskView
from monitor.scenes import (
    GIB,
    cluster,
    gpu,
    latency,
    node,
    port,
    with_gateway,
    with_gpu,
    with_node,
    with_replica,
)  # fmt: skip

ONE, TWO = cluster(2), cluster(4)
LIMITS = Objectives(
    ttft_p99_seconds=2.0, tpot_p99_seconds=0.05, overflow_share=0.1, overflow_usd_per_hour=5.0
)
TCP = (port("eth0", rx_bytes_per_second=3e7, tx_bytes_per_second=3e7), port("mlx5_0/1", "rdma", rx_bytes_per_second=1e3, tx_bytes_per_second=1e3))  # fmt: skip
TCP_QUIET = (port("eth0", rx_bytes_per_second=1e6, tx_bytes_per_second=1e6), TCP[1])
TCP_ALONE = (TCP[0],)


def on_both(view, ports):
    """Both nodes of the first replica with these ports."""
    return with_node(with_node(view, 0, ports=ports), 1, ports=ports)


# cause -> (what fires it, what is just not it, since when replicas stand still).
CASES = {
    "replica-failed": (with_replica(ONE, phase="failed", reason="rank 3 died"), with_replica(ONE, phase="loading")),
    "replica-stalled": (with_replica(ONE, phase="suspected", reason="n1 is silent"), ONE),
    "flat-tokens": (ONE, ONE),
    "replica-imbalance": (with_replica(TWO, 1, running=100.0), with_replica(TWO, 1, running=50.0)),
    "preemption-storm": (with_replica(ONE, preemptions_per_second=0.6), with_replica(ONE, preemptions_per_second=0.05)),
    "prefix-cache-useless": (
        with_replica(ONE, prefix_hit_share=0.001), with_replica(ONE, prefix_hit_share=0.001, prompt_tokens_per_second=10.0)
    ),
    "ttft-over-objective": (with_replica(ONE, ttft=latency(3.0)), with_replica(ONE, ttft=latency(3.0, count=5))),
    "tpot-over-objective": (with_replica(ONE, tpot=latency(0.06)), with_replica(ONE, tpot=latency(0.06, bound="below"))),
    "gpu-memory-nearly-full": (
        with_gpu(ONE, 1, 3, memory_used_bytes=140 * GIB), with_gpu(ONE, 1, 3, memory_used_bytes=140 * GIB, replica=None)
    ),
    "gpu-imbalance": (with_gpu(ONE, 0, 2, memory_used_bytes=100 * GIB), with_gpu(ONE, 0, 2, memory_used_bytes=124 * GIB)),
    "straggler": (
        with_gpu(ONE, 1, 5, sm_clock_mhz=1200.0, throttled_by=("hardware thermal",)), with_gpu(ONE, 1, 5, sm_clock_mhz=1850.0)
    ),
    "queue-with-idle-gpu": (
        with_replica(with_node(with_node(ONE, 0, gpus=tuple(gpu(0, i, utilisation_share=0.0) for i in range(8))), 1,
                               gpus=tuple(gpu(1, i, utilisation_share=0.01) for i in range(8))), waiting=7.0),
        with_replica(ONE, waiting=7.0),
    ),
    "gpu-broken": (with_gpu(ONE, 0, 0, xid=79), with_gpu(ONE, 0, 0, xid=31)),
    "nvlink-down": (with_gpu(ONE, 0, 0, nvlink_down=2), with_gpu(ONE, 0, 0, nvlink_down=None, nvlink_up=None)),
    "collectives-on-tcp": (on_both(ONE, TCP), on_both(ONE, TCP_QUIET)),
    "nic-drops": (with_node(ONE, 0, ports=(port("eth0", drops_per_second=50.0),)), with_node(ONE, 0, ports=(port("lo", drops_per_second=50.0, virtual=True),))),
    "nic-errors": (with_node(ONE, 0, ports=(port("mlx5_0/1", "rdma", errors_per_second=3.0),)), with_node(ONE, 0, ports=(port("eth0", errors_per_second=None),))),
    "rdma-link-down": (with_node(ONE, 0, ports=(port("a/1", "rdma"), port("b/1", "rdma", up=False))), with_node(ONE, 0, ports=(port("b/1", "rdma", up=False),))),
    "node-silent": (with_node(ONE, 0, age_seconds=12.0, state="late"), with_node(ONE, 0, age_seconds=None, state="unseen")),
    "clock-skew": (with_node(ONE, 0, clock_skew_seconds=-3.0), with_node(ONE, 0, clock_skew_seconds=None)),
    "disk-full": (with_node(ONE, 0, disks=(DiskView("/", 97, 100),)), with_node(ONE, 0, disks=(DiskView("/"),))),
    "memory-full": (with_node(ONE, 0, shm_used_bytes=1020 * GIB), with_node(ONE, 0, shm_used_bytes=None)),
    "queue-with-idle-replica": (with_gateway(with_replica(ONE, running=0.0), waiting=3.0), with_gateway(ONE, waiting=3.0)),
    "requests-fail": (with_gateway(ONE, failed_share=0.2), with_gateway(ONE, failed_share=1.0, requests_per_second=0.05)),
    "overflow-spending": (with_gateway(ONE, overflow_share=0.5), with_gateway(ONE, overflow_share=0.5, age_seconds=60.0)),
    "slow": (with_replica(ONE, ttft=latency(3.0)), with_replica(ONE, phase="loading", ttft=latency(3.0))),
}  # fmt: skip


def rule(cause):
    """A rule by its cause."""
    return next(one for one in RULES if one.cause == cause)


def test_every_rule_stands_in_the_table_and_causes_differ():
    """No rule without a case that fires it and one that does not."""
    assert sorted(one.cause for one in RULES) == sorted(CASES)


@pytest.mark.parametrize("cause", sorted(CASES))
def test_a_rule_fires_and_does_not(cause):
    """It fires on its case with figures and a remedy, not on what looks alike, and nothing else of its kind on a healthy one."""
    bad, good = CASES[cause]
    quiet = {"r0": 60.0} if cause == "flat-tokens" else {}
    hits = [hit for hit in rule(cause).check(Scene(bad, LIMITS, quiet)) if hit.firm]
    assert hits
    for hit in hits:
        assert hit.evidence
        assert len(hit.summary) < 300
        assert hit.remedy
    assert not [hit for hit in rule(cause).check(Scene(good, LIMITS)) if hit.firm]


@pytest.mark.parametrize(
    ("cause", "view", "subject"),
    [
        ("gpu-broken", with_gpu(ONE, 1, 4, ecc_uncorrected=3), "n1/4 ecc"),
        ("gpu-broken", with_gpu(ONE, 1, 4, xid=79), "n1/4 xid"),
        ("memory-full", with_node(ONE, 0, ram_used_bytes=2040 * GIB), "n0 RAM"),
        ("memory-full", with_node(ONE, 0, shm_used_bytes=1020 * GIB), "n0 /dev/shm"),
        ("overflow-spending", with_gateway(ONE, outside_usd_per_hour=9.0), "gateway money"),
        ("overflow-spending", with_gateway(ONE, overflow_share=0.5), "gateway share"),
        ("gpu-memory-nearly-full", with_gpu(with_gpu(ONE, 0, 1, memory_used_bytes=140 * GIB), 1, 5, memory_used_bytes=141 * GIB), "n1/5"),
        ("straggler", with_gpu(ONE, 1, 5, sm_clock_mhz=1200.0), "n1/5 clock"),
        ("replica-imbalance", with_replica(TWO, 1, running=100.0), "r1"),
        ("tpot-over-objective", with_replica(ONE, tpot=latency(0.06, bound="above")), "r0"),
    ],
)  # fmt: skip
def test_a_rule_names_what_is_wrong(cause, view, subject):
    """Each of the things that a rule looks for is found by itself, and nothing beside it is blamed."""
    assert [hit.subject for hit in rule(cause).check(Scene(view, LIMITS)) if hit.firm] == [subject]


@pytest.mark.parametrize(
    ("cause", "view"),
    [
        ("slow", with_replica(ONE, ttft=latency(3.0, bound="below"))),
        ("slow", with_replica(ONE, ttft=latency(3.0, count=5))),
        ("ttft-over-objective", with_replica(ONE, ttft=latency(3.0, bound="below"))),
        ("slow", with_gateway(ONE, ttft=latency(9.0), age_seconds=60.0)),
        ("ttft-over-objective", with_gateway(ONE, ttft=latency(9.0), age_seconds=60.0)),
        ("collectives-on-tcp", with_node(on_both(ONE, TCP), 1, age_seconds=60.0)),
        ("queue-with-idle-gpu", with_replica(with_node(ONE, 0, gpus=(gpu(0, 0, utilisation_share=0.0),), age_seconds=60.0), waiting=7.0)),
    ],
)  # fmt: skip
def test_what_is_old_or_says_too_little_is_no_reason(cause, view):
    """A percentile of five requests or below a bound, and figures of a node or gateway that is silent, prove nothing."""
    assert not [hit for hit in rule(cause).check(Scene(view, LIMITS)) if hit.firm]


def test_a_queue_in_a_gateway_that_is_silent_makes_no_replica_slow():
    """Without objectives a queue is what counts, as long as somebody still says that there is one."""
    assert list(rule("slow").check(Scene(with_gateway(ONE, waiting=9.0))))
    assert not list(rule("slow").check(Scene(with_gateway(ONE, waiting=9.0, age_seconds=60.0))))


@pytest.mark.parametrize("view", [ONE, TWO, cluster(64)], ids=["2", "4", "64"])
def test_a_healthy_deployment_has_no_alarm(view):
    """No rule sees anything in a deployment that is as it should be, of any size."""
    assert [hit for one in RULES for hit in one.check(Scene(view, LIMITS))] == []


@pytest.mark.parametrize("cause", sorted(CASES))
def test_nothing_known_is_nothing_wrong(cause):
    """Where no figure is known no rule claims one: on a CPU host there is no GPU to be idle, on a young one no metric."""
    view = replace(
        ONE,
        nodes=tuple(replace(node(i), gpus=(), ports=(), age_seconds=0.1, clock_skew_seconds=None, cpu_share=None,
                            ram_used_bytes=None, shm_used_bytes=None, disks=()) for i in range(2)),
        replicas=tuple(replace(r, running=None, waiting=None, kv_use_share=None, ttft=None, tpot=None, queue=None, prefill=None,
                               prefix_hit_share=None, preemptions_per_second=None, prompt_tokens_per_second=None) for r in ONE.replicas),
        gateway=type(ONE.gateway)(),
    )  # fmt: skip
    assert list(rule(cause).check(Scene(view, LIMITS))) == []


def test_collectives_need_rdma_to_be_blamed():
    """Without RDMA ports TCP is what there is."""
    assert not list(rule("collectives-on-tcp").check(Scene(on_both(ONE, TCP_ALONE))))


def test_a_waiting_stage_names_the_one_it_waits_for():
    """In a collective all GPUs are busy: the one that still draws power is the one the others wait for."""
    view = ONE
    for index in range(8):
        view = with_gpu(view, 0, index, power_watts=600.0 if index == 3 else 250.0, utilisation_share=1.0)
    (hit,) = rule("straggler").check(Scene(view))
    assert hit.subject == "n0/3 power"


BUSY = tuple(gpu(n, i, utilisation_share=0.99, power_watts=690.0) for n in (0,) for i in range(8))
SPINNING = [tuple(gpu(n, i, utilisation_share=0.99, power_watts=210.0) for i in range(8)) for n in (0, 1)]
ALL_BUSY = with_node(with_node(ONE, 0, gpus=BUSY), 1, gpus=tuple(gpu(1, i, utilisation_share=0.99, power_watts=690.0) for i in range(8)))  # fmt: skip


@pytest.mark.parametrize(
    ("view", "bound_by"),
    [
        (with_replica(ONE, kv_use_share=0.98, waiting=12.0), "KV space"),
        (with_gateway(ONE, waiting=9.0), "queue before the engine"),
        (with_gateway(ONE, ttft=latency(9.0)), "queue before the engine"),
        (with_replica(ONE, waiting=5.0, queue=latency(1.0, 0.5), ttft=latency(1.0, 0.6)), "places in the batch"),
        (with_node(ONE, 1, ports=(port("eth0", rx_bytes_per_second=2.9e9),)), "network"),
        (with_node(with_node(ONE, 0, gpus=SPINNING[0]), 1, gpus=SPINNING[1]), "network"),
        (with_replica(ONE, prefill=latency(1.0, 0.7), ttft=latency(1.0, 0.8), prompt_tokens_per_second=9000.0), "prefill"),
        (ALL_BUSY, "compute"),
        (replace(with_node(with_node(ONE, 0, gpus=(), cpu_share=0.99), 1, gpus=()), device="cpu"), "compute"),
        (ONE, "unknown"),
    ],
)  # fmt: skip
def test_what_slow_is_bound_by(view, bound_by):
    """Each cause is named from its own figures, with what to change; where nothing fits, that is said."""
    found = diagnose(Scene(view), view.replicas[0])
    assert found.bound_by == bound_by
    assert found.evidence
    assert found.remedy


def test_what_clients_wait_for_counts_too() -> None:
    """A gateway that misses the objective while the engine keeps it: both rules say so, and the queue before the engine is named."""
    view = with_gateway(ONE, ttft=latency(9.0))
    (hit,) = rule("ttft-over-objective").check(Scene(view, LIMITS))
    assert hit.subject == "gateway"
    (why,) = rule("slow").check(Scene(view, LIMITS))
    assert "queue before the engine" in why.summary


def test_slow_without_objectives_means_waiting():
    """Where no objective is set, a queue is what makes a replica slow; one that stands still is not slow but stalled."""
    waiting = with_replica(ONE, waiting=4.0, kv_use_share=0.99)
    (hit,) = rule("slow").check(Scene(waiting))
    assert "KV space" in hit.summary
    assert not list(rule("slow").check(Scene(ONE)))
    assert not list(rule("slow").check(Scene(waiting, quiet_seconds={"r0": 20.0})))


def test_the_book_measures_stillness_itself():
    """Requests run and nothing moves: quiet grows; a KV cache that fills in a long prefill is work."""
    still = with_replica(ONE, prompt_tokens_per_second=0.0, generation_tokens_per_second=0.0)
    book = AlarmBook(RULES)
    raised = [
        c.alarm.finding.cause for at in range(40) for c in book.observe(still, LIMITS, float(at)) if c.raised
    ]
    assert raised == ["flat-tokens"]
    prefilling = AlarmBook(RULES)
    for at in range(40):
        view = with_replica(still, kv_use_share=0.1 + at / 100)
        assert not prefilling.observe(view, LIMITS, float(at))

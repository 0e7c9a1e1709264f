"""The picture as Prometheus text: valid, bounded, and silent about what is not known."""

import shutil
import subprocess
from dataclasses import replace

import pytest

from longspan.finding import Finding
from longspan.monitor.exposition import render
from longspan.monitor.prometheus import parse
from longspan.monitor.rankmemory import RankMemory, memory_line
from longspan.monitor.view import AlarmView, ClusterView, NodeView, ReplicaView
from monitor.scenes import GIB, cluster, latency, with_node, with_replica

ALARM = AlarmView("k", 1.0, Finding('n0/"x"\n\\', "error", "c", "s"))


def series(view: ClusterView) -> dict[str, list[tuple[dict[str, str], float]]]:
    """name -> [(labels, value)]."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for one in parse(render(view), lambda name: name):
        found.setdefault(one.name, []).append((dict(one.labels), one.value))
    return found


def test_every_part_has_its_series():
    """Nodes, GPUs, ports, disks, agents, replicas, latencies, money and alarms, with labels that name them."""
    view = replace(with_replica(cluster(2), tpot=latency(0.01, bound="below")), alarms=(ALARM,))
    found = series(view)
    assert len(found["longspan_gpu_memory_used_bytes"]) == 16
    assert found["longspan_gpu_power_watts"][0] == (
        {"gpu": "0", "model": "NVIDIA H200", "node": "n0", "rank": "0", "replica": "r0", "uuid": "GPU-0-0"}, 520.0,
    )  # fmt: skip
    assert ({"kind": "rdma", "node": "n1", "port": "mlx5_0/1"}, 1e9) in found[
        "longspan_port_rx_bytes_per_second"
    ]
    assert found["longspan_replica_ttft_p99_seconds"] == [({"replica": "r0"}, 0.8)]
    assert "longspan_replica_tpot_p95_seconds" in found
    assert "longspan_replica_tpot_p99_seconds" not in found  # it is only known to be below a bound
    assert found["longspan_replica_tpot_mean_seconds"][0][1] == 0.005
    assert found["longspan_alarm"][0][0]["subject"] == 'n0/"x"\n\\'
    both = [{"node": "n0"}, {"node": "n1"}]
    for name, labels, value in (
        ("longspan_node_disk_used_bytes", [{**one, "path": "/"} for one in both], 100 * GIB),
        ("longspan_node_disk_total_bytes", [{**one, "path": "/"} for one in both], 1000 * GIB),
        ("longspan_agent_cpu_share", both, 0.004),
        ("longspan_agent_memory_bytes", both, 40 << 20),
        ("longspan_traffic_overflow_share", [{}], 0.0),
        ("longspan_node_up", both, 1),
        ("longspan_node_cpus", both, 192),
        ("longspan_up", [{"deployment": "prod"}], 1),
    ):
        assert found[name] == [(one, value) for one in labels], name


def test_what_is_not_known_has_no_series():
    """A node that never told anything and a replica without metrics are named as such, and nothing of theirs is 0."""
    found = series(ClusterView("d", 1.0, nodes=(NodeView("n0", "a"),), replicas=(ReplicaView("r0"),)))
    assert set(found) == {"longspan_up", "longspan_node_up", "longspan_replica_serving", "longspan_alarms"}


def test_a_number_that_is_none_has_no_series():
    """NaN out of a node's message ends no scrape."""
    assert "longspan_node_load_1min" not in series(with_node(cluster(1), 0, load_1min=float("nan")))


@pytest.mark.parametrize("value", [0.0, 1.5e-7, 12345678.9, float(1 << 50), True])
def test_values_survive(value):
    """Numbers keep what a reader needs of them."""
    found = series(with_node(cluster(1), 0, ram_used_bytes=value))
    assert found["longspan_node_ram_used_bytes"][0][1] == pytest.approx(float(value))


def test_promtool_finds_nothing_wrong():
    """Prometheus' own linter takes it, names and units included."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    done = subprocess.run(
        [tool, "check", "metrics"],
        check=False,
        input=render(replace(cluster(2), alarms=(ALARM,))),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("(Worker_TP0 pid=7) INFO [gpu_model_runner.py:5150] Model loading took 41.34 GiB memory and 3.5 seconds", RankMemory(7, "weights", round(41.34 * 2**30))),
        ("(A pid=1) (RayWorkerProc pid=9, ip=10.0.0.2) Available KV cache memory: 2.5 GiB", RankMemory(9, "kv", round(2.5 * 2**30))),
        ("Available KV cache memory: 2.5 GiB", RankMemory(0, "kv", round(2.5 * 2**30))),
        ("(Worker pid=7) 3 GiB of something", None), ("pid=3", None),
    ],
)  # fmt: skip
def test_a_rank_says_its_memory(line, found):
    """vLLM's two lines are read, with the pid of the rank and not of whoever passed it on."""
    assert memory_line(line) == found

"""What is kept of a picture, and how a long series is thinned."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.simulated import deployment
from longspan.dashboard.series import OVERVIEW, series, thin
from longspan.monitor.history import MAX_SERIES
from longspan.monitor.view import ClusterView

NOON = 1_700_000_000.0


def test_an_empty_picture_gives_no_figures_but_counts() -> None:
    """A deployment that is not known yet has no latency of 0 and no memory of 0."""
    assert series(ClusterView("x", NOON)) == {"cluster/nodes_up": 0.0, "cluster/alarms": 0.0}


def test_the_overview_is_there_when_everything_is_known() -> None:
    """Each series that the page's first charts ask for is kept of a deployment that serves."""
    assert set(OVERVIEW) <= set(series(deployment(2, NOON)))


def test_figures_are_those_of_the_picture() -> None:
    """Sums, the fullest and the slowest, over all that is known: what some do not tell does not hide what others do."""
    view = deployment(4, NOON)
    first, second = view.replicas
    gpus = [gpu for node in view.nodes for gpu in node.gpus]
    found = series(
        dataclasses.replace(view, replicas=(first, dataclasses.replace(second, running=None, tpot=None)))
    )
    assert all(
        (first.running, first.waiting, second.waiting, view.gateway.waiting)
    )  # so that none of it is missed
    expected = {
        "cluster/running": first.running,
        "cluster/waiting": first.waiting + second.waiting + view.gateway.waiting,
        "cluster/generation_tokens_per_second": first.generation_tokens_per_second + second.generation_tokens_per_second,
        "cluster/kv_use_share": max(first.kv_use_share, second.kv_use_share),
        "cluster/ttft_p95_seconds": view.gateway.ttft.p95.seconds, "cluster/tpot_p99_seconds": first.tpot.p99.seconds,
        "cluster/gpu_memory_share": max(gpu.memory_used_bytes / gpu.memory_total_bytes for gpu in gpus),
        "cluster/gpu_utilisation_share": sum(gpu.utilisation_share for gpu in gpus) / len(gpus),
        "cluster/network_bytes_per_second": sum(
            (port.rx_bytes_per_second or 0) + (port.tx_bytes_per_second or 0) for node in view.nodes for port in node.ports
        ),
        "cluster/nodes_up": 4, "cluster/alarms": len(view.alarms), "replica/r1/waiting": second.waiting,
        "node/gpu-01/ram_share": view.nodes[0].ram_used_bytes / view.nodes[0].ram_total_bytes,
        "gpu/gpu-02/7/power_watts": view.nodes[1].gpus[7].power_watts,
        "port/gpu-01/eth0/tx_bytes_per_second": view.nodes[0].ports[8].tx_bytes_per_second,
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == pytest.approx(expected)
    assert "replica/r1/running" not in found


def test_a_silent_nodes_last_figures_are_not_kept_on() -> None:
    """A node that fell silent has a gap in its charts, not a flat line of its last values."""
    found = series(deployment(2, NOON, silent=(1,)))
    assert any(name.startswith("gpu/gpu-01/") for name in found)
    assert not [name for name in found if "gpu-02" in name]
    assert found["cluster/nodes_up"] == 1.0


def test_what_a_device_does_not_tell_is_left_out() -> None:
    """n/a stays n/a: no key rather than 0."""
    view = deployment(1, NOON)
    gpu = dataclasses.replace(view.nodes[0].gpus[0], power_watts=None, memory_used_bytes=None)
    node = dataclasses.replace(view.nodes[0], gpus=(gpu,))
    found = series(dataclasses.replace(view, nodes=(node,)))
    assert {name for name in found if name.startswith("gpu/")} == {
        "gpu/gpu-01/0/utilisation_share", "gpu/gpu-01/0/temperature_celsius",
    }  # fmt: skip


def test_64_nodes_stay_within_the_historys_limit() -> None:
    """64 nodes with 8 GPUs and 9 ports each leave half of the series free."""
    assert len(series(deployment(64, NOON))) < MAX_SERIES / 2


@given(st.lists(st.integers(0, 10_000), unique=True, max_size=300), st.integers(1, 100))
def test_thinning_keeps_peaks_order_and_bound(moments: list[int], most: int) -> None:
    """At most as many points as asked for, in order, and the highest peak is never lost."""
    points = [(at, float(at % 7), float(at % 13)) for at in sorted(moments)]
    found = thin(points, most)
    assert len(found) <= most
    assert [at for at, *_ in found] == sorted({at for at, *_ in found})
    assert max((peak for *_, peak in found), default=None) == max((peak for *_, peak in points), default=None)
    assert {at for at, *_ in found} <= set(moments)

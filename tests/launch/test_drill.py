"""What a drill's observations mean, and whom it strikes."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import InputError
from longspan.launch.drill import CONTROLLER, FAULTS, FRONT, Request, conclude, target

STATUS: dict[str, Any] = {
    "ray": {"head": "h"},
    "replicas": [
        {"name": f"r{i}", "ranks": [{"rank": r, "planned_node": "ab"[r], "pid": 10 * i + r} for r in (0, 1)]}
        for i in (0, 1)
    ],
}


def test_whom_it_strikes() -> None:
    """Ranks by their pid on their node, the launcher beside rank 0, the gateway at the front; of several replicas the last."""
    assert target("kill-rank", STATUS) == ("b", {"pid": 11, "signal": "KILL", "replica": "r1"})
    assert target("freeze-rank", STATUS, 0, "r0") == ("a", {"pid": 0, "signal": "STOP", "replica": "r0"})
    assert target("kill-launcher", STATUS) == (
        "a",
        {"module": "longspan.launch.ray_driver", "signal": "KILL", "replica": "r1"},
    )
    assert target("kill-raylet", STATUS) == ("b", {"program": "raylet", "signal": "KILL"})
    assert target("kill-ray-head", STATUS) == ("h", {"program": "gcs_server", "signal": "KILL"})
    with pytest.raises(InputError, match="this one was joined"):
        target("kill-raylet", {**STATUS, "ray": {"head": None}})
    eleven = {"replicas": [{**STATUS["replicas"][0], "name": f"r{number}"} for number in range(11)]}
    assert target("kill-rank", eleven)[1]["replica"] == "r10"
    assert target("kill-controller", STATUS) == (CONTROLLER, {"signal": "KILL"})
    assert target("kill-gateway", STATUS) == (FRONT, {"module": "longspan.gateway", "signal": "KILL"})


@pytest.mark.parametrize(
    ("fault", "rank", "replica"),
    [("burn", None, None), ("kill-rank", 2, None), ("kill-rank", -1, None), ("kill-rank", 0, "r7")],
)
def test_what_cannot_be_struck(fault: str, rank: int | None, replica: str | None) -> None:
    """An unknown fault, replica or rank names what there is."""
    with pytest.raises(InputError) as caught:
        target(fault, STATUS, rank, replica)
    assert "There are" in caught.value.remedy


def test_a_fault_from_beginning_to_end() -> None:
    """Detected at the first bad sign, rerouted with the first answer to a later request, recovered with the first whole one
    after all was well again; what ended before the fault, or began after recovery, does not count."""
    states = [(0.1, True), (0.3, False), (50.0, False), (60.0, True), (61.0, True)]
    requests = [
        Request(-5, -4, "answered"), Request(-0.5, 0.2, "cut"), Request(0.1, 0.5, "hung"), Request(0.2, 0.4, "refused"),
        Request(58, 59.5, "answered"), Request(60.5, 60.9, "answered"), Request(70, 71, "answered"),
    ]  # fmt: skip
    found = conclude("kill-rank", states, requests, 1)
    assert found.recovered
    assert found.to_json() == {
        "fault": "kill-rank", "detect_seconds": 0.3, "reroute_seconds": 0.4, "recover_seconds": 60.9, "restarts": 1,
        "requests": {"answered": 2, "refused": 1, "cut": 1, "hung": 1},
    }  # fmt: skip


def test_a_blip_that_nobody_noticed() -> None:
    """Nothing was detected and nothing need be: recovery is the first whole answer."""
    found = conclude("pause-rank", [(0.2, True)], [Request(0.1, 5.2, "answered")], 0)
    assert math.isnan(found.detect_seconds)
    assert found.recover_seconds == 5.2


def test_one_that_never_comes_back() -> None:
    """Refusals are no recovery."""
    found = conclude(
        "kill-rank", [(1, False), (9, False)], [Request(2, 3, "refused"), Request(3, 4, "answered")], 0
    )
    assert not found.recovered
    assert found.to_json()["recover_seconds"] is None
    assert found.counts["refused"] == 1


@given(
    st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=20).map(sorted),
    st.lists(st.tuples(st.floats(-10, 100), st.floats(0, 60), st.sampled_from(["answered", "refused", "cut", "hung"])), max_size=20),
)  # fmt: skip
def test_no_observation_contradicts_itself(
    states: list[tuple[float, bool]], told: list[tuple[float, float, Any]]
) -> None:
    """Recovery needs a well status at or before it and no bad one later; nothing is counted twice."""
    requests = [Request(begun, begun + took, outcome) for begun, took, outcome in told]
    found = conclude("kill-rank", states, requests, 0)
    assert sum(found.counts.values()) <= len(requests)
    if found.recovered:
        assert any(at <= found.recover_seconds and well for at, well in states)
        assert all(well for at, well in states if at > found.recover_seconds)
    assert set(FAULTS) >= {found.fault}

"""Where a launch stands: the status document names the phase, the ranks and hosts that are waited for, and the probe."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.doctor.rules.marks import PHASES
from longspan.doctor.standing import IN_TIME_CONFIDENCE, judged, rank_states, standing
from longspan.finding import Finding

OURS = ("agents", "checkpoint", "ray", "reservation", "engine", "gateway", "first token", "verified")
ENGINE = ("starting", "joined", "loading", "warm-up", "ready")


def status(phase: str, seconds: float = 5.0, **changes: Any) -> dict[str, Any]:
    """Two ranks on two hosts in this phase, rank 1 not seen yet."""
    plain: dict[str, Any] = {
        "phase": phase, "age_seconds": 1000.0, "layout": {"executor": "ray"},
        "nodes": [{"name": "a", "agent": "joined"}, {"name": "b", "agent": "joined"}],
        "ranks": [
            {"rank": 0, "planned_node": "a", "bundle_address": "10.0.0.1", "pid": 100},
            {"rank": 1, "planned_node": "b", "bundle_address": "10.0.0.2", "pid": None},
        ],
        "phases": [{"phase": p, "seconds": seconds if p == phase else 1.0} for p in OURS],
        "engine_phases": {"starting": 1000.0 - seconds} if phase == "engine" else {},
    }  # fmt: skip
    return {**plain, **changes}


def stands(document: dict[str, Any]) -> Any:
    """The verdict over a status."""
    return standing(document, rank_states(document))


def test_a_node_whose_agent_is_missing() -> None:
    """The ranks of the other nodes are further; the probe is about ssh, not about Ray."""
    nodes = [{"name": "a", "agent": "joined"}, {"name": "b", "agent": "waiting"}]
    where = stands(status("agents", nodes=nodes))
    assert (where.phase, where.ranks, where.hosts) == ("agents", (1,), ("b",))
    assert "ssh" in where.next_probe
    assert where.who == "rank 1 on b"


def test_only_the_gateways_agent_is_missing() -> None:
    """No rank is blamed for it."""
    where = stands(status("agents"))
    assert (where.ranks, where.hosts) == ((), ("this machine",))


def test_a_rank_that_did_not_start() -> None:
    """One of two ranks announced itself: the other one and its host are named, with the time since the engine began."""
    where = stands(status("engine", 400.0))
    assert (where.phase, where.ranks, where.hosts) == ("engine (starting)", (1,), ("b",))
    assert where.seconds == pytest.approx(400)
    assert where.over_seconds > 0
    assert "raylet" in where.next_probe


def test_under_mp_a_nodes_first_rank_speaks_for_it() -> None:
    """Ranks 0 and 1 share a node, of which only rank 0 speaks; the silent node is the other one."""
    rows = [
        {"rank": r, "planned_node": node, "bundle_address": "x", "pid": pid}
        for r, node, pid in ((0, "a", 1), (1, "a", None), (2, "b", None), (3, "b", None))
    ]
    where = stands(status("engine", ranks=rows, layout={"executor": "mp"}))
    assert (where.ranks, where.hosts) == ((2, 3), ("b",))


def test_loading_is_everyones() -> None:
    """Weights only load after all ranks met, whether or not each one's line was seen."""
    where = stands(status("engine", engine_phases={"starting": 900.0, "joined": 950.0, "loading": 990.0}))
    assert (where.phase, where.ranks, where.seconds) == ("engine (loading)", (0, 1), 10.0)
    assert "weights" in where.next_probe


def test_a_bundle_that_is_not_reserved() -> None:
    """Its rank waits for a GPU."""
    rows = status("reservation")["ranks"]
    rows[1]["bundle_address"] = None
    where = stands(status("reservation", ranks=rows))
    assert where.ranks == (1,)
    assert "ray status" in where.next_probe


@settings(deadline=None)
@given(st.sampled_from(OURS), st.sampled_from(ENGINE), st.floats(0, 5000), st.booleans(), st.booleans())
def test_every_status_has_a_verdict(phase: str, engine: str, seconds: float, seen: bool, mp: bool) -> None:
    """Any phase gives a phase of the doctor's for every rank, a probe, and somebody who is waited for."""
    document = status(phase, seconds, layout={"executor": "mp" if mp else "ray"})
    document["ranks"][0]["pid"] = 7 if seen else None
    if phase == "engine":
        document["engine_phases"] = dict.fromkeys(ENGINE[: ENGINE.index(engine) + 1], 1.0)
    states = rank_states(document)
    assert [s.rank for s in states] == [0, 1]
    assert all(0 <= s.phase < len(PHASES) for s in states)
    where = standing(document, states)
    assert where.who
    assert where.next_probe


def test_the_further_the_engine_the_further_the_ranks() -> None:
    """No later phase of the engine puts a rank back."""
    before = [0, 0]
    for count in range(1, len(ENGINE) + 1):
        document = status("engine", engine_phases=dict.fromkeys(ENGINE[:count], 1.0))
        now = [s.phase for s in rank_states(document)]
        assert all(b <= n for b, n in zip(before, now, strict=True))
        before = now


def test_in_time_nothing_is_called_a_fault() -> None:
    """Every rank waits in a collective at some moment: within the budget that is a hint, beyond it an error."""
    found = [
        Finding("rank 0", "error", "collective-hang", "x", confidence=0.8),
        Finding("rank 0", "warning", "insufficient-evidence", "the doctor's own word", confidence=0.4),
    ]
    hint = judged(found, stands(status("engine", 5.0)))
    assert [(f.cause, f.severity, f.confidence) for f in hint] == [
        ("collective-hang", "info", IN_TIME_CONFIDENCE)
    ]
    fault, stood = judged(found, stands(status("engine", 400.0)))
    assert (fault.severity, fault.confidence) == ("error", 0.8)
    assert (stood.cause, stood.subject) == ("insufficient-evidence", "rank 1 on b")
    assert "engine (starting)" in stood.summary
    assert "raylet" in stood.remedy

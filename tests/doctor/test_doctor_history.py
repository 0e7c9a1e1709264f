"""The doctor's patience: phase durations of earlier launches in, budgets out."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longspan.doctor.history import KEPT, PATIENCE, budgets_seconds, durations_seconds, remembered

STATUS: dict[str, Any] = {
    "phases": [
        {"phase": "ray", "state": "done", "seconds": 4.0},
        {"phase": "engine", "state": "done", "seconds": 90.0},
        {"phase": "verified", "state": "running", "seconds": 1.0},
    ],
    "engine_phases": {"starting": 10.0, "loading": 40.0, "joined": 15.0, "ready": 100.0},
}


def test_durations() -> None:
    """A phase that is done has its seconds; an engine phase lasts until the next is seen, the last has no end."""
    assert durations_seconds(STATUS) == {
        "ray": 4.0, "engine": 90.0, "engine (starting)": 5.0, "engine (joined)": 25.0, "engine (loading)": 60.0,
    }  # fmt: skip


def test_only_the_last_launches_are_kept() -> None:
    """The newest stands last; the oldest goes first."""
    kept: list[Any] = []
    for number in range(KEPT + 3):
        kept = remembered(kept, f"/m{number}", "TP 1 x PP 1", STATUS)
    assert [launch["model"] for launch in kept] == [f"/m{n}" for n in range(3, KEPT + 3)]
    assert budgets_seconds(kept, "/m0") == {}
    assert budgets_seconds(kept, "/m3")["ray"] == PATIENCE * 4.0


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=30), st.floats(0, 1e5))
def test_a_budget_covers_most_of_what_was_seen(seconds: list[float], another: float) -> None:
    """At most one launch in ten was slower than a third of the budget; another model's launches change nothing."""
    kept = [{"model": "/m", "seconds": {"ray": s}} for s in seconds]
    budget = budgets_seconds(kept, "/m")["ray"]
    assert sum(s > budget / PATIENCE * (1 + 1e-9) for s in seconds) <= len(seconds) / 10
    assert budgets_seconds([*kept, {"model": "/n", "seconds": {"ray": another}}], "/m") == {"ray": budget}

"""The doctor's patience: phase durations of earlier launches in, budgets out."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longspan.doctor.history import PATIENCE, budgets_seconds, durations_seconds

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


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=30))
def test_a_budget_covers_most_of_what_was_seen(seconds: list[float]) -> None:
    """At most one launch in ten was slower than a third of the budget."""
    budget = budgets_seconds([{"ray": s} for s in seconds])["ray"]
    assert sum(s > budget / PATIENCE * (1 + 1e-9) for s in seconds) <= len(seconds) / 10

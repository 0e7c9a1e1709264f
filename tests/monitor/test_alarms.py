"""When a rule becomes an alarm and when it stops being one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import MonitorConfigError
from longspan.monitor.alarms import AlarmBook, Hit, Rule, level, seen
from longspan.monitor.objectives import Objectives, parse_objectives
from longspan.monitor.rules import RULES
from monitor.scenes import cluster, with_gateway, with_node, with_replica

VIEW = cluster(2)
BEGIN, KEEP, RAISE, CLEAR = 10.0, 5.0, 3.0, 6.0


def book(values: dict[str, float | None]) -> AlarmBook:
    """A book with one rule over a value that the test changes."""

    def check(_):
        over = level(values["v"], BEGIN, KEEP)
        if over is not None:
            yield Hit("n0", f"v is {values['v']}", (seen("v", str(values["v"])),), "do", over, "n0")

    return AlarmBook((Rule("v", "warning", "v", check, RAISE, CLEAR),))


def play(series: list[float | None]) -> list[bool]:
    """Whether the alarm stands after each second of a series."""
    values: dict[str, float | None] = {}
    one = book(values)
    found = []
    for at, value in enumerate(series):
        values["v"] = value
        one.observe(VIEW, Objectives(), float(at))
        found.append(bool(one.alarms))
    return found


VALUES = st.lists(st.sampled_from([0.0, 4.9, 5.0, 7.0, 9.9, 10.0, 50.0]), max_size=60)


@given(VALUES)
def test_an_alarm_needs_its_time_at_the_upper_level_and_keeps_above_the_lower(series):
    """It begins after 3 s at the upper level without a break, and ends after 6 s below the lower one without a break: never else."""
    stands, since_over, since_under = False, None, None
    for at, (value, found) in enumerate(zip(series, play(series), strict=True)):
        since_over = (at if since_over is None else since_over) if value >= BEGIN else None
        since_under = (at if since_under is None else since_under) if value < KEEP else None
        if not stands and since_over is not None and at - since_over >= RAISE:
            stands = True
        elif stands and since_under is not None and at - since_under >= CLEAR:
            stands = False
        assert found is stands, (at, series)


@given(st.lists(st.sampled_from([6.0, 7.0, 9.0]), min_size=1, max_size=40))
def test_a_value_between_the_levels_changes_nothing(series):
    """Between the two levels no alarm begins and none ends: it cannot ring."""
    assert not any(play(series))
    assert all(play([50.0] * 4 + series)[4:])


def test_what_nobody_sees_is_not_over():
    """A node that fell silent keeps its alarms; they end, in their time, once it can be seen again."""
    values: dict[str, float | None] = {"v": 50.0}
    one = book(values)
    for at in range(5):
        one.observe(VIEW, Objectives(), float(at))
    values["v"] = None
    blind = with_node(VIEW, 0, age_seconds=90.0)
    for at in range(5, 60):
        assert not one.observe(blind, Objectives(), float(at))
    changes = [c for at in range(60, 70) for c in one.observe(VIEW, Objectives(), float(at))]
    assert [c.raised for c in changes] == [False]


def test_a_replica_that_no_longer_serves_has_no_old_alarms():
    """Blindness keeps alarms of what should be seen: one that is started anew, or gone, begins without them; the gateway's stay
    while nobody hears of it."""
    full = with_gateway(with_replica(VIEW, preemptions_per_second=9.0), failed_share=0.5)
    for after, left in (
        (with_replica(full, age_seconds=90.0), {"preemption-storm", "requests-fail"}),
        (with_replica(full, age_seconds=90.0, phase="loading"), {"requests-fail"}),
        (replace(full, replicas=()), {"requests-fail"}),
        (with_gateway(full, age_seconds=90.0), {"preemption-storm", "requests-fail"}),
    ):
        one = AlarmBook(RULES)
        for at in range(30):
            one.observe(full, Objectives(), float(at))
        for at in range(30, 200):
            one.observe(after, Objectives(), float(at))
        assert {alarm.finding.cause for alarm in one.alarms} == left


def test_a_standing_alarm_shows_the_newest_figures_and_keeps_its_time():
    """What it says is of now, since when it stands is of then."""
    values: dict[str, float | None] = {"v": 50.0}
    one = book(values)
    for at in range(6):
        one.observe(replace(VIEW, taken_at_unix_seconds=100.0 + at), Objectives(), float(at))
    values["v"] = 77.0
    one.observe(replace(VIEW, taken_at_unix_seconds=200.0), Objectives(), 6.0)
    (alarm,) = one.alarms
    assert (alarm.since_unix_seconds, alarm.finding.summary) == (103.0, "v is 77.0")


def test_low_values_can_be_the_bad_ones():
    """Levels work downwards too."""
    assert [level(v, 0.1, 0.2) for v in (0.05, 0.15, 0.3, None)] == [True, False, None, None]


def test_objectives_come_out_of_a_file():
    """Every value has a name and is a positive number; anything else is refused with what is known."""
    assert parse_objectives("ttft_p99_seconds = 2\ndisk_used_share = 0.9\n") == Objectives(
        ttft_p99_seconds=2.0, disk_used_share=0.9
    )
    assert parse_objectives("") == Objectives()
    for text, words in [
        ("ttft = 2", "ttft_p99_seconds"), ("ttft_p99_seconds = -1", "above 0"), ("ttft_p99_seconds = true", "number"),
        ("ttft_p99_seconds = '2'", "number"), ("= 3", "TOML"), ("ttft_p99_seconds = nan", "number"),
    ]:  # fmt: skip
        with pytest.raises(MonitorConfigError, match=words):
            parse_objectives(text)

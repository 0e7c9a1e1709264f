"""How many replicas the queue asks for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.daemon.asking import seen_of
from longspan.launch.autoscale import DOWN_SECONDS, UP_SECONDS, Autoscale, Bounds, Seen

LONG = Seen(20.0, 64, 32)
IDLE = Seen(0.0, 0, 32)
BUSY = Seen(0.0, 30, 32)


def run(
    scale: Autoscale, seen: Seen, seconds: float, wanted: int, start: float = 0.0
) -> tuple[int, list[float]]:
    """The same view for so long, each decision carried out at once; the last number and when it changed."""
    changed = []
    for at in range(int(seconds) + 1):
        found = scale.decide(seen, wanted=wanted, serving=wanted, now=start + at)
        if found:
            wanted = found[0]
            changed.append(float(at))
    return wanted, changed


def test_a_long_queue_brings_one_more_after_a_while() -> None:
    """Not at once, and one at a time."""
    scale = Autoscale(Bounds(1, 4))
    assert run(scale, LONG, UP_SECONDS - 1, 1) == (1, [])
    assert run(scale, LONG, 1, 1, UP_SECONDS) == (2, [0.0])
    assert run(scale, LONG, 1000, 2, 100)[0] == 4


def test_a_blip_brings_nothing() -> None:
    """A queue that was short again in between begins anew."""
    scale = Autoscale(Bounds(1, 4))
    run(scale, LONG, UP_SECONDS - 1, 1)
    run(scale, BUSY, 1, 1, 20)
    assert run(scale, LONG, UP_SECONDS - 1, 1, 22) == (1, [])


def test_an_idle_one_is_given_up_slowly_and_the_last_never() -> None:
    """Ten minutes each."""
    scale = Autoscale(Bounds(1, 4))
    assert run(scale, IDLE, DOWN_SECONDS - 1, 3) == (3, [])
    assert run(Autoscale(Bounds(1, 4)), IDLE, 10 * DOWN_SECONDS, 3)[0] == 1
    assert run(Autoscale(Bounds(2, 4)), IDLE, 10 * DOWN_SECONDS, 3)[0] == 2


def test_the_others_must_have_room() -> None:
    """Thirty requests of at most thirty-two keep both replicas."""
    assert run(Autoscale(Bounds(1, 4)), BUSY, 10 * DOWN_SECONDS, 2)[0] == 2
    assert run(Autoscale(Bounds(1, 4)), Seen(0.0, 1, None), 10 * DOWN_SECONDS, 2)[0] == 2
    assert run(Autoscale(Bounds(1, 4)), Seen(0.0, 0, None), 2 * DOWN_SECONDS, 2)[0] == 1


def test_nothing_is_decided_while_one_is_on_its_way() -> None:
    """It will change the queue, in minutes."""
    scale = Autoscale(Bounds(1, 4))
    for at in range(1000):
        assert scale.decide(LONG, wanted=2, serving=1, now=float(at)) is None


seen = st.builds(Seen, st.floats(0, 100), st.integers(0, 100), st.none() | st.integers(1, 100))


@given(
    st.integers(1, 3),
    st.integers(0, 5),
    st.integers(0, 8),
    st.lists(st.tuples(seen, st.floats(0, 400)), max_size=40),
)
def test_always_within_bounds_and_one_at_a_time(
    least: int, more: int, wanted: int, views: list[tuple[Seen, float]]
) -> None:
    """Whatever is seen; and who was outside is brought inside at once."""
    scale, now = Autoscale(Bounds(least, least + more)), 0.0
    for view, seconds in views:
        now += seconds
        found = scale.decide(view, wanted=wanted, serving=wanted, now=now)
        if found is None:
            assert least <= wanted <= least + more
            continue
        assert least <= found[0] <= least + more
        assert abs(found[0] - wanted) == 1 or not least <= wanted <= least + more
        assert found[1]
        wanted = found[0]


def test_the_gateways_status_is_understood() -> None:
    """Only replicas that take requests count; an unknown capacity makes the sum unknown; what is of another form is refused."""
    rows = [
        {"name": "r0", "state": "ready", "inflight": 3, "capacity": 8},
        {"name": "r1", "state": "draining", "inflight": 5, "capacity": 8},
    ]
    assert seen_of({"replicas": rows, "queue_seconds": {"m": 2.5}}) == Seen(2.5, 3, 8)
    rows[0]["capacity"] = None  # type: ignore[assignment]
    assert seen_of({"replicas": rows, "queue_seconds": {}}) == Seen(0.0, 3, None)
    with pytest.raises(KeyError):
        seen_of({"replicas": rows})

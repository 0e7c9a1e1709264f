"""A sweep's decisions: the search ends, its answer is a bracket, and the knee is where the throughput bends."""

from hypothesis import given
from hypothesis import strategies as st

from longspan.bench.sweep import Point, bracket, holds, knee, search, share_bounds


@given(st.floats(1, 300), st.booleans())
def test_the_search_brackets_the_limit(limit: float, is_whole: bool) -> None:
    """What holds lies below the true limit, what fails above it, within a tenth or one client."""
    found = search(
        lambda load: Point(load, load, 1.0, good=1000 if load <= limit else 0, count=1000),
        0.95,
        1.0,
        512.0,
        is_whole,
        40,
    )
    assert found.holds is not None
    assert found.fails is not None
    assert found.holds <= limit < found.fails
    assert found.fails - found.holds <= (
        max(1.0, 0.1 * found.holds) if is_whole else 0.1 * found.holds + 1e-9
    )


def test_a_load_without_limit_and_one_that_nothing_holds_are_said() -> None:
    """Neither is called a limit."""
    every = search(lambda load: Point(load, load, 1.0, 1000, 1000), 0.95, 1.0, 64.0, True)
    assert (every.holds, every.fails) == (64.0, None)
    assert "no limit was met" in every.sentence("clients")
    none = search(lambda load: Point(load, load, 1.0, 0, 1000), 0.95, 1.0, 64.0, True)
    assert none.holds is None
    assert len(none.points) == 1
    assert "No load" in none.sentence("clients")


def test_few_requests_are_no_proof() -> None:
    """Ten good of ten do not show that 95 of 100 are; a hundred of a hundred do."""
    assert holds(Point(1, 1, 1, 10, 10), 0.95) is None
    assert holds(Point(1, 1, 1, 100, 100), 0.95) is True
    assert holds(Point(1, 1, 1, 80, 100), 0.95) is False


def test_a_load_that_holds_above_one_that_fails_is_not_the_answer() -> None:
    """A lucky run above a failing load does not raise the bracket."""
    points = [Point(1, 1, 1, 99, 99), Point(2, 2, 1, 0, 99), Point(4, 4, 1, 99, 99)]
    found = bracket(points, 0.95)
    assert (found.holds, found.fails, found.limited) == (1, 2, None)


@given(st.integers(2, 200), st.integers(2, 200))
def test_a_client_that_is_the_limit_is_no_failure_of_the_server(client: int, server: int) -> None:
    """A client that is full above some load: the search ends below it and says so; nothing fails but where the server was judged."""

    def measure(load: float) -> Point:
        return Point(load, load, 1.0, 1000 if load <= server else 0, 1000, is_judged=load <= client)

    found = search(measure, 0.95, 1.0, 512.0, True, 40)
    assert found.holds is not None
    assert found.holds <= min(client, server)
    assert found.fails is None or server < found.fails <= client
    assert found.limited is None or found.limited > client
    assert (found.fails is None) != (found.limited is None)
    if found.limited:
        assert holds(Point(1, 1, 1, 0, 1000, is_judged=False), 0.95) is None
        assert "the client was the limit" in found.sentence("clients")


def test_a_search_that_ends_early_tells_what_it_knows() -> None:
    """When the fourth load is cut off, the bracket is that of the three before; when the first is, nothing is said."""
    loads: list[float] = []

    def measure(load: float) -> Point | None:
        loads.append(load)
        return Point(load, load, 1.0, 1000 if load <= 2 else 0, 1000) if len(loads) < 4 else None

    found = search(measure, 0.95, 1.0, 64.0, False)
    assert (found.holds, found.fails, len(found.points)) == (2, 4, 3)
    nothing = search(lambda load: None, 0.95, 1.0, 64.0, False)
    assert (nothing.holds, nothing.fails) == (None, None)
    assert "nothing can be said" in nothing.sentence("clients")
    limited = search(lambda load: Point(load, 1, 1, 9, 9, is_judged=False), 0.95, 1.0, 64.0, False)
    assert "It cannot be told" in limited.sentence("clients")


@given(st.integers(0, 500).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_the_interval_of_a_share_holds_the_share(pair: tuple[int, int]) -> None:
    """Low ≤ share ≤ high, within 0 and 1."""
    low, high = share_bounds(*pair)
    assert 0 <= low <= high <= 1
    if pair[1]:
        assert low - 1e-9 <= pair[0] / pair[1] <= high + 1e-9


def test_the_knee_is_where_throughput_stops_to_grow() -> None:
    """Throughput that grows to 8 clients and then stays has its knee there; a straight line has none."""
    assert knee([Point(load, min(load, 8) * 100, 1) for load in (1, 2, 4, 8, 16, 32)]) == Point(8, 800, 1)
    assert knee([Point(load, load * 100, 1) for load in (1, 2, 4, 8)]) is None
    assert knee([Point(1, 1, 1)]) is None

"""Workloads: objectives and traces are read, and drawn arrivals are repeatable and at the stated rate."""

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import InputError
from longspan.workload import Objective, Workload, parse_objectives, parse_trace


def test_objectives() -> None:
    """Percentile and unit are read; p95 is the default."""
    assert parse_objectives("ttft_p99=2s, tpot=50ms") == (
        Objective("ttft", 99, 2.0),
        Objective("tpot", 95, 0.05),
    )
    assert str(Objective("ttft", 95, 0.5)) == "TTFT p95 <= 500 ms"


@given(st.text(max_size=25))
def test_objectives_never_crash(text: str) -> None:
    """Any text is objectives or an InputError."""
    with contextlib.suppress(InputError):
        assert all(one.seconds > 0 for one in parse_objectives(text))


@given(st.floats(0.1, 200), st.integers(2, 300), st.integers(1, 5))
def test_arrivals_have_the_stated_rate(rate: float, count: int, seed: int) -> None:
    """The sample's mean rate is the stated one, times only grow, and equal seeds give equal arrivals."""
    workload = Workload(requests_per_second=rate)
    found = workload.arrivals(count, seed)
    assert found == workload.arrivals(count, seed)
    assert found[-1].seconds == pytest.approx(count / rate)
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(found))
    assert all(500 <= one.prompt_tokens <= 1500 for one in found)


def test_closed_loops_have_no_arrival_times() -> None:
    """Without a rate all requests are there at once."""
    assert {one.seconds for one in Workload(concurrency=4).arrivals(10)} == {0.0}


def test_traces() -> None:
    """A trace is sorted, and another rate stretches its times."""
    trace = parse_trace("prompt_tokens,seconds,output_tokens\n100,2,10\n200,0,20\n300,1,5\n")
    assert [one.prompt_tokens for one in trace] == [200, 300, 100]
    workload = Workload(trace=trace)
    assert workload.trace_rate == 1
    assert workload.at_rate(2).trace[-1].seconds == 1


@pytest.mark.parametrize(
    "text", ["", "seconds\n1", "seconds,prompt_tokens,output_tokens\n1,2", "seconds,prompt_tokens,output_tokens\n1,x,2",
             "seconds,prompt_tokens,output_tokens\n-1,2,2", "seconds,prompt_tokens,output_tokens\n1,0,2"],
)  # fmt: skip
def test_bad_traces(text: str) -> None:
    """A broken trace is refused."""
    with pytest.raises(InputError):
        parse_trace(text)


@pytest.mark.parametrize("cells", ["nan,1,1", "1,inf,1", "1,1e300,1", "1,1,-inf"])
def test_a_trace_of_impossible_numbers_names_the_line(cells: str) -> None:
    """`nan` compares with nothing and `inf` is no count of tokens: neither is a request."""
    with pytest.raises(InputError, match="Line 2"):
        parse_trace(f"seconds,prompt_tokens,output_tokens\n{cells}\n")


def test_a_trace_from_a_spreadsheet_is_read() -> None:
    """A mark before the first name and quotes around cells change nothing."""
    (found,) = parse_trace('\ufeff"seconds","prompt_tokens","output_tokens"\n"1","2","3"\n')
    assert (found.seconds, found.prompt_tokens, found.output_tokens) == (1, 2, 3)

"""The simulator: conserves requests and tokens, keeps the engine's limits, and agrees with arithmetic where there is one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.planner.simulate import Limits, Load, Request, simulate

requests = st.lists(
    st.builds(Request, st.floats(0, 5), st.integers(1, 400), st.integers(1, 60), st.integers(0, 400)),
    min_size=1,
    max_size=25,
).map(lambda found: sorted(found, key=lambda request: request.arrival_seconds))
limits = st.builds(Limits, st.integers(32, 512), st.integers(1, 16), st.integers(500, 4000).map(float))


class Watch:
    """A step price that remembers the loads and checks what must always hold."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.loads = limits, []

    def __call__(self, load: Load) -> float:
        """A price that grows with the work."""
        assert load.prefill_tokens + load.decode_requests <= max(
            self.limits.batched_tokens, load.decode_requests + 1
        )
        assert load.decode_requests <= self.limits.sequences
        assert load.steps >= 1
        self.loads.append(load)
        return 0.001 + 1e-5 * load.prefill_tokens + 1e-4 * load.decode_requests


@settings(max_examples=60)
@given(requests, limits)
def test_open_loop_serves_everyone_once(found: list[Request], limits: Limits) -> None:
    """Every request ends, after it came, with all its tokens; the limits of the engine hold in every step."""
    served = simulate(found, limits, Watch(limits))
    assert len(served) == len(found)
    assert sorted(one.output_tokens for one in served) == sorted(request.output_tokens for request in found)
    for one in served:
        assert one.ttft_seconds > 0
        assert one.tpot_seconds >= 0
        assert one.end_seconds >= one.arrival_seconds + one.ttft_seconds - 1e-9


@settings(max_examples=60)
@given(requests, limits, st.integers(1, 8))
def test_closed_loop_never_exceeds_its_clients(found: list[Request], limits: Limits, clients: int) -> None:
    """At most `clients` requests are in the engine, and all of them end."""
    watch = Watch(limits)
    served = simulate(found, limits, watch, concurrency=clients)
    assert len(served) == len(found)
    assert all(load.decode_requests + load.prefill_requests <= clients for load in watch.loads)


@settings(max_examples=40)
@given(requests, limits)
def test_prompt_tokens_are_computed(found: list[Request], limits: Limits) -> None:
    """Without preemption each prompt token that is not cached is computed once; a prompt in the cache computes one."""
    found = [replace(request, arrival_seconds=0.0) for request in found]
    roomy = Limits(limits.batched_tokens, limits.sequences, 1e9)
    watch = Watch(roomy)
    simulate(found, roomy, watch)
    wanted = sum(max(r.prompt_tokens - r.cached_tokens, 1) for r in found)
    assert sum(load.prefill_tokens * load.steps for load in watch.loads) == wanted
    steps = sum(load.decode_requests * load.steps for load in watch.loads)
    assert steps == sum(r.output_tokens - 1 for r in found)


def test_a_lone_request_is_plain_arithmetic() -> None:
    """One request: prefill steps until the first token, then one step a token."""
    price = {True: 0.5, False: 0.01}
    served = simulate(
        [Request(1.0, 100, 11)], Limits(64, 8, 1e6), lambda load: price[load.prefill_tokens > 0]
    )
    assert served[0].ttft_seconds == pytest.approx(1.0)  # 100 tokens in chunks of 64
    assert served[0].tpot_seconds == pytest.approx(0.01)


def test_a_full_cache_makes_requests_wait() -> None:
    """Two requests that do not fit together are served one after the other."""
    served = simulate([Request(0, 600, 50), Request(0, 600, 50)], Limits(2048, 8, 1000.0), lambda load: 0.01)
    first, second = sorted(served, key=lambda one: one.ttft_seconds)
    assert second.ttft_seconds >= first.end_seconds - 0.011


def test_preemption_recomputes_and_still_ends() -> None:
    """Requests that grow beyond the cache are preempted, and none of them loses a token."""
    watch = Watch(Limits(2048, 8, 700.0))
    served = simulate([Request(0, 300, 200), Request(0, 300, 200)], Limits(2048, 8, 700.0), watch)
    assert [one.output_tokens for one in served] == [200, 200]
    assert sum(load.prefill_tokens for load in watch.loads) > 600


@given(st.integers(1, 6))
def test_more_clients_never_lower_the_throughput(clients: int) -> None:
    """With a constant step price, twice the clients finish no later."""
    found = [Request(0, 50, 20)] * 24
    price = lambda load: 0.01  # noqa: E731
    one = simulate(found, Limits(4096, 64, 1e6), price, concurrency=clients)[-1].end_seconds
    two = simulate(found, Limits(4096, 64, 1e6), price, concurrency=2 * clients)[-1].end_seconds
    assert two <= one + 1e-9

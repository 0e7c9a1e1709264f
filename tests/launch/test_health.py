"""Whether an engine moves: samples and canaries in, an opinion out."""

from hypothesis import given
from hypothesis import strategies as st

from longspan.launch.health import (
    CANARY_EVERY_SECONDS,
    STALL_FACTOR,
    STALL_SECONDS,
    UNREACHABLE_SECONDS,
    Health,
    Sample,
    sample_of,
)

METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:generation_tokens_total{engine="0",model_name="m"} 70.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
"""


def test_counters_are_summed_over_engines() -> None:
    """Data-parallel engines of one replica count together; text of something else is no sample."""
    assert sample_of(METRICS) == Sample(7, (1500.0, 70.0, 0.25))
    assert sample_of("process_cpu_seconds_total 1.0") is None
    old = sample_of("vllm:num_requests_running 1.0\nvllm:gpu_cache_usage_perc 0.5\n")
    assert old == Sample(1, (0.0, 0.0, 0.5))


def drive(health: Health, seconds: float, sample: Sample | None) -> str:
    """The same sample once a second; returns the opinion at the end."""
    until = health.now + seconds
    while health.now < until:
        health.observe(sample, health.now + 1)
    return health.reason


def test_silent_with_work_is_stalled() -> None:
    """Requests outstanding and nothing that moves: after the patience, not before; a token takes it back."""
    health = Health(0.0)
    assert drive(health, STALL_SECONDS - 1, Sample(2, (0, 0, 0.1))) == ""
    assert "2 requests are outstanding" in drive(health, 2, Sample(2, (0, 0, 0.1)))
    assert drive(health, 1, Sample(2, (0, 1, 0.1))) == ""


def test_a_long_prefill_is_busy_not_dead() -> None:
    """No token comes for a minute, but the KV cache fills: no alarm."""
    health = Health(0.0)
    for step in range(60):
        assert drive(health, 5, Sample(1, (0, 0, 0.01 * step))) == ""


def test_patience_grows_with_what_has_been_seen() -> None:
    """An engine whose steps take long is waited for, by the longest pause that ended by itself."""
    health = Health(0.0)
    drive(health, 7, Sample(1, (0, 0, 0)))
    drive(health, 1, Sample(1, (0, 1, 0)))
    assert health.stall_seconds == STALL_FACTOR * 7
    assert drive(health, STALL_FACTOR * 7 - 1, Sample(1, (0, 1, 0))) == ""


def test_idle_is_asked_for_a_token() -> None:
    """An idle engine can hang too: the canary is due while nothing is outstanding, its failure counts until it moves."""
    health = Health(0.0)
    idle = Sample(0, (10, 10, 0))
    drive(health, CANARY_EVERY_SECONDS - 1, idle)
    assert not health.wants_canary
    drive(health, 1, idle)
    assert health.wants_canary
    health.canary("nothing within 5 s", health.now)
    assert "nothing within 5 s" in health.reason
    assert health.wants_canary
    # The canary that hangs is outstanding itself; that alone is no sign of life.
    assert "nothing within 5 s" in drive(health, 2, Sample(1, (10, 10, 0)))
    assert not health.wants_canary
    assert drive(health, 1, Sample(0, (11, 11, 0))) == ""


def test_a_front_end_that_does_not_answer() -> None:
    """One lost sample is nothing; seconds of them are."""
    health = Health(0.0)
    assert drive(health, 1, None) == ""
    assert "has not answered" in drive(health, UNREACHABLE_SECONDS, None)
    assert drive(health, 1, Sample(0, (0, 0, 0))) == ""


@given(st.lists(st.tuples(st.floats(0.1, 7.9), st.integers(0, 3)), max_size=60))
def test_what_moves_within_the_patience_is_never_suspected(steps: list[tuple[float, int]]) -> None:
    """However slow and irregular, an engine that moves is left alone."""
    health = Health(0.0)
    for number, (pause, outstanding) in enumerate(steps):
        health.observe(Sample(outstanding, (0, number, 0)), health.now + pause)
        assert health.reason == ""

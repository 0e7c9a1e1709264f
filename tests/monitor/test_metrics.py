"""Prometheus text to figures: names old and new, engines and processes together, floors, resets, age."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.monitor.frontdoor import GatewayFigures
from longspan.monitor.metrics import EngineFigures
from longspan.monitor.prometheus import Window, cumulative, parse, quantile
from longspan.monitor.view import GatewayView, QuantileView, ReplicaView
from monitor.engine_text import engine, histogram, line

REPLICA = ReplicaView("r0")


def seen(*texts: str, seconds: float = 2.0) -> ReplicaView:
    """The replica after scrapes that lie some seconds apart."""
    figures = EngineFigures()
    for number, text in enumerate(texts):
        figures.observe(text, number * seconds)
    return figures.fill(REPLICA, (len(texts) - 1) * seconds)


def test_one_live_process_among_eight():
    """A gauge of eight API-server processes, one at 0.653 and seven at 0, is 0.653, not their mean (case 21)."""
    rows = [
        line("vllm:kv_cache_usage_perc", 0.653 if n == 3 else 0.0, engine="0", pid=str(n)) for n in range(8)
    ]
    assert seen("\n".join(rows)).kv_use_share == 0.653


def test_engines_are_added_and_the_fullest_shows():
    """Requests of data-parallel engines add up over the engines and not over processes; the KV use is the fullest one's."""
    rows = []
    for number in range(3):
        for pid in ("7", "8"):
            value = 4.0 if pid == "7" else 0.0
            rows += [
                line("vllm:num_requests_running", value, engine=str(number), pid=pid),
                line("vllm:kv_cache_usage_perc", 0.2 * number, engine=str(number), pid=pid),
            ]
    found = seen("\n".join(rows))
    assert (found.running, found.kv_use_share) == (12, 0.4)


@pytest.mark.parametrize("prefix", ["vllm:", "ray_vllm_", "vllm_"])
def test_names_of_ray_and_of_old_versions(prefix):
    """The prefixes of Ray and the names before 0.10 mean the same."""
    old = {"gpu_cache_usage_perc": 0.5, "num_requests_running": 2, "gpu_prefix_cache_queries_total": 0, "gpu_prefix_cache_hits_total": 0}  # fmt: skip
    new = {**old, "gpu_prefix_cache_queries_total": 100, "gpu_prefix_cache_hits_total": 25}
    found = seen(engine(old, prefix=prefix), engine(new, prefix=prefix))
    assert (found.kv_use_share, found.running, found.prefix_hit_share) == (0.5, 2, 0.25)
    texts = ["\n".join(histogram(f"{prefix}time_per_output_token_seconds", [0.06] * n)) for n in (0, 4)]
    assert seen(*texts).tpot.mean_seconds == pytest.approx(0.06)


def test_what_lies_in_the_first_bucket_is_below_it():
    """3.3 ms a token lie wholly in the bucket of 10 ms: the mean is exact, the quantiles are "below 10 ms" (case 24)."""
    found = seen(engine({}), engine({}, gaps=[0.0033] * 50)).tpot
    assert found.mean_seconds == pytest.approx(0.0033)
    assert found.p50 == found.p99 == QuantileView(0.01, "below")


def test_what_lies_above_the_last_bucket_is_above_it():
    """Beyond the last bound only that bound is known."""
    found = seen(engine({}), engine({}, ttft=[9.0, 9.0, 0.2])).ttft
    assert found.p50 == found.p99 == QuantileView(2.5, "above")


def test_rates_survive_a_restart():
    """A counter that began again counts what it has since then, and no rate is negative."""
    texts = [engine({"generation_tokens_total": n, "prompt_tokens_total": 7}) for n in (1000, 1400, 100)]
    found = seen(*texts)
    assert found.generation_tokens_per_second == pytest.approx((400 + 100) / 4)
    assert found.prompt_tokens_per_second == 0


def test_one_of_two_engines_restarts():
    """The reset of one series does not hide what the other did meanwhile."""
    both = [
        "\n".join(
            line("vllm:generation_tokens_total", value, engine=str(e)) for e, value in enumerate(values)
        )
        for values in ((1000, 1000), (50, 1100))
    ]
    assert seen(*both).generation_tokens_per_second == 75


def test_what_was_never_there_is_unknown_and_what_went_is_missing():
    """An engine without a metric shows None, and one that stopped giving it is named."""
    found = seen(
        engine({"num_requests_running": 1, "num_requests_waiting": 2}), engine({"num_requests_running": 1})
    )
    assert (found.waiting, found.prefix_hit_share, found.preemptions_per_second, found.kv_tokens) == (
        None,
    ) * 4
    assert found.missing == ("num_requests_waiting",)
    assert seen("nonsense {{{\n\x00").running is None


def test_figures_keep_and_tell_their_age():
    """Once the source is silent the last figures stay, with the age of their scrape."""
    figures = EngineFigures()
    assert figures.fill(REPLICA, 3.0).age_seconds is None
    figures.observe(engine({"num_requests_running": 3}), 10.0)
    assert not figures.observe("", 12.0)
    found = figures.fill(REPLICA, 25.0)
    assert (found.running, found.age_seconds) == (3, 15.0)


def test_the_window_forgets():
    """Figures are of the last minute: an hour ago does not count."""
    figures = EngineFigures()
    for at in range(0, 200, 2):
        figures.observe(engine({}, ttft=[0.05] * min(at, 60)), float(at))
    assert figures.fill(REPLICA, 198.0).ttft.count == 0


def test_cache_size_and_tpot_of_requests():
    """Cache tokens are blocks x block size over the engines; TPOT of whole requests goes before gaps where some finished."""
    info = [
        line("vllm:cache_config_info", 1, engine=str(e), block_size="16", num_gpu_blocks="100")
        for e in (0, 1)
    ]
    assert seen("\n".join(info)).kv_tokens == 3200
    own = "vllm:request_time_per_output_token_seconds"
    texts = [engine({}, gaps=[0.09] * n) + "\n" + "\n".join(histogram(own, [0.02] * n)) for n in (0, 3)]
    assert seen(*texts).tpot.mean_seconds == pytest.approx(0.02)
    none = [engine({}, gaps=[0.09] * n) + "\n" + "\n".join(histogram(own, [0.02])) for n in (0, 3)]
    assert seen(*none).tpot.mean_seconds == pytest.approx(0.09)


def test_labels_are_read_as_written():
    """Escapes, blanks and timestamps of the text form; a value that is no number is no sample."""
    text = 'a{x="1\\"\\\\n,}",y="z\\n"} 5 1700000000\nb NaN\nc{} +Inf\nd oops\n'
    found = {s.name: s for s in parse(text, lambda name: name)}
    assert found["a"].labels == (("x", '1"\\n,}'), ("y", "z\n"))
    assert (found["a"].value, found["c"].value) == (5, float("inf"))
    assert set(found) == {"a", "c"}


@given(st.lists(st.floats(0, 0.2), min_size=1, max_size=60), st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values, one, other):
    """Between the bounds of the true quantile's bucket, rising with q; below or above it where there is only one bound."""
    bounds = (0.01, 0.025, 0.05, 0.1)
    buckets = [(b, float(sum(v <= b for v in values))) for b in bounds] + [(float("inf"), float(len(values)))]
    low, high = sorted((one, other))
    found, further = quantile(buckets, low), quantile(buckets, high)
    assert found.seconds <= further.seconds
    true = sorted(values)[max(0, -int(-low * len(values) // 1) - 1)]
    if found.bound == "below":
        assert true <= bounds[0]
    elif found.bound == "above":
        assert true > bounds[-1]
    else:
        upper = next(b for b in bounds if b >= true)
        assert max(b for b in (0.0, *bounds) if b < upper) <= found.seconds <= upper


COUNTS = st.dictionaries(st.sampled_from(["a", "b"]), st.floats(0, 1e6), min_size=1)


@given(st.lists(COUNTS, min_size=2, max_size=8))
def test_a_window_never_counts_backwards(scrapes):
    """Whatever restarts or vanishes between scrapes, no counter grew by less than nothing."""
    window = Window(60.0)
    for at, values in enumerate(scrapes):
        window.observe({("n", (("s", key),)): value for key, value in values.items()}, float(at))
    assert window.grown("n") >= 0
    assert window.rate("n") >= 0
    assert window.rate("other") is None


def gateway(ok: int, failed: int, outside: int, usd: float) -> str:
    """The gateway's text."""
    name = "longspan_gateway_requests_total"
    return "\n".join(
        [
            line(name, ok, model="m", target="r0", outcome="ok"), line(name, failed, model="m", target="none", outcome="timeout"),
            line(name, outside, model="m", target="openrouter", outcome="ok"), "longspan_gateway_running 3",
            line("longspan_gateway_waiting", 2, model="m"), line("longspan_gateway_waiting", 1, model="n"),
            line("longspan_gateway_replica_usable", 1, replica="r0"), line("longspan_gateway_outside_usd_total", usd, target="openrouter"),
            "longspan_gateway_avoided_usd_total 5.5", line("longspan_gateway_overflows_total", outside, reason="wait"),
            *histogram("longspan_gateway_ttft_seconds", [0.3] * ok, (0.1, 0.5)),
        ]
    )  # fmt: skip


def test_the_gateways_figures():
    """Queue, shares of overflow and failure over the last minute, and money since its start and by the hour."""
    figures = GatewayFigures()
    assert figures.fill(GatewayView(), 0.0) == GatewayView()
    figures.observe(gateway(0, 0, 0, 1.0), 0.0)
    figures.observe(gateway(14, 2, 4, 1.5), 10.0)
    found = figures.fill(GatewayView("http://x"), 11.0)
    assert (found.waiting, found.running, found.age_seconds, found.requests_per_second) == (3, 3, 1.0, 2.0)
    assert (found.overflow_share, found.failed_share, found.overflow_reasons) == (0.2, 0.1, ("wait",))
    assert (found.outside_usd, found.avoided_usd, found.outside_usd_per_hour) == (1.5, 5.5, 180.0)
    assert 0.1 < found.ttft.p50.seconds < 0.5


def test_a_gateway_without_traffic_claims_no_shares():
    """No request, no share: unknown, not 0."""
    figures = GatewayFigures()
    figures.observe("longspan_gateway_running 0", 0.0)
    found = figures.fill(GatewayView(), 0.0)
    assert (found.overflow_share, found.failed_share, found.requests_per_second, found.running) == (
        None,
        None,
        None,
        0,
    )


def test_cumulative_takes_only_counters():
    """A gauge is no counter and has no rate."""
    samples = parse("a 1\nb 2", lambda name: name)
    assert cumulative(samples, ["b"]) == {("b", ()): 2.0}

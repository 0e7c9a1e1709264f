"""The dispatcher's parts: breaker, limits, affinity, wait room, spending, metrics."""

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.gateway import affinity
from longspan.gateway.breaker import Breaker
from longspan.gateway.config import KeyRule, Provider
from longspan.gateway.enginemetrics import parse_engine_metrics
from longspan.gateway.figures import Figures
from longspan.gateway.ledger import Entry, Row, Try, explain
from longspan.gateway.limits import KeyLimits, Window
from longspan.gateway.outside import Spending, allowed_body, price_usd
from longspan.gateway.ticket import Ask, Ticket
from longspan.gateway.waitroom import WaitRoom


def test_breaker_opens_probes_once_and_waits_longer_each_time() -> None:
    """Failures in a row open it; one probe at a time; a failed probe doubles the wait, a good one closes."""
    breaker = Breaker(3, 5.0)
    for _ in range(2):
        breaker.failed(0.0)
    assert breaker.allows(0.0)
    breaker.failed(0.0)
    assert not breaker.allows(4.9)
    assert breaker.allows(5.0)
    breaker.sent()
    assert not breaker.allows(5.0)
    breaker.failed(5.0)
    assert not breaker.allows(14.9)
    assert breaker.allows(15.0)
    breaker.sent()
    breaker.succeeded()
    assert breaker.closed


def test_breaker_opens_on_a_failing_majority() -> None:
    """Successes in between do not hide a replica that fails every second time."""
    breaker = Breaker(5, 5.0)
    for _ in range(10):
        breaker.succeeded()
        breaker.failed(0.0)
    assert not breaker.allows(1.0)


def test_an_abandoned_probe_lets_the_next_one_go() -> None:
    """A client that leaves during the probe does not keep the replica out for ever."""
    breaker = Breaker(1, 1.0)
    breaker.failed(0.0)
    breaker.sent()
    breaker.abandoned()
    assert breaker.allows(1.0)


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 50), st.integers(0, 50)), max_size=20))
def test_tokens_given_back_leave_no_credit(steps: list[tuple[int, int, int]]) -> None:
    """However long requests last and however much less they use than was set aside, a window is never below zero."""
    limits, now = KeyLimits(KeyRule("k", "", tokens_per_minute=10**6)), 1000.0
    for seconds, estimated, used in steps:
        assert limits.take(estimated, now) is None
        limits.give_back(estimated, used, now, now + seconds)
        now += seconds
        assert limits.tokens.total >= 0
        if seconds < 60:
            limits.tokens.roll(now + 120)
            assert limits.tokens.total == 0
            now += 120
    limits.rule = KeyRule("k", "")
    limits.take(500, now)
    limits.rule = KeyRule("k", "", tokens_per_minute=10)
    limits.give_back(500, 1, now, now)
    assert limits.tokens.total >= 0


def test_what_left_the_window_is_not_given_back_from_what_came_since() -> None:
    """A minute later the same cell of the ring holds somebody else's tokens."""
    limits = KeyLimits(KeyRule("k", "", tokens_per_minute=1000))
    assert limits.take(100, 1000.0) is None
    assert limits.take(50, 1060.0) is None
    limits.give_back(100, 10, 1000.0, 1060.5)
    assert limits.tokens.total == 50


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 50)), max_size=60))
def test_window_sums_the_last_minute(steps: list[tuple[int, int]]) -> None:
    """The ring agrees with a list of everything that was added."""
    window, seen, now = Window(), deque[tuple[int, int]](), 1000
    for gap, amount in steps:
        now += gap
        window.add(amount, now)
        seen.append((now, amount))
        assert window.total == sum(a for at, a in seen if at > now - 60)


def test_limits_say_which_and_when() -> None:
    """The fifth of four requests a minute waits until the first is a minute old."""
    limits = KeyLimits(KeyRule("k", "", requests_per_minute=4))
    assert [limits.take(0, 10.0 + i) for i in range(4)] == [None] * 4
    met = limits.take(0, 20.0)
    assert met is not None
    assert "4 requests per minute" in met[0]
    assert limits.take(0, 20.0 + met[1] + 1) is None


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_parallel_permits_are_never_exceeded_and_all_come_back(steps: list[bool], most: int) -> None:
    """Whatever the order of takes and returns, at most `most` are out."""
    limits, out = KeyLimits(KeyRule("k", "", max_parallel=most)), 0
    for take in steps:
        if take:
            taken = limits.take(1, 0.0) is None
            assert taken == (out < most)
            out += taken
        elif out:
            limits.give_back(1, 1, 0.0, 0.0)
            out -= 1
        assert limits.parallel == out


def test_tokens_are_corrected_to_what_was_used() -> None:
    """An estimate that was too high gives the difference back."""
    limits = KeyLimits(KeyRule("k", "", tokens_per_minute=100))
    assert limits.take(90, 0.0) is None
    assert limits.take(20, 0.0) is not None
    limits.give_back(90, 30, 0.0, 0.0)
    assert limits.take(60, 0.0) is None


@given(st.integers(0, 2**64 - 1), st.sets(st.text(min_size=1), min_size=2, max_size=8), st.data())
def test_losing_a_replica_moves_only_its_sessions(key: int, names: set[str], data: st.DataObject) -> None:
    """Rendezvous order is the order of the rest when one name is gone."""
    gone = data.draw(st.sampled_from(sorted(names)))
    order = affinity.rank(key, sorted(names))
    assert affinity.rank(key, sorted(names - {gone})) == [name for name in order if name != gone]


def test_sessions_spread_evenly_and_so_do_those_of_a_lost_replica() -> None:
    """4,000 sessions over four replicas: each within 15 % of a quarter; a dead one's within 20 % of a third."""
    names = ["r0", "r1", "r2", "r3"]
    orders = [affinity.rank(affinity.session_key(f"session-{i}"), names) for i in range(4000)]
    first = Counter(order[0] for order in orders)
    assert all(850 <= first[name] <= 1150 for name in names)
    second = Counter(order[1] for order in orders if order[0] == "r2")
    assert all(abs(second[n] - first["r2"] / 3) < first["r2"] / 15 for n in ("r0", "r1", "r3"))


@given(st.text(max_size=5000), st.text(max_size=5000), st.text(max_size=2000))
def test_shared_prefixes_share_keys(shared: str, one: str, other: str) -> None:
    """Two prompts have the keys of their common beginning in common."""
    common = sum(step <= len(shared) for step in affinity.PREFIX_STEPS)
    assert affinity.prefix_keys(shared + one)[:common] == affinity.prefix_keys(shared + other)[:common]


def test_prefix_memory_is_bounded_and_forgets_a_restarted_replica() -> None:
    """The oldest prefixes go first; a replica with an empty cache has no prefixes."""
    memory = affinity.PrefixMemory(limit=100)
    for i in range(1000):
        memory.remember([i << 20 | 1], f"r{i % 2}")
    assert len(memory) == 100
    assert memory.find([1]) is None
    assert memory.find([998 << 20 | 1, 999 << 20 | 1]) == ("r1", 1024)
    memory.forget("r1")
    assert memory.find([999 << 20 | 1]) is None
    assert len(memory) == 50


def ticket(number: int, key: str = "k", priority: str = "normal") -> Ticket:
    """A waiting request."""
    return Ticket(Ask(number, "m", key, priority=priority), 0.0)


def test_wait_room_order_is_class_then_key_by_turns_then_age() -> None:
    """A key with many requests does not keep another key waiting; a higher class goes first."""
    room = WaitRoom()
    for number in range(4):
        room.push(ticket(number, "greedy"))
    room.push(ticket(10, "modest"))
    room.push(ticket(20, "late", "low"))
    room.push(ticket(30, "vip", "high"))
    expected = [30, 0, 10, 1, 2, 3, 20]
    assert [t.ask.id for t in room] == expected
    assert [t.ask.id for t in iter(room.pop, None)] == expected
    assert room.size == 0


@given(
    st.lists(st.tuples(st.sampled_from(["push", "front", "pop", "remove"]), st.integers(0, 3)), max_size=60)
)
def test_wait_room_never_loses_or_doubles_a_request(steps: list[tuple[str, int]]) -> None:
    """After any steps the room holds exactly what was pushed and not taken."""
    room, inside, number = WaitRoom(), {}, 0
    for what, key in steps:
        if what in ("push", "front"):
            number += 1
            inside[number] = ticket(number, f"k{key}")
            room.push(inside[number], front=what == "front")
        elif what == "pop":
            popped = room.pop()
            assert (popped is None) == (not inside)
            if popped is not None:
                del inside[popped.ask.id]
        elif inside:
            room.remove(inside.pop(min(inside)))
        assert room.size == len(inside)
        assert sorted(t.ask.id for t in room) == sorted(inside)


PROVIDER = Provider("p", "http://x", {}, prompt_usd_per_million_tokens=1.0, completion_usd_per_million_tokens=4.0,
                    spend_cap_usd_per_hour=1.0)  # fmt: skip


def test_spending_cap_counts_reservations_and_forgets_after_an_hour() -> None:
    """Live requests count as if they cost all they may; an hour later the room is back."""
    spending = Spending(PROVIDER)
    reserved = spending.reserve(100_000, 200_000, 0.0)
    assert reserved == pytest.approx(0.9)
    assert not spending.allows(100_000, 100_000, 0.0)
    spending.settle(reserved, 0.2, 60.0)
    assert spending.allows(100_000, 100_000, 60.0)
    spending.settle(0.0, 0.7, 61.0)
    assert not spending.allows(100_000, 100_000, 100.0)
    assert spending.allows(100_000, 100_000, 3700.0)
    assert price_usd(PROVIDER, 10**6, 10**6) == pytest.approx(5.0)


def test_only_documented_fields_leave() -> None:
    """vLLM's and unknown fields stay at home, except those that the provider's entry allows."""
    provider = Provider("p", "http://x", {}, allow_fields=("min_p",))
    body = {"model": "m", "messages": [], "cache_salt": "s", "min_p": 0.1, "user": "alice"}
    assert allowed_body(provider, body) == {"model": "m", "messages": [], "min_p": 0.1}


def test_engine_metrics_are_summed_over_data_parallel_engines() -> None:
    """Gauges add up, KV use is a mean, and the fingerprint moves with any counter."""
    text = """# HELP x
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0"} 1.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.7
vllm:generation_tokens_total{engine="0"} 10.0 1700000000
python_info{} 1
"""
    load = parse_engine_metrics(text)
    assert load is not None
    assert (load.running, load.waiting, load.kv_used) == (7, 1, pytest.approx(0.6))
    moved = parse_engine_metrics(text.replace("10.0 17", "11.0 17"))
    assert moved is not None
    assert moved.progress != load.progress
    assert parse_engine_metrics("up 1\n") is None


def test_labels_of_metrics_are_escaped() -> None:
    """A model with a quote in its name must not break everybody's figures."""
    text = Figures().text([], {'a "b" \\': 1}, 0, 0.0)
    assert 'longspan_gateway_waiting{model="a \\"b\\" \\\\"} 1' in text


def test_an_answer_in_one_piece_is_not_called_no_content() -> None:
    """`why` tells a whole answer from an attempt that failed."""
    entry = Entry("r", "k", "m", "r1", False, "ok", 200, False, 0.0, 1.0, None)
    failed = Try("r0", False, 0.0, 0.1, None, "reset", "", {})
    good = Try("r1", False, 0.5, 0.1, None, "", "", {})
    story = explain(Row(entry, 0.0, 0.1, (failed, good)))
    assert [line.split(", ")[-1] for line in story if line.startswith("attempt")] == [
        "no content; ended by reset",
        "answered in one piece",
    ]

"""The dispatcher: each rule by example, and its invariants under any order of events."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.helpers import Clockwork, config
from longspan.gateway.standing import EngineLoad
from longspan.gateway.ticket import Action, GiveUp, Reject, Send

PRICED = "prompt_usd_per_million_tokens = 1.0\ncompletion_usd_per_million_tokens = 1.0\nspend_cap_usd_per_hour = 1.0"


def target(actions: list[Action]) -> str:
    """Where the only action sends."""
    (action,) = actions
    assert isinstance(action, Send), action
    return action.target


def test_load_is_spread_evenly_without_any_metrics() -> None:
    """Forty requests at once over four replicas: ten each, from the own ledger alone."""
    work = Clockwork(config(4))
    places = [target(work.ask()[1]) for _ in range(40)]
    assert {name: places.count(name) for name in set(places)} == {f"r{i}": 10 for i in range(4)}
    work.check()


def test_weights_share_the_load() -> None:
    """A replica of weight 3 gets three times the requests of one of weight 1."""
    text = '[[replicas]]\nname = "big"\nurl = "http://127.0.0.1:9009"\nmodel = "m"\nweight = 3\n'
    work = Clockwork(config(1, text))
    places = [target(work.ask()[1]) for _ in range(40)]
    assert places.count("big") == 30


def test_a_foreign_load_in_the_metrics_is_avoided() -> None:
    """What other clients put on an engine counts as much as our own requests."""
    work = Clockwork(config(2))
    work.dispatcher.scraped("r0", EngineLoad(64, 30, 0.99), work.now)
    assert [target(work.ask()[1]) for _ in range(10)] == ["r1"] * 10


def test_a_failed_attempt_goes_to_the_other_replica_and_never_back() -> None:
    """Both fail: the client hears of it, after two attempts."""
    work = Clockwork(config(2))
    number, first = work.ask()
    second = work.dispatcher.failed(number, "status 503", work.now)
    assert {target(first), target(second)} == {"r0", "r1"}
    assert work.dispatcher.failed(number, "status 503", work.now) == [GiveUp(number)]
    work.check()


def test_the_only_replica_is_tried_once_more() -> None:
    """Never on the same replica unless it is the last, and then once."""
    work = Clockwork(config(1))
    number, _ = work.ask()
    assert target(work.dispatcher.failed(number, "reset", work.now)) == "r0"
    assert work.dispatcher.failed(number, "reset", work.now) == [GiveUp(number)]


def test_refused_connections_wait_for_a_replica_to_come_back() -> None:
    """Nobody listens: the request waits, and goes out as soon as a probe succeeds."""
    work = Clockwork(config(1))
    number, _ = work.ask()
    assert work.dispatcher.failed(number, "connect", work.now) == []
    work.now += 5
    assert work.dispatcher.tick(work.now) == []
    assert target(work.dispatcher.probed("r0", True, False, work.now)) == "r0"
    work.check()


def test_waiting_for_nobody_ends_in_503_with_the_reason() -> None:
    """After the wait the answer says which replica is out and why."""
    work = Clockwork(config(1, state='"out"', reason='"stalled: rank 1 on host-2"'))
    assert work.ask()[1] == []
    work.now += 16
    (answer,) = work.dispatcher.tick(work.now)
    assert isinstance(answer, Reject)
    assert (answer.status, answer.code) == (503, "no_healthy_replica")
    assert "rank 1 on host-2" in answer.message
    assert work.dispatcher.cancel(answer.id, work.now) == []
    work.check()


def test_the_retry_budget_ends_a_storm() -> None:
    """When everything fails, retries stop well below one a request."""
    work = Clockwork(config(2, "[breaker]\nfailures = 100000\n"))
    retries = 0
    for _ in range(300):
        number, _ = work.ask()
        retries += isinstance(work.dispatcher.failed(number, "reset", work.now)[0], Send)
        work.dispatcher.finish(number, False, work.now)
        for standing in work.dispatcher.fleet.standings.values():
            standing.breaker.succeeded()
    assert 20 <= retries <= 20 + 0.2 * 300 + 1


def test_slow_moves_only_if_there_is_elsewhere() -> None:
    """The first-token deadline on the only replica changes nothing."""
    work = Clockwork(config(1))
    number, _ = work.ask()
    assert work.dispatcher.slow(number, work.now) == []
    work = Clockwork(config(2))
    number, first = work.ask()
    assert target(work.dispatcher.slow(number, work.now)) != target(first)


def test_draining_replicas_get_nothing_new_and_finish_what_they_have() -> None:
    """A reload to `draining` keeps running requests counted."""
    work = Clockwork(config(1))
    number, _ = work.ask()
    work.dispatcher.configure(config(1, state='"draining"'), work.now)
    assert work.ask()[1] == []
    work.check()
    work.dispatcher.finish(number, True, work.now)
    work.check()


def test_replicas_hold_what_they_run_and_a_little_more() -> None:
    """The rest waits here, and each end lets one go."""
    work = Clockwork(config(1, max_running=8))
    sent = [work.ask() for _ in range(20)]
    numbers = [number for number, actions in sent if actions]
    assert len(numbers) == 9
    assert target(work.dispatcher.finish(numbers[0], True, work.now)) == "r0"
    work.check()


def test_the_wait_room_is_bounded() -> None:
    """One more than fits gets 429 and a time to come back."""
    work = Clockwork(config(1, "[queue]\nmax_waiting = 2\n", max_running=1))
    answers = [work.ask()[1] for _ in range(5)]
    (last,) = answers[-1]
    assert isinstance(last, Reject)
    assert (last.status, last.code) == (429, "queue_full")
    assert last.retry_after_seconds is not None


def teach(work: Clockwork, seconds: float) -> None:
    """The replica serves two requests of `seconds` each."""
    for _ in range(2):
        number, _ = work.ask()
        work.dispatcher.content(number, work.now)
        work.now += seconds
        work.dispatcher.finish(number, True, work.now)


def test_overflow_by_predicted_seconds_says_why() -> None:
    """Two slots of 4 s: the third in the queue would wait 6 s, which is more than 5."""
    work = Clockwork(config(1, provider=PRICED, max_running=2))
    teach(work, 4.0)
    sends = [action for _ in range(8) for action in work.ask()[1]]
    outside = [a for a in sends if isinstance(a, Send) and a.outside]
    assert outside
    assert outside[0].reason.startswith("queue_eta=")
    assert outside[0].reason.endswith("s>5s")
    work.check()


def test_local_only_never_leaves() -> None:
    """Not when the queue is long, not when everything is dead, not after the threshold."""
    work = Clockwork(config(1, provider=PRICED, max_running=1))
    teach(work, 60.0)
    for _ in range(5):
        assert not any(isinstance(a, Send) and a.outside for a in work.ask(local_only=True)[1])
    work.now += 10
    assert not any(isinstance(a, Send) and a.outside for a in work.dispatcher.tick(work.now))
    work.dispatcher.probed("r0", False, True, work.now)
    assert not any(isinstance(a, Send) and a.outside for a in work.dispatcher.tick(work.now))


def pool(name: str, more: str = "") -> str:
    """A provider's table."""
    return f'[[providers]]\nname = "{name}"\nurl = "https://{name}.example/v1"\nmodels = {{ m = "theirs" }}\n{more}\n'


def test_pools_are_tried_in_the_files_order() -> None:
    """The replicas here, then a second cluster of ours, then an outside service; each only while those before it cannot."""
    work = Clockwork(config(1, pool("second", "own = true") + pool("outside")))
    assert target(work.ask()[1]) == "r0"
    work.dispatcher.configure(
        config(1, pool("second", "own = true") + pool("outside"), state='"out"'), work.now
    )
    number, first = work.ask()
    assert target(first) == "second"
    assert target(work.dispatcher.failed(number, "status 503", work.now)) == "outside"
    work.check()


def test_what_must_stay_local_may_go_to_a_cluster_of_ours() -> None:
    """Wherever that stands in the order; and nowhere else."""
    work = Clockwork(config(1, pool("outside") + pool("second", "own = true"), state='"out"'))
    number, first = work.ask(local_only=True)
    assert target(first) == "second"
    assert work.dispatcher.failed(number, "status 503", work.now) == [GiveUp(number)]


def test_a_held_request_leaves_at_the_threshold() -> None:
    """Even without any prediction."""
    work = Clockwork(config(1, provider=PRICED, max_running=1))
    sent = [work.ask() for _ in range(3)]
    work.now += 5.1
    action = work.dispatcher.tick(work.now)[0]
    assert isinstance(action, Send)
    assert action.id == sent[-1][0]
    assert action.reason == "held=5.1s>=5s"


def test_the_spending_cap_keeps_requests_at_home() -> None:
    """With the hour's money gone nothing leaves; an hour later it may again."""
    work = Clockwork(config(1, provider=PRICED, state='"out"'))
    number, actions = work.ask(max_tokens=900_000)
    assert target(actions) == "p"
    work.dispatcher.finish(number, True, work.now, 900_000, 0.95)
    assert work.ask(max_tokens=100_000)[1] == []
    work.now += 3700
    assert target(work.ask(max_tokens=100_000)[1]) == "p"


def test_hysteresis_keeps_the_border_from_flapping() -> None:
    """Once it overflows, it goes on until the queue is clearly shorter."""
    work = Clockwork(config(1, provider=PRICED))
    fleet = work.dispatcher.fleet
    standing = fleet.standings["r0"]
    standing.capacity, standing.service_seconds = 1.0, 1.0
    number, _ = work.ask()
    ask = work.dispatcher.tickets[number].ask
    answers = []
    for foreign in (4.1, 3.5, 2.5, 3.5):
        standing.foreign = foreign
        answers.append(bool(fleet.overflow_reason(ask, [standing])))
    assert answers == [True, True, False, False]


def test_requests_inside_an_engine_are_recalled_when_metrics_show_its_queue() -> None:
    """Sent before anything was known: those that would wait too long leave, the local attempt first."""
    work = Clockwork(config(1, provider=PRICED))
    teach(work, 4.0)
    for _ in range(12):
        work.ask()
    work.now += 0.5
    work.dispatcher.scraped("r0", EngineLoad(2, 10, 0.1, (1.0,)), work.now)
    moved = work.dispatcher.tick(work.now)
    assert 6 <= len(moved) <= 9
    assert all(isinstance(a, Send) and a.outside for a in moved)
    work.check()


def test_a_stored_response_goes_to_its_owner_or_nowhere() -> None:
    """State lives in one replica: neither another one nor a provider may answer for it."""
    work = Clockwork(config(2, provider=PRICED))
    number, actions = work.ask()
    owner = target(actions)
    work.dispatcher.own(number, "resp_1")
    for _ in range(4):
        assert target(work.ask(state="resp_1")[1]) == owner
    number, _ = work.ask(state="resp_1")
    assert work.dispatcher.failed(number, "reset", work.now) == [GiveUp(number)]


def test_a_stored_response_is_its_makers() -> None:
    """With keys, only the key that made a response may use it: for all others, and if nobody made it here, it does not
    exist. An id that a client chooses cannot take it over.
    """
    digests = ("a" * 64, "b" * 64)
    keys = "".join(
        f'[[keys]]\nname = "{name}"\nsha256 = "{d}"\n' for name, d in zip("kx", digests, strict=True)
    )
    work = Clockwork(config(2, keys))
    number, actions = work.ask()
    work.dispatcher.own(number, "resp_1")
    assert target(work.ask(state="resp_1")[1]) == target(actions)
    refused = [
        work.ask(state=state, key=key) for state, key in (("resp_1", "x"), ("resp_2", "x"), ("resp_2", "k"))
    ]
    for asked, (reject,) in refused:
        assert isinstance(reject, Reject)
        assert (reject.status, reject.code, reject.retry_after_seconds) == (404, "response_not_found", None)
        work.dispatcher.cancel(asked, work.now)
    work.check()
    assert target(work.ask(claims="resp_1")[1])
    assert target(work.ask(claims="resp_3", key="x")[1])
    (reject,) = work.ask(claims="resp_1", key="x")[1]
    assert isinstance(reject, Reject)
    assert reject.status == 409
    thief, _ = work.ask(key="x")
    work.dispatcher.own(thief, "resp_1")
    assert isinstance(work.ask(state="resp_1", key="x")[1][0], Reject)
    assert target(work.ask(state="resp_1")[1]) == target(actions)


def test_without_keys_an_engine_says_what_it_has() -> None:
    """All clients of an open gateway are the same: an unknown response may be at any replica."""
    assert target(Clockwork(config(1)).ask(state="resp_9", key="anyone")[1]) == "r0"


def test_a_stalled_replica_loses_its_waiting_requests_and_returns_by_a_canary() -> None:
    """Work outstanding, counters frozen: convicted; an answered canary clears it."""
    work = Clockwork(config(2))
    frozen = EngineLoad(4, 0, 0.5, (7.0,))
    numbers = [work.ask()[0] for _ in range(4)]
    for _ in range(17):
        work.now += 1.0
        work.dispatcher.scraped("r0", frozen, work.now)
        work.dispatcher.progress("r1", work.now)
        actions = work.dispatcher.tick(work.now)
        if actions:
            break
    assert {target([a]) for a in actions} == {"r1"}
    assert not work.dispatcher.fleet.standings["r0"].usable(work.now)
    assert len(numbers) == 4
    work.dispatcher.canary("r0", True, work.now)
    assert work.dispatcher.fleet.standings["r0"].usable(work.now)
    work.check()


def test_moving_kv_use_is_work() -> None:
    """A lone long prefill moves no token counter, only KV use; it is not convicted."""
    work = Clockwork(config(2))
    work.ask()
    for second in range(40):
        work.now += 1.0
        for name in ("r0", "r1"):
            work.dispatcher.scraped(name, EngineLoad(1, 0, second / 100, (7.0, second / 100)), work.now)
        assert work.dispatcher.tick(work.now) == []


def test_a_cut_stream_goes_to_a_sibling_at_once_or_ends() -> None:
    """Never outside, never into the wait room, never twice to the same, never beyond three attempts."""
    work = Clockwork(config(4, provider=PRICED))
    number, actions = work.ask()
    seen = [target(actions)]
    for _ in range(2):
        work.dispatcher.content(number, work.now)
        seen.append(target(work.dispatcher.broken(number, "cut", work.now)))
        work.check()
        assert not work.dispatcher.slow(number, work.now), (
            "the client has its beginning: nobody else may begin anew"
        )
        work.now += 6.0
        assert work.dispatcher.tick(work.now) == [], "no provider goes on with what a replica began"
    assert len(set(seen)) == 3
    assert work.dispatcher.broken(number, "cut", work.now) == [GiveUp(number)]
    work.dispatcher.finish(number, ok=False, now=work.now)
    work.check()
    alone = Clockwork(config(1, provider=PRICED))
    number, _ = alone.ask()
    assert alone.dispatcher.broken(number, "cut", alone.now) == [GiveUp(number)]


@pytest.mark.parametrize(("cause", "failures"), [("cut", 1), ("refused", 0)])
def test_who_refuses_to_go_on_is_not_blamed(cause: str, failures: int) -> None:
    """An engine that cannot continue an answer is well; one that cut it is not."""
    work = Clockwork(config(3))
    number, actions = work.ask()
    work.dispatcher.content(number, work.now)
    second = target(work.dispatcher.broken(number, "cut", work.now))
    work.dispatcher.broken(number, cause, work.now)
    standings = work.dispatcher.fleet.standings
    assert standings[target(actions)].failures == 1
    assert standings[second].failures == failures


def test_whole_answers_are_progress() -> None:
    """A replica that only answers without streaming is not silent, whatever its counters say."""
    work = Clockwork(config(1))
    for name in ("first", "second"):
        number, _ = work.ask(stream=False)
        load = EngineLoad(1.0, 0.0, 0.5, (1.0,))
        work.dispatcher.scraped("r0", load, work.now)
        if name == "first":
            first = number
    for _ in range(20):
        work.now += 1.0
        work.dispatcher.finish(first, ok=True, now=work.now)
        first = number
        number, _ = work.ask(stream=False)
        work.dispatcher.tick(work.now)
    assert not work.dispatcher.fleet.standings["r0"].stalled


def test_a_told_limit_is_lowered_only_where_the_cache_is_full() -> None:
    """Requests that wait for the engine's next step are no reason to send it fewer."""
    work = Clockwork(config(1, max_running=64))
    standing = work.dispatcher.fleet.standings["r0"]
    for _ in range(40):
        work.ask()
    work.dispatcher.scraped("r0", EngineLoad(10.0, 30.0, 0.5, (1.0,)), work.now)
    assert standing.capacity == 64
    work.dispatcher.scraped("r0", EngineLoad(10.0, 30.0, 0.99, (2.0,)), work.now)
    assert standing.capacity == 10
    for running in (10.0, 40.0, 61.0):
        work.dispatcher.scraped("r0", EngineLoad(running, 0.0, 0.5, (running,)), work.now)
    assert standing.capacity == 64


class AnyOrder(RuleBasedStateMachine):
    """Events of any kind in any order keep the ledger of permits, places and reservations whole."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """A gateway with caps, keys, a provider and two models' worth of trouble."""
        cap = data.draw(st.sampled_from(["", "max_concurrent = 4\n"]))
        more = (
            f'[queue]\nmax_waiting = 6\n{cap}[[keys]]\nname = "k"\nsha256 = "{"0" * 64}"\nmax_parallel = 8\n'
        )
        self.settings = config(3, more, PRICED, max_running=2)
        self.work = Clockwork(self.settings)
        self.live: set[int] = set()
        self.ended: set[int] = set()

    def perform(self, actions: list[Action]) -> None:
        """What a proxy would do: a request that is turned away or given up ends."""
        for action in actions:
            assert action.id not in self.ended, "an action for a request that is over"
            if isinstance(action, Send):
                self.live.add(action.id)
            else:
                self.end(action.id, ok=False)

    def end(self, number: int, ok: bool) -> None:
        """A request is over."""
        self.live.discard(number)
        self.ended.add(number)
        self.perform(self.work.dispatcher.finish(number, ok, self.work.now, 5, 0.01))

    @rule(
        local=st.booleans(),
        priority=st.sampled_from(["high", "normal", "low"]),
        session=st.none() | st.integers(0, 3),
    )
    def arrive(self, local: bool, priority: str, session: int | None) -> None:
        """A request arrives."""
        number, actions = self.work.ask(local_only=local, priority=priority, session=session)
        if not any(isinstance(a, Reject) and a.code == "rate_limit_exceeded" for a in actions):
            self.live.add(number)
        self.perform(actions)

    @rule(
        data=st.data(),
        what=st.sampled_from(
            ["ok", "bad", "leave", "content", "slow", "cut", "refused", "connect", "reset", "status 429"]
        ),
    )
    def step(self, data: st.DataObject, what: str) -> None:
        """Something happens to a live request."""
        if not self.live:
            return
        number = data.draw(st.sampled_from(sorted(self.live)))
        ticket = self.work.dispatcher.tickets[number]
        if what == "leave":
            self.live.discard(number)
            self.ended.add(number)
            self.perform(self.work.dispatcher.cancel(number, self.work.now))
        elif ticket.where is None:
            return
        elif what in ("ok", "bad"):
            self.end(number, what == "ok")
        elif what == "content":
            self.work.dispatcher.content(number, self.work.now)
        elif what in ("cut", "refused"):
            self.perform(self.work.dispatcher.broken(number, what, self.work.now))
        elif what == "slow":
            self.perform(self.work.dispatcher.slow(number, self.work.now))
        elif number in self.work.dispatcher.tickets and ticket.attempts[-1].first is None:
            self.perform(self.work.dispatcher.failed(number, what, self.work.now))

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        """The clock ticks."""
        self.work.now += seconds
        self.perform(self.work.dispatcher.tick(self.work.now))

    @rule(name=st.sampled_from(["r0", "r1", "r2"]), running=st.integers(0, 5), waiting=st.integers(0, 5))
    def scrape(self, name: str, running: int, waiting: int) -> None:
        """Metrics come in."""
        self.perform(
            self.work.dispatcher.scraped(name, EngineLoad(running, waiting, 0.5, (1.0,)), self.work.now)
        )

    @rule(name=st.sampled_from(["r0", "r1", "r2"]), ok=st.booleans(), refused=st.booleans())
    def probe(self, name: str, ok: bool, refused: bool) -> None:
        """A health probe or a canary comes back."""
        self.perform(self.work.dispatcher.probed(name, ok, refused and not ok, self.work.now))
        self.perform(self.work.dispatcher.canary(name, ok, self.work.now))

    @rule(count=st.integers(1, 3))
    def reload(self, count: int) -> None:
        """Replicas come and go."""
        more = f'[queue]\nmax_waiting = 6\n[[keys]]\nname = "k"\nsha256 = "{"0" * 64}"\nmax_parallel = 8\n'
        self.perform(
            self.work.dispatcher.configure(config(count, more, PRICED, max_running=2), self.work.now)
        )

    @invariant()
    def whole(self) -> None:
        """Nothing leaked, nothing is in two places."""
        if not hasattr(self, "work"):
            return
        self.work.check()
        assert set(self.work.dispatcher.tickets) == self.live


AnyOrder.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase

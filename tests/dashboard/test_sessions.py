"""Who is logged in, how often a key may be tried, and what counts as coming from our own page."""

from hypothesis import given
from hypothesis import strategies as st

from longspan.dashboard import sessions
from longspan.dashboard.sessions import Sessions, digest, same_site

KEY = "lsp_right"


def fresh() -> Sessions:
    """Nobody is logged in."""
    return Sessions(digest(KEY))


def test_only_the_key_opens_a_session() -> None:
    """The right key gives one, another gives none, and a token that was never given finds none."""
    one = fresh()
    assert one.login("lsp_wrong", "a", 0.0, "t1", "c") is None
    session = one.login(KEY, "a", 0.0, "t2", "c")
    assert session is not None
    assert one.find("t2", 1.0) is session
    assert one.find("t1", 1.0) is None
    assert one.find("", 1.0) is None


def test_no_token_is_kept() -> None:
    """What lies in memory is the token's hash."""
    one = fresh()
    one.login(KEY, "a", 0.0, "the-token", "c")
    assert "the-token" not in repr(one)


def test_a_session_ends_idle_and_at_the_latest_after_its_life() -> None:
    """Two hours without a request end it, and twelve with them."""
    one = fresh()
    one.login(KEY, "a", 0.0, "t", "c")
    assert one.find("t", sessions.IDLE_SECONDS) is not None
    assert one.find("t", 2 * sessions.IDLE_SECONDS + 1) is None
    session = one.login(KEY, "a", 0.0, "t", "c")
    assert session is not None
    for hour in range(12):
        assert one.alive(session, hour * 3600.0 + 1)
    assert not one.alive(session, sessions.SESSION_SECONDS + 1)


def test_the_sixth_wrong_key_waits() -> None:
    """Five wrong keys a minute from one address; another address is not held up by it."""
    one = fresh()
    for n in range(sessions.MAX_FAILURES_PER_ADDRESS):
        assert one.wait_seconds("a", float(n)) == 0.0
        one.login("x", "a", float(n), "t", "c")
    assert 0 < one.wait_seconds("a", 5.0) <= sessions.WINDOW_SECONDS
    assert one.wait_seconds("b", 5.0) == 0.0
    assert one.wait_seconds("a", 61.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 300), st.integers(0, 200)), max_size=300))
def test_no_minute_sees_more_wrong_keys_than_the_limit(tries: list[tuple[float, int]]) -> None:
    """Whoever tries from however many addresses: no window holds more failures than allowed, and memory stays bounded."""
    one = fresh()
    taken: list[float] = []
    for at, who in sorted(tries):
        if one.wait_seconds(str(who), at) <= 0:
            one.login("x", str(who), at, "t", "c")
            taken.append(at)
    for at in taken:
        assert sum(at - sessions.WINDOW_SECONDS < other <= at for other in taken) <= sessions.MAX_FAILURES
    assert len(one.failures) <= sessions.MAX_FAILURES


def test_the_number_of_sessions_is_bounded() -> None:
    """The one that was not used for longest makes room."""
    one = fresh()
    for n in range(sessions.MAX_SESSIONS + 5):
        one.login(KEY, "a", float(n), f"t{n}", "c")
    assert len(one.sessions) == sessions.MAX_SESSIONS
    assert one.find("t0", 100.0) is None
    assert one.find(f"t{sessions.MAX_SESSIONS + 4}", 100.0) is not None


def test_other_sites_are_told_from_ours() -> None:
    """A browser says where a request comes from; a program that says nothing has no cookie that could be misused."""
    assert same_site("http://127.0.0.1:8266", "same-origin", "127.0.0.1:8266")
    assert same_site(None, None, "127.0.0.1:8266")
    assert not same_site("http://evil.example", "cross-site", "127.0.0.1:8266")
    assert not same_site("http://127.0.0.1:9999", "same-site", "127.0.0.1:8266")
    assert not same_site("http://127.0.0.1:9999", None, "127.0.0.1:8266")
    assert not same_site("null", None, "127.0.0.1:8266")

"""Plain answers read without the parser: the request sees what the parser would have shown it."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.gateway import upstream
from longspan.gateway.answers import AnswerBook


class Told:
    """A receiver that writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def upstream_ready(self, connection: upstream.Upstream) -> None:
        """Not told here."""

    def upstream_failed(self, cause: str) -> None:
        """Not told here."""

    def upstream_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The head."""
        self.events.append((status, headers))

    def upstream_data(self, data: bytes) -> None:
        """Joined, since reads may cut it anywhere."""
        if self.events and isinstance(self.events[-1], bytes):
            data = self.events.pop() + data
        self.events.append(data)

    def upstream_end(self) -> None:
        """The end."""
        self.events.append("end")

    def upstream_lost(self, answered: bool) -> None:
        """The other end."""
        self.events.append(("lost", answered))


class Resting:
    """A pool that notes who comes back."""

    def __init__(self) -> None:
        self.rested = 0

    def rest(self, connection: upstream.Upstream) -> None:
        """One comes back."""
        self.rested += 1

    def gone(self, connection: upstream.Upstream) -> None:
        """One does not."""


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    def write(self, data: Any) -> None:
        """Nothing."""

    def is_closing(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """Nothing."""

    abort = close


class Blank(AnswerBook):
    """Knows no answer: all go to the parser."""

    def whole(self, data: bytes) -> None:
        """No."""


def told(answers: list[bytes], book: AnswerBook, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], int]:
    """What requests on one connection are told of these answers, one after the other, and how often it rested."""
    monkeypatch.setattr(upstream, "_BOOK", book)
    pool = Resting()
    connection = upstream.Upstream(pool)  # type: ignore[arg-type]
    connection.connection_made(Wire())
    events = []
    for answer in answers:
        receiver = Told()
        connection.send(receiver, b"")
        connection.data_received(answer)
        events.append(receiver.events)
        if connection.receiver is not None or pool.rested < len(events):
            break  # no next request on a connection that did not come back
    return events, pool.rested


LINES = st.sampled_from([
    b"date: today", b"Server: uvicorn", b"x-a:b", b"X-Empty:", b"connection: close", b"Connection: keep-alive",
    b"content-encoding: gzip", b"transfer-encoding: chunked", b"x-two: a:b", b"content-type:\tapplication/json ",
    b"bad name: x", b"no colon", b"content-length: 3", b"x-null: a\x00b", b" folded",
])  # fmt: skip
FIRST = st.sampled_from([
    b"HTTP/1.1 200 OK", b"HTTP/1.1 500 Internal Server Error", b"HTTP/1.1 204 No Content", b"HTTP/1.0 200 OK",
    b"HTTP/1.1 100 Continue", b"HTTP/1.1 200", b"HTTP/1.1 429 ", b"nonsense",
])  # fmt: skip


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """Mostly plain."""
    body = draw(st.binary(max_size=30))
    length = draw(st.sampled_from([len(body)] * 6 + [len(body) + 1, max(0, len(body) - 1)]))
    lines = [draw(st.sampled_from([b"HTTP/1.1 200 OK"] * 3 + [draw(FIRST)]))]
    lines += draw(st.lists(LINES, max_size=3 if draw(st.booleans()) else 0))
    lines.append(b"Content-Length: %d" % length)
    return b"\r\n".join([*lines, b"date: today", b"", body])


@given(st.lists(answers(), min_size=1, max_size=4))
def test_the_short_way_tells_what_the_parser_tells(data: list[bytes]) -> None:
    """Same heads, bodies and ends, and the same connections kept."""
    with pytest.MonkeyPatch.context() as patch:
        book = AnswerBook()
        told(data, book, patch)
        assert told(data, book, patch) == told(data, Blank(), patch)


def test_plain_answers_take_the_short_way() -> None:
    """Else all of this would be for nothing; and the book is bounded."""
    book = AnswerBook()
    assert book.whole(b"HTTP/1.1 200 OK\r\nX-A: b\r\ncontent-length: 2\r\n\r\n{}") == (
        200, [(b"x-a", b"b"), (b"content-length", b"2")], b"{}",
    )  # fmt: skip
    for number in range(3000):
        book.whole(b"HTTP/1.1 200 OK\r\nx-id: %d\r\ncontent-length: 0\r\n\r\n" % number)
    assert 0 < len(book._lines) <= 1024


def test_a_length_that_is_said_twice_is_left_to_the_parser() -> None:
    """Which of two lengths holds is not for the short way to say, also where they agree."""
    assert AnswerBook().whole(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\n{}") is None


@pytest.mark.parametrize("more", [b"HTTP/1.1 500 No\r\ncontent-length: 1\r\n\r\nx", b"garbage", b"HTTP/1.1"])
@pytest.mark.parametrize("chunked", [True, False])
def test_what_follows_an_answer_is_not_part_of_it(
    more: bytes, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status, headers and body stay those of the first answer, and the connection is not used again."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    if chunked:
        answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    events, rested = told([answer + more], AnswerBook(), monkeypatch)
    assert [event[0] if isinstance(event, tuple) else event for event in events[0]] == [200, b"{}", "end"]
    assert rested == 0

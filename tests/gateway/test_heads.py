"""Known heads: whatever a connection learned, it serves what the parser would have served."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.gateway.downstream import Downstream
from longspan.gateway.heads import Head, HeadBook

Served = list[tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]]


class Sink(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.gone = False

    def write(self, data: Any) -> None:
        """Keeps it."""
        self.written += bytes(data)

    def close(self) -> None:
        """Notes it."""
        self.gone = True

    abort = close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing."""


class EveryTime(HeadBook):
    """Learns nothing: every head is parsed."""

    def learn(self, raw: bytes, head: Head) -> None:
        """No."""


def serve(pieces: list[bytes], book: HeadBook, max_body_bytes: int = 10_000) -> tuple[Served, bytes, bool]:
    """What one connection serves of these reads, each answered at once."""
    served: Served = []

    def answer(client: Downstream, head: Head, body: bytes) -> None:
        rest = [item for item in head.headers if item[0] != b"content-length"]
        served.append((head.method, head.target, rest, body))
        client.answer(200, [], b"%d" % len(body))

    sink = Sink()
    client = Downstream(answer, max_body_bytes, set(), lambda: 0.0, book, Counter())
    client.connection_made(sink)
    for piece in pieces:
        if not sink.gone:
            client.data_received(piece)
    return served, sink.written, sink.gone


NAMES = st.sampled_from(
    [b"X-A", b"authorization", b"Content-Type", b"connection", b"X-Content-Length", b"Expect"]
)
VALUES = st.sampled_from([b"", b"a", b"keep-alive", b"close", b"content-length: 3", b"7", b"100-continue"])
LENGTHS = st.sampled_from([b"Content-Length: ", b"content-length:", b"CONTENT-LENGTH:  "])


@st.composite
def requests(draw: st.DrawFn) -> list[bytes]:
    """A few requests of one client: the same head around the length, or nearly; cut anywhere or not at all."""
    before = draw(st.lists(st.tuples(NAMES, VALUES), max_size=3))
    after = draw(st.lists(st.tuples(NAMES, VALUES), max_size=2))
    label = draw(LENGTHS)
    out = []
    for _ in range(draw(st.integers(1, 5))):
        body = draw(st.binary(max_size=40))
        said = draw(
            st.sampled_from([b"%d" % len(body)] * 6 + [b"0%d" % len(body), b"+1", b"1x", b"99999999999", b""])
        )
        lines = [b"POST /v1/x HTTP/1.1"]
        lines += [name + b": " + value for name, value in before]
        lines += [label + said, *(name + b": " + value for name, value in after), b"", b""]
        raw = b"\r\n".join(lines) + body
        if draw(st.integers(0, 4)) == 0:
            at = draw(st.integers(0, len(raw)))
            out += [raw[:at], raw[at:]]
        elif out and draw(st.integers(0, 4)) == 0:
            out[-1] += raw
        else:
            out.append(raw)
    return [piece for piece in out if piece]


@given(requests())
def test_a_known_head_means_what_the_parser_says(pieces: list[bytes]) -> None:
    """Same requests, same answers, same end of the connection, with a book that others filled and without one."""
    book = HeadBook()
    serve(pieces, book)
    assert serve(pieces, book) == serve(pieces, EveryTime())


def test_the_second_request_is_not_parsed() -> None:
    """The point of it: the same Head object, with the meaning that was worked out for the first."""
    heads: list[Head] = []

    def answer(client: Downstream, head: Head, body: bytes) -> None:
        heads.append(head)
        client.answer(200, [], b"")

    book = HeadBook()
    for _ in range(2):  # another connection shares it
        client = Downstream(answer, 100, set(), lambda: 0.0, book, Counter())
        client.connection_made(Sink())
        for body in (b"{}", b"{  }"):
            client.data_received(b"POST / HTTP/1.1\r\ncontent-length: %d\r\nx: y\r\n\r\n" % len(body) + body)
    assert all(head is heads[0] for head in heads)


@pytest.mark.parametrize("more", ["transfer-encoding: chunked", "expect: 100-continue", "upgrade: h2c"])
def test_heads_that_do_more_are_always_parsed(more: str) -> None:
    """Chunked bodies, interim answers and upgrades are the parser's."""
    name, value = more.encode().split(b": ")
    raw = b"POST / HTTP/1.1\r\ncontent-length: 2\r\n" + more.encode() + b"\r\n\r\n"
    head = Head(b"POST", b"/", [(b"content-length", b"2"), (name, value)], "1.1", True)
    assert HeadBook().learn(raw, head) is None


@pytest.mark.parametrize(
    ("lines", "learned"),
    [
        (b"content-length: 2\r\nx: y", True),
        (b"x: content-length: 2\r\ncontent-length: 2", False),
        (b"content-length: 2\r\nx: y\nz: w", False),
        (b"content-length: 2\r\nx: " + b"y" * 5000, False),
    ],
    ids=["plain", "named twice", "bare line feed", "long"],
)
def test_only_heads_whose_length_stands_in_one_place_are_learned(lines: bytes, learned: bool) -> None:
    """Where the digits of the length, or the end of the head, could be taken for others, the parser reads every time."""
    raw = b"POST / HTTP/1.1\r\n" + lines + b"\r\n\r\n"
    head = Head(b"POST", b"/", [(b"content-length", b"2")], "1.1", True)
    assert (HeadBook().learn(raw, head) is not None) == learned


def test_a_larger_body_than_allowed_is_refused_also_with_a_known_head() -> None:
    """The limit holds on the short way, too."""
    head = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n"
    served, written, gone = serve([head % 2 + b"{}", head % 30 + b"x" * 30], HeadBook(), max_body_bytes=10)
    assert [body for _, _, _, body in served] == [b"{}"]
    assert b" 413 " in written
    assert gone


def test_the_book_is_bounded() -> None:
    """Strangers cannot fill it."""
    book = HeadBook()
    for number in range(2000):
        raw = b"POST /%d HTTP/1.1\r\ncontent-length: 2\r\n\r\n" % number
        book.learn(raw, Head(b"POST", b"/", [(b"content-length", b"2")], "1.1", True))
    assert 0 < len(book._known) <= 512


def test_a_head_request_gets_no_body_however_the_answer_comes() -> None:
    """A body after it would be read as the next answer on the connection."""
    clients: list[Downstream] = []

    def answer(client: Downstream, head: Head, body: bytes) -> None:
        clients.append(client)
        client.start(200, [], b"first")
        client.more(b"second")
        client.end(b"last")

    sink = Sink()
    client = Downstream(answer, 100, set(), lambda: 0.0, HeadBook(), Counter())
    client.connection_made(sink)
    client.data_received(b"HEAD /v1/files/a/content HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
    assert len(clients) == 2
    assert sink.written.count(b"\r\n\r\n") == 2
    assert sink.written.endswith(b"\r\n\r\n")
    assert not any(word in sink.written for word in (b"first", b"second", b"last"))


@pytest.mark.parametrize("piece", [b"x-more: y\r\n", b"z" * 1000], ids=["many", "one"])
def test_trailers_are_bounded_like_heads(piece: bytes) -> None:
    """A body of one byte followed by trailers without end fills no memory."""
    begin = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx-long: "
    pieces = [begin, *[piece * 10] * 3000]
    served, written, gone = serve(pieces, HeadBook())
    assert served == []
    assert b" 431 " in written
    assert gone


def test_a_long_body_in_small_chunks_is_no_long_head() -> None:
    """The bound is on what is neither head nor body, between two pieces of body."""
    begin = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = [piece for _ in range(30_000) for piece in (b"1;extension=value\r\n", b"x\r\n")]
    served, _, gone = serve([begin, *chunks, b"0\r\n\r\n"], HeadBook(), max_body_bytes=40_000)
    assert [len(body) for _, _, _, body in served] == [30_000]
    assert not gone


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n"
FRAMINGS = st.sampled_from(["none", "length", "chunked", "gzip", "both", "twice", "short"])


@st.composite
def framed(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """The first line and header lines of a request, right or wrong, and what follows its head."""
    body = draw(st.sampled_from([b"", b"abc", b"GET /hidden HTTP/1.1\r\nhost: x\r\n\r\n"]))
    framing = draw(FRAMINGS)
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    length = b"content-length: %d\r\n" % len(body)
    lines = {
        "none": b"", "length": length, "chunked": b"transfer-encoding: chunked\r\n", "gzip": b"transfer-encoding: gzip\r\n",
        "both": length + b"transfer-encoding: chunked\r\n", "twice": length + b"content-length: 1\r\n",
        "short": b"content-length: 1\r\n",
    }[framing]  # fmt: skip
    method = draw(st.sampled_from([b"GET", b"POST"]))
    return method + b" /v1/x HTTP/1.1\r\nhost: x\r\n" + lines, chunks if framing in (
        "chunked",
        "both",
    ) else body


@given(
    st.lists(framed(), min_size=1, max_size=3), st.sampled_from(["one read", "a read each", "a read a byte"])
)
def test_an_offer_of_http_2_changes_nothing(parts: list[tuple[bytes, bytes]], reads: str) -> None:
    """What is served of requests that offer an upgrade is what is served of the same without the offer, also of wrong and
    hidden ones, however they are cut: no byte of a body becomes a request.
    """

    def flow(offer: bytes) -> list[bytes]:
        each = [head + offer + b"\r\n" + rest for head, rest in parts]
        whole = b"".join(each)
        return {"one read": [whole], "a read each": each}.get(reads) or [bytes([byte]) for byte in whole]

    def plain(found: tuple[Served, bytes, bool]) -> tuple[Served, bytes, bool]:
        ours = (b"connection", b"upgrade", b"http2-settings")
        served = [
            (m, t, [item for item in rest if item[0] not in ours], body) for m, t, rest, body in found[0]
        ]
        return served, found[1], found[2]

    wanted = plain(serve(flow(b""), EveryTime()))
    assert plain(serve(flow(OFFER), HeadBook())) == wanted


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c, websocket\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n",
    ],
)
def test_other_upgrades_are_refused_and_counted(raw: bytes) -> None:
    """Whoever asks for a websocket or a tunnel cannot go on in HTTP/1.1, and is told so; nothing after it is read."""
    counts: Counter[tuple[int, str]] = Counter()
    served: list[Head] = []
    sink = Sink()
    client = Downstream(
        lambda c, head, body: served.append(head), 100, set(), lambda: 0.0, HeadBook(), counts
    )
    client.connection_made(sink)
    client.data_received(raw + b"GET / HTTP/1.1\r\n\r\n")
    assert (b" 501 " in sink.written, sink.gone, served) == (True, True, [])
    assert counts == {(501, "upgrade"): 1}


def test_a_long_row_of_offers_is_read_in_one_go() -> None:
    """Neither the stack nor copies of what is left grow with the number of pipelined offers."""
    served, _, gone = serve([(b"GET / HTTP/1.1\r\n" + OFFER + b"\r\n") * 3000], HeadBook())
    assert (len(served), gone) == (3000, False)


def test_dribbling_holds_nothing_open() -> None:
    """A request counts from its first byte, however slowly the rest comes: the server closes what is not whole in time."""
    times = iter(range(1000))
    client = Downstream(lambda _: None, 100, set(), lambda: float(next(times)), HeadBook(), Counter())
    before = client.touched
    client.data_received(b"POST /v1/x HTTP/1.1\r\n")
    first = client.touched
    assert first > before
    for letter in b"host: a-name-that-comes-letter-by-letter":
        client.data_received(bytes([letter]))
    assert client.touched == first

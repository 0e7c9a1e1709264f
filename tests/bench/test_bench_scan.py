"""An answer is read as docs say: what is content, what is a failure, and when it came."""

import json
from itertools import accumulate
from typing import Any

import pytest

from longspan.bench import record
from longspan.bench.scan import Scanned, scan

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(body: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def event(value: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """One chunk of a chat."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def usage(tokens: int) -> dict[str, Any]:
    """The usage chunk."""
    return {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}}


def read(parts: list[tuple[float, bytes]], last: bytes = b"0\r\n\r\n", **options: Any) -> Scanned:
    """Scans a chunked stream whose parts arrived at the moments given."""
    blocks = [HEAD, *(chunk(body) for _, body in parts)]
    stamps = [0.0, *(when for when, _ in parts)]
    if last:
        blocks.append(last)
        stamps.append(stamps[-1])
    return scan(b"".join(blocks), list(accumulate(map(len, blocks))), stamps, **options)


END = event(b"[DONE]")


@pytest.mark.parametrize("first", [{"content": ""}, {"content": None}, {}])
def test_a_chunk_that_only_names_the_role_is_no_token(first: dict[str, Any]) -> None:
    """Role at 5 ms, a comment at 50 ms, content at 214 ms: the first token came at 214 ms."""
    parts = [
        (0.005, event(delta(role="assistant", **first))), (0.050, b": ping\n\n"), (0.214, event(delta(content="a"))),
        (0.3, event(delta("stop")) + event(usage(1)) + END),
    ]  # fmt: skip
    found = read(parts)
    assert (found.outcome, list(found.stamps), found.output_tokens) == ("", [0.214], 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"content": ""}, {"reasoning": "x"}, {"reasoning_content": "x"},
        {"tool_calls": [{"index": 0, "function": {"name": "f"}}]},
    ],
)  # fmt: skip
def test_reasoning_tool_calls_and_unprinted_tokens_are_content(fields: dict[str, Any]) -> None:
    """Each of them is a first token, although no text is shown."""
    found = read(
        [(0.1, event(delta(**fields))), (0.2, event(delta("stop", content="b")) + event(usage(2)) + END)]
    )
    assert (found.outcome, found.stamps[0]) == ("", 0.1)


def test_several_tokens_a_chunk_are_no_single_tokens() -> None:
    """4 tokens every 40 ms, the first chunk too: 10 chunks, 40 tokens, and TPOT is 10 ms."""
    parts = [(1 + 0.04 * n, event(delta(content="abcdefgh"))) for n in range(10)]
    found = read(
        [*parts, (1.37, event(delta("length")) + event(usage(40)) + END)], wanted_tokens=40, max_tokens=40
    )
    one = record.RequestRecord(
        0, 0.0, 0.0, found.stamps[0], found.last_stamp, 2.0, found.stamps, len(found.stamps), found.first_chunk_tokens,
        output_tokens=found.output_tokens,
    )  # fmt: skip
    assert (found.outcome, one.chunks, one.first_chunk_tokens) == ("", 10, 4)
    assert one.tpot_seconds == pytest.approx(0.010)


def test_a_bundled_first_chunk_is_known_by_its_share() -> None:
    """8 tokens come first and then one by one: the divisor is N - 8."""
    texts = ["abcd" * 8, *["abcd"] * 8]
    parts = [(1 + n, event(delta(content=text))) for n, text in enumerate(texts)]
    found = read([*parts, (9, event(delta("length")) + event(usage(16)) + END)], wanted_tokens=16)
    assert (found.outcome, found.first_chunk_tokens) == ("", 8)


TEN = [(n * 0.1, event(delta(content="ab"))) for n in range(10)]
ERROR = event({"error": {"message": "EngineCore encountered an issue", "code": 500}})


@pytest.mark.parametrize(
    ("parts", "last", "outcome"),
    [
        ([*TEN, (2, ERROR + END)], b"0\r\n\r\n", record.ENGINE_ERROR),
        ([(2, ERROR + END)], b"0\r\n\r\n", record.ENGINE_ERROR),
        ([*TEN, (2, b"event: error\ndata: broken\n\n")], b"0\r\n\r\n", record.ENGINE_ERROR),
        (TEN, b"", record.NO_END),
        (TEN, b"0\r\n\r\n", record.NO_END),
        ([*TEN, (2, event(usage(10)) + END)], b"0\r\n\r\n", record.NO_END),
        ([*TEN, (2, b'data: {"choices": [{"del')], b"", record.NO_END),
        ([*TEN, (2, event(delta("length")) + event(usage(10)) + END)], b"0\r\n\r\n", record.EARLY_STOP),
        ([*TEN, (2, event(delta("stop")) + END)], b"0\r\n\r\n", record.EARLY_STOP),
        ([*TEN, (2, event(delta("length")) + event(usage(21)) + END)], b"0\r\n\r\n", record.WRONG_COUNT),
    ],
)
def test_a_200_that_went_wrong_is_a_failure(
    parts: list[tuple[float, bytes]], last: bytes, outcome: str
) -> None:
    """Errors inside a stream, missing ends, early stops and wrong counts are failures, though the status was 200."""
    found = read(parts, last, wanted_tokens=20, max_tokens=20)
    assert found.outcome == outcome
    assert found.error


def test_an_error_status_keeps_its_own_words() -> None:
    """The server's message is what the record says."""
    body = json.dumps({"error": {"message": "no such model"}}).encode()
    data = b"HTTP/1.1 404 X\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    found = scan(data, [len(data)], [0.5])
    assert (found.outcome, found.status, "no such model" in found.error) == (record.HTTP_STATUS, 404, True)


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_where_the_network_cuts_does_not_matter(size: int) -> None:
    """Blocks of any size give the same counts, and a token's time is when its last byte came."""
    whole = (
        HEAD
        + b"".join(chunk(event(delta(content=text))) for text in "abc")
        + chunk(event(delta("stop")) + event(usage(3)) + END)
    )
    data = whole + b"0\r\n\r\n"
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    ends = list(accumulate(map(len, blocks)))
    found = scan(data, ends, [float(end) for end in ends])
    assert (found.outcome, found.output_tokens, len(found.stamps)) == ("", 3, 3)
    closes = [data.index(b'"%b"' % text.encode()) for text in "abc"]
    assert all(0 < stamp - place < 200 for stamp, place in zip(found.stamps, closes, strict=True))

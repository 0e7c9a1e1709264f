"""The scanner: bytes pass, lifecycle frames wait, the end is known."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.gateway.dialect import CHAT, MESSAGES, OTHER, RESPONSES, TEXT, Dialect
from longspan.gateway.sse import StreamScanner, read_usage, usage_in_json


def event(value: object) -> bytes:
    """One data event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chat(text: str | None = None, finish: str | None = None, **delta: object) -> bytes:
    """One chat chunk."""
    if text is not None:
        delta["content"] = text
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


ROLE = chat("", role="assistant")
USAGE = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}})
DONE = b"data: [DONE]\n\n"


def cuts(data: bytes, places: list[int]) -> list[bytes]:
    """The data cut at places."""
    marks = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(marks)]


@given(
    st.lists(st.text(min_size=1), min_size=1, max_size=5),
    st.lists(st.integers(0, 10_000), max_size=40),
    st.booleans(),
)
def test_chunking_changes_nothing(texts: list[str], places: list[int], hide: bool) -> None:
    """However the network cuts a stream, the client gets the same bytes, and the same is known about it."""
    data = ROLE + b": ping\n\n" + b"".join(map(chat, texts)) + chat(finish="stop") + USAGE + DONE
    whole, cut = StreamScanner(CHAT, hide), StreamScanner(CHAT, hide)
    expected = whole.feed(data)
    assert b"".join(cut.feed(part) for part in cuts(data, places)) == expected
    assert expected == (data.replace(USAGE, b"") if hide else data)
    assert cut.done
    assert cut.usage == whole.usage == {"prompt": 5, "completion": 2}


@given(st.lists(st.text(), max_size=5), st.lists(st.integers(0, 10_000), max_size=20))
def test_events_leave_whole(texts: list[str], places: list[int]) -> None:
    """What was released always ends with an event's blank line, so that an error event can follow at any time."""
    scanner = StreamScanner(CHAT)
    out = b""
    for part in cuts(ROLE + b"".join(map(chat, texts)) + DONE, places):
        out += scanner.feed(part)
        assert out == b"" or out.endswith(b"\n\n")


@pytest.mark.parametrize(
    "frame",
    [
        ROLE,
        b": keep-alive\n\n",
        event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]}),
    ],
)
def test_lifecycle_frames_wait_for_content(frame: bytes) -> None:
    """Frames without content are held back, and come before the first content."""
    scanner = StreamScanner(CHAT)
    assert scanner.feed(frame) == b""
    assert not scanner.content
    assert scanner.feed(chat("a")) == frame + chat("a")
    assert scanner.content


@pytest.mark.parametrize(
    "frame",
    [
        chat("a"), chat(finish="length"), chat(reasoning_content="hm"), chat(tool_calls=[{"index": 0}]),
        chat(refusal="no"), b"data: {broken\n\n",
    ],
)  # fmt: skip
def test_everything_a_client_acts_on_is_content(frame: bytes) -> None:
    """Text, reasoning, tool calls, refusals, a finish and even broken events are released at once."""
    assert StreamScanner(CHAT).feed(frame) == frame


@pytest.mark.parametrize("dialect", [CHAT, TEXT, OTHER])
def test_words_that_look_like_markers_in_text_mean_nothing(dialect: Dialect) -> None:
    """A model may write about [DONE], "error" and "choices": []."""
    scanner = StreamScanner(dialect, hide_usage=True)
    text = '[DONE] "error" "choices": [] "usage"'
    frame = event({"choices": [{"index": 0, "text": text, "delta": {"content": text}}]})
    assert scanner.feed(frame + frame) == frame + frame
    assert not scanner.done
    assert scanner.error is None


def test_an_error_event_is_kept_from_the_client_and_ends_the_stream() -> None:
    """The engine's error is ours to tell, once and last: even a [DONE] behind it is dropped."""
    scanner = StreamScanner(CHAT)
    out = scanner.feed(chat("a") + event({"error": {"message": "boom", "code": 500}}) + DONE)
    assert out == chat("a")
    assert scanner.error == {"message": "boom", "code": 500}
    assert not scanner.done
    assert scanner.events == 1


def test_responses_end_with_completed() -> None:
    """The Responses API has no [DONE]; its created event waits for content."""
    scanner = StreamScanner(RESPONSES)
    created = b"event: response.created\n" + event({"type": "response.created", "response": {"id": "resp_1"}})
    delta = b"event: response.output_text.delta\n" + event(
        {"type": "response.output_text.delta", "delta": "a"}
    )
    usage = {"input_tokens": 3, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 2}}
    done = event({"type": "response.completed", "response": {"usage": usage}})
    assert scanner.feed(created) == b""
    assert scanner.feed(delta) == created + delta
    assert scanner.feed(done) == done
    assert scanner.done
    assert scanner.usage == {"prompt": 3, "completion": 1, "cached": 2}


def test_messages_end_with_message_stop() -> None:
    """The Messages API counts its prompt in the first event and its output in the last but one."""
    scanner = StreamScanner(MESSAGES)
    scanner.feed(
        event({"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 0}}})
    )
    scanner.feed(event({"type": "content_block_delta", "delta": {"text": "a"}}))
    assert not scanner.done
    scanner.feed(
        event({"type": "message_delta", "usage": {"output_tokens": 4}}) + event({"type": "message_stop"})
    )
    assert scanner.done
    assert scanner.usage == {"prompt": 9, "completion": 4}


def test_an_event_without_end_does_not_grow_memory() -> None:
    """A body that never ends its event is relayed in pieces instead of being kept."""
    scanner = StreamScanner(CHAT)
    out = b"".join(scanner.feed(b"\nx" * 5000) for _ in range(100))
    assert len(out) > 700_000


def test_windows_line_ends() -> None:
    """Events may end in CR LF CR LF."""
    scanner = StreamScanner(CHAT)
    data = (chat("a") + DONE).replace(b"\n", b"\r\n")
    assert scanner.feed(data) == data
    assert scanner.done


@given(st.text(), st.integers(0, 10**6))
def test_usage_of_a_whole_answer(text: str, tokens: int) -> None:
    """The usage object is found whatever the answer's text says."""
    answer = {"choices": [{"message": {"content": text + '"usage": {"prompt_tokens": 7}'}}],
              "usage": {"prompt_tokens": tokens, "completion_tokens": 1}, "after": [1]}  # fmt: skip
    assert usage_in_json(json.dumps(answer).encode()) == {"prompt": tokens, "completion": 1}
    assert usage_in_json(json.dumps({"text": text}).encode()) is None


@pytest.mark.parametrize("number", [2**70, -5, 1e9, "9"])
def test_numbers_that_are_no_counts_are_not_counted(number: object) -> None:
    """A provider's nonsense neither breaks the ledger nor refunds money."""
    assert read_usage({"prompt_tokens": 3, "completion_tokens": number}) == {"prompt": 3}


def test_events_nested_without_end_pass() -> None:
    """They are the engine's; reading them must not end the stream."""
    scanner = StreamScanner(CHAT)
    event = b"data: " + b"[" * 5000 + b"]" * 5000 + b"\n\n"
    assert scanner.feed(event) == event
    assert usage_in_json(b'{"usage": ' + b"[" * 5000) is None


@pytest.mark.parametrize("dialect", [CHAT, TEXT])
def test_nothing_follows_the_end_marker(dialect: Dialect) -> None:
    """However an engine cuts and goes on, the client's last event is [DONE]."""
    data = chat("a") + b"data: [DONE]\n\n"
    stream = data + chat("b") + b"data: {}"
    for step in (1, 7, len(data), len(stream)):
        scanner = StreamScanner(dialect)
        out = b"".join(scanner.feed(stream[at : at + step]) for at in range(0, len(stream), step))
        assert out + scanner.rest() == data
        assert scanner.done
        assert scanner.events == 1

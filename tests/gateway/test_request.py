"""Bodies: read once, rewritten in place, otherwise untouched."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.gateway.dialect import CHAT, OTHER, RESPONSES
from longspan.gateway.request import BadBodyError, claimed_by, read_body, replace_top_level, rewrite, state_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text().filter(lambda key: key not in ("model", "stream")), VALUES),
    st.booleans(),
    st.sampled_from([None, 2]),
)
def test_a_rewrite_changes_only_its_field(
    fields: dict[str, object], ascii_only: bool, indent: int | None
) -> None:
    """Another model name leaves every other value as it came, whatever is in the body."""
    raw = json.dumps(
        {**fields, "model": "demo", "nested": {"model": "demo"}}, ensure_ascii=ascii_only, indent=indent
    )
    try:
        data = raw.encode()
    except UnicodeEncodeError:
        return  # lone surrogates are no UTF-8
    out = rewrite(read_body(CHAT, b"application/json", data), CHAT, "real")
    assert json.loads(out) == {**json.loads(data), "model": "real"}
    assert len(out) == len(data)
    assert rewrite(read_body(CHAT, b"application/json", data), CHAT, "demo") == data


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ('{"stream": true}', {"include_usage": True}),
        ('{"stream": true, "stream_options": null}', {"include_usage": True}),
        ('{"stream": true, "stream_options": {"include_usage": false, "x": 1}}', {"include_usage": True, "x": 1}),
        ('{"stream": true, "stream_options": {"include_usage": true}}', {"include_usage": True}),
        ('{"stream": false}', None),
    ],
)  # fmt: skip
def test_usage_is_switched_on_for_streams(given: str, wanted: object) -> None:
    """A stream is counted whether or not its client asked; whether it did is remembered."""
    body = read_body(CHAT, b"application/json", given.encode())
    assert json.loads(rewrite(body, CHAT, None)).get("stream_options") == wanted
    assert body.shows_usage == ('"include_usage": true' in given)


def test_the_usage_option_is_not_sent_where_it_does_not_exist() -> None:
    """The Responses API refuses stream_options."""
    body = read_body(RESPONSES, b"application/json", b'{"stream": true}')
    assert rewrite(body, RESPONSES, None) == b'{"stream": true}'


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b'{"model": 3}', b"{}x", b"\xff{}"])
def test_bad_bodies_are_refused_with_words(raw: bytes) -> None:
    """A generation request must be a JSON object."""
    with pytest.raises(BadBodyError):
        read_body(CHAT, b"application/json", raw)


def test_forms_keep_their_bytes_but_for_the_model() -> None:
    """Audio comes as a multipart form; its model is found and renamed."""
    raw = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\ndemo\r\n--b\r\nname="file"\r\n\r\n\x00\xff\r\n--b--'
    body = read_body(OTHER, b"multipart/form-data; boundary=b", raw)
    assert body.model == "demo"
    assert rewrite(body, OTHER, "whisper") == raw.replace(b"demo", b"whisper")


@given(st.dictionaries(st.text(), VALUES, min_size=1))
def test_replacing_nothing_is_identity(fields: dict[str, object]) -> None:
    """The scanner finds its way through any object."""
    data = json.dumps(fields).encode()
    assert replace_top_level(data, {}) == data


def test_state_is_where_a_response_is_named() -> None:
    """previous_response_id and /v1/responses/ID tie a request to a replica."""
    body = read_body(RESPONSES, b"", b'{"previous_response_id": "resp_1"}')
    assert state_of(body, "/v1/responses") == "resp_1"
    assert state_of(read_body(OTHER, b"", b""), "/v1/responses/resp_2/cancel") == "resp_2"
    assert state_of(body, "/v1/chat/completions") == ""
    assert state_of(body, "/v1/responses/") == "resp_1"
    chosen = read_body(RESPONSES, b"", b'{"request_id": "resp_3"}')
    assert (claimed_by(chosen, "/v1/responses"), claimed_by(chosen, "/v1/completions")) == ("resp_3", "")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be"])
def test_other_encodings_are_refused(encoding: str) -> None:
    """JSON is UTF-8 (RFC 8259, 8.1); rewrites are made in its bytes."""
    with pytest.raises(BadBodyError):
        read_body(CHAT, b"application/json", json.dumps({"model": "demo", "stream": True}).encode(encoding))


def test_a_byte_order_mark_passes() -> None:
    """Engines take it, so it is relayed."""
    raw = b"\xef\xbb\xbf" + json.dumps({"model": "demo", "stream": True}).encode()
    assert json.loads(rewrite(read_body(CHAT, b"application/json", raw), CHAT, "real"))["model"] == "real"

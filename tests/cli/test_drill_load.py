"""The load of a drill: what each kind of answer counts as."""

import asyncio
import time

import pytest

from longspan.cli import drill_load
from longspan.cli.drill_load import Load, until

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"text":" 4"}]}\n\n'
ERROR = b'data: {"error":{"message":"it is being restarted"}}\n\n'
DONE = b"data: [DONE]\n\n"


def chunks(*parts: bytes) -> bytes:
    """A chunked body without its end."""
    return CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (chunks(TOKEN, DONE) + b"0\r\n\r\n", "answered"),
        (b"HTTP/1.1 503 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", "refused"),
        (chunks(TOKEN, ERROR, DONE) + b"0\r\n\r\n", "refused"),
        (chunks(TOKEN), "cut"),
        (chunks(TOKEN) + b"0\r\n\r\n", "cut"),
        (b"", "cut"),
        (None, "hung"),
    ],
    ids=[
        "whole",
        "status",
        "error in the stream",
        "in a chunk",
        "without its last line",
        "no word",
        "silence",
    ],
)
def test_what_an_answer_counts_as(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | None, outcome: str
) -> None:
    """Only a stream with its last line is whole; an error that says why is no cut; silence ends in time."""
    if answer is None:
        monkeypatch.setattr(drill_load, "HUNG_SECONDS", 0.3)
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        if answer is None:
            await reader.read()
        writer.write(answer or b"")
        writer.close()

    async def load() -> Load:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            found = Load(f"http://127.0.0.1:{port}/v1", "m", "lsp_key", 100.0)
            stop = asyncio.Event()
            running = asyncio.create_task(found.run(stop))
            assert await until(lambda: len(found.done) >= 3, 60)
            stop.set()
            await running
        return found

    begun = time.monotonic()
    found = asyncio.run(load())
    assert {one.outcome for one in found.requests(begun)} == {outcome}
    assert all(0 <= one.begun <= one.ended for one in found.requests(begun))
    assert not found.running
    assert all(head.startswith(b"POST /v1/completions ") and b"Bearer lsp_key" in head for head in heads)
    assert answer is None or len(found.done) == len(heads)  # who gives up may do so before it is read

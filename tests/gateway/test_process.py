"""The whole process: relays, keys, reload, ports, drain. Real sockets, stub engines."""

import contextlib
import gzip
import http.client
import http.server
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.conftest import KEY, Running, start_gateway, stop
from gateway.stub_engine import StubEngine
from longspan.gateway import store
from longspan.gateway.ledger import explain

Make = Callable[..., Running]


def call(
    gateway: Running,
    path: str,
    body: Any = None,
    method: str | None = None,
    key: str | None = KEY,
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:
    """One request on its own connection."""
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=60)
    sent = {
        "content-type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    if key is not None:
        sent["authorization"] = f"Bearer {key}"
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, data, sent)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def chat(words: str = "", stream: bool = False, **fields: Any) -> dict[str, Any]:
    """A chat request."""
    return {"model": "m", "stream": stream, "messages": [{"role": "user", "content": words}], **fields}


@contextlib.contextmanager
def collector(bodies: list[bytes]) -> Iterator[str]:
    """A web server that keeps what is posted to it."""

    class Keep(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            bodies.append(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Keep) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        server.shutdown()
        thread.join()


def eventually(check: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether it becomes true; the limit only ends a broken test."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_answers_pass_and_say_who_answered(gateway: Make, engines: list[StubEngine]) -> None:
    """Status, body and headers are the engine's; ours are added; the alias becomes the model's name."""
    running = gateway()
    status, headers, body = call(
        running, "/v1/chat/completions", chat(model="demo", x_unknown=[1, None]), x_request_id="my-id"
    )
    assert status == 200
    assert json.loads(body)["choices"][0]["message"]["content"].startswith("w0 w1")
    assert headers["x-served-by"] == headers["x-engine"]
    assert headers["x-request-id"] == "my-id"
    (seen,) = [item for engine in engines for item in engine.seen]
    assert seen["body"]["model"] == "m"
    assert seen["body"]["x_unknown"] == [1, None]
    assert "Authorization" not in seen["headers"]


def test_streams_pass_byte_for_byte(gateway: Make) -> None:
    """A stream ends in [DONE], without the usage chunk that only the gateway wanted."""
    status, headers, body = call(gateway(), "/v1/chat/completions", chat("tokens=20", stream=True))
    assert status == 200
    assert headers["content-type"] == "text/event-stream"
    assert body.endswith(b"data: [DONE]\n\n")
    assert body.count(b'"content": "w') == 20
    assert b'"usage"' not in body


def test_a_cut_stream_ends_in_an_error_event(gateway: Make) -> None:
    """tokens_delivered and retryable tell the client what it has; there is no [DONE]."""
    _, _, body = call(gateway(), "/v1/chat/completions", chat("tokens=9 die=4", stream=True))
    error = json.loads(body.strip().split(b"data: ")[-1])["error"]
    assert (error["tokens_delivered"], error["retryable"]) == (4, True)
    assert b"[DONE]" not in body


CONTINUE = "[routing]\ncontinue_streams = true\n"


def test_a_cut_stream_goes_on_at_a_sibling_where_that_is_allowed(
    gateway: Make, engines: list[StubEngine]
) -> None:
    """One answer without a seam in its text, declared in a comment, counted whole; the second engine gets the text."""
    running = gateway(CONTINUE)
    options = {"include_usage": True}
    asked = chat("tokens=9 die=4", stream=True, max_tokens=50, stream_options=options)
    _, _, body = call(running, "/v1/chat/completions", asked, x_request_id="c-1")
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    texts = [event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]]
    assert "".join(texts) == "".join(f"w{i} " for i in range(9))
    assert body.endswith(b"data: [DONE]\n\n")
    (declared,) = [line for line in body.splitlines() if line.startswith(b": longspan-continued ")]
    assert json.loads(declared.split(b" ", 2)[2])["tokens_delivered"] == 4
    assert body.count(b'"role"') == 1
    (usage,) = [event["usage"] for event in events if event.get("usage")]
    first, second = sorted((seen for engine in engines for seen in engine.seen), key=lambda s: len(str(s)))
    assert "continue_final_message" not in first["body"]
    assert second["body"]["messages"][-1] == {"role": "assistant", "content": "w0 w1 w2 w3 "}
    assert (second["body"]["max_tokens"], second["body"]["add_generation_prompt"]) == (46, False)
    assert (
        usage["completion_tokens"] == 9 + 4
    )  # the stub counts the whole answer again, a real engine its own part
    assert eventually(lambda: store.find_request(running.ledger, "c-1") is not None)
    row = store.find_request(running.ledger, "c-1")
    assert row is not None
    assert (row.entry.outcome, row.entry.reason) == ("ok", "continued after 4 tokens")
    assert [attempt.cause for attempt in row.attempts] == ["cut", ""]
    assert any("goes on" in line for line in explain(row))


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("tokens=9 die=4 dieagain=6", {}),
        ("tokens=9 die=4", {"response_format": {"type": "json_object"}}),
        ("tokens=9 die=4", {"max_tokens": 4}),
        ("tokens=9 die=4", {"n": 2}),
    ],
)
def test_what_cannot_be_continued_ends_in_an_error_event(
    gateway: Make, words: str, fields: dict[str, Any]
) -> None:
    """A second cut, an answer that is more than text, no room left: the client is told what it has."""
    _, _, body = call(gateway(CONTINUE), "/v1/chat/completions", chat(words, stream=True, **fields))
    error = json.loads(body.strip().split(b"data: ")[-1])["error"]
    assert (error["tokens_delivered"], error["retryable"]) == (6 if "dieagain" in words else 4, True)
    assert b"[DONE]" not in body


CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_trace_context_passes_without_any_extra(gateway: Make, engines: list[StubEngine]) -> None:
    """Who traces at both ends sees one trace, whether or not the gateway records spans."""
    call(gateway(), "/v1/chat/completions", chat(), traceparent=CALLER, tracestate="a=b")
    (seen,) = [item["headers"] for engine in engines for item in engine.seen]
    assert (seen["traceparent"], seen["tracestate"]) == (CALLER, "a=b")


def test_spans_reach_a_collector(gateway: Make, engines: list[StubEngine]) -> None:
    """One server span below the caller's, one client span an attempt; the engine continues ours; no prompt in them."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'longspan[otel]'")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    bodies: list[bytes] = []
    with collector(bodies) as url:
        running = gateway(f'[tracing]\nendpoint = "{url}"\n')
        call(
            running,
            "/v1/chat/completions",
            chat("secret-words tokens=2 die=0", stream=True),
            traceparent=CALLER,
        )
        unsampled = CALLER[:-1] + "0"
        call(running, "/v1/chat/completions", chat(), traceparent=unsampled)
        assert eventually(lambda: bool(bodies))
        running.process.terminate()
        assert running.process.wait(timeout=30) == 0
    spans = [
        span
        for body in bodies
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    (server,) = [span for span in spans if span.name == "gateway request"]
    attempts = [span for span in spans if span is not server]
    assert server.trace_id.hex() == CALLER[3:35]
    assert server.parent_span_id.hex() == CALLER[36:52]
    assert {span.name for span in attempts} == {"attempt e0", "attempt e1"}
    assert all(span.parent_span_id == server.span_id for span in attempts)
    assert {attribute.key for attribute in server.attributes} >= {"gen_ai.request.model", "longspan.outcome"}
    sent = [item["headers"]["traceparent"] for engine in engines for item in engine.seen]
    assert sorted(set(sent)) == sorted({f"00-{CALLER[3:35]}-{server.span_id.hex()}-01", unsampled})
    assert not any(b"secret-words" in body for body in bodies)


def test_every_other_endpoint_passes(gateway: Make) -> None:
    """Embeddings, and audio as a form whose model has an alias."""
    running = gateway()
    status, _, body = call(running, "/v1/embeddings", {"model": "m", "input": "x"})
    assert (status, json.loads(body)["data"][0]["embedding"]) == (200, [0.5, 1.0])
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\ndemo\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\x01\r\n--b--\r\n'
    status, _, body = call(
        running, "/v1/audio/transcriptions", form, content_type="multipart/form-data; boundary=b"
    )
    assert (status, json.loads(body)) == (200, {"text": "heard", "bytes": len(form) - 3})


@pytest.mark.parametrize("key", [None, "wrong", ""])
def test_without_a_good_key_nobody_is_asked(
    gateway: Make, engines: list[StubEngine], key: str | None
) -> None:
    """401 in the client's own error shape, and no engine sees the request."""
    running = gateway()
    for path in ("/v1/chat/completions", "/v1/messages"):
        status, headers, body = call(running, path, chat(), key=key)
        assert status == 401
        assert json.loads(body)["error"]["message"]
        assert headers["www-authenticate"] == "Bearer"
    assert not any(engine.seen for engine in engines)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"{not json", 400), ("/v1/chat/completions", b"[]", 400),
        ("/v1/chat/completions", b'{"model": "other"}', 404), ("/nothing", b"{}", 404), ("/v1/../metrics", b"{}", 400),
        ("/v1/%2e%2e/metrics", b"{}", 400), ("/v1/load_lora_adapter", b"{}", 403), ("/v1/models/none", None, 404),
    ],
)  # fmt: skip
def test_bad_requests_end_here(
    gateway: Make, engines: list[StubEngine], path: str, body: bytes | None, status: int
) -> None:
    """Each gets its status and an error that says why; engines are not bothered."""
    answer, headers, text = call(gateway(), path, body)
    assert answer == status
    assert json.loads(text)["error"]["message"]
    assert headers["x-should-retry"] == "false"
    assert not any(engine.seen for engine in engines)


def test_models_are_those_of_the_configuration(gateway: Make) -> None:
    """The list needs no engine; one model can be asked for by name."""
    running = gateway()
    _, _, body = call(running, "/v1/models")
    assert [model["id"] for model in json.loads(body)["data"]] == ["m", "demo"]
    assert json.loads(call(running, "/v1/models/demo")[2])["id"] == "demo"


def test_no_engine_at_all_is_a_503_with_words(gateway: Make) -> None:
    """The reason from the configuration reaches the client."""
    text = "[queue]\nwait_seconds = 0.2\n"
    running = gateway(text)
    file = running.path.read_text()
    running.path.write_text(
        file.replace('model = "m"\n', 'model = "m"\nstate = "out"\nreason = "rank 1 is gone"\n')
    )
    assert eventually(lambda: any(line["event"] == "config_loaded" for line in running.log()))
    status, headers, body = call(running, "/v1/chat/completions", chat())
    assert status == 503
    assert "rank 1 is gone" in json.loads(body)["error"]["message"]
    assert int(headers["retry-after"]) >= 1
    assert call(running, "/ready", key=None)[0] == 503
    assert call(running, "/health", key=None)[0] == 200


def test_a_bad_file_is_refused_and_a_good_one_taken(gateway: Make) -> None:
    """Hot reload, by change of the file and by SIGHUP; what is wrong stands in the log."""
    running = gateway()
    good = running.path.read_text()
    running.path.write_text(good + "lisen = 1\n")
    assert eventually(lambda: any(line["event"] == "config_refused" for line in running.log()))
    assert "lisen" in next(line["reason"] for line in running.log() if line["event"] == "config_refused")
    assert call(running, "/v1/chat/completions", chat())[0] == 200
    new = running.path.with_suffix(".new")
    new.write_text(good.replace('aliases = ["demo"]', 'aliases = ["fresh"]'))
    new.replace(running.path)
    assert eventually(lambda: call(running, "/v1/models/fresh")[0] == 200)
    before = len(running.log())
    running.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: any(line["event"] == "config_loaded" for line in running.log()[before:]))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_taken_port_is_named_with_its_holder(tmp_path: Path, workers: int) -> None:
    """Also with SO_REUSEPORT on both sides, where the kernel would let two share silently."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        process = start_gateway(
            tmp_path, f'listen = "127.0.0.1:{port}"\nworkers = {workers}\n[[models]]\nname = "m"\n'
        )
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 14
    assert f"process {os.getpid()}" in errors
    assert "Traceback" not in errors


def test_beyond_loopback_a_key_is_asked_for(tmp_path: Path) -> None:
    """An open gateway on all interfaces does not start."""
    process = start_gateway(tmp_path, 'listen = "0.0.0.0:0"\n[[models]]\nname = "m"\n')
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 50
    assert "without any key" in errors


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_finishes_streams(gateway: Make, engines: list[StubEngine], workers: int) -> None:
    """A running stream ends in [DONE], the process ends with 0, and no worker stays behind."""
    running = gateway(top=f"workers = {workers}\n")
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=60)
    body = json.dumps(chat("tokens=30 gap=0.05", stream=True))
    connection.request("POST", "/v1/chat/completions", body, {"authorization": f"Bearer {KEY}"})
    answer = connection.getresponse()
    children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
    assert len(children) == (workers if workers > 1 else 0)
    running.process.terminate()
    assert answer.read().endswith(b"data: [DONE]\n\n")
    connection.close()
    assert running.process.wait(timeout=30) == 0
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_a_client_that_leaves_frees_the_engine(gateway: Make, engines: list[StubEngine]) -> None:
    """The upstream request is cancelled, in a stream and before an answer."""
    running = gateway()
    for stream in (True, False):
        left = sum(engine.left for engine in engines)
        connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=60)
        body = json.dumps(chat("tokens=1000 gap=0.05", stream=stream))
        connection.request("POST", "/v1/chat/completions", body, {"authorization": f"Bearer {KEY}"})
        assert eventually(lambda: any(engine.active for engine in engines))
        connection.close()
        assert eventually(lambda left=left: sum(engine.left for engine in engines) == left + 1)


def test_the_ledger_explains_a_request(gateway: Make) -> None:
    """`why`: attempts, predictions, tokens; nothing of the prompt or the key is in the file."""
    running = gateway()
    call(running, "/v1/chat/completions", chat("secret-words tokens=3", stream=True), x_request_id="r-1")
    call(running, "/v1/chat/completions", chat("tokens=2 die=0", stream=True), x_request_id="r-2")
    assert eventually(lambda: store.find_request(running.ledger, "r-2") is not None)
    row = store.find_request(running.ledger, "r-1")
    assert row is not None
    assert (row.entry.prompt_tokens, row.entry.completion_tokens, row.entry.outcome) == (7, 3, "ok")
    assert any(line.startswith("attempt 1: replica e") for line in explain(row))
    failed = store.find_request(running.ledger, "r-2")
    assert failed is not None
    assert {attempt.target for attempt in failed.attempts} == {"e0", "e1"}
    stop(running.process)
    for file in running.path.parent.glob("*"):
        if file.name != "gateway.toml":
            assert b"secret-words" not in file.read_bytes()
            assert KEY.encode() not in file.read_bytes()


def test_http_1_0_and_pipelined_clients(gateway: Make) -> None:
    """An old client gets a closed connection instead of chunks; requests sent ahead are answered in order."""
    running = gateway()
    host, port = running.url.removeprefix("http://").split(":")
    body = json.dumps(chat("tokens=3", stream=True)).encode()
    head = f"authorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.0\r\n" + head + body)
        data = b""
        while more := sock.recv(65536):
            data += more
    assert b"transfer-encoding" not in data
    assert data.endswith(b"data: [DONE]\n\n")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + head + body)
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        data = b""
        while more := sock.recv(65536):
            data += more
    assert data.count(b"HTTP/1.1 200") == 2
    assert data.index(b"[DONE]") < data.index(b'"alive"')


def memory_kb(pid: int) -> int:
    """Resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def test_a_reader_that_pauses_gets_everything_later(gateway: Make, engines: list[StubEngine]) -> None:
    """Backpressure holds the engine, not memory; when the client reads again the stream goes on to its end."""
    running = gateway()
    host, port = running.url.removeprefix("http://").split(":")
    body = json.dumps(chat("tokens=60000", stream=True)).encode()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(120)
        sock.connect((host, int(port)))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {KEY}\r\n"
        sock.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert eventually(lambda: any(engine.active for engine in engines))
        before = memory_kb(running.process.pid)
        time.sleep(1.5)  # only makes the test stronger: time to take in too much
        assert memory_kb(running.process.pid) - before < 8000, "unread bytes are kept in the gateway"
        data = bytearray()
        while more := sock.recv(65536):
            data += more
    assert data.count(b'"content": "w') == 60000
    assert b"data: [DONE]" in data[-200:]

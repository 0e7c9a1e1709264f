"""TLS on both sides: the listener's certificate, and whom the gateway trusts upstream."""

import asyncio
import http.client
import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.conftest import KEY, Running, start_gateway, stop
from gateway.stub_engine import StubEngine
from gateway.test_process import call, chat, eventually

Make = Callable[..., Running]


def openssl(directory: Path, *arguments: str) -> None:
    """Runs openssl, or skips where it is missing."""
    try:
        subprocess.run(["openssl", *arguments], cwd=directory, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs openssl to make certificates (apt-get install openssl): {error}")


def authority(directory: Path, name: str) -> None:
    """A certificate authority of our own."""
    openssl(
        directory, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem",
        "-days", "2", "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign", "-addext",
        "basicConstraints=critical,CA:true",
    )  # fmt: skip


def certificate(directory: Path, signer: str, name: str, subject: str) -> ssl.SSLContext:
    """A server's certificate that the authority signed for this subject."""
    (directory / f"{name}.ext").write_text(f"subjectAltName={subject}\n")
    openssl(directory, "req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr",
            "-subj", "/CN=engine")  # fmt: skip
    openssl(directory, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{signer}.pem", "-CAkey", f"{signer}.key",
            "-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext")  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / f"{name}.pem", directory / f"{name}.key")
    return context


@pytest.fixture
def secure(
    tmp_path: Path, loop_thread: asyncio.AbstractEventLoop
) -> Iterator[Callable[[str, str], StubEngine]]:
    """Starts an engine behind a certificate: whose, and for which subject."""
    started: list[StubEngine] = []
    for name in ("ours", "strange"):
        authority(tmp_path, name)

    def make(signer: str, subject: str) -> StubEngine:
        context = certificate(tmp_path, signer, f"engine{len(started)}", subject)
        engine = StubEngine("t0")
        asyncio.run_coroutine_threadsafe(engine.start(context), loop_thread).result(10)
        started.append(engine)
        return engine

    yield make
    for engine in started:
        asyncio.run_coroutine_threadsafe(engine.stop(), loop_thread).result(10)


def front(directory: Path, engine: StubEngine) -> tuple[subprocess.Popen[str], Running]:
    """A gateway before one https engine, which trusts our own authority."""
    text = 'listen = "127.0.0.1:0"\nca_file = "ours.pem"\nlog = "log.jsonl"\n[queue]\nwait_seconds = 0.5\n'
    text += f'[[models]]\nname = "m"\n[[replicas]]\nname = "t0"\nurl = "{engine.url}"\nmodel = "m"\n'
    process = start_gateway(directory, text)
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]
    return process, Running(process, f"http://{address}", directory / "gateway.toml", "")


def test_an_upstream_that_our_authority_signed_is_trusted(
    tmp_path: Path, secure: Callable[[str, str], StubEngine]
) -> None:
    """Streams and whole answers through TLS, several on one connection."""
    engine = secure("ours", "IP:127.0.0.1")
    process, running = front(tmp_path, engine)
    try:
        for stream in (True, False, True):
            status, _, body = call(running, "/v1/chat/completions", chat("tokens=40", stream=stream))
            assert status == 200
            assert body.count(b"w39") == 1
    finally:
        stop(process)


@pytest.mark.parametrize(
    ("signer", "subject", "word"),
    [("strange", "IP:127.0.0.1", "certificate"), ("ours", "DNS:elsewhere.example", "127.0.0.1")],
    ids=["unknown authority", "another host"],
)
def test_a_wrong_certificate_is_refused_by_name(
    tmp_path: Path, secure: Callable[[str, str], StubEngine], signer: str, subject: str, word: str
) -> None:
    """Nothing is sent to who cannot prove who it is, and the client's error says why."""
    engine = secure(signer, subject)
    process, running = front(tmp_path, engine)
    try:
        assert eventually(lambda: "not trusted" in refusal(running))
        assert word in refusal(running)
    finally:
        stop(process)
    assert not engine.seen


def refusal(running: Running) -> str:
    """The message of a 503."""
    status, _, body = call(running, "/v1/chat/completions", chat())
    assert status == 503
    return str(json.loads(body)["error"]["message"])


def test_a_certificate_serves_tls(gateway: Make, tmp_path: Path) -> None:
    """The listener speaks TLS with the configured certificate; streams end in [DONE] there, too."""
    authority(tmp_path, "ours")
    certificate(tmp_path, "ours", "listener", "IP:127.0.0.1")
    running = gateway('[tls]\ncert_file = "listener.pem"\nkey_file = "listener.key"\n')
    context = ssl.create_default_context(cafile=str(tmp_path / "ours.pem"))
    connection = http.client.HTTPSConnection(running.url.removeprefix("http://"), context=context, timeout=60)
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(chat("tokens=40", stream=True)), headers)
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.read().endswith(b"data: [DONE]\n\n")
    connection.close()

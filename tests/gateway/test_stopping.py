"""Reload and the end of the process where they meet what is under way."""

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.conftest import KEY, Running, digest, start_gateway, stop
from gateway.stub_engine import StubEngine
from gateway.test_admin import admin
from gateway.test_process import call, chat, eventually

Make = Callable[..., Running]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_drain_cuts_is_told_so(gateway: Make, engines: list[StubEngine], workers: int) -> None:
    """A stream longer than drain_seconds ends in an error event, not in silence; one that waits gets a 503."""
    running = gateway(top=f"workers = {workers}\n")
    running.path.write_text(running.path.read_text().replace("drain_seconds = 5", "drain_seconds = 0.5"))
    assert eventually(lambda: any(line["event"] == "config_loaded" for line in running.log()))
    found: list[tuple[int, bytes]] = []

    def ask(stream: bool) -> None:
        status, _, body = call(running, "/v1/chat/completions", chat("tokens=400 gap=0.1", stream=stream))
        found.append((status, body))

    threads = [threading.Thread(target=ask, args=(stream,)) for stream in (True, False)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: sum(engine.active for engine in engines) == 2)
    running.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert running.process.wait(timeout=20) == 0
    (_, cut), (status, refused) = sorted(found)
    last = [line for line in cut.split(b"\n\n") if line.startswith(b"data: ")][-1]
    assert json.loads(last[6:])["error"]["code"] == "gateway_stopped"
    assert status == 503
    assert json.loads(refused)["error"]["code"] == "gateway_stopped"


def test_a_new_key_works_while_the_file_is_a_bad_one(gateway: Make) -> None:
    """Workers get the configuration in use with the new key, not what stands in the file at that moment."""
    running = gateway(top="workers = 2\n", admin=True)
    running.path.write_text("listen = 5\n")
    assert eventually(lambda: any(line["event"] == "config_refused" for line in running.log()))
    status, answer = admin(running, "POST", "/admin/keys", {"name": "fresh"})
    made = json.loads(answer)
    assert status == 201
    assert eventually(lambda: call(running, "/v1/models", key=made["key"])[0] == 200)
    assert [call(running, "/v1/models", key=made["key"])[0] for _ in range(8)] == [200] * 8
    assert not [line for line in running.log() if line["event"] == "worker_lost"]


def test_a_key_ends_whatever_became_of_other_files(gateway: Make, tmp_path: Path) -> None:
    """Revoking reads no file again: a provider's missing key file does not keep a client's key alive."""
    provider = (
        '[[providers]]\nname = "p"\nurl = "http://127.0.0.1:9"\nmodels = { m = "x" }\nkey_file = "secret"\n'
    )
    secret = tmp_path / "secret"
    secret.write_text("s")
    running = gateway(provider, admin=True)
    made = json.loads(admin(running, "POST", "/admin/keys", {"name": "fresh"})[1])["key"]
    assert call(running, "/v1/models", key=made)[0] == 200
    secret.unlink()
    assert admin(running, "DELETE", "/admin/keys/fresh")[0] == 204
    assert call(running, "/v1/models", key=made)[0] == 401


def test_a_reload_does_not_open_the_door_of_a_wide_listener(tmp_path: Path) -> None:
    """`listen` changes with a restart only, so a file without keys is refused while the socket is everybody's."""
    key = f'[[keys]]\nname = "test"\nsha256 = "{digest(KEY)}"\n'
    rest = 'log = "log.jsonl"\n[[models]]\nname = "m"\n'
    process = start_gateway(tmp_path, f'listen = "0.0.0.0:0"\n{rest}{key}')
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"].replace("0.0.0.0", "127.0.0.1")
        running = Running(process, f"http://{address}", tmp_path / "gateway.toml", "")
        running.path.write_text(f'listen = "127.0.0.1:0"\n{rest}')
        assert eventually(lambda: any(line["event"] == "config_refused" for line in running.log()))
        assert call(running, "/v1/models", key=None)[0] == 401
    finally:
        stop(process)

"""Real sessions on this machine: its loopback addresses as nodes, without root or ssh."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from longspan.host import LocalHost
from longspan.preflight import gather, remote, trial
from longspan.preflight.gather_model import hub
from longspan.preflight.run import Options, Target, preflight
from longspan.preflight.scene import Scene, Wanted
from longspan.preflight.session import OPEN_SECONDS, Session, SessionLostError, sources


def looked_at(targets: list[Target], options: Options) -> Scene:
    """A pre-flight of them."""
    wanted = [Wanted(one.name, one.address, 1, one.env) for one in targets]
    return preflight(targets, wanted, options, lambda _: None)


def here(name: str, address: str, python: str = sys.executable, **env: str) -> Target:
    """A node that is this machine under a loopback address of its own."""
    return Target(name, address, LocalHost(name), python, env)


def test_two_addresses_of_this_machine() -> None:
    """Facts come back, every pair is tried on fixed and random ports both ways, clocks agree, and a secret stays there."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first = here("a", "127.0.0.2", HF_TOKEN="hf_" + "x" * 20, NCCL_DEBUG="INFO")
    scene = looked_at(
        [first, here("b", "127.0.0.3")],
        Options(fixed_ports=(port,), ray_ports=(port, port), collective=False),
    )
    for node in scene.nodes:
        assert node.answered, node.refused
        assert node.python == ".".join(map(str, sys.version_info[:3]))
        assert node.clock_offset_seconds is not None
        assert abs(node.clock_offset_seconds) < 5
    a = scene.nodes[0]
    assert (a.env["HF_TOKEN"], a.env["NCCL_DEBUG"]) == ("(set)", "INFO")
    assert "xxxxx" not in repr(scene.nodes)
    assert {(pair.source, pair.target) for pair in scene.pairs} == {("a", "b"), ("b", "a")}
    for pair in scene.pairs:
        assert len(pair.ports) == 6
        assert all(not one.error for one in pair.ports)
        assert {one.peer_seen for one in pair.ports} == {"127.0.0.2" if pair.source == "a" else "127.0.0.3"}
    assert scene.no_collective == "not asked for"


def test_a_port_that_is_taken_is_said() -> None:
    """What could not be listened on comes back with the reason, and its holder with the facts."""
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        node = here("a", "127.0.0.2")
        scene = looked_at(
            [node, here("b", "127.0.0.3")],
            Options(fixed_ports=(port,), ray_ports=(port, port), collective=False),
        )
    held = scene.nodes[0].ports_held
    assert [one.port for one in held] == [port]
    assert f"pid {os.getpid()}" in held[0].holder


def test_an_old_python_and_none(tmp_path: Path) -> None:
    """A Python that is too old says its version; one that is not there is a refusal, not a crash."""
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 'longspan-old 3.8.10'\n")
    old.chmod(0o755)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'no such module' >&2\nexit 1\n")
    broken.chmod(0o755)
    targets = [
        here("a", "127.0.0.2", str(old)),
        here("b", "127.0.0.3", "/nowhere/python"),
        here("c", "127.0.0.4", str(broken)),
    ]
    scene = looked_at(targets, Options(collective=False))
    refused = [node.refused for node in scene.nodes if node.refused]
    assert refused[0][0] == "python-old"
    assert "3.8.10" in refused[0][1]
    assert len(refused) == 3
    assert "no such module" in refused[2][1]
    assert scene.no_pairs == "fewer than two nodes answer"


def test_greetings_of_a_shell_are_no_answers(tmp_path: Path) -> None:
    """Text that a login script prints before the program does not disturb the session."""
    chatty = tmp_path / "chatty"
    chatty.write_text(f'#!/bin/sh\necho "Welcome to h1"\nexec {sys.executable} "$@"\n')
    chatty.chmod(0o755)
    session = Session(LocalHost("a"), str(chatty), {})
    try:
        assert isinstance(session.ask("clock", 30), float)
        with pytest.raises(ValueError, match="unknown request"):
            session.ask("nonsense", 30)
    finally:
        session.close()


def test_a_node_that_falls_silent(tmp_path: Path) -> None:
    """No answer in time ends the session with a cause."""
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    session = Session(LocalHost("a"), str(silent), {})
    with pytest.raises(SessionLostError) as lost:
        session.ask("clock", 0.2)
    session.close()
    assert lost.value.refused[0] == "host-silent"


def test_an_interrupted_check_waits_for_nobody(tmp_path: Path) -> None:
    """Ctrl-C while a node is silent ends the sessions at once."""
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    begun = time.monotonic()

    def interrupt(text: str) -> None:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    wanted = [Wanted("a", "127.0.0.2", 1), Wanted("b", "127.0.0.3", 1)]
    targets = [here("a", "127.0.0.2", str(silent)), here("b", "127.0.0.3", str(silent))]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            preflight(targets, wanted, Options(collective=False), interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begun < OPEN_SECONDS


def test_the_program_ends_with_its_input() -> None:
    """A check that is killed leaves nothing: the node's program sees the end of its input."""
    child = subprocess.Popen(
        [sys.executable, "-c", remote.BOOT], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert child.stdin is not None
    child.stdin.write(remote.bundle(sources(remote.NODE_MODULES), "node", {}) + "\n")
    child.stdin.write(
        json.dumps({"id": 1, "do": "listen", "nonce": "n", "address": "127.0.0.2", "ports": [], "random": 2})
        + "\n"
    )
    child.stdin.close()
    assert child.wait(60) == 0


def test_a_stranger_on_the_port() -> None:
    """A program that takes the connection but does not know the nonce is not taken for ours; a closed port is refused."""
    listeners = trial.Listeners("theirs")
    opened = listeners.open("127.0.0.2", [], 1)
    (port,) = opened["ports"]
    try:
        told = trial.try_port("127.0.0.3", "127.0.0.2", port, "ours", bulk=False)
    finally:
        listeners.close()
    assert told["stage"] == "answer"
    assert "refused" in trial.try_port("127.0.0.3", "127.0.0.2", port, "ours", bulk=False)["error"]


def test_one_probe_that_fails_or_hangs_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is told, with the reason for what is not."""
    never = threading.Event()

    def broken(_: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(
        gather, "PROBES", {"python": gather.python, "xids": broken, "shm": lambda _: never.wait(30)}
    )
    told = gather.gather({"total_seconds": 0.5})
    never.set()
    assert told["values"].keys() == {"python"}
    assert told["unknown"]["xids"] == "out of luck"
    assert "no answer" in told["unknown"]["shm"]


def test_model_files(tmp_path: Path) -> None:
    """Missing shards and files that are cut short are told by name; a whole checkpoint has neither."""
    from longspan.preflight.gather_model import model

    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(8)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.safetensors").write_bytes(whole)
    (tmp_path / "b.safetensors").write_bytes(whole[:-3])
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"w": "a.safetensors", "v": "c.safetensors"}})
    )
    told = model({"model": str(tmp_path)})
    assert (told["missing"], told["damaged"]) == (["c.safetensors"], ["b.safetensors"])
    assert model({"model": str(tmp_path / "nowhere")}) == {"there": False}


def test_a_path_mtu_on_loopback() -> None:
    """Loopback takes what its NIC says, and an echo that nobody runs gives 0."""
    listeners = trial.Listeners("n")
    udp = listeners.open("127.0.0.2", [], 0)["udp"]
    try:
        assert trial.path_mtu("127.0.0.3", "127.0.0.2", udp, "n", 1500) == {"mtu": 1500, "wanted": 1500}
    finally:
        listeners.close()


@pytest.mark.parametrize(("largest", "mtu"), [(1500, 1500), (1450, 1450), (575, 0)])
def test_a_slow_echo_is_not_a_small_mtu(largest: int, mtu: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that come after the patience for their size still speak for it; what is never answered does not pass."""
    monkeypatch.setattr(trial, "_DATAGRAM_SECONDS", 0.02)
    monkeypatch.setattr(trial, "_SLOW_SECONDS", 0.3)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as echo:
        echo.bind(("127.0.0.2", 0))

        def answer() -> None:
            while True:
                data, peer = echo.recvfrom(2048)
                if data == b"end":
                    return
                if len(data) + 28 <= largest:
                    time.sleep(0.05)
                    echo.sendto(data[:64], peer)

        thread = threading.Thread(target=answer)
        thread.start()
        port = echo.getsockname()[1]
        try:
            assert trial.path_mtu("127.0.0.3", "127.0.0.2", port, "n", 1500)["mtu"] == mtu
        finally:
            echo.sendto(b"end", ("127.0.0.2", port))
            thread.join()


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_real_collective_on_this_machine() -> None:
    """Two members with Gloo: right sums, and figures above zero."""
    targets = [
        here("a", "127.0.0.2", GLOO_SOCKET_IFNAME="lo"),
        here("b", "127.0.0.3", GLOO_SOCKET_IFNAME="lo"),
    ]
    scene = looked_at(targets, Options(collective=True))
    assert scene.no_collective == ""
    (group,) = scene.groups
    assert group.ok, group
    assert (
        min(group.latency_seconds, group.bus_bytes_per_second, group.hop_seconds, group.hop_bytes_per_second)
        > 0
    )


def test_hub_access_by_a_hub_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status comes back and the token does not, not even to another host that the hub redirects to; offline nobody is asked."""
    seen: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            if self.path.startswith("/org/m/"):
                self.send_response(302)
                self.send_header("Location", f"http://127.0.0.2:{self.server.server_port}/elsewhere")  # type: ignore[attr-defined]
            else:
                self.send_response(200 if self.path == "/elsewhere" else 403)
            self.end_headers()

        def do_GET(self) -> None:
            """What urllib makes of a redirected HEAD."""
            self.do_HEAD()

        def log_message(self, *_: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("0.0.0.0", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    for name in ("HF_HUB_OFFLINE", "VLLM_USE_MODELSCOPE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "hf_s3cret")
    try:
        told = [hub({"model": "org/m"}), hub({"model": "org/closed"})]
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        told.append(hub({"model": "org/m"}))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert [(one.get("status"), one["token"], one.get("offline", False)) for one in told] == [
        (200, True, False), (403, True, False), (None, True, True),
    ]  # fmt: skip
    assert seen == ["Bearer hf_s3cret", "", "Bearer hf_s3cret"]
    assert "s3cret" not in str(told)

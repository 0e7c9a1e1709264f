"""A real gateway process in front of stub engines."""

import asyncio
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.stub_engine import StubEngine

KEY = "lsp_test-key"
ADMIN_KEY = "lsp_admin-key"
SOURCE = Path(__file__).parents[2] / "src"


def digest(key: str) -> str:
    """What a configuration holds of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass
class Running:
    """A gateway process."""

    process: subprocess.Popen[str]
    url: str
    path: Path
    admin_url: str

    @property
    def ledger(self) -> Path:
        """Its ledger."""
        return self.path.parent / "ledger.db"

    def log(self) -> list[dict[str, Any]]:
        """Its log so far."""
        return [json.loads(line) for line in (self.path.parent / "log.jsonl").read_text().splitlines()]


def free_port() -> int:
    """A port that was free a moment ago."""
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def start_gateway(directory: Path, text: str) -> subprocess.Popen[str]:
    """Starts the process on a configuration."""
    path = directory / "gateway.toml"
    path.write_text(text)
    return subprocess.Popen(
        [sys.executable, "-m", "longspan.gateway", "--config", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip


def stop(process: subprocess.Popen[str]) -> None:
    """Ends a process and closes its pipes."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own, for stub engines beside synchronous clients."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def engines(loop_thread: asyncio.AbstractEventLoop) -> Iterator[list[StubEngine]]:
    """Two stub engines."""
    started = [
        asyncio.run_coroutine_threadsafe(StubEngine(f"e{i}").start(), loop_thread).result(10)
        for i in range(2)
    ]
    yield started
    for engine in started:
        asyncio.run_coroutine_threadsafe(engine.stop(), loop_thread).result(10)


@pytest.fixture
def gateway(tmp_path: Path, engines: list[StubEngine]) -> Iterator[Callable[..., Running]]:
    """Starts gateways in front of the engines; they end with the test, cleanly."""
    running: list[Running] = []

    def make(more: str = "", top: str = "", *, admin: bool = False) -> Running:
        port = free_port()
        text = f'listen = "127.0.0.1:0"\nlog = "log.jsonl"\nledger = "ledger.db"\ndrain_seconds = 5\n{top}'
        text += (
            f'[[keys]]\nname = "test"\nsha256 = "{digest(KEY)}"\n[[models]]\nname = "m"\naliases = ["demo"]\n'
        )
        for engine in engines:
            text += f'[[replicas]]\nname = "{engine.name}"\nurl = "{engine.url}"\nmodel = "m"\n'
        if admin:
            text += f'[admin]\nlisten = "127.0.0.1:{port}"\nsha256 = "{digest(ADMIN_KEY)}"\n'
        process = start_gateway(tmp_path, text + more)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        address = json.loads(line)["address"]
        running.append(
            Running(process, f"http://{address}", tmp_path / "gateway.toml", f"http://127.0.0.1:{port}")
        )
        return running[-1]

    yield make
    for one in running:
        stop(one.process)
        with contextlib.suppress(FileNotFoundError):
            assert not [line for line in one.log() if line["event"] == "bug"]

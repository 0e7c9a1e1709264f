"""`up --foreground` stays until the deployment is gone, and a signal takes it down in order."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from longspan.cli import control
from longspan.errors import LaunchError

SERVING = {
    "phase": "serving", "name": "default", "served_name": "m", "endpoint": "http://h:1/v1", "api_key_file": "/k", "proof": None,
    "layout": {"tp": 1, "pp": 1, "executor": "ray", "device": "cpu"}, "nodes": [{}], "phases": [], "logs": "/l", "state_dir": "/s",
}  # fmt: skip
GONE = {**SERVING, "phase": "gone", "failure": None}
FAILED = {**GONE, "failure": {"kind": "launch", "what": "It broke.", "remedy": ""}}


@pytest.fixture
def played(machine: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[str]]]:
    """A controller that says what a test wants: once until it serves, then what is left. Keeps what was asked of it."""
    asked: list[str] = []

    def play(*later: Any) -> list[str]:
        rounds = iter([[SERVING], later])

        def follow(record: Any, places: Any) -> Iterator[Any]:
            for status in next(rounds):
                if callable(status):
                    status()
                else:
                    yield status

        monkeypatch.setattr(control, "start_controller", lambda *_: {})
        monkeypatch.setattr(control, "follow", follow)
        monkeypatch.setattr(control, "take_down", lambda record: asked.append("down"))
        return asked

    before = signal.getsignal(signal.SIGTERM)
    yield play
    signal.signal(signal.SIGTERM, before)


def test_it_stays_until_it_is_gone(longspan: Any, model: Path, played: Any) -> None:
    """`longspan down` elsewhere ends it with 0; the new key is not printed into a log."""
    asked = played(SERVING, GONE)
    said = longspan("up", str(model), "--listen", "127.0.0.1:18499", "--foreground")
    assert said.code == 0
    assert asked == []
    assert "lsp_" not in said.out + said.err
    assert "key       in /k" in said.out


def test_a_failure_while_it_serves_is_its_own(longspan: Any, model: Path, played: Any) -> None:
    """A replica that breaks later ends it with the failure's exit code, for whoever restarts it."""
    played(SERVING, FAILED)
    said = longspan("up", str(model), "--listen", "127.0.0.1:18499", "--foreground", "--json")
    assert said.code == LaunchError.exit_code
    assert "It broke." in said.err
    assert said.document["phase"] == "serving"


def test_sigterm_takes_it_down(longspan: Any, model: Path, played: Any) -> None:
    """Slurm, Kubernetes and systemd send SIGTERM: the deployment goes down, and that is no failure."""
    asked = played(SERVING, lambda: os.kill(os.getpid(), signal.SIGTERM), GONE)
    said = longspan("up", str(model), "--listen", "127.0.0.1:18499", "--foreground")
    assert said.code == 0
    assert asked == ["down"]


def test_without_it_up_returns(longspan: Any, model: Path, played: Any) -> None:
    """The plain `up` leaves when it serves, and shows a new key once."""
    played(FAILED)
    said = longspan("up", str(model), "--listen", "127.0.0.1:18499")
    assert said.code == 0
    assert "lsp_" in said.out

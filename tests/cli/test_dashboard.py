"""`longspan dashboard` as a user runs it: its key, its address, its end."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from longspan.errors import DashboardKeyError, InputError, NoDeploymentError, PortError


def run(home: Path, *arguments: str) -> subprocess.Popen[str]:
    """The verb as a process, with a state directory of its own."""
    environment = {**os.environ, "XDG_STATE_HOME": str(home)}
    return subprocess.Popen(
        [sys.executable, "-c", "from longspan.cli.main import run; run()", "dashboard", *arguments],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A state directory with a deployment that does not run."""
    (tmp_path / "longspan" / "default").mkdir(parents=True, mode=0o700)
    return tmp_path


def test_it_serves_until_it_is_told_to_end(home: Path) -> None:
    """One JSON document says where and which key file; the key's file is the owner's; the key logs in; SIGTERM ends it with 0."""
    process = run(home, "--listen", "127.0.0.1:0", "--json")
    try:
        assert process.stdout is not None
        document = json.loads(process.stdout.readline())
        key_file = Path(document["key_file"])
        assert key_file.stat().st_mode & 0o077 == 0
        key = key_file.read_text().strip()
        assert key.startswith("lsp_")
        request = urllib.request.Request(
            document["url"] + "api/login",
            json.dumps({"key": key}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["name"] == "default"
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out == ""
    assert "login from 127.0.0.1" in err
    assert key not in err
    assert (home / "longspan" / "default" / "history.sqlite3").exists()


def test_a_history_that_cannot_be_opened_does_not_keep_the_page_away(home: Path) -> None:
    """A broken file is said on the page, and left alone."""
    (home / "longspan" / "default" / "history.sqlite3").write_text("something else" * 1000)
    process = run(home, "--listen", "127.0.0.1:0", "--json")
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with urllib.request.urlopen(url + "health", timeout=30) as answer:
            assert answer.status == 200
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--name", "other"], NoDeploymentError.exit_code, "no deployment called 'other'"),
        (["--listen", "8266"], InputError.exit_code, "HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], InputError.exit_code, "HOST:PORT"),
        (["--tls-cert", "x.pem"], InputError.exit_code, "belong together"),
        (["--tls-cert", "x.pem", "--tls-key", "y.pem"], InputError.exit_code, "cannot be used"),
        (["--key-file", "/nonexistent/key"], DashboardKeyError.exit_code, "cannot be read"),
        (["--key-file", "/dev/null"], DashboardKeyError.exit_code, "holds no key"),
        (["--listen", "192.0.2.1:0"], PortError.exit_code, "cannot listen"),
    ],
)
def test_what_is_wrong_is_said(home: Path, arguments: list[str], code: int, words: str) -> None:
    """Each mistake ends with its own code and a sentence, never a traceback."""
    process = run(home, *arguments)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert words in err
    assert "Traceback" not in out + err


def test_plain_http_beyond_loopback_is_warned_of(home: Path) -> None:
    """Listening on every address without TLS works, and says who can read the key."""
    process = run(home, "--listen", "0.0.0.0:0", "--json")
    try:
        assert process.stdout is not None
        process.stdout.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert "can read the key" in err

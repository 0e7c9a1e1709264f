"""The programs that nodes run to pass files on, as processes of their own, with the standard library alone."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longspan.launch import relay

TOKEN = "t0ken"
PROGRAM = Path(relay.__file__).read_text()


class Spoken:
    """One program, spoken to line by line."""

    def __init__(self, job: str, **first: Any) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-I", "-c", PROGRAM, job],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.send(token=TOKEN, **first)

    def send(self, **document: Any) -> None:
        """One line."""
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(document) + "\n")
        self.child.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next line that is no progress."""
        assert self.child.stdout is not None
        while "got" in (said := json.loads(self.child.stdout.readline())):
            continue
        found: dict[str, Any] = said
        return found

    def close(self) -> int:
        """Ends its input, and so the program."""
        self.child.communicate(timeout=10)
        return self.child.returncode


@pytest.fixture
def giver(tmp_path: Path) -> Iterator[tuple[Spoken, int]]:
    """A program that gives the files of a directory, and its port."""
    (tmp_path / "from" / "sub").mkdir(parents=True)
    (tmp_path / "from" / "sub" / "x").write_bytes(bytes(range(256)) * 40_000)
    (tmp_path / "secret").write_text("not yours")
    (tmp_path / "from" / "link").symlink_to(tmp_path / "secret")
    program = Spoken("give", directory=str(tmp_path / "from"), address="127.0.0.1")
    yield program, program.answer()["port"]
    assert program.close() == 0


def test_a_file_is_gone_on_with(tmp_path: Path, giver: tuple[Spoken, int]) -> None:
    """What is there of it is kept, the rest fetched, and it gets its name only when it is whole."""
    whole = (tmp_path / "from" / "sub" / "x").read_bytes()
    (tmp_path / "to" / "sub").mkdir(parents=True)
    (tmp_path / "to" / "sub" / "x.part").write_bytes(whole[:12345])
    taker = Spoken("take", directory=str(tmp_path / "to"), suffix=".part")
    taker.send(path="sub/x", size=len(whole), address="127.0.0.1", port=giver[1])
    assert taker.answer() == {"done": "sub/x"}
    assert (tmp_path / "to" / "sub" / "x").read_bytes() == whole
    assert [path.name for path in (tmp_path / "to" / "sub").iterdir()] == ["x"]
    assert taker.close() == 0


def test_what_fails_is_said_and_the_next_is_taken(tmp_path: Path, giver: tuple[Spoken, int]) -> None:
    """A file that is not there, of another size, outside the directory, or a giver that is gone: an error each, then a good one."""
    size = (tmp_path / "from" / "sub" / "x").stat().st_size
    taker = Spoken("take", directory=str(tmp_path / "to"), suffix=".part")
    gone = socket.create_server(("127.0.0.1", 0))
    port = gone.getsockname()[1]
    gone.close()
    bad = (
        {"path": "sub/none", "size": 1, "port": giver[1]},
        {"path": "sub/x", "size": size + 1, "port": giver[1]},
        {"path": "link", "size": 9, "port": giver[1]},
        {"path": "../secret", "size": 9, "port": giver[1]},
        {"path": "sub/x", "size": size, "port": port},
    )
    for piece in bad:
        taker.send(address="127.0.0.1", **piece)
        assert "error" in taker.answer()
    assert not list(tmp_path.rglob("to/**/secret"))
    taker.send(path="sub/x", size=size, address="127.0.0.1", port=giver[1])
    assert taker.answer() == {"done": "sub/x"}
    taker.close()


@pytest.mark.parametrize(
    "line",
    [
        b'{"path": "sub/x", "offset": 0, "proof": "0"}\n',
        b'{"path": "sub/x", "offset": 0}\n',
        b"[1]\n",
        b"GET / HTTP/1.1\r\n",
        b"x" * 70_000,
        b"",
    ],
)
def test_a_stranger_gets_nothing(giver: tuple[Spoken, int], line: bytes) -> None:
    """Without the proof the giver sends its nonce and ends the connection; it goes on serving others."""
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", giver[1]), timeout=10) as connection:
            nonce = connection.recv(64)
            assert len(nonce) == 33
            try:
                connection.sendall(line)
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(100) == b""
            except OSError:
                pass  # reset, since it did not read all
    assert giver[0].child.poll() is None


def test_a_proof_is_for_one_connection(giver: tuple[Spoken, int]) -> None:
    """What was heard on one connection is worth nothing on the next."""
    with socket.create_connection(("127.0.0.1", giver[1]), timeout=10) as first:
        nonce = first.recv(64).decode().strip()
    known = relay.proof(TOKEN, nonce, "sub/x", 0)
    with socket.create_connection(("127.0.0.1", giver[1]), timeout=10) as second:
        second.recv(64)
        second.sendall(json.dumps({"path": "sub/x", "offset": 0, "proof": known}).encode() + b"\n")
        assert second.recv(100) == b""


def test_a_taker_ends_with_its_input(tmp_path: Path) -> None:
    """Also while it waits for a giver that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        taker = Spoken("take", directory=str(tmp_path), suffix=".part")
        taker.send(path="x", size=1, address="127.0.0.1", port=silent.getsockname()[1])
        connection, _ = silent.accept()
        with connection:
            assert taker.close() == 0

"""Files from node to node. Runs on a node by itself (`python3 -c …`), where Longspan may not be installed yet: only the standard
library, and nothing newer than Python 3.9.

`give` serves the files of one directory, `take` fetches them. Both are told what to do on standard input, the token too, and end
with it. The token never crosses the network: who connects proves that they know it (HMAC over a nonce of this connection).
"""

import hashlib
import hmac
import json
import os
import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 20
SILENCE_SECONDS = 30.0  # a peer that neither sends nor takes for so long is given up
SAY_SECONDS = 0.5
MOST_CONNECTIONS = 64
LINE_BYTES = 1 << 16


def proof(token: str, nonce: str, path: str, offset: int) -> str:
    """Shows that the token is known, for this request of this connection only."""
    text = "\n".join((nonce, path, str(offset)))
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


def inside(directory: str, path: str) -> Path:
    """The file's real path.

    Raises:
        ValueError: it is not below the directory.
    """
    root = Path(directory).resolve()
    found = (root / path).resolve()
    if root not in found.parents:
        raise ValueError(f"{path!r} is not below {directory}")
    return found


def serve(connection: socket.socket, directory: str, token: str) -> None:
    """One request: a file from an offset on. Who cannot prove that they know the token hears nothing more."""
    connection.settimeout(SILENCE_SECONDS)
    nonce = secrets.token_hex(16)
    connection.sendall(nonce.encode() + b"\n")
    with connection.makefile("rb") as reader:
        asked = json.loads(reader.readline(LINE_BYTES))
    path, offset = str(asked["path"]), int(asked["offset"])
    if not hmac.compare_digest(str(asked["proof"]), proof(token, nonce, path, offset)):
        return
    with inside(directory, path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        connection.sendall(json.dumps({"size": size}).encode() + b"\n")
        if offset < size:
            connection.sendfile(file, offset)


def _accept(listener: socket.socket, directory: str, token: str) -> None:
    slots = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def one(connection: socket.socket) -> None:
        try:
            with connection:
                serve(connection, directory, token)
        except (OSError, ValueError, LookupError, TypeError):
            pass  # the other side sees the connection end, and says so
        finally:
            slots.release()

    while True:
        slots.acquire()
        connection, _ = listener.accept()
        threading.Thread(target=one, args=(connection,), daemon=True).start()


def give(asked: dict[str, Any], lines: Iterator[str], say: Callable[[dict[str, Any]], None]) -> None:
    """Serves `directory` on a free port of `address` until its input ends; says {"port": …} first."""
    family = socket.AF_INET6 if ":" in asked["address"] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((asked["address"], 0))
        listener.listen(MOST_CONNECTIONS)
        say({"port": listener.getsockname()[1]})
        arguments = (listener, asked["directory"], asked["token"])
        threading.Thread(target=_accept, args=arguments, daemon=True).start()
        for _ in lines:
            pass


def fetch(
    directory: str, piece: dict[str, Any], token: str, suffix: str, say: Callable[[dict[str, Any]], None]
) -> None:
    """One file's rest into the file with the suffix; it becomes the file only when all of it is there.

    Args:
        piece: path, size, and the giver's address and port.

    Raises:
        OSError: the giver cannot be reached or falls silent, or the disk is full. ValueError: it gave less, or another file.
    """
    target = Path(directory) / piece["path"]
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + suffix)
    offset = part.stat().st_size if part.exists() else 0
    with socket.create_connection((piece["address"], piece["port"]), timeout=10) as connection:
        connection.settimeout(SILENCE_SECONDS)
        with connection.makefile("rb") as reader, part.open("ab") as file:
            nonce = reader.readline(LINE_BYTES).decode().strip()
            known = proof(token, nonce, piece["path"], offset)
            asked = {"path": piece["path"], "offset": offset, "proof": known}
            connection.sendall(json.dumps(asked).encode() + b"\n")
            head = reader.readline(LINE_BYTES)
            if not head or json.loads(head)["size"] != piece["size"]:
                raise ValueError("the giver does not have it, or has another")
            _copy(reader, file, piece["size"] - offset, say)
    part.replace(target)


def _copy(reader: Any, file: Any, left: int, say: Callable[[dict[str, Any]], None]) -> None:
    unsaid, said = 0, time.monotonic()
    while left:
        chunk = reader.read1(min(CHUNK_BYTES, left))
        if not chunk:
            raise ValueError(f"the giver ended with {left} bytes to come")
        file.write(chunk)
        left -= len(chunk)
        unsaid += len(chunk)
        if not left or time.monotonic() - said > SAY_SECONDS:
            say({"got": unsaid})
            unsaid, said = 0, time.monotonic()


def take(asked: dict[str, Any], lines: Iterator[str], say: Callable[[dict[str, Any]], None]) -> None:
    """Fetches the piece of each line, one after the other; says {"got": bytes} meanwhile, then {"done": path} or {"error": text}.

    Standard input is read all the while: when it ends, so does this process, whatever it waits for.
    """
    wanted: queue.Queue[str] = queue.Queue()

    def work() -> None:
        while True:
            piece = json.loads(wanted.get())
            try:
                fetch(asked["directory"], piece, asked["token"], asked["suffix"], say)
            except (OSError, ValueError, LookupError, TypeError) as error:
                say({"error": str(error) or type(error).__name__})
            else:
                say({"done": piece["path"]})

    threading.Thread(target=work, daemon=True).start()
    for line in lines:
        wanted.put(line)


def main(job: str) -> None:
    """Reads the first line, which says where and with which token, and does the job."""

    def say(document: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()

    first = json.loads(sys.stdin.readline())
    lines = iter(sys.stdin.readline, "")
    (give if job == "give" else take)(first, lines, say)
    os._exit(0)  # threads may wait for a peer


if __name__ == "__main__":
    main(sys.argv[1])

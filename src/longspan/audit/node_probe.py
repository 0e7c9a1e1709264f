"""What one node shows of a deployment: open ports and readable secrets. Run as text by the node's own Python.

Standard library only and no import of ours: a node's host may have no Longspan (its container has). Arguments: the
start's mark. Prints JSON: {"listeners": [[address, port, process]], "secrets": [[process, where, name]], "seen": n}.
A secret's value never leaves: only the name of its flag or variable does.
"""

import json
import re
import socket
import struct
import sys
from pathlib import Path

NAMES = re.compile(r"(?i)(token|secret|passw(or)?d|api[_-]?key|access[_-]?key|credentials?)$")
HARMLESS = re.compile(r"(?i)(path|file|dir|mode|url|_id)$")
VALUES = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|lsp_[A-Za-z0-9_-]{16,}|AKIA[A-Z0-9]{16}|nvapi-[\w-]{20,})"
)


def parts(path: Path) -> "list[str] | None":
    """A file of NUL-separated texts."""
    try:
        return [part for part in path.read_bytes().decode(errors="replace").split("\0") if part]
    except OSError:
        return None


def address(text: str, family: int) -> "tuple[str, int]":
    """ "0100007F:1F90" -> ("127.0.0.1", 8080)."""
    host, port = text.split(":")
    raw = b"".join(struct.pack("=I", int(host[i : i + 8], 16)) for i in range(0, len(host), 8))
    found = socket.inet_ntop(family, raw)
    return found.removeprefix("::ffff:"), int(port, 16)


def open_sockets() -> "dict[str, tuple[str, int]]":
    """inode -> (address, port) of listening TCP sockets of this network namespace."""
    found = {}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            lines = Path("/proc/net", name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A":
                found[fields[9]] = address(fields[1], family)
    return found


# The engine's own key reaches its children this way: made anew at each start, for the gateway only, and a process's
# environment is its owner's (and root's) to read.
OURS = {"VLLM_API_KEY"}


def secrets_of(argv: "list[str]", environ: "list[str]") -> "list[tuple[str, str]]":
    """(where, name) of what looks like a secret."""
    found = []
    for index, word in enumerate(argv):
        flag, _, value = word.partition("=")
        given = value or (argv[index + 1] if index + 1 < len(argv) else "")
        named = word.startswith("-") and NAMES.search(flag) and given and not given.startswith(("-", "/"))
        if named or VALUES.search(word):
            found.append(("argv", flag if word.startswith("-") else "a word"))
    for entry in environ:
        name, _, value = entry.partition("=")
        if name in OURS:
            continue
        secret = (
            NAMES.search(name) and not HARMLESS.search(name) and len(value) >= 8 and not value.startswith("/")
        )
        if secret or VALUES.search(value):
            found.append(("environment", name))
    return found


def look(mark: str) -> "dict[str, object]":
    """The document."""
    sockets, seen = open_sockets(), 0
    listeners: set[tuple[str, int, str]] = set()
    secrets: set[tuple[str, str, str]] = set()
    marks = {f"LONGSPAN_MARK={mark}", f"LONGSPAN_AGENT_OF={mark}"}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        argv, environ = parts(process / "cmdline"), parts(process / "environ")
        # What cannot be read is another user's, and so none of a deployment that this user can look after.
        if not argv or environ is None or not marks & set(environ):
            continue
        seen += 1
        name = " ".join(Path(word).name for word in argv[:3] if word != "-m")[:60]
        secrets |= {(name, *seen) for seen in secrets_of(argv, environ)}
        try:
            links = [str(link.readlink()) for link in (process / "fd").iterdir()]
        except OSError:
            continue
        listeners |= {
            (*sockets[link[8:-1]], name)
            for link in links
            if link.startswith("socket:[") and link[8:-1] in sockets
        }
    return {"listeners": sorted(listeners), "secrets": sorted(secrets), "seen": seen}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look(sys.argv[1])))

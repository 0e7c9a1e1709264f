"""The listening socket: bound without SO_REUSEPORT first, so that a taken port is an error and not a silent share."""

import errno
import socket
from pathlib import Path

from longspan.errors import PortError

BACKLOG = 4096


def open_listener(host: str, port: int, reuse_port: bool = False, owned: bool = False) -> socket.socket:
    """Binds.

    Args:
        reuse_port: share the port among our workers; such a socket does not listen yet, and must not in the parent,
            which holds it only to keep the port ours.
        owned: the parent has the port already, so that sharing it is no accident.

    Raises:
        PortError: the port is taken (by whom, where /proc tells), or the address is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if owned:
        return _bind(family, host, port, reuse_port=True)
    plain = _bind(family, host, port, reuse_port=False)
    if not reuse_port:
        return plain
    port = plain.getsockname()[1]
    plain.close()
    return _bind(family, host, port, reuse_port=True)


def _bind(family: int, host: str, port: int, reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
        if not reuse_port:
            sock.listen(
                BACKLOG
            )  # SO_REUSEADDR lets two binds pass while nobody listens; listening settles it
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortError(
                f"Port {port} on {host} is taken{holder(port)}, so the gateway cannot listen there.",
                'Stop that process or choose another port with listen = "HOST:PORT".',
            ) from error
        raise PortError(f"Cannot listen on {host}:{port}: {error.strerror}.", "Correct `listen`.") from error
    return sock


def holder(port: int) -> str:
    """` by PID N (command)` of the process that listens on a TCP port, or nothing where /proc does not tell."""
    inodes = _listening_inodes(port)
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            for descriptor in (process / "fd").iterdir():
                if str(descriptor.readlink()) in inodes:
                    words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                    return f" by process {process.name} ({words.strip()[:120]})"
        except OSError:
            continue
    return ""


def _listening_inodes(port: int) -> set[str]:
    """Names as they stand in /proc/PID/fd of sockets that listen on the port (state 0A in /proc/net/tcp)."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == "0A" and int(columns[1].rsplit(":", 1)[1], 16) == port:
                found.add(f"socket:[{columns[9]}]")
    return found

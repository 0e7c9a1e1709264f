"""Tries the network between nodes, run on each of them: listens on real ports and connects to those of the others.

Standard library only. A connection is not enough: a listener answers with the nonce of this run and the address that
it saw, so that a proxy, another program on the port or address translation on the way are told from an open path; and
then 256 KiB go each way, since a path whose MTU is smaller than the NIC's passes the handshake and swallows the data.
"""

import concurrent.futures
import contextlib
import json
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

CONNECT_SECONDS = 3.0
BULK_BYTES = 256 << 10
# linux/in.h and linux/in6.h: do not fragment, and do not believe a cached path MTU.
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3
# What the header of IP and UDP takes from a packet of the MTU's size.
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}
# Path MTUs to try when the NIC's own does not pass: common tunnels below Ethernet, then IPv6's and IPv4's minimum.
_SMALLER = (8942, 4200, 1500, 1450, 1420, 1400, 1380, 1280, 576)
_DATAGRAM_TRIES = 3
_DATAGRAM_SECONDS = 0.4
# For a second look at the NIC's size: sixteen hosts on one loaded machine were seen to answer after more than a second.
_SLOW_SECONDS = 2.0
_LARGEST_BYTES = 65507


def family(address: str) -> socket.AddressFamily:
    """IPv4 or IPv6."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@dataclass(slots=True)
class Listeners:
    """This node's open ports of one run.

    Attributes:
        nonce: of the run; who does not know it gets no answer.
    """

    nonce: str
    sockets: list[socket.socket] = field(default_factory=list)

    def open(self, address: str, fixed: list[int], random: int) -> dict[str, Any]:
        """Opens the ports and answers on them until `close`.

        Returns:
            {"ports": those that are open, "taken": port -> why not, "udp": the echo's port}.
        """
        ports: list[int] = []
        taken: dict[str, str] = {}
        for port in [*fixed, *([0] * random)]:
            listener = socket.socket(family(address), socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
                listener.listen(256)
            except OSError as error:
                listener.close()
                taken[str(port)] = error.strerror or str(error)
                continue
            self.sockets.append(listener)
            ports.append(int(listener.getsockname()[1]))
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return {"ports": ports, "taken": taken, "udp": self._open_udp(address)}

    def _open_udp(self, address: str) -> int:
        echo = socket.socket(family(address), socket.SOCK_DGRAM)
        try:
            echo.bind((address, 0))
        except OSError:
            echo.close()
            return 0
        self.sockets.append(echo)
        threading.Thread(target=self._echo, args=(echo,), daemon=True).start()
        return int(echo.getsockname()[1])

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, peer = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(connection, str(peer[0])), daemon=True).start()

    def _serve(self, connection: socket.socket, peer: str) -> None:
        with connection:
            connection.settimeout(CONNECT_SECONDS)
            try:
                said = json.loads(_line(connection))
                if said.get("nonce") != self.nonce:
                    return
                connection.sendall(json.dumps({"nonce": self.nonce, "peer": peer}).encode() + b"\n")
                if said.get("bulk"):
                    _swallow(connection, BULK_BYTES)
                    connection.sendall(b"\0" * BULK_BYTES)
            except (OSError, ValueError, AttributeError):
                return

    def _echo(self, echo: socket.socket) -> None:
        while True:
            try:
                data, peer = echo.recvfrom(65535)
                if data.startswith(self.nonce.encode()):
                    echo.sendto(data[:64], peer)
            except OSError:
                if echo.fileno() < 0:
                    return

    def close(self) -> None:
        """Closes all of them."""
        for one in self.sockets:
            # A thread that waits in accept or recvfrom is only woken by a shutdown.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self.sockets.clear()


def _line(connection: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        piece = connection.recv(1)
        if not piece or len(found) > 4096:
            raise OSError("closed before it answered")
        found += piece
    return found


def _swallow(connection: socket.socket, count: int) -> None:
    while count:
        piece = connection.recv(min(count, 1 << 16))
        if not piece:
            raise OSError("closed in the middle")
        count -= len(piece)


def try_port(source: str, address: str, port: int, nonce: str, *, bulk: bool) -> dict[str, Any]:
    """One connection: {"milliseconds", "peer"}, or {"error"} with where it stopped."""
    begun = time.monotonic()
    stage = "connect"
    try:
        with socket.socket(family(address), socket.SOCK_STREAM) as connection:
            connection.settimeout(CONNECT_SECONDS)
            connection.bind((source, 0))
            connection.connect((address, port))
            took = time.monotonic() - begun
            stage = "answer"
            connection.sendall(json.dumps({"nonce": nonce, "bulk": bulk}).encode() + b"\n")
            answer = json.loads(_line(connection))
            if answer.get("nonce") != nonce:
                return {"error": "something else answers there", "stage": stage}
            if bulk:
                stage = "data"
                connection.sendall(b"\0" * BULK_BYTES)
                _swallow(connection, BULK_BYTES)
            return {"milliseconds": round(took * 1000, 3), "peer": answer["peer"]}
    except TimeoutError:
        return {"error": f"no answer within {CONNECT_SECONDS:.0f} s", "stage": stage}
    except (OSError, ValueError) as error:
        return {"error": (getattr(error, "strerror", None) or str(error)).lower(), "stage": stage}


def path_mtu(source: str, address: str, port: int, nonce: str, nic_mtu: int) -> dict[str, Any]:
    """Sends datagrams that may not be cut up, of the NIC's MTU first.

    Returns:
        {"mtu": the largest that came through, 0 for none, "wanted": the NIC's}.
    """
    kind = family(address)
    with socket.socket(kind, socket.SOCK_DGRAM) as sender:
        if kind == socket.AF_INET6:
            sender.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
        else:
            sender.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
        try:
            sender.bind((source, 0))
            sender.connect((address, port))
        except OSError as error:
            return {"mtu": 0, "wanted": nic_mtu, "error": str(error)}
        headers = _HEADERS[kind]
        for mtu in (nic_mtu, *(size for size in _SMALLER if size < nic_mtu)):
            came = _heard(sender, nonce, mtu - headers, _DATAGRAM_SECONDS)
            # What is smaller passes: the hosts may only have been slow, so the NIC's size gets its time once more.
            if came and mtu < nic_mtu:
                came = _heard(sender, nonce, nic_mtu - headers, _SLOW_SECONDS) or came
            if came:
                return {"mtu": min(came + headers, nic_mtu), "wanted": nic_mtu}
    return {"mtu": 0, "wanted": nic_mtu}


def _heard(sender: socket.socket, nonce: str, size: int, patience_seconds: float) -> int:
    """Sends a datagram a few times: the bytes of one that was answered, which may be an earlier, larger one; 0 for none."""
    # The MTU of loopback is beyond the largest datagram.
    data = f"{nonce} {size} ".encode().ljust(min(size, _LARGEST_BYTES), b".")
    sender.settimeout(patience_seconds)
    for _ in range(_DATAGRAM_TRIES):
        try:
            sender.send(data)
            said = sender.recv(2048).split()
            if said[0] == nonce.encode():
                return int(said[1])
        except (OSError, ValueError, IndexError):
            continue
    return 0


def try_all(request: dict[str, Any]) -> dict[str, Any]:
    """Tries every port of every target at once.

    Args:
        request: {"address", "nonce", "targets": [{"name", "address", "ports", "udp", "mtu"}]}.

    Returns:
        target -> {"ports": port -> `try_port`, "mtu": `path_mtu`}.
    """
    own, nonce = request["address"], request["nonce"]
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        ports = {
            (target["name"], port): pool.submit(
                try_port, own, target["address"], port, nonce, bulk=port == target["ports"][-1]
            )
            for target in request["targets"]
            for port in target["ports"]
        }
        mtus = {
            target["name"]: pool.submit(path_mtu, own, target["address"], target["udp"], nonce, target["mtu"])
            for target in request["targets"]
            if target["udp"] and target["mtu"]
        }
        found: dict[str, Any] = {target["name"]: {"ports": {}, "mtu": None} for target in request["targets"]}
        for (name, port), job in ports.items():
            found[name]["ports"][str(port)] = job.result()
        for name, job in mtus.items():
            found[name]["mtu"] = job.result()
    return found

"""A node's side of the RDMA trials: perftest's ib_write_bw as server and client. Sent to the node (see `remote`); standard library only."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

TOOL = "ib_write_bw"
LISTEN_SECONDS = 5.0


def words(request: dict[str, Any]) -> list[str]:
    """The command line of both sides; the client's ends with the server's address.

    Args:
        request: device, number (of its port), gid (index, or None for the tool's choice), port (TCP, for the exchange of
            addresses), seconds (of writing).
    """
    argv = [TOOL, "-d", request["device"], "-i", str(request["number"]), "-p", str(request["port"])]
    if request.get("gid") is not None:
        argv += ["-x", str(request["gid"])]
    # -F: a CPU that changes its frequency is no error. Writes of 64 KiB over one queue pair, as perftest does by itself.
    return [*argv, "-D", str(request["seconds"]), "-F", "--report_gbits"]


class Rail:
    """The server that runs on this node, one at a time."""

    def __init__(self) -> None:
        self.server: subprocess.Popen[bytes] | None = None

    def serve(self, request: dict[str, Any]) -> dict[str, Any]:
        """Starts the server; {"port"} once it listens, or {"error"}."""
        if shutil.which(TOOL) is None:
            return {"absent": True}
        with socket.socket(socket.AF_INET6 if ":" in request["address"] else socket.AF_INET) as free:
            free.bind((request["address"], 0))
            port = free.getsockname()[1]
        self.server = subprocess.Popen(
            words({**request, "port": port}),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + LISTEN_SECONDS
        while time.monotonic() < deadline and self.server.poll() is None:
            if _listens(port):
                return {"port": port}
            time.sleep(0.05)
        return {"error": self.stop() or "the server does not listen"}

    def write(self, request: dict[str, Any]) -> dict[str, Any]:
        """The client: writes into the server's memory; {"status", "text"}."""
        argv = [*words(request), request["target"]]
        limit = request["seconds"] + 20  # a queue pair that gets no answer retries for some seconds
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit, check=False
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            return {"status": -1, "text": f"{_text(error.output)}\nit did not end within {limit} s"}
        except OSError as error:
            return {"status": -1, "text": f"{TOOL} cannot be run: {error}"}
        return {"status": done.returncode, "text": _text(done.stdout)}

    def stop(self) -> str:
        """Ends the server, if one runs; what it said."""
        if self.server is None:
            return ""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.server.pid, signal.SIGKILL)
        out, _ = self.server.communicate()
        self.server = None
        return _text(out)


def _text(out: bytes | None) -> str:
    return (out or b"").decode(errors="replace")[-4000:]


def _listens(port: int) -> bool:
    """Whether something of this node listens there (state 0A); to connect would use the server's only connection up."""
    ending = f":{port:04X}"
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(ending) and fields[3] == "0A":
                    return True
    return False

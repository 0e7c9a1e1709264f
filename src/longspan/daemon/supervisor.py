"""Starts the controller of one deployment, and another one when it ends before its time.

`python -m longspan.daemon.supervisor DIRECTORY` holds what must not change when a controller is replaced: the port that
agents and verbs know (requests wait in it meanwhile), the deployment's lock, and the process id in the record. It does
nothing else, so there is little that can end it; and when something does, the controller goes on by itself.
"""

import fcntl
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from longspan.daemon.places import Places

# A controller that ends again and again cannot run; the agents end their processes when their lease is over.
MAX_ENDS, WINDOW_SECONDS = 4, 60.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def supervise(places: Places, listener: socket.socket, lock: IO[Any]) -> int:
    """Until the deployment is gone, or no controller can be kept; returns the last one's exit status."""
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, _: object) -> None:
        if child is not None:
            child.send_signal(number)

    for number in SIGNALS:
        signal.signal(number, forward)
    ends: list[float] = []
    fds = (listener.fileno(), lock.fileno())
    argv = [sys.executable, "-m", "longspan.daemon.controller", str(places.root), *map(str, fds)]
    while True:
        # Blocked until the controller has its handlers: what comes before that waits, here and there.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        child = subprocess.Popen(argv, pass_fds=fds)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        code = child.wait()
        if code == 0 or not places.resume.exists():
            return code
        now = time.monotonic()
        ends = [at for at in ends if now - at < WINDOW_SECONDS] + [now]
        print(f"the controller ended with status {code}; another one goes on from its record", flush=True)
        if len(ends) > MAX_ENDS:
            print(f"it ended {len(ends)} times within {WINDOW_SECONDS:.0f} s: given up", flush=True)
            return code


def main() -> None:
    """See the module's text."""
    places = Places(Path(sys.argv[1]))
    with places.lock.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another controller holds {places.lock}")
        host = json.loads(places.spec.read_text())["controller_host"]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family, backlog=512) as listener:
            sys.exit(supervise(places, listener, lock))


if __name__ == "__main__":
    main()

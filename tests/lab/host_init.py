"""Process 1 of a lab host: lays out the host's own file system view, starts sshd, and reaps what is orphaned.

Run in fresh mount, UTS, IPC and PID namespaces with one argument, a JSON object (see `HostSetup` in hosts.py).
It needs nothing but the standard library, and prints "ready" once sshd listens.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path


def mount(*args: str) -> None:
    """Runs mount(8)."""
    subprocess.run(["mount", *args], check=True)


def lay_out(setup: dict) -> None:
    """Mounts what is private to the host. The propagation is private, so nothing of it shows outside."""
    mount("--make-rprivate", "/")
    for path in setup["tmpfs"]:
        mount("-t", "tmpfs", "-o", "mode=1777", "lab", path)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    Path("/run/user/0").mkdir(mode=0o700, parents=True, exist_ok=True)
    for path, source in setup["binds"].items():
        mount("--bind", source, path)
    # No name server: a name is in /etc/hosts or fails at once, instead of after seconds of silence. Where the file
    # is a link into /run it dangles now, which means the same.
    if Path("/etc/resolv.conf").exists():
        mount("--bind", "/dev/null", "/etc/resolv.conf")


def start_sshd(argv: list[str], address: str, port: int) -> subprocess.Popen:
    """Starts sshd and waits until it accepts.

    Raises:
        RuntimeError: it ended, or did not listen within ten seconds.
    """
    sshd = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    for _ in range(200):
        if sshd.poll() is not None:
            break
        try:
            with socket.create_connection((address, port), timeout=1):
                return sshd
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"sshd does not listen on {address}:{port}")


def main() -> None:
    """Sets the host up, then waits for children until it is killed from outside."""
    setup = json.loads(sys.argv[1])
    socket.sethostname(setup["name"])
    lay_out(setup)
    start_sshd(setup["sshd"], setup["address"], setup["port"])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.2)


if __name__ == "__main__":
    main()

"""`python -m lab [HOSTS]` in tests/: keeps a lab up until Ctrl-C or the end of standard input, to look around in."""

import contextlib
import sys

from lab.build import build_lab, why_no_lab
from lab.hosts import HostSpec

if __name__ == "__main__":
    if reason := why_no_lab():
        sys.exit(reason)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with build_lab([HostSpec(f"h{index}") for index in range(1, count + 1)]) as built:
        for host in built.hosts:
            sys.stdout.write(f"{built.bin / 'ssh'} {host.name}    # {host.address}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()

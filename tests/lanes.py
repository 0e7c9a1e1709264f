"""Two workers for `make test` (`pytest -n 2`): one starts engines, one after the other; the other one does all the rest.

Engines keep the machine's own network, as a user's do. The rest gets a network namespace of its own where that is possible: it
opens and closes thousands of connections on loopback, and vLLM and Ray choose ports there that must still be free seconds later.
"""

import ctypes
import os
import subprocess
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

CLONE_NEWNET = 0x40000000
ENGINES = "tests/engine/"


class Lanes(LoadFileScheduling):
    """All engine tests are one piece of work; of the others each file is one."""

    def _split_scope(self, nodeid: str) -> str:
        return ENGINES if nodeid.startswith(ENGINES) else super()._split_scope(nodeid)


class Networks:
    """The machine's network namespace and, made when it is first needed, one of this process alone.

    Python 3.11 has no `os.setns`. Both calls change the calling thread only: threads started before keep what they had.
    """

    def __init__(self) -> None:
        """Starts in the machine's."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._machine = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self._own = -1
        self._current = self._machine

    def enter(self, *, own: bool) -> None:
        """Goes to the wanted one; stays where it is on machines that do not allow namespaces."""
        if own and self._own < 0:
            if self._libc.unshare(CLONE_NEWNET):
                return
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            self._own = self._current = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        wanted = self._own if own else self._machine
        if wanted != self._current:
            if self._libc.setns(wanted, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            self._current = wanted


def can_have_own_network() -> bool:
    """Whether this user may make namespaces and has what sets them up."""
    return os.geteuid() == 0 and any((Path(p) / "ip").exists() for p in os.environ["PATH"].split(":"))

"""One session with a node: sends it the program, asks, and understands refusals."""

import importlib.resources
import json
from typing import Any

from longspan.errors import HostError
from longspan.host import Conversation, Host
from longspan.preflight import remote
from longspan.preflight.read import read_refusal

REPLY = "longspan-reply "
OPEN_SECONDS = 30.0


class SessionLostError(Exception):
    """The session ended or fell silent: (cause, sentence part, remedy)."""

    def __init__(self, cause: str, what: str, remedy: str) -> None:
        super().__init__(what)
        self.refused = (cause, what, remedy)


def sources(modules: tuple[str, ...]) -> dict[str, str]:
    """The text of our own modules."""
    folder = importlib.resources.files("longspan.preflight")
    return {name: folder.joinpath(f"{name}.py").read_text("utf-8") for name in modules}


class Session:
    """Line by line with one node. Not for several threads at once."""

    def __init__(self, host: Host, python: str, env: dict[str, str]) -> None:
        """Starts the node's program.

        Raises:
            SessionLostError: ssh is missing here, or the node's container cannot be started.
        """
        self.host = host
        self.python = python
        self._number = 0
        self._clean = True
        try:
            self._talk: Conversation = host.open([python, "-c", remote.BOOT])
        except HostError as error:
            raise SessionLostError("ssh-missing", error.what, error.remedy) from error
        self._talk.send(remote.bundle(sources(remote.NODE_MODULES), "node", env))

    def ask(self, do: str, timeout_seconds: float, **arguments: Any) -> Any:
        """One request, its answer.

        Raises:
            SessionLostError: refused, ended or silent.
            ValueError: the node says that it could not do it.
        """
        self._number += 1
        self._talk.send(json.dumps({"id": self._number, "do": do, **arguments}))
        while True:
            try:
                line = self._talk.receive(timeout_seconds)
            except TimeoutError:
                self._clean = False
                raise SessionLostError(
                    "host-silent", f"it did not answer within {timeout_seconds:.0f} s",
                    f"Is the host overloaded or frozen? Try `ssh {self.target} uptime`.",
                ) from None  # fmt: skip
            if line is None:
                raise self._lost()
            if line.startswith(remote.OLD):
                version = line.removeprefix(remote.OLD).strip()
                raise SessionLostError(
                    "python-old", f"{self.python} there is Python {version}, Longspan needs 3.11 or newer",
                    "Install a newer Python there and name it with python = … in the cluster file.",
                )  # fmt: skip
            if not line.startswith(REPLY):
                continue  # a shell's greeting
            reply = json.loads(line[len(REPLY) :])
            if reply["id"] != self._number:
                continue
            if "error" in reply:
                raise ValueError(reply["error"])
            return reply["value"]

    @property
    def target(self) -> str:
        """What one types after ssh."""
        return str(getattr(self.host, "target", self.host.name))

    def _lost(self) -> SessionLostError:
        errors = list(self._talk.errors)
        status = self._talk.close()
        return SessionLostError(*read_refusal(status, errors, self.target, self.python))

    def abort(self) -> None:
        """Ends it at once, also while another thread waits for an answer."""
        self._talk.close(0)

    def close(self) -> None:
        """Ends the node's program by ending its input."""
        self._talk.close(3 if self._clean else 0)

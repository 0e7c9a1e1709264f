"""A node's side of a pre-flight: one session, JSON lines on standard input and output, until the input ends.

It is sent to the node as text (see `remote`), so that a bare host needs only Python; and it ends with its input, so that
a check that is killed leaves nothing behind. Standard library only.
"""

import concurrent.futures
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from longspan.preflight import gather, rails_node, trial

REPLY = "longspan-reply "


class Members:
    """The processes of this node in the collective: each imports torch once and then joins group after group."""

    def __init__(self) -> None:
        self.children: dict[int, subprocess.Popen[str]] = {}
        self.request: dict[str, Any] = {}

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Starts `count` members with `env`; returns free ports for the groups that this node leads."""
        self.request = request
        for local in range(request["count"]):
            self._spawn(local)
        answers = self._ask_all([(local, {"do": "hello"}) for local in self.children], request["seconds"])
        ports = []
        held = [
            socket.socket(trial.family(request["address"]), socket.SOCK_STREAM)
            for _ in range(request["ports"])
        ]
        for one in held:
            one.bind((request["address"], 0))
            ports.append(one.getsockname()[1])
        for one in held:
            one.close()
        return {"members": answers, "ports": ports}

    def _spawn(self, local: int) -> None:
        env = {**os.environ, **self.request["env"]}
        if self.request.get("gpus"):
            env["CUDA_VISIBLE_DEVICES"] = str(self.request["gpus"][local])
        child = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", self.request["boot"]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env,
        )  # fmt: skip
        self.children[local] = child
        assert child.stdin is not None
        child.stdin.write(self.request["bundle"] + "\n")
        child.stdin.flush()

    def _ask(self, local: int, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        child = self.children[local]
        assert child.stdin is not None
        assert child.stdout is not None
        killer = threading.Timer(seconds, child.kill)
        killer.start()
        said: list[str] = []
        try:
            child.stdin.write(json.dumps(request) + "\n")
            child.stdin.flush()
            for line in child.stdout:
                if line.startswith(REPLY):
                    answer: dict[str, Any] = json.loads(line[len(REPLY) :])
                    return answer
                said.append(line.strip()[:300])
        except OSError as error:
            said.append(str(error))
        finally:
            stopped = not killer.is_alive()
            killer.cancel()
        child.wait()
        why = (
            f"it did not end within {seconds:.0f} s and was killed"
            if stopped
            else f"status {child.returncode}"
        )
        return {"error": f"{why}: {said[-1]}" if said else why}

    def run(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Lets members join a group at once; a member that was killed before is started again.

        Args:
            request: {"members": [{"local", …what `collective.join` takes}], "seconds"}.
        """
        for member in request["members"]:
            if self.children[member["local"]].poll() is not None:
                self._spawn(member["local"])
        asked = [(member["local"], {**member, "do": "join"}) for member in request["members"]]
        return self._ask_all(asked, request["seconds"])

    def _ask_all(self, asked: list[tuple[int, dict[str, Any]]], seconds: float) -> list[dict[str, Any]]:
        """Several members at once; their answers in the order asked."""
        with concurrent.futures.ThreadPoolExecutor(max(1, len(asked))) as pool:
            return list(pool.map(lambda item: self._ask(item[0], item[1], seconds), asked))

    def stop(self) -> None:
        """Ends them all."""
        for child in self.children.values():
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self.children.clear()


class Session:
    """Answers requests one after the other."""

    def __init__(self) -> None:
        self.listeners: trial.Listeners | None = None
        self.members = Members()
        self.rail = rails_node.Rail()

    def answer(self, request: dict[str, Any]) -> Any:
        """One request by its name."""
        match request["do"]:
            case "clock":
                return time.time()
            case "facts":
                return gather.gather(request)
            case "listen":
                self.listeners = trial.Listeners(request["nonce"])
                return self.listeners.open(request["address"], request["ports"], request["random"])
            case "connect":
                return trial.try_all(request)
            case "unlisten":
                self.close_listeners()
                return None
            case "collective_start":
                return self.members.start(request)
            case "collective_run":
                return self.members.run(request)
            case "collective_stop":
                self.members.stop()
                return None
            case "rail_serve":
                return self.rail.serve(request)
            case "rail_write":
                return self.rail.write(request)
            case "rail_stop":
                self.rail.stop()
                return None
        raise ValueError(f"unknown request {request['do']!r}")

    def close_listeners(self) -> None:
        """Closes the ports, if any are open."""
        if self.listeners is not None:
            self.listeners.close()
            self.listeners = None

    def serve(self) -> None:
        """Until standard input ends."""
        # Whatever prints by accident goes to standard error; only replies go out.
        out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        try:
            for line in sys.stdin:
                request = json.loads(line)
                try:
                    reply: dict[str, Any] = {"value": self.answer(request)}
                except Exception as error:  # noqa: BLE001 - whatever it was, it is the answer
                    reply = {"error": f"{type(error).__name__}: {error}"[:500]}
                out.write(f"{REPLY}{json.dumps({'id': request['id'], **reply})}\n")
                out.flush()
        except (BrokenPipeError, KeyboardInterrupt):
            pass
        finally:
            self.members.stop()
            self.rail.stop()
            self.close_listeners()


def main() -> None:
    """See the module's text."""
    Session().serve()
    sys.stderr.flush()
    # A probe that hangs in the kernel (a dead mount) must not keep the session alive.
    os._exit(0)


if __name__ == "__main__":
    main()

"""How verbs reach a deployment's controller: find it, start it, follow it, ask it to go down."""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from longspan.daemon import starting
from longspan.daemon.places import Places, write_private
from longspan.daemon.processes import Identity, alive
from longspan.daemon.sweep import sweep
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.errors import ControlPlaneError, DeploymentExistsError, HostError, NoDeploymentError

PATIENCE_SECONDS = 120.0
START_TIMEOUT_SECONDS = 60
# Longer than the state machine needs in the worst case: an agent that does not confirm, then a sweep of its node.
STOP_TIMEOUT_SECONDS = 240


def request(
    record: dict[str, Any],
    path: str,
    *,
    post: bool = False,
    body: dict[str, Any] | None = None,
    timeout_seconds: float = 15,
) -> dict[str, Any]:
    """One request to the controller, with the operator's key out of its record.

    Raises:
        ControlPlaneError: it does not answer.
    """
    wanted = urllib.request.Request(  # noqa: S310 - the URL comes from our own record, mode 0600
        record["url"] + path,
        data=json.dumps(body).encode() if body is not None else b"" if post else None,
        headers={"Authorization": f"Bearer {record['key']}"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(wanted, timeout=timeout_seconds) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except (OSError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise ControlPlaneError(
            f"The controller (pid {record['pid']}) does not answer: {error}.",
            "`longspan down --force` ends what it started on this machine.",
        ) from error


def running(name: str) -> dict[str, Any]:
    """The record of a deployment that runs on this machine.

    Raises:
        NoDeploymentError: there is none.
    """
    if record := Places.of(name).running():
        return record
    raise nothing_runs(name)


def nothing_runs(name: str, more: str = "") -> NoDeploymentError:
    """The error of a verb that needs a deployment. `more`: a sentence on the last one."""
    return NoDeploymentError(
        " ".join(filter(None, (f"No deployment called {name!r} runs on this machine.", more))),
        "`longspan up` starts one.",
    )


def start_controller(places: Places, spec: DeploymentSpec, controller_host: str) -> dict[str, Any]:
    """Starts the controller in the background and returns its record.

    Raises:
        ControlPlaneError: it ended or did not come up.
        DeploymentExistsError: another `up` was faster.
    """
    with places.starting.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the file, so also with this process
        if places.running():
            raise DeploymentExistsError(
                "Another `longspan up` of the same name started a moment ago.", "`longspan status` shows it."
            )
        return _start_controller(places, spec, controller_host)


def _start_controller(places: Places, spec: DeploymentSpec, controller_host: str) -> dict[str, Any]:
    places.clear_logs()
    places.logs.mkdir(parents=True, exist_ok=True)
    for stale in (places.controller, places.last_status, places.resume):
        stale.unlink(missing_ok=True)
    write_private(places.spec, json.dumps({"spec": spec.to_json(), "controller_host": controller_host}))
    log = places.logs / "controller.log"
    with log.open("ab") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "longspan.daemon.supervisor", str(places.root)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        if record := _came_up(places, child):
            return record
    except BaseException:  # Ctrl-C: nobody waits for it any more
        _end(child)
        raise
    _end(child)
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it wrote nothing"]
    raise ControlPlaneError(f"The controller did not start: {last[0]}", f"Its log is {log}.")


def _came_up(places: Places, child: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """The controller's record, once it has written it; None when it ended or is too slow."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        record = places.running()
        if record and record["pid"] == child.pid:
            return record
        time.sleep(0.05)
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    """A controller takes everything down on SIGTERM, and then itself."""
    child.terminate()
    try:
        child.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def take_down(record: dict[str, Any]) -> None:
    """Asks the controller to take everything down and waits until it has.

    Raises:
        ControlPlaneError: it still runs after a while.
    """
    try:
        request(record, "/v1/down", post=True)
    except ControlPlaneError:
        # Too busy to answer: a signal needs no answer, and means the same to it.
        if alive(Identity(record["pid"], record["start_ticks"])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(record["pid"], signal.SIGTERM)
    if not wait_until_gone(record, STOP_TIMEOUT_SECONDS):
        raise ControlPlaneError(
            f"The controller (pid {record['pid']}) has not stopped everything within {STOP_TIMEOUT_SECONDS} s.",
            "`longspan down --force` ends what it started on this machine.",
        )


def sweep_elsewhere(places: Places, record: dict[str, Any]) -> list[str]:
    """Ends on the other hosts what a start left there, all at once, from the record of what was wanted.

    Returns:
        what could not be ended, as sentences; a host that cannot be reached ends its own when its agent's lease is over.
    """
    try:
        spec = DeploymentSpec.from_json(json.loads(places.spec.read_text())["spec"])
    except (OSError, ValueError, LookupError, TypeError):
        return []
    nodes = [node for node in spec.ray_nodes() if not node.is_here or spec.ray_address]

    async def one(node: NodeSpec) -> list[str]:
        try:
            answer = await starting.sweep(node, node.name, record["mark"], record["run_dir"], spec)
        except (HostError, ValueError) as error:
            return [f"{node.name} could not be swept ({error}); its agent ends its own within half a minute"]
        return [f"{node.name}: pid {pid} does not end" for pid in answer["left"]]

    async def all_nodes() -> list[str]:
        return [text for texts in await asyncio.gather(*map(one, nodes)) for text in texts]

    return asyncio.run(all_nodes()) if nodes else []


def end_by_mark(places: Places, record: dict[str, Any]) -> set[int]:
    """Ends on this machine what a start left there; for other hosts see `sweep_elsewhere`.

    Returns:
        the pids that do not end.
    """
    left = sweep(record["mark"], record["run_dir"])
    for path in (places.controller, places.gateway_config, places.engine_key, places.resume):
        path.unlink(missing_ok=True)
    return left


def follow(record: dict[str, Any], places: Places) -> Iterator[dict[str, Any]]:
    """Yields the status at every change, until the controller is gone; its last words come out of its file."""
    version = -1
    patience = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            status = request(record, f"/v1/status?after={version}")
        except ControlPlaneError:
            # While it lives it may only be slow; on a host that starts an engine, that is nothing special.
            if alive(Identity(record["pid"], record["start_ticks"])) and time.monotonic() < patience:
                time.sleep(0.5)
                continue
            if places.last_status.exists():
                yield json.loads(places.last_status.read_text())
                return
            raise
        patience = time.monotonic() + PATIENCE_SECONDS
        version = status["version"]
        yield status
        if status["phase"] == "gone":
            return


def wait_until_gone(record: dict[str, Any], timeout_seconds: float) -> bool:
    """Whether the controller's process ended in time."""
    deadline = time.monotonic() + timeout_seconds
    while alive(Identity(record["pid"], record["start_ticks"])):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True

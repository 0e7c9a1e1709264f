"""A controller that follows one that died: agents go on with it as if it were the first; and who starts it."""

import asyncio
import errno
import fcntl
import io
import json
import socket
import subprocess
import sys
from pathlib import Path

from real import environment
from test_controller_events import SPEC, controller, lines

from longspan.daemon import supervisor
from longspan.daemon.controller import Controller
from longspan.daemon.places import Places, write_private
from longspan.daemon.resume import StartIdentity


def test_agents_go_on_with_the_next_one(tmp_path: Path) -> None:
    """The same instance is taken, a batch of which a part was recorded is taken from there on, and the commands stand in their
    places; the gateway is told the same."""

    async def test() -> None:
        async with controller(tmp_path) as (first, client):
            first.start.save(first.places.resume)
            for name in ("front", "n1"):
                body = {"instance": name, "first": 0, "events": []}
                assert (await client.post(f"/v1/agents/{name}/events", json=body)).status == 200
            told = (await (await client.get("/v1/agents/n1/commands")).json())["commands"]
            assert [command["what"] for command in told] == ["facts", "write", "ports", "digest"]
            body = {"instance": "n1", "first": 0, "events": [lines("one"), lines("two")]}
            assert (await client.post("/v1/agents/n1/events", json=body)).status == 200
            start = StartIdentity.load(first.places.resume)
            assert start is not None
        second = Controller(first.places, SPEC, "127.0.0.1", start)
        await second._go_on(second._recover())
        assert (second.agent_key, second.mark) == (first.agent_key, first.mark)
        assert second.machine.phase == first.machine.phase == "checkpoint"
        assert second.links["n1"].commands == told
        assert (second.links["n1"].instance, second.links["n1"].taken) == ("n1", 2)
        second.history.close()

    asyncio.run(test())


class FullDisk(io.StringIO):
    """A file that takes nothing."""

    def write(self, _: str) -> int:
        """Fails."""
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_ends_the_way_back_only(tmp_path: Path) -> None:
    """What cannot be recorded cannot be gone on from, so the file that says that one could is removed; the agent is served."""

    async def test() -> None:
        async with controller(tmp_path) as (found, client):
            found.start.save(found.places.resume)
            found.history.close()
            found.history = FullDisk()
            body = {"instance": "x", "first": 0, "events": []}
            assert (await client.post("/v1/agents/n1/events", json=body)).status == 200
            assert not found.places.resume.exists()
            assert found.machine.ground.joined == {"n1"}

    asyncio.run(test())


def ended(places: Places, home: Path) -> "subprocess.CompletedProcess[str]":
    """The supervisor, of a controller that cannot start: its file of what is wanted is none."""
    write_private(places.spec, json.dumps({"controller_host": "127.0.0.1"}))
    return subprocess.run(
        [sys.executable, "-m", "longspan.daemon.supervisor", str(places.root)],
        env=environment(home), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_what_cannot_run_is_given_up(tmp_path: Path) -> None:
    """Before anything was started at once; after that it is tried again, but not for ever."""
    places = Places(tmp_path / "t")
    done = ended(places, tmp_path)
    assert (done.returncode, "another one goes on" in done.stdout) == (1, False)
    StartIdentity.new(SPEC).save(places.resume)
    done = ended(places, tmp_path)
    assert done.returncode == 1
    assert done.stdout.count("another one goes on") == supervisor.MAX_ENDS + 1
    assert done.stdout.rstrip().endswith("given up")


def test_one_supervisor_a_deployment(tmp_path: Path) -> None:
    """The lock that is held is named."""
    places = Places(tmp_path / "t")
    write_private(places.spec, "{}")
    with places.lock.open("w") as lock, socket.create_server(("127.0.0.1", 0)):
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = ended(places, tmp_path)
    assert done.returncode == 1
    assert f"another controller holds {places.lock}" in done.stderr

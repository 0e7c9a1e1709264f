"""The agent of one node: starts and ends processes, reads their logs, answers questions about its node.

`python -m longspan.daemon.agent` reads its configuration as JSON on standard input (a key among it, which is why it
does not stand in argv), goes into the background, prints its identity and returns. It beats once a second. Without
the controller for a lease it ends everything it started, then itself.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from longspan.daemon import functions, processes, sampling
from longspan.daemon.protocol import BEAT_SECONDS, LEASE_SECONDS, LONG_POLL_SECONDS, MAX_LINES, cut
from longspan.launch.commands import named
from longspan.launch.run_dir import Paths

WATCH_SECONDS = 0.1  # a process that ended is reported within so long
REAP_SECONDS = 5.0
# A rank that is killed takes the knowledge of its shared memory with it, so we look while it lives.
SHM_SECONDS = 20.0
READ_BYTES = 1 << 20  # of one log in one round
BATCH_CHARACTERS = (
    1 << 20
)  # of log lines in one message; the controller takes 16 MiB, and JSON may escape each six-fold
BACKLOG_EVENTS = 256  # from here on logs wait on disk until the controller has taken some
STALL_SECONDS = 3.0
GRACE_SECONDS = 8.0
KEPT_LOG_BYTES = 1 << 20
MAX_LOG_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What an agent is told at its start.

    Attributes:
        controller_url: where it reports, "http://host:port".
        key: authenticates it to the controller.
        mark: identifies the processes of this start of the deployment on this node.
        run_dir: removed at the end.
        log_dir: stays.
        joined: Ray is not ours: its workers are not our descendants and are found by the mark.
        foreground: stay in the job step or container that started the agent, which ends when its first process does.
    """

    name: str
    controller_url: str
    key: str
    mark: str
    run_dir: str
    log_dir: str
    joined: bool
    foreground: bool = False


@dataclass(slots=True)
class Watched:
    """A process of ours and how far its log was read."""

    name: str
    log: Path
    child: Any
    offset: int = 0
    rest: bytes = b""
    reported: bool = False

    def read(self, *, whole: bool = False) -> list[str]:
        """The lines that are new; with `whole` also the last one that lacks its newline.

        A carriage return ends a line too: a progress bar is the only sign of life while weights load.
        """
        data = b""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(self.offset)
            data = log.read(READ_BYTES)
        self.offset += len(data)
        if not data and not (whole and self.rest):
            return []
        *lines, self.rest = (self.rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if self.rest and (len(self.rest) > READ_BYTES or (whole and not data)):
            lines, self.rest = [*lines, self.rest], b""
        return [cut(line.decode(errors="replace")) for line in lines]

    def rotate(self) -> list[str]:
        """Keeps a log bounded that has been read to its end: its content moves to NAME.log.1, and its writer, who appends,
        goes on in the emptied file. vLLM writes a line for every request.

        Returns:
            The lines that came meanwhile.
        """
        if self.offset < MAX_LOG_BYTES:
            return []
        lines: list[str] = []
        with contextlib.suppress(OSError):
            shutil.copyfile(self.log, self.log.with_name(f"{self.log.name}.1"))
            lines = self.read()
            os.truncate(self.log, 0)
            self.offset = 0
        return lines


@dataclass(slots=True)
class Agent:
    """The agent's state; `run` is its life.

    Attributes:
        ranks: the engine's processes here, once it is known which they are.
        events: not yet taken by the controller; `delivered` counts those before them, so that a batch sent twice
            (its answer was lost) is taken once.
    """

    config: AgentConfig
    instance: str = field(default_factory=lambda: uuid.uuid4().hex)
    watched: dict[str, Watched] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    delivered: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    last_contact: float = field(default_factory=time.monotonic)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    shm: set[Path] = field(default_factory=set)
    ranks: set[processes.Identity] = field(default_factory=set)
    ranks_name: str = ""

    async def run(self) -> None:
        """Until told to stop, signalled, or without the controller for a lease."""
        processes.become_subreaper()
        processes.raise_open_files()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.done.set)
        headers = {"Authorization": f"Bearer {self.config.key}"}
        timeout = aiohttp.ClientTimeout(total=LONG_POLL_SECONDS + 10, sock_connect=5)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            jobs = [
                asyncio.create_task(self._send_events(session)),
                asyncio.create_task(self._take_commands(session)),
                asyncio.create_task(self._watch()),
            ]
            for job in jobs:
                job.add_done_callback(self._job_ended)
            self.tasks.add(asyncio.create_task(self._report(session)))
            await self.done.wait()
            for job in [*jobs, *self.tasks]:
                job.cancel()
            await asyncio.gather(*jobs, *self.tasks, return_exceptions=True)
            left = await asyncio.to_thread(self.end_everything)
            if left:
                print(f"could not end pids {sorted(left)}", flush=True)

    def _job_ended(self, job: asyncio.Task[None]) -> None:
        """An agent that no longer beats, hears or watches is none: it ends what it started while it still can."""
        if not job.cancelled() and (error := job.exception()) is not None:
            traceback.print_exception(error)
        self.done.set()

    # ---- outwards
    async def _send_events(self, session: aiohttp.ClientSession) -> None:
        url = f"{self.config.controller_url}/v1/agents/{self.config.name}/events"
        while True:
            batch = self._batch()
            document = {"instance": self.instance, "first": self.delivered, "events": batch}
            try:
                async with session.post(url, json=document) as response:
                    if response.status == 410:
                        self.done.set()  # the controller serves another start: we are from an older one
                        return
                    response.raise_for_status()
                del self.events[: len(batch)]
                self.delivered += len(batch)
                self.last_contact = time.monotonic()
            except (aiohttp.ClientError, TimeoutError) as error:
                print(f"controller unreachable: {error}", flush=True)
                await asyncio.sleep(BEAT_SECONDS)
            if time.monotonic() - self.last_contact > LEASE_SECONDS:
                print(f"no controller for {LEASE_SECONDS:.0f} s: ending my processes", flush=True)
                self.done.set()
                return
            if not self.events:
                self.wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BEAT_SECONDS):
                        await self.wake.wait()

    def _batch(self) -> list[dict[str, Any]]:
        """The oldest events, as many as one message may carry."""
        size = 0
        for count, event in enumerate(self.events):
            size += sum(map(len, event.get("lines", ()))) + 100
            if count and size > BATCH_CHARACTERS:
                return self.events[:count]
        return self.events[:]

    async def _report(self, session: aiohttp.ClientSession) -> None:
        """Telemetry, which may fail without any harm to the rest."""

        def others() -> set[int]:
            return processes.marked(self.config.mark) if self.config.joined else set()

        url = f"{self.config.controller_url}/v1/agents/{self.config.name}/telemetry"
        await sampling.report(session, url, self.config.log_dir, self.config.run_dir, others)

    def _tell(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.wake.set()

    # ---- inwards
    async def _take_commands(self, session: aiohttp.ClientSession) -> None:
        url = f"{self.config.controller_url}/v1/agents/{self.config.name}/commands"
        after = 0
        while True:
            try:
                async with session.get(url, params={"after": after, "instance": self.instance}) as response:
                    response.raise_for_status()
                    commands = (await response.json())["commands"]
            except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
                # Also an answer that is none of ours, such as a proxy's.
                await asyncio.sleep(BEAT_SECONDS)
                continue
            for command in commands:
                after = max(after, command["seq"])
                task = asyncio.create_task(self._carry_out(command))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    async def _carry_out(self, command: dict[str, Any]) -> None:
        match command["kind"]:
            case "start":
                self._start(command["process"])
            case "stop_all":
                await self._stop_all(command["call"])
            case "call":
                try:
                    value = await functions.FUNCTIONS[command["what"]](
                        command["arguments"], self.config.run_dir
                    )
                    if command["what"] == "ranks":
                        self._watch_ranks(value, command["arguments"])
                    self._tell({"kind": "answered", "call": command["call"], "value": value})
                except Exception as error:  # noqa: BLE001 - whatever went wrong is the answer
                    text = str(error) or type(error).__name__
                    self._tell({"kind": "answered", "call": command["call"], "error": text})

    def _watch_ranks(self, found: dict[str, Any], arguments: dict[str, Any]) -> None:
        """From now on the end of one of these is told; they are no children of ours."""
        self.ranks_name = arguments["process"]
        self.ranks = {known for pid in found if (known := processes.identity(int(pid)))}

    def _start(self, process: dict[str, Any]) -> None:
        name = process["name"]
        log = Path(self.config.log_dir) / f"{name}.log"
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_bytes(b"")
            child = processes.start(
                process["argv"], env=process["env"], mark=self.config.mark, log=log, stdin=process["stdin"]
            )
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                log.write_text(f"{process['argv'][0]}: {error}\n")
            self._tell({"kind": "lines", "process": name, "lines": [f"Error: {error}"]})
            self._tell({"kind": "exited", "process": name, "code": 127})
            return
        self.watched[name] = Watched(name, log, child)

    async def _stop_all(self, call: str) -> None:
        try:
            left = await asyncio.to_thread(self.end_everything)
            texts = [f"pid {pid} does not end, even on SIGKILL" for pid in left]
        except Exception as error:  # noqa: BLE001 - the controller waits for an answer, whatever happened
            traceback.print_exc()
            texts = [f"ending everything failed: {type(error).__name__}: {error}"]
        self._tell({"kind": "answered", "call": call, "value": {"left": texts}})
        for _ in range(50):  # let the answer leave before we do
            if not self.events:
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.2)
        self.done.set()

    # ---- the node
    async def _watch(self) -> None:
        next_reap = next_shm = graced = 0.0
        last = time.monotonic()
        while True:
            now = time.monotonic()
            if now - last > STALL_SECONDS and not graced:
                # This process stood still (a paused machine): before it judges the controller, it asks once more. Once
                # a silence, else standing still again and again would put off the lease for ever.
                self.last_contact = max(self.last_contact, now - LEASE_SECONDS + GRACE_SECONDS)
                graced = self.last_contact
            elif self.last_contact != graced:
                graced = 0.0
            for watched in list(self.watched.values()):
                code = watched.child.poll()
                more = self._read_log(watched, whole=code is not None)
                if code is not None and not watched.reported and not more:
                    watched.reported = True
                    self._tell({"kind": "exited", "process": watched.name, "code": code})
            if any(not processes.alive(rank) for rank in self.ranks):
                self.ranks.clear()  # they live and end together
                self._tell({"kind": "exited", "process": self.ranks_name, "code": -1})
            if time.monotonic() > next_reap:  # a walk over /proc, too dear for every round
                processes.reap()
                next_reap = time.monotonic() + REAP_SECONDS
            if time.monotonic() > next_shm:
                self.shm |= await asyncio.to_thread(self._shm_in_use)
                next_shm = time.monotonic() + SHM_SECONDS
            last = time.monotonic()  # only the sleep is measured: what stands above may take its time
            await asyncio.sleep(WATCH_SECONDS)

    def _shm_in_use(self) -> set[Path]:
        return processes.shm_files(processes.ours(self.config.mark, joined=self.config.joined))

    def _read_log(self, watched: Watched, *, whole: bool) -> bool:
        """Passes new lines on. Returns whether there may be more."""
        if len(self.events) > BACKLOG_EVENTS:
            return True
        texts = watched.read(whole=whole) or watched.rotate()
        for start in range(0, len(texts), MAX_LINES):
            self._tell({"kind": "lines", "process": watched.name, "lines": texts[start : start + MAX_LINES]})
        return bool(texts or watched.rest)

    def _keep_ray_logs(self) -> None:
        """The end of each log of Ray's session on this node, for the doctor; the session itself is removed."""
        for log in self._ray_dir().glob("session_2*/logs/*"):
            if log.is_file() and log.stat().st_size:
                with log.open("rb") as file:
                    file.seek(max(0, log.stat().st_size - KEPT_LOG_BYTES))
                    kept = Path(self.config.log_dir) / "ray" / log.name
                    kept.parent.mkdir(exist_ok=True)
                    kept.write_bytes(file.read())

    def end_everything(self) -> set[int]:
        """Ends our processes in order: the launcher first, so that Ray frees its actors, then all the rest.

        Returns:
            The pids that could not be ended.
        """
        mine = processes.ours(self.config.mark, joined=self.config.joined)
        self.shm |= processes.shm_files(mine)
        first = {w.child.pid for w in self.watched.values() if named(w.name)[0] in {"launcher", "gateway"}}
        processes.end(first & mine, grace_seconds=5)
        ended = processes.end_all(
            lambda: processes.ours(self.config.mark, joined=self.config.joined), grace_seconds=3
        )
        processes.remove_shm(self.shm | ended.shm)
        with contextlib.suppress(OSError):
            self._keep_ray_logs()
        self._clear_run_dir()
        return ended.left

    def _ray_dir(self) -> Path:
        return Path(Paths(self.config.run_dir, "").ray_dir(self.config.name))

    def _clear_run_dir(self) -> None:
        """Agents of one machine share the directory: the last one removes it, and none the logs of another's Ray."""
        ray = self._ray_dir()
        shutil.rmtree(ray, ignore_errors=True)
        if not any(ray.parent.glob("*")):
            shutil.rmtree(self.config.run_dir, ignore_errors=True)


def _detach() -> None:
    """Double fork: the process that ssh, srun or Ray waits for returns, the agent stays."""
    if os.fork():
        os.wait()
        sys.exit(0)
    os.setsid()
    read, write = os.pipe()
    if os.fork():
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    _announce()
    os.close(write)


def _announce() -> None:
    """Says who the agent is: the sign for whoever started it that it runs."""
    found = processes.identity(os.getpid())
    assert found is not None
    print(json.dumps({"pid": found.pid, "start_ticks": found.start_ticks}), flush=True)


def main() -> None:
    """See the module's text."""
    config = AgentConfig(**json.load(sys.stdin))
    config = replace(config, log_dir=str(Path(config.log_dir).expanduser()))
    Path(config.run_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
    Path(config.log_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
    # While whoever starts us still listens: a log that cannot be written must be told.
    log = os.open(Path(config.log_dir) / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    if config.foreground:
        # The connection that started the container may end; the agent's own lease decides, not that.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _announce()
    else:
        _detach()
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    asyncio.run(life(Agent(config)))


async def life(agent: Agent) -> None:
    """From start to end of this process. No thread is waited for: a digest of a large checkpoint goes on for minutes."""
    await agent.run()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

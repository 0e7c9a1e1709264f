"""The controller of one deployment: feeds the state machine of `launch.steps` and carries out what it says.

`python -m longspan.daemon.controller DIRECTORY` reads what is wanted from the deployment's directory, listens on one
port for agents and the command line, both with their keys, and ends when the deployment is gone.
"""

import asyncio
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aiohttp import web

from longspan.daemon import asking, gateway_config, starting, status, watching
from longspan.daemon.launch_store import LaunchLog, LaunchStore
from longspan.daemon.places import Places, logs_elsewhere, write_private
from longspan.daemon.processes import identity
from longspan.daemon.protocol import LONG_POLL_SECONDS, events_from_json
from longspan.daemon.resume import AgentLink, Resumed, StartIdentity, forget, records, replay, set_gateway
from longspan.daemon.telemetry import Telemetry, authorise
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.doctor import history, launches
from longspan.doctor.kept import keep
from longspan.errors import InputError
from longspan.launch import drill, journal, prover
from longspan.launch.actions import (
    Action,
    Ask,
    Call,
    SetGateway,
    Start,
    StartAgent,
    StartAgents,
    StopAll,
    Sweep,
)
from longspan.launch.autoscale import Autoscale, Bounds, Seen
from longspan.launch.changeable import merged, unchangeable
from longspan.launch.events import (
    AgentJoined,
    AgentSilent,
    Answered,
    Changed,
    Compared,
    DownAsked,
    Drained,
    Event,
    Scaled,
    StartFailed,
    Struck,
    Suspected,
    Tick,
    Wished,
)
from longspan.launch.group import Group
from longspan.launch.health import CANARY_SECONDS, CPU_STALL_SECONDS, STALL_SECONDS, Health
from longspan.launch.rolling import not_now
from longspan.launch.run_dir import Paths
from longspan.launch.steps import FRONT, Steps
from longspan.launch.traffic import WISHES

SILENT_AFTER_SECONDS = 3.0
CLOCK_SECONDS = 0.5
GATEWAY_SECONDS = 1.0
# A second gateway that is silent for longer has no say in whether a replica still has requests.
STANDBY_SECONDS = 10.0


def silences(links: Mapping[str, AgentLink], *, now: float, stalled_seconds: float) -> list[AgentSilent]:
    """The agents that have not beaten for a while.

    Args:
        stalled_seconds: how long we ourselves stood still (a paused machine, no CPU for us; seen: 52 s on a machine with
            a load of 20). That silence is ours, since the beats wait in our socket: it is not held against the agents.
    """
    if stalled_seconds > CLOCK_SECONDS:
        for link in links.values():
            link.last_beat = min(now, link.last_beat + stalled_seconds)  # a beat may have come since
    return [
        AgentSilent(name, now - link.last_beat)
        for name, link in links.items()
        if link.instance and now - link.last_beat > SILENT_AFTER_SECONDS
    ]


class Controller:
    """One deployment's loop. All decisions are the state machine's."""

    def __init__(
        self, places: Places, spec: DeploymentSpec, listen_host: str, start: StartIdentity | None = None
    ) -> None:
        """`start`: one to go on with, whose controller has ended."""
        self.places = places
        self.spec = spec
        self.listen_host = listen_host
        self.resumes = start is not None
        self.start = start or StartIdentity.new(spec)
        self.mark = self.start.mark
        self.agent_key, self.operator_key = self.start.agent_key, self.start.operator_key
        self.engine_key = self.start.engine_key
        self.api_key = places.api_key.read_text().strip()
        paths = Paths(self.start.run_dir, str(places.gateway_config))
        self.paths = paths
        self.standby: tuple[float, dict[str, Any]] | None = (
            None  # when the second gateway was heard last, and what
        )
        self.machine = Steps(
            spec=spec,
            paths=paths,
            mark=self.mark,
            secrets={paths.ray_token: self.start.ray_token, paths.engine_key: self.engine_key},
            python=sys.executable,
            nonce=self.start.nonce,
        )
        self.links = {name: AgentLink() for name in self.machine.agents}
        self.changed = asyncio.Condition()
        self.version = 0
        self.url = ""
        self.supervisor = 0  # its process id, while there is one
        self.tasks: set[asyncio.Task[None]] = set()
        # Of the engines that serve, by replica and the number of its start.
        self.watchers: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.gateway_states: dict[str, SetGateway] = {}
        bounds = Bounds(spec.autoscale_least, spec.max_replicas, spec.autoscale_queue_seconds)
        self.autoscale = Autoscale(bounds) if spec.autoscale_least else None
        self.scaled: dict[str, Any] | None = None  # what the queue decided last
        self.gone = asyncio.Event()
        self.history = places.history.open("a" if self.resumes else "w")
        self.launch_log = LaunchLog(LaunchStore(places.launches))
        self.checked = places.checked()
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="launch-log")
        self.telemetry = Telemetry(
            spec, places, agent_key=self.agent_key, operator_key=self.operator_key, engine_key=self.engine_key,
            status=self.status, engines=self._engines, gateway=self._gateway_metrics,
        )  # fmt: skip

    def _engines(self) -> dict[str, str]:
        """Where each replica's engine listens, or will."""
        return {
            name: one.group.engine_url for name, one in self.machine.replicas.by_name.items() if one.group
        }

    def _gateway_metrics(self) -> tuple[str, str] | None:
        """Where the gateway tells its figures, and the key that it asks for."""
        admin = self.machine.gateway_admin
        return (f"http://{admin}/metrics", self.operator_key) if admin else None

    # ---- the loop
    async def feed(self, event: Event, sender: dict[str, Any] | None = None) -> None:
        """One event through the state machine, recorded, its actions carried out.

        Args:
            sender: of an agent's event: its name, its instance, and how many events of it were taken with this one.
        """
        before, was_served = self.machine.phase, self.machine.replicas.served
        now = time.monotonic()
        actions, kept, error = journal.step(self.machine, event, now)
        if error is not None:
            traceback.print_exception(error)
        if kept is not None:
            self._record(kept, now, sender)  # first: who goes on from the record must know what was done
        self.perform(actions)
        # The record is of the launch; restarts stand in the status.
        if self.machine.phase != before and (not was_served or self.machine.stopping):
            self._note()
        self._take_spec()
        self._watch_engines()
        if self.machine.phase == "gone":
            self.gone.set()
        async with self.changed:
            self.version += 1
            self.changed.notify_all()

    def _record(self, event: Event, now: float, sender: dict[str, Any] | None) -> None:
        """One line of the history; a full disk must not end what serves, only the way back to it."""
        document = {"at": time.time(), **journal.to_json(event, now)}
        if sender:
            document["agent"] = sender
        try:
            self.history.write(json.dumps(document) + "\n")
            self.history.flush()
        except (OSError, TypeError, ValueError) as error:
            forget(self.places.resume)
            print(f"the events cannot be recorded: {error}", flush=True)

    def _take_spec(self) -> None:
        """Once a change is done, whoever asks what runs finds it; who follows us begins with the first one and its events."""
        if self.machine.spec is self.spec:
            return
        self.spec = self.machine.spec
        try:
            document = json.loads(self.places.spec.read_text())
            begun = document.get("begun_with", document["spec"])
            written = {**document, "spec": self.spec.to_json(), "begun_with": begun}
            write_private(self.places.spec, json.dumps(written))
            self._write_record()
        except (OSError, ValueError, LookupError) as error:
            print(f"the changed specification cannot be written: {error}", flush=True)

    def _note(self) -> None:
        """Keeps what this launch is made of, how far it came and how long its phases took, for the doctor."""
        failure = self.machine.failure.what if self.machine.failure else ""
        made_of = launches.recorded(self.spec, status.facts(self.machine), self.checked)
        seconds = history.durations_seconds(self.status())
        self.writer.submit(self.launch_log.note, self.machine.phase, made_of, failure, seconds)

    async def noted(self) -> None:
        """Waits until the launch record holds what was noted so far."""
        await asyncio.wrap_future(self.writer.submit(lambda: None))

    def perform(self, actions: list[Action]) -> None:
        """Carries out what the state machine decided."""
        for action in actions:
            match action:
                case StartAgents():
                    for name in self.machine.agents:
                        self._spawn(self._start_agent(name))
                case StartAgent(node):
                    self.links[node] = AgentLink()
                    self._spawn(self._start_agent(node))
                case Start(node, _) | Call(_, node, _, _) | StopAll(node):
                    self.links[node].tell(action)
                case Ask():
                    work = asking.ask(action, self.machine, self.api_key, self.engine_key)
                    self._spawn(self._answer(action.call, work))
                case Sweep(node, call):
                    # Hosts may share a file system: while the deployment lives, only what is that node's own is removed.
                    files = self.paths.run_dir if self.machine.stopping else self.paths.ray_dir(node)
                    work = starting.sweep(self._node(node), node, self.mark, files, self.spec)
                    self._spawn(self._answer(call, work))
                case SetGateway():
                    set_gateway(self.gateway_states, action)
                    self._write_gateway_config()

    def _write_gateway_config(self) -> None:
        # A state directory that somebody removed must not keep us from stopping what runs.
        try:
            write_private(self.places.gateway_config, self._gateway_toml())
        except OSError as error:
            print(f"the gateway's configuration cannot be written: {error}", flush=True)

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _max_running(self, name: str) -> int | None:
        """While a change is under way replicas differ."""
        replica = self.machine.replicas.get(name)
        return gateway_config.max_running(replica.spec.vllm_arguments) if replica else None

    def _standby_status(self) -> dict[str, Any] | None:
        """What the second gateway said lately of itself."""
        if self.standby is None or time.monotonic() - self.standby[0] > STANDBY_SECONDS:
            return None
        found = self.standby[1].get("status")
        return found if isinstance(found, dict) else None

    def _gateway_toml(self, *, standby: bool = False) -> str:
        """The file of the gateway, or of the second one: the same replicas in the same states, its own address and files."""
        key = self.api_key
        engines = self._engines()
        replicas = [
            gateway_config.Upstream(name, engines[name], one.state, one.reason, self._max_running(name))
            for name, one in self.gateway_states.items()
            if name in engines
        ]
        text = gateway_config.render(
            # A gateway that is started again must listen where the clients know it.
            listen=self.spec.standby_listen if standby else self.machine.gateway_address or self.spec.listen,
            key_sha256=hashlib.sha256(key.encode()).hexdigest(),
            admin_sha256=hashlib.sha256(
                (self.agent_key if standby else self.operator_key).encode()
            ).hexdigest(),
            ledger=self.paths.standby_ledger if standby else str(self.places.ledger),
            model=self.spec.served_name,
            replicas=replicas,
            upstream_key_file=self.paths.engine_key if standby else str(self.places.engine_key),
        )
        return f"{text}\n{self.spec.gateway_extra}"

    def _node(self, name: str) -> NodeSpec | None:
        """A node by its name; None for the front agent's machine."""
        every = (*self.spec.nodes, *self.spec.ray_nodes())
        return next((node for node in every if node.name == name), None)

    async def _start_agent(self, name: str) -> None:
        node = self._node(name)
        config = {
            "name": name,
            "controller_url": self.url,
            "key": self.agent_key,
            "mark": self.mark,
            # Nodes on this machine are told apart; the engine's key must lie where the gateway's agent looks.
            "run_dir": self.paths.run_dir,
            "log_dir": str(self.places.logs / name)
            if node is None or not node.ssh
            else logs_elsewhere(self.spec.name, name),
        }
        try:
            await starting.start_agent(node, config, self.spec, self.places.logs / f"{name}.start")
        except Exception as error:  # noqa: BLE001 - whatever it was, this node has no agent
            await self.feed(StartFailed(name, str(error)))

    async def _answer(self, call: str, work: Awaitable[Any]) -> None:
        """What the controller does itself is answered like what an agent does."""
        try:
            value = await work
        except Exception as error:  # noqa: BLE001 - whatever it was, it is the answer
            await self.feed(Answered(call, error=f"{type(error).__name__}: {error}"))
            return
        await self.feed(Answered(call, value))

    async def _clock(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(CLOCK_SECONDS)
            now = time.monotonic()
            silent = silences(self.links, now=now, stalled_seconds=now - last - CLOCK_SECONDS)
            for event in silent:
                await self.feed(event)
            await self._suspect({event.node: event.seconds for event in silent})
            last = now
            if self.supervisor and os.getppid() != self.supervisor:
                self._write_record()  # it was ended, and we go on by ourselves
            await self.feed(Tick())

    async def _suspect(self, silent: Mapping[str, float]) -> None:
        """Agents that fell silent, and those that are back."""
        for node, seconds in silent.items():
            if node not in self.machine.replicas.suspected and node != FRONT:
                await self.feed(Suspected(node, f"{node} has not answered for {seconds:.0f} s"))
        for node in [
            name for name in self.machine.replicas.suspected if name in self.links and name not in silent
        ]:
            await self.feed(Suspected(node, ""))

    async def _watch_gateway(self) -> None:
        """Lets the gateway's figures count, for ever: apart from the clock, which a gateway that hangs must not hold up."""
        while True:
            await asyncio.sleep(GATEWAY_SECONDS)
            machine = self.machine
            draining = [one.name for one in machine.replicas if one.draining_since is not None]
            scales = self.autoscale is not None and machine.replicas.served
            watches = machine.rolling is not None and machine.rolling.watches()
            if not machine.gateway_admin or machine.stopping or not (draining or scales or watches):
                continue  # nobody has a use for them
            found = await asking.gateway_status(machine.gateway_admin, self.operator_key)
            try:
                if found and (second := self._standby_status()):
                    found = asking.combined(found, second)
                done = asking.undisturbed(found) if found else set()
                seen = asking.seen_of(found) if found else None
                figures = asking.figures_of(found) if found and watches else None
            except (ValueError, LookupError, TypeError) as error:
                print(f"the gateway's status cannot be read: {error!r}", flush=True)
                continue
            for name in draining:
                if name in done:
                    await self.feed(Drained(name))
            if figures:
                await self.feed(Compared(figures))
            if self.autoscale and seen and scales:
                await self._scale(self.autoscale, seen)

    async def _scale(self, autoscale: Autoscale, seen: Seen) -> None:
        """Lets the queue decide how many replicas there are."""
        replicas = self.machine.replicas
        serving = sum(one.phase == "serving" and one.traffic.is_free for one in replicas)
        found = autoscale.decide(seen, wanted=replicas.wanted, serving=serving, now=time.monotonic())
        if found:
            wanted, reason = found
            self.scaled = {"replicas": wanted, "reason": reason, "unix_seconds": round(time.time(), 1)}
            print(f"{wanted} replicas instead of {replicas.wanted}: {reason}", flush=True)
            await self.feed(Scaled(wanted))

    def _watch_engines(self) -> None:
        """One watcher for each engine that serves."""
        replicas = self.machine.replicas.by_name.items()
        serving = {(name, one.epoch): one.group for name, one in replicas if one.phase == "serving"}
        for key in [key for key in self.watchers if key not in serving or self.machine.stopping]:
            self.watchers.pop(key).cancel()
        for key, group in serving.items():
            if group and key not in self.watchers and not self.machine.stopping:
                self.watchers[key] = self._spawn(self._watch_engine(key[0], group))

    async def _watch_engine(self, replica: str, group: Group) -> None:
        slow = self.spec.device == "cpu"
        health = Health(time.monotonic(), CPU_STALL_SECONDS if slow else STALL_SECONDS)
        engine = prover.Endpoint(group.engine_url, self.spec.served_name, self.engine_key)
        await watching.watch(
            engine, health, lambda reason: self.feed(Suspected(replica, reason)),
            CPU_STALL_SECONDS if slow else CANARY_SECONDS,
        )  # fmt: skip

    # ---- HTTP
    def _link(self, request: web.Request) -> tuple[str, AgentLink]:
        authorise(request, self.agent_key)
        name = request.match_info["name"]
        if name not in self.links:
            raise web.HTTPNotFound(text="no such agent\n")
        return name, self.links[name]

    async def post_events(self, request: web.Request) -> web.Response:
        """Beats and events of an agent."""
        name, link = self._link(request)
        try:
            instance, number, events = events_from_json(name, await request.json())
        except ValueError as error:  # a ProtocolError, or no JSON
            raise web.HTTPBadRequest(text=f"{error}\n") from error
        if link.instance and instance != link.instance:
            raise web.HTTPGone(text="another agent of this name is at work\n")
        first = not link.instance
        link.instance = instance
        link.last_beat = time.monotonic()
        sender = {"name": name, "instance": instance}
        if first:
            await self.feed(AgentJoined(name), {**sender, "taken": 0})
        begin = max(number, link.taken)
        link.taken = max(link.taken, number + len(events))
        for place, event in enumerate(events[begin - number :], begin + 1):
            self.telemetry.note(event)
            await self.feed(self._kept(name, event), {**sender, "taken": place})
        return web.json_response({})

    def _kept(self, node: str, event: Event) -> Event:
        """What a node collected goes into files beside its logs, and only its names into the history."""
        if not isinstance(event, Answered) or not event.call.startswith("collect:") or event.error:
            return event
        try:
            texts = {str(name): str(text) for name, text in dict(event.value).items()}
            return Answered(event.call, keep(self.places.logs / node, texts))
        except (OSError, TypeError, ValueError) as error:
            return Answered(event.call, error=f"it cannot be kept: {error}")

    async def get_commands(self, request: web.Request) -> web.Response:
        """Long-poll for the commands after a sequence number."""
        _, link = self._link(request)
        after = _number(request, "0")
        if len(link.commands) <= after:
            link.wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONG_POLL_SECONDS):
                    await link.wake.wait()
        return web.json_response({"commands": link.commands[after:]})

    async def get_status(self, request: web.Request) -> web.Response:
        """The status document; with `after=VERSION` only once something changed, or after a second."""
        authorise(request, self.operator_key)
        after = _number(request, "-1")
        if self.version == after:
            async with self.changed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await self.changed.wait_for(lambda: self.version != after)
        document = self.status()
        if after < 0 and self.machine.gateway_admin:  # somebody looks; who follows a launch has no use for it
            document["traffic"] = await asking.traffic(self.machine.gateway_admin, self.operator_key)
        return web.json_response(document)

    async def post_wish(self, request: web.Request) -> web.Response:
        """The operator's drain, isolate or restore of a replica or node: {"subject": name}."""
        authorise(request, self.operator_key)
        wish = request.path.rpartition("/")[2]
        try:
            subject = str((await request.json())["subject"])
        except (ValueError, LookupError, TypeError) as error:
            raise web.HTTPBadRequest(text='send {"subject": "r0"}\n') from error
        names = self.machine.replicas.subjects
        if subject not in names:
            raise web.HTTPUnprocessableEntity(text=f"there is no {subject!r} here, only {', '.join(names)}\n")
        await self.feed(Wished(subject, wish))
        return web.json_response({"held": self.machine.replicas.held})

    async def post_scale(self, request: web.Request) -> web.Response:
        """Another number of replicas: {"replicas": 2}. The answer does not wait for it."""
        authorise(request, self.operator_key)
        try:
            wanted = int((await request.json())["replicas"])
        except (ValueError, LookupError, TypeError) as error:
            raise web.HTTPBadRequest(text='send {"replicas": 2}\n') from error
        if not 1 <= wanted <= self.spec.max_replicas:
            text = f"1 to {self.spec.max_replicas} replicas have room on the nodes of this deployment, not {wanted}\n"
            raise web.HTTPUnprocessableEntity(text=text)
        if not self.machine.replicas.served:
            raise web.HTTPConflict(text="the deployment has not served yet\n")
        await self.feed(Scaled(wanted))
        return web.json_response({"replicas": wanted})

    async def post_change(self, request: web.Request) -> web.Response:
        """Another specification, one replica at a time: {"spec": …, "watch_seconds": 60, "outage": false}. The answer does not wait
        for it; it says what was refused: {"refused": {"what", "remedy", "wish"}}, `wish`: it can never be fulfilled."""
        authorise(request, self.operator_key)
        try:
            body = await request.json()
            asked = DeploymentSpec.from_json(body["spec"])
            watch_seconds, outage = float(body["watch_seconds"]), bool(body["outage"])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            text = 'send {"spec": …, "watch_seconds": 60, "outage": false}\n'
            raise web.HTTPBadRequest(text=text) from error
        machine = self.machine
        never = unchangeable(machine.spec, asked)
        refused = never or not_now(machine.replicas, machine.ground, machine.rolling, outage=outage)
        if refused:
            what, remedy = refused
            return web.json_response({"refused": {"what": what, "remedy": remedy, "wish": never is not None}})
        await self.feed(Changed(merged(machine.spec, asked).to_json(), watch_seconds, outage))
        return web.json_response({})

    async def post_standby(self, request: web.Request) -> web.Response:
        """The second gateway's beat: {"address", "status"}, each null while there is none; answered with the file that it is to have."""
        authorise(request, self.agent_key)
        try:
            told = dict(await request.json())
        except (ValueError, TypeError) as error:
            raise web.HTTPBadRequest(text='send {"address": null, "status": null}\n') from error
        if not self.spec.standby_node:
            raise web.HTTPNotFound(text="this deployment has one gateway\n")
        self.standby = (time.monotonic(), told)
        return web.json_response({"config": self._gateway_toml(standby=True)})

    def _second_gateway(self) -> dict[str, Any] | None:
        if not self.spec.standby_node:
            return None
        at, told = self.standby or (None, {})
        address = told.get("address")
        return {
            "node": self.spec.standby_node, "listen": self.spec.standby_listen,
            "endpoint": f"http://{address}/v1" if address else None,
            "heard_seconds_ago": round(time.monotonic() - at, 1) if at is not None else None,
        }  # fmt: skip

    async def post_down(self, request: web.Request) -> web.Response:
        """Takes the deployment down; the answer does not wait for it."""
        authorise(request, self.operator_key)
        await self.feed(DownAsked())
        return web.json_response({})

    async def post_strike(self, request: web.Request) -> web.Response:
        """A drill's fault: {"fault": …, "rank": …}, or with "resume" the end of a pause."""
        authorise(request, self.operator_key)
        try:
            wanted = await request.json()
            node, arguments = drill.target(
                wanted["fault"], self.status(), wanted.get("rank"), wanted.get("replica")
            )
        except (ValueError, LookupError, TypeError, AttributeError, InputError) as error:
            raise web.HTTPBadRequest(text=f"no fault: {error}\n") from error
        if node == drill.CONTROLLER:
            if not self.supervisor:
                raise web.HTTPConflict(
                    text="nobody supervises this controller, so nobody would start another one\n"
                )
            asyncio.get_running_loop().call_later(
                0.2, os.kill, os.getpid(), signal.SIGKILL
            )  # after the answer
            return web.json_response({"node": node})
        if wanted.get("resume"):
            arguments["signal"] = "CONT"
        await self.feed(Struck(node, arguments))
        return web.json_response({"node": node})

    def status(self) -> dict[str, Any]:
        """What `longspan status --json` prints."""
        places = self.places
        document = status.document(
            self.machine,
            state_dir=str(places.root),
            api_key_file=str(places.api_key),
            logs=str(places.logs),
            now=time.monotonic(),
        )
        scaling = self.autoscale and {**dataclasses.asdict(self.autoscale.bounds), "last": self.scaled}
        second = self._second_gateway()
        return {
            **document,
            "standby": second,
            "autoscale": scaling,
            "alarms": self.telemetry.alarms(),
            "version": self.version,
        }

    # ---- life
    def _write_record(self) -> None:
        """Who controls: whoever supervises us where somebody does, since that stays when we are replaced."""
        me = identity(os.getpid())
        assert me is not None
        if os.getppid() != self.supervisor:
            self.supervisor = 0
        who = (identity(self.supervisor) if self.supervisor else None) or me
        record = {
            "pid": who.pid, "start_ticks": who.start_ticks, "url": self.url, "key": self.operator_key,
            "identity": self.spec.identity, "mark": self.mark, "run_dir": self.paths.run_dir,
            "controller": {"pid": me.pid, "start_ticks": me.start_ticks},
        }  # fmt: skip
        write_private(self.places.controller, json.dumps(record))

    def _recover(self) -> Resumed:
        """Brings machine, links and gateway states to where the last controller ended; before anybody can ask."""
        found = replay(self.machine, self.start.begun, records(self.places.history))
        self.links, self.gateway_states = found.links, found.gateway
        self._take_spec()
        self.writer.submit(self.launch_log.go_on)
        return found

    async def _go_on(self, found: Resumed) -> None:
        """Sees to what the last controller had begun and not finished."""
        if found.gateway:
            self._write_gateway_config()
        self.perform([*found.asked.values()])
        for node in sorted(found.starting):
            await self.feed(StartFailed(node, "the controller that was starting it has ended"))
        for name, replica in list(self.machine.replicas.by_name.items()):
            if replica.traffic.against_engine:
                await self.feed(Suspected(name, ""))  # who watches it now has seen nothing yet
        print(f"goes on in phase {self.machine.phase}", flush=True)
        self._watch_engines()
        if self.machine.phase == "gone":
            self.gone.set()

    def _has_url(self, port: int) -> None:
        """Where agents and the second gateway find us: the same over all controllers of a start."""
        host = f"[{self.listen_host}]" if ":" in self.listen_host else self.listen_host
        self.url = f"http://{host}:{port}"
        if self.spec.standby_node:
            settings = {"url": self.url, "config": self.paths.standby_config, "key": self.agent_key}
            self.machine.secrets[self.paths.standby] = json.dumps(settings)

    async def run(self, listener: socket.socket | None = None) -> None:
        """From start to gone. `listener`: a socket that is known to others already."""
        app = web.Application(client_max_size=16 << 20)
        app.router.add_post("/v1/agents/{name}/events", self.post_events)
        app.router.add_get("/v1/agents/{name}/commands", self.get_commands)
        app.router.add_get("/v1/status", self.get_status)
        app.router.add_post("/v1/down", self.post_down)
        app.router.add_post("/v1/strike", self.post_strike)
        app.router.add_post("/v1/scale", self.post_scale)
        app.router.add_post("/v1/change", self.post_change)
        app.router.add_post("/v1/standby", self.post_standby)
        for wish in WISHES:
            app.router.add_post(f"/v1/{wish}", self.post_wish)
        app.router.add_routes(self.telemetry.routes())
        if listener:
            self._has_url(listener.getsockname()[1])  # what is recorded of the files that agents write has it
        found = self._recover() if self.resumes else None
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        site = web.SockSite(runner, listener) if listener else web.TCPSite(runner, self.listen_host, 0)
        await site.start()
        self._has_url(runner.addresses[0][1])
        self.supervisor = os.getppid() if listener else 0
        self._write_record()
        write_private(self.places.engine_key, self.engine_key)
        # Until here a signal waits, or where nobody supervises us simply ends us: nothing has been started yet.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: self._spawn(self.feed(DownAsked())))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
        if found is not None:
            await self._go_on(found)
        else:
            self.start.save(self.places.resume)
            self.perform(self.machine.begin(self.start.begun))
            self._note()
        clock = asyncio.create_task(self._clock())
        self._spawn(self._watch_gateway())
        self._spawn(self.telemetry.run(self.url))
        await self.gone.wait()
        with contextlib.suppress(OSError):
            write_private(self.places.last_status, json.dumps(self.status()))
        await self.noted()
        self.writer.shutdown()
        await asyncio.sleep(1.5)  # whoever watches sees the end
        await asyncio.to_thread(starting.end_along, 3)
        for task in (clock, *self.tasks):
            task.cancel()
        self.places.gateway_config.unlink(missing_ok=True)
        self.places.engine_key.unlink(missing_ok=True)
        forget(self.places.resume)
        shutil.rmtree(self.paths.run_dir, ignore_errors=True)
        await runner.cleanup()
        self.telemetry.close()
        with contextlib.suppress(OSError):
            self.history.close()
        self.places.controller.unlink(missing_ok=True)  # last: while it is there, `down` waits for us


def _number(request: web.Request, default: str) -> int:
    """The query's `after`."""
    try:
        return int(request.query.get("after", default))
    except ValueError as error:
        raise web.HTTPBadRequest(text="after must be a number\n") from error


def main() -> None:
    """See the module's text. A supervisor hands over the file descriptors of its listening socket and of the lock that it holds."""
    places = Places(Path(sys.argv[1]))
    document = json.loads(places.spec.read_text())
    spec = DeploymentSpec.from_json(document.get("begun_with", document["spec"]))
    listener = socket.socket(fileno=int(sys.argv[2])) if len(sys.argv) > 2 else None

    async def life() -> None:
        start = StartIdentity.load(places.resume)
        await Controller(places, spec, document["controller_host"], start).run(listener)

    with contextlib.ExitStack() as stack:
        if listener is None:
            lock = stack.enter_context(places.lock.open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.exit(f"another controller holds {places.lock}")
        asyncio.run(life())


if __name__ == "__main__":
    main()

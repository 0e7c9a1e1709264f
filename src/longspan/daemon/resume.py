"""What a controller needs to go on where another one ended: who the start is, and what was recorded of it.

The machine's state is made again out of the recorded events (`launch.journal`). With it come the agents' commands, which
follow from the same events in the same order, so that an agent's place in them stays right; and what was under way.
"""

import asyncio
import contextlib
import dataclasses
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longspan.daemon.places import write_private
from longspan.daemon.protocol import command_to_json
from longspan.deployment import DeploymentSpec
from longspan.launch import journal
from longspan.launch.actions import Action, Ask, Call, SetGateway, Start, StartAgent, StopAll, Sweep
from longspan.launch.events import AgentJoined, Answered, Event, StartFailed
from longspan.launch.steps import Steps

BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(slots=True)
class AgentLink:
    """What the controller knows of one agent."""

    instance: str = ""
    taken: int = 0  # how many of its events; a batch that was sent twice is known by that
    last_beat: float = 0.0
    commands: list[dict[str, Any]] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, action: Start | Call | StopAll) -> None:
        """One more command."""
        self.commands.append({"seq": len(self.commands) + 1, **command_to_json(action)})
        self.wake.set()


@dataclass(frozen=True, slots=True)
class StartIdentity:
    """What tells one start of a deployment from all others; most of it is secret.

    Attributes:
        boot: of this machine; the clock of the recorded events is that boot's.
        begun: the time of the first actions.
    """

    mark: str
    run_dir: str
    agent_key: str = field(repr=False)
    operator_key: str = field(repr=False)
    engine_key: str = field(repr=False)
    ray_token: str = field(repr=False)
    nonce: str
    boot: str
    begun: float

    @classmethod
    def new(cls, spec: DeploymentSpec) -> "StartIdentity":
        """Of a start that begins now."""
        start = secrets.token_hex(6)
        return cls(
            mark=f"{spec.name}-{start}",
            run_dir=f"/tmp/longspan-{start}",  # short, as `Paths.ray_dir` says
            agent_key=secrets.token_urlsafe(32), operator_key=secrets.token_urlsafe(32), engine_key=secrets.token_urlsafe(32),
            ray_token="" if spec.ray_address else secrets.token_hex(32),
            nonce=secrets.token_hex(16), boot=BOOT.read_text().strip(), begun=time.monotonic(),
        )  # fmt: skip

    def save(self, path: Path) -> None:
        """Readable by its owner only."""
        write_private(path, json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls, path: Path) -> "StartIdentity | None":
        """The start that can be gone on with; None where there is none, or it was of another boot."""
        try:
            found = cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return found if found.boot == BOOT.read_text().strip() else None


def records(path: Path) -> Iterator[dict[str, Any]]:
    """What was recorded. A last line that was cut off is removed: nothing was done for it yet."""
    good = 0
    with path.open("rb+") as file:
        for line in file:
            try:
                document = json.loads(line)
            except ValueError:
                break
            if not line.endswith(b"\n"):
                break
            good += len(line)
            yield document
        file.truncate(good)


@dataclass(slots=True)
class Resumed:
    """What stood when the last controller ended.

    Attributes:
        gateway: what the gateway was told of each replica.
        asked: call -> what the controller itself was about to answer.
        starting: hosts whose agent was being started again.
    """

    links: dict[str, AgentLink]
    gateway: dict[str, SetGateway] = field(default_factory=dict)
    asked: dict[str, Ask | Sweep] = field(default_factory=dict)
    starting: set[str] = field(default_factory=set)

    def take(self, event: Event, record: Mapping[str, Any]) -> None:
        """Whose event it was, and what it settles."""
        match event:
            case Answered(call):
                self.asked.pop(call, None)
            case AgentJoined(node) | StartFailed(node):
                self.starting.discard(node)
        if sender := record.get("agent"):
            link = self.links[sender["name"]]
            link.instance, link.taken = sender["instance"], max(link.taken, sender["taken"])

    def note(self, actions: Iterable[Action]) -> None:
        """What was decided: carried out already, or still to be."""
        for action in actions:
            match action:
                case StartAgent(node):
                    self.links[node] = AgentLink()
                    self.starting.add(node)
                case Start() | Call() | StopAll():
                    self.links[action.node].tell(action)
                case Ask() | Sweep():
                    self.asked[action.call] = action
                case SetGateway():
                    set_gateway(self.gateway, action)


def set_gateway(states: dict[str, SetGateway], action: SetGateway) -> None:
    """A replica's state as the gateway is to know it; one that is gone does not stand there any more."""
    states[action.replica] = action
    if action.state == "gone":
        del states[action.replica]


def replay(machine: Steps, begun: float, recorded: Iterable[Mapping[str, Any]]) -> Resumed:
    """Brings a fresh machine to where the recorded events lead."""
    found = Resumed({name: AgentLink() for name in machine.agents})
    found.note(machine.begin(begun))
    for record in recorded:
        event, now = journal.from_json(record)
        found.take(event, record)
        actions, _, _ = journal.step(machine, event, now)
        found.note(actions)
    now = time.monotonic()
    for link in found.links.values():
        link.last_beat = now  # its patience begins anew
    return found


def forget(path: Path) -> None:
    """A record that is not whole must not be gone on with."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)

"""Drives `Steps` by hand: invented events in, actions out, and the promises that hold for every run checked at the end."""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.launch import journal
from longspan.launch.actions import Action, Ask, Call, SetGateway, Start, StartAgents, StopAll, Sweep
from longspan.launch.checkpoint import CheckpointDigest, FileDigest
from longspan.launch.commands import named
from longspan.launch.events import AgentJoined, Answered, DownAsked, Event, Lines, Tick
from longspan.launch.judge import completion_layer
from longspan.launch.logprobs import Reference, TokenLogprobs
from longspan.launch.proof_texts import TEXTS
from longspan.launch.replica import Replica
from longspan.launch.run_dir import Paths
from longspan.launch.steps import FRONT, PHASES, Steps
from longspan.launch.verdict import Evidence
from longspan.launch.words import EVENT_MARK

SECRETS = {"/tmp/longspan-m/ray-token": "t0psecret-ray", "/tmp/longspan-m/engine-key": "t0psecret-engine"}
NODES = (
    NodeSpec("a", "10.0.0.1", 1, python="/opt/a/python", env={"NCCL_SOCKET_IFNAME": "eth0"}),
    NodeSpec("b", "10.0.0.2", 1, ssh="ops@b", python="/opt/b/python", env={"NCCL_SOCKET_IFNAME": "ib0"}),
)


def make_spec(**changes: Any) -> DeploymentSpec:
    """PP=2 over two hosts with the Ray executor, unless changed."""
    plain: dict[str, Any] = {
        "name": "default", "identity": "i", "model": "/models/m", "served_name": "m", "tp": 1, "pp": 2,
        "executor": "ray", "device": "cpu", "nodes": NODES, "listen": "127.0.0.1:8000",
    }  # fmt: skip
    return DeploymentSpec(**{**plain, **changes})


def make_steps(spec: DeploymentSpec) -> Steps:
    """A fresh machine."""
    return Steps(
        spec=spec, paths=Paths("/tmp/longspan-m", "/state/gateway.toml"), mark="default-m",
        secrets=dict(SECRETS), python="/opt/controller/python", nonce="n",
    )  # fmt: skip


def launcher_line(event: str, **values: Any) -> str:
    """What the launcher prints for the controller."""
    return EVENT_MARK + json.dumps({"event": event, **values})


def copy(digest: str = "d", path: str = "model.safetensors") -> dict[str, Any]:
    """A checkpoint's digest as an agent sends it."""
    file = FileDigest(path, 10, digest, "whole", 10)
    return CheckpointDigest("/models/m", "n", (file,)).to_json()


def texts(value: float) -> tuple[TokenLogprobs, ...]:
    """The proof's texts with one log-probability for all tokens."""
    return tuple(TokenLogprobs((1, 2, 3), (value,) * 3) for _ in TEXTS)


def reference(value: float) -> dict[str, Any]:
    """An agent's answer: a one-rank run, in the deployment's dtype and in float32."""
    return {
        "own": Reference("auto", "test", texts(value)).to_json(),
        "exact": Reference("float32", "test", texts(value)).to_json(),
    }


def evidence(value: float = -1.0) -> Evidence:
    """What a deployment answers whose tokens all have one log-probability."""
    few = texts(value)[:2]
    return Evidence(completion_layer(" Paris", 2, 0.1), texts(value), "", few, few)


FACTS = {"ray": "2.60.0", "vllm": "0.32.0", "python": "3.11.2"}


@dataclass(slots=True)
class Drive:
    """One machine, what it was told and what it wanted. Time goes on by a second with every event."""

    machine: Steps
    actions: list[Action] = field(default_factory=list)
    now: float = 100.0
    stopped_at: int | None = None
    unconfirmed: list[str] = field(default_factory=list)
    ended: set[tuple[str, int]] = field(default_factory=set)

    @property
    def r0(self) -> Replica:
        """The first replica."""
        return self.machine.replicas.by_name["r0"]

    def note(self, actions: list[Action]) -> list[Action]:
        """Remembers actions, and judges at once what could not be told later."""
        for action in actions:
            if (
                isinstance(action, Start)
                and (epoch := named(action.process.name)[1]) > 1
                and action.node != FRONT
            ):
                # Never two groups on one GPU: every node has confirmed the end of the one before.
                left = {node.name for node in self.machine.nodes} - {
                    name for name, of in self.ended if of == epoch
                }
                if left:
                    self.unconfirmed.append(f"{action.process.name} started, {left} did not confirm")
            if isinstance(action, SetGateway) and action.state == "ready" and not self.confirmed():
                self.unconfirmed.append(f"ready with ranks {self.r0.group.ranks}")
        if self.stopped_at is None and self.machine.phase in {"stopping", "gone"}:
            self.stopped_at = len(self.actions)
        self.actions += actions
        return actions

    def confirmed(self) -> bool:
        """Whether every node has said which ranks are its own, and they are where the plan wants them."""
        machine = self.machine
        wanted = {rank: node.address for rank, node in enumerate(machine.spec.rank_nodes())}
        found = {rank: seen.address for rank, seen in machine.replicas.by_name["r0"].group.ranks.items()}
        asked = set(machine.replicas.by_name["r0"].group.rank_devices) == {
            node.name for node in machine.nodes
        }
        return asked and (found == wanted or machine.spec.world_size == 1)

    def begin(self) -> list[Action]:
        """The first actions."""
        return self.note(self.machine.begin(self.now))

    def do(self, event: Event, seconds: float = 1.0) -> list[Action]:
        """One event."""
        self.now += seconds
        if (
            isinstance(event, Answered)
            and event.call.startswith("end_group:")
            and event.value == {"left": []}
        ):
            node, _, epoch = event.call.partition(":")[2].partition("#")
            self.ended.add((node, int(epoch or 1)))
        if (
            isinstance(event, Answered)
            and event.call.startswith("swept:")
            and event.value == {"left": []}
            and self.r0.fence
        ):
            self.ended.add((event.call.partition(":")[2].partition("#")[0], self.r0.fence.epoch))
        return self.note(self.machine.handle(event, self.now))

    def answer(self, call: str, value: Any = None, error: str = "") -> list[Action]:
        """The answer to a call or a question."""
        return self.do(Answered(call, value, error))

    def say(self, node: str, process: str, *lines: str) -> list[Action]:
        """Lines of a process."""
        return self.do(Lines(node, process, lines))

    # ---- the way of a launch that goes well, step by step
    def agents(self) -> list[Action]:
        """All agents join."""
        self.begin()
        found: list[Action] = []
        for name in self.machine.agents:
            found += self.do(AgentJoined(name))
        return found

    def checkpoint(
        self, digests: Mapping[str, Any] | None = None, facts: Mapping[str, Any] | None = None
    ) -> list[Action]:
        """All nodes answer: the same versions and the same copies, unless told otherwise."""
        found: list[Action] = []
        for number, node in enumerate(self.machine.spec.ray_nodes()):
            found += self.answer(f"facts:{node.name}", (facts or {}).get(node.name, FACTS))
            found += self.answer(f"write:{node.name}", {})
            found += self.answer(f"ports:{node.name}", [7000 + 10 * number + i for i in range(5)])
            if node in self.machine.nodes:
                found += self.answer(f"digest:{node.name}", (digests or {}).get(node.name, copy()))
        return found

    def ray(self) -> list[Action]:
        """The head's Ray runs (if it is ours) and all GPUs join."""
        found: list[Action] = []
        if not self.machine.spec.ray_address:
            found += self.say(self.machine.spec.ray_nodes()[0].name, "ray", "Ray runtime started.")
        size = self.machine.spec.world_size
        return found + self.say(
            self.machine.head.name, "launcher", launcher_line("gpus", have=size, want=size, nodes=[])
        )

    def reserved(self) -> list[Action]:
        """The placement group stands; with the mp executor every bundle has its holder."""
        spec = self.machine.spec
        bundles = [node.address for node in spec.rank_nodes()]
        lines = [launcher_line("reserved", placement_group="pg", bundles=bundles)]
        if spec.executor == "mp":
            holders = [{"pid": 50 + i, "node_id": "n", "gpu_ids": [i]} for i in range(spec.world_size)]
            lines.append(launcher_line("holders", holders=holders))
        return self.say(self.machine.head.name, "launcher", *lines)

    def ranks_join(self, only: int | None = None) -> list[Action]:
        """Every rank (or the first few) announces itself as vLLM does."""
        found: list[Action] = []
        spec = self.machine.spec
        for rank, node in list(enumerate(spec.rank_nodes()))[:only]:
            text = f"rank {rank} in world size {spec.world_size} is assigned as DP rank 0"
            if spec.executor == "mp":
                found += self.say(node.name, "engine", f"(Worker_PP{rank} pid={100 + rank}) INFO {text}")
            else:
                found += self.say(
                    self.machine.head.name, "launcher",
                    f"\x1b[36m(RayWorkerProc pid={100 + rank}, ip={node.address})\x1b[0m INFO {text}",
                )  # fmt: skip
        return found

    def ready(self) -> list[Action]:
        """The engine's front end says that it is ready."""
        process = "engine" if self.machine.spec.executor == "mp" else "launcher"
        return self.say(self.machine.head.name, process, "INFO:     Application startup complete.")

    def ranks_confirmed(self) -> list[Action]:
        """Every node finds the ranks that the plan put there."""
        found: list[Action] = []
        spec = self.machine.spec
        for node in self.machine.nodes if spec.executor == "mp" else ():
            titles = {
                str(100 + rank): f"VLLM::Worker_PP{rank // spec.tp}_TP{rank % spec.tp}"
                for rank, at in enumerate(spec.rank_nodes())
                if at == node
            }
            found += self.answer(f"workers:{node.name}", {**titles, "7": "VLLM::EngineCore"})
        for node in self.machine.nodes:
            own = {str(100 + r): [] for r, at in enumerate(self.machine.spec.rank_nodes()) if at == node}
            found += self.answer(f"ranks:{node.name}", own)
        return found

    def gateway(self) -> list[Action]:
        """The gateway listens."""
        return self.say(FRONT, "gateway", '{"event": "listening", "address": "127.0.0.1:8000"}')

    def first_token(self) -> list[Action]:
        """A token came through the gateway."""
        return self.answer("first_token:", {"ttft_seconds": 0.1, "text": " Paris", "detail": "' Paris'"})

    def proof(self, value: float = -1.0) -> list[Action]:
        """Evidence and the head's reference agree."""
        found = self.answer("evidence:", evidence(value))
        return found + self.answer(f"reference:{self.machine.head.name}", reference(-1.0))

    def stages(self) -> list[Callable[[], list[Action]]]:
        """All of the above in order."""
        return [
            self.agents, self.checkpoint, self.ray, self.reserved, self.ranks_join, self.ready,
            self.ranks_confirmed, self.gateway, self.first_token, self.proof,
        ]  # fmt: skip

    def until(self, last: str) -> list[Action]:
        """Everything up to and with a stage by its name; returns that stage's actions."""
        found: list[Action] = []
        for stage in self.stages():
            found = stage()
            if stage.__name__ == last:
                return found
        raise AssertionError(f"no stage {last}")

    def through(self, count: int) -> None:
        """The first so many stages; none at all is the beginning of the first."""
        if not count:
            self.begin()
        for stage in self.stages()[:count]:
            stage()

    def stop_answers(self) -> None:
        """Every agent that was asked for evidence gives some, every one that was told to stop says that it has, and those
        that were being started fail to."""
        for call in sorted(self.machine.stopping.evidence if self.machine.stopping else ()):
            self.answer(call, {})
        for action in list(self.actions):
            if isinstance(action, StopAll):
                self.answer(f"stopped:{action.node}", {"left": []})
        self.do(Tick(), 1000)
        for action in list(self.actions):
            if isinstance(action, Sweep):
                self.answer(f"swept:{action.node}", {"left": []})

    def started(self) -> list[tuple[str, str]]:
        """(node, process) of all that was started."""
        return [(a.node, a.process.name) for a in self.actions if isinstance(a, Start)]


def outcome(machine: Steps) -> dict[str, Any]:
    """Everything that a machine knows, for the comparison of two; left out are the clock's own
    fields, and the ends of logs, which an event of an exit brings along."""
    left_out = {"history", "now", "last_sign", "tails"}
    return {f.name: getattr(machine, f.name) for f in fields(machine) if f.name not in left_out}


def check(drive: Drive) -> None:
    """What must hold in every run, however it went."""
    machine = drive.machine
    assert drive.unconfirmed == []
    stops = Counter(a.node for a in drive.actions if isinstance(a, StopAll))
    if machine.phase in {"stopping", "gone"}:
        assert drive.stopped_at is not None
        late = drive.actions[drive.stopped_at :]
        asked = [a for a in late if isinstance(a, Call)]
        assert {a.what for a in asked} <= {"collect"}
        assert [a for a in late if isinstance(a, Start | StartAgents | Ask)] == []
        assert [a for a in late if isinstance(a, SetGateway) and a.state == "ready"] == []
        # Nothing is ended before the evidence has come or was given up; then every agent is told once.
        assert stops == (Counter() if machine.stopping.evidence else Counter(machine.ground.joined))
    else:
        assert stops == Counter()
        assert machine.failure is None
    begun = [machine.started[phase] for phase in PHASES if phase in machine.started]
    assert begun == sorted(begun)
    assert all(machine.ended[phase] >= machine.started[phase] for phase in machine.ended)
    assert max(Counter(drive.started()).values(), default=1) == 1
    calls = [a.call for a in drive.actions if isinstance(a, Call | Ask)]
    assert len(calls) == len(set(calls))
    if machine.phase == "serving":
        assert machine.replicas.by_name["r0"].group.proof is not None
        assert machine.replicas.by_name["r0"].group.proof.verdict != "failed"
    for action in drive.actions:
        if isinstance(action, Start):
            text = json.dumps(action.process.to_json())
            assert [secret for secret in SECRETS.values() if secret in text] == []
    again = make_steps(machine.spec)
    again.begin(100.0)
    for now, event in machine.history:
        document = json.loads(json.dumps(journal.to_json(event, now)))
        assert journal.from_json(document) == (event, now)
        again.handle(*journal.from_json(document))
    assert outcome(again) == outcome(machine)


@contextlib.contextmanager
def checked_drives() -> Iterator[Callable[..., Drive]]:
    """For a fixture: makes machines, and checks each of them when the test is over."""
    made: list[Drive] = []

    def make(**changes: Any) -> Drive:
        made.append(Drive(make_steps(make_spec(**changes))))
        return made[-1]

    yield make
    for drive in made:
        check(drive)


def take_down(drive: Drive) -> None:
    """Down is asked, all answers come; nothing may be left open."""
    drive.do(DownAsked())
    drive.stop_answers()
    assert drive.machine.phase == "gone"

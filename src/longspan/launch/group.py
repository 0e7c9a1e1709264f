"""One engine group from its reservation to its proof: a pure state machine inside that of the deployment.

A group is one replica's ranks. It fails as a whole: `failure` says why, and `launch.steps` decides what follows. The
phases that it goes through are the deployment's own from "ray" (waiting for GPUs) on; `timeline` keeps them in order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.finding import Finding
from longspan.launch import commands, verdict
from longspan.launch.actions import Action, Ask, Call, SetGateway, Start, call_id, call_of, call_to
from longspan.launch.checkpoint import CheckpointDigest
from longspan.launch.commands import gpu_id
from longspan.launch.failure import Failure, FailureKind
from longspan.launch.phases import EnginePhase, RankSeen, later, phase_seen, rank_of_title, rank_seen
from longspan.launch.proof import Proof
from longspan.launch.run_dir import Paths, Ports
from longspan.launch.verdict import Evidence
from longspan.launch.words import GROUP_VARIABLE, KEY_FILE_VARIABLE, MARK_VARIABLE

GroupPhase = Literal["ray", "reservation", "engine", "gateway", "first token", "verified", "serving"]
# "rank" is what an agent calls a rank's own process, which Ray or vLLM started.
ENGINE_PROCESSES = frozenset({"launcher", "engine", "rank"})


@dataclass(slots=True)
class Group:
    """The state of one group. Its methods return what to do; all of them are told the time first, by `now`.

    Attributes:
        epoch: counts the groups of a deployment; each has ports, process names and calls of its own.
        digests: node -> its copy of the checkpoint, known before the group starts.
        waiting: calls and questions without an answer yet; any other answer is dropped.
        ports: of the head, where the engine listens and the ranks meet.
        bundles: addresses of the placement group's bundles, in rank order.
        ranks: rank -> what its own process said, then where its node's agent found it.
        rank_devices: node -> pid -> GPU UUIDs, as its agent answered.
        replica: whose group it is.
        references: node -> what one rank says there of the checkpoint; shared by all groups of the deployment.
        yardstick: the node whose reference is asked for; only its own replica asks, others wait for the answer.
        asked_all: every node's copy is being compared, since the head's did not agree.
    """

    spec: DeploymentSpec
    paths: Paths
    mark: str
    ray_address: str
    ports: Ports
    digests: Mapping[str, CheckpointDigest | None]
    now: float
    gateway_up: bool = False
    epoch: int = 1
    replica: str = "r0"
    yardstick: str = ""
    phase: GroupPhase = "ray"
    timeline: list[tuple[GroupPhase, float]] = field(default_factory=list)
    engine_phase: EnginePhase = "starting"
    engine_times: dict[str, float] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    gpus_seen: str = ""
    placement_group: str = ""
    bundles: list[str] = field(default_factory=list)
    gpu_ids: list[list[int | str]] = field(default_factory=list)
    ranks: dict[int, RankSeen] = field(default_factory=dict)
    rank_devices: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    first_token: dict[str, Any] = field(default_factory=dict)
    references: dict[str, Any] = field(default_factory=dict)
    evidence: Evidence | None = None
    asked_all: bool = False
    proof: Proof | None = None
    findings: list[Finding] = field(default_factory=list)
    failure: Failure | None = None

    # ---- helpers
    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes in use, the first rank's first."""
        return self.spec.used_nodes()

    @property
    def head(self) -> NodeSpec:
        """The node of rank 0, where the engine's front end runs."""
        return self.nodes[0]

    @property
    def engine_url(self) -> str:
        """Where the engine listens."""
        return f"http://{self.head.address}:{self.ports.engine}"

    def _enter(self, phase: GroupPhase) -> None:
        self.phase = phase
        self.timeline.append((phase, self.now))

    def _fail(self, kind: FailureKind, what: str, remedy: str = "") -> list[Action]:
        if self.failure is None:
            self.failure = Failure(kind, self.phase, what, remedy)
        self.waiting.clear()
        return []

    @property
    def id(self) -> str:
        """See `commands.group_id`."""
        return commands.group_id(self.mark, self.epoch)

    def _call(self, node: str, what: str, arguments: dict[str, Any]) -> Call:
        call = call_to(node, what, arguments, self.epoch)
        self.waiting.add(call.call)
        return call

    def _ask(self, what: Literal["first_token", "evidence"]) -> Ask:
        """But for the very first group the engine itself is asked: it gets traffic only once its answers were judged."""
        call = call_id(what, "", self.epoch)
        self.waiting.add(call)
        return Ask(call, what, {"direct": True} if self.epoch > 1 else {}, self.replica)

    def awaited(self) -> str:
        """Whom the phase waits for, as a sentence with a blank before it; empty where it cannot be told."""
        if self.phase == "engine":
            missing = sorted(set(range(self.spec.world_size)) - set(self.ranks))
            names = [self.spec.rank_nodes()[rank].name for rank in missing]
            return f" Ranks {missing} (on {', '.join(names)}) never joined." if missing else ""
        return f" Not answered: {', '.join(sorted(self.waiting))}." if self.waiting else ""

    # ---- the launcher: GPUs, reservation
    def start(self) -> list[Action]:
        """The launcher waits for the nodes' GPUs, reserves them, and with the Ray executor runs the front end."""
        spec, paths = self.spec, self.paths
        front_env = commands.front_environment(
            spec, ray_address=self.ray_address, key_file=paths.engine_key, config_dir=paths.vllm_config
        )
        launcher = commands.launcher(
            spec,
            ray_address=self.ray_address,
            arguments=self._engine_arguments(),
            front_env=front_env,
            mark={MARK_VARIABLE: self.mark, GROUP_VARIABLE: self.id},
            token_file=None if spec.ray_address else paths.ray_token,
            epoch=self.epoch,
            replica=self.replica,
        )
        return [Start(self.head.name, launcher)]

    def _engine_arguments(self) -> list[str]:
        return commands.engine_arguments(self.spec, host=self.head.address, port=self.ports.engine)

    def launcher_event(self, event: dict[str, Any], now: float) -> list[Action]:
        """What the launcher printed for us.

        Raises:
            LookupError, TypeError, ValueError: it is not one of its events.
        """
        self.now = now
        kind = event["event"]
        if kind == "gpus":
            self.gpus_seen = f"{event['have']} of {event['want']} GPUs"
            if self.phase == "ray" and event["have"] >= event["want"]:
                self._enter("reservation")
        elif kind == "error":
            return self._launcher_error(event)
        elif kind == "reserved" and self.phase in {"ray", "reservation"}:
            return self._reserved(event)
        elif kind == "ranks":
            self._ranks_found([(int(r["rank"]), int(r["pid"]), str(r["address"])) for r in event["ranks"]])
        elif kind == "holders" and self.phase == "engine" and not self.gpu_ids:
            self.gpu_ids = [[gpu_id(i) for i in holder["gpu_ids"]] for holder in event["holders"]]
            return self._start_mp_ranks()
        return []

    def _launcher_error(self, event: dict[str, Any]) -> list[Action]:
        if event["kind"] == "gpus":
            missing = f" {', '.join(event['missing'])} did not join." if event["missing"] else ""
            return self._fail(
                "capacity",
                f"The plan needs {event['want']} GPUs, the Ray nodes that joined offer {event['have']}.{missing}",
                self._where_to_look("what each node offers"),
            )
        return self._fail(
            "capacity",
            f"{event['want']} GPUs could not be reserved: {event['available']:.0f} are free in the Ray cluster.",
            f"{_holders(event.get('groups') or [])} {self._where_to_look('what')}",
        )

    def _where_to_look(self, what: str) -> str:
        """Our own Ray runs without its monitor (it listens on all interfaces), and so without `ray status`."""
        if self.spec.ray_address:
            return f"`ray status` on its head shows {what}."
        return "The log of Ray on each node stands beside the others of this deployment."

    def _reserved(self, event: dict[str, Any]) -> list[Action]:
        self.placement_group = event["placement_group"]
        self.bundles = event["bundles"]
        wanted = [node.address for node in self.spec.rank_nodes()]
        if self.bundles != wanted:
            return self._fail("launch", f"Ray placed the bundles on {self.bundles}, the plan says {wanted}.")
        self._enter("engine")
        self.engine_times["starting"] = self.now
        return []

    # ---- the engine
    def _start_mp_ranks(self) -> list[Action]:
        actions: list[Action] = []
        for node_rank, node in enumerate(self.nodes):
            held = [
                self.gpu_ids[rank] for rank, at in enumerate(self.spec.rank_nodes()) if at.name == node.name
            ]
            process = commands.mp_rank(
                self.spec, node, node_rank=node_rank, master_port=self.ports.rendezvous,
                arguments=self._engine_arguments(), gpu_ids=[gpu for ids in held for gpu in ids],
                env={KEY_FILE_VARIABLE: self.paths.engine_key, GROUP_VARIABLE: self.id}, epoch=self.epoch,
            )  # fmt: skip
            actions.append(Start(node.name, process))
        return actions

    def engine_line(self, node: str, line: str, now: float) -> list[Action]:
        """A line of the engine's log, without colours."""
        self.now = now
        seen = rank_seen(line)
        if seen and seen.world_size == self.spec.world_size:
            address = seen.address or next(n.address for n in self.nodes if n.name == node)
            self.ranks[seen.rank] = RankSeen(seen.rank, seen.world_size, seen.pid, address)
            if len(self.ranks) == self.spec.world_size:
                self._engine_reached("joined")
        phase = phase_seen(line)
        if phase:
            self._engine_reached(phase)
            if phase == "ready" and self.phase == "engine":
                return self._engine_ready()
        return []

    def _ranks_found(self, found: Sequence[tuple[int, int, str]]) -> None:
        """Ranks as Ray's actor table or the process titles have them: (rank, pid, address)."""
        for rank, pid, address in found:
            self.ranks[rank] = RankSeen(rank, self.spec.world_size, pid, address)
        if len(self.ranks) == self.spec.world_size:
            self._engine_reached("joined")

    def _engine_reached(self, phase: EnginePhase) -> None:
        self.engine_phase = later(self.engine_phase, phase)
        self.engine_times.setdefault(phase, self.now)

    def _engine_ready(self) -> list[Action]:
        """Before traffic: where are the ranks? Under mp only the first rank of a node says so in its log (vLLM 0.32),
        so the agents read the process titles that vLLM gives its workers."""
        self._enter("gateway")
        if self.spec.executor == "mp":
            arguments = {"mark": self.mark, "joined": self.spec.joins_ray, "group": self.id}
            return [self._call(node.name, "workers", arguments) for node in self.nodes]
        return self._confirm_ranks()

    def _workers_answered(self, node: str, titles: dict[str, str]) -> list[Action]:
        address = next(n.address for n in self.nodes if n.name == node)
        named = [(rank_of_title(title, self.spec.tp), int(pid)) for pid, title in titles.items()]
        self._ranks_found([(rank, pid, address) for rank, pid in named if rank is not None])
        if any(call.startswith("workers:") for call in self.waiting):
            return []
        return self._confirm_ranks()

    def _confirm_ranks(self) -> list[Action]:
        """Every node is asked which of the announced ranks really are its processes, and on which GPUs."""
        pids = [seen.pid for seen in self.ranks.values()]
        process = commands.process_name("rank", self.epoch)
        arguments = {
            "pids": pids,
            "mark": self.mark,
            "joined": self.spec.joins_ray,
            "group": self.id,
            "process": process,
        }
        return [self._call(node.name, "ranks", arguments) for node in self.nodes]

    def _ranks_answered(self, node: str, pids: dict[str, list[str]]) -> list[Action]:
        self.rank_devices[node] = pids
        if len(self.rank_devices) < len(self.nodes):
            return []
        addresses = {n.name: n.address for n in self.nodes}
        for rank, seen in list(self.ranks.items()):
            here = [addresses[name] for name, found in self.rank_devices.items() if str(seen.pid) in found]
            # Pids of two hosts can coincide; then the address in the rank's own log line decides.
            address = here[0] if len(here) == 1 else seen.address
            self.ranks[rank] = replace(seen, address=address)
        wanted = {rank: node.address for rank, node in enumerate(self.spec.rank_nodes())}
        found = {rank: seen.address for rank, seen in sorted(self.ranks.items())}
        if self.spec.world_size > 1 and found != wanted:
            return self._fail("launch", f"The engine's ranks run on {found}, the plan says {wanted}.")
        ready = [SetGateway("ready", replica=self.replica)] if self.epoch == 1 else []
        return [*ready, *self._first_token_asked()]

    def gateway_listens(self, now: float) -> list[Action]:
        """The gateway can be asked from now on."""
        self.now = now
        self.gateway_up = True
        return self._first_token_asked()

    def _first_token_asked(self) -> list[Action]:
        if self.phase != "gateway" or not self.gateway_up or len(self.rank_devices) < len(self.nodes):
            return []
        self._enter("first token")
        return [self._ask("first_token")]

    # ---- answers, proof
    def answered(self, call: str, value: Any, error: str, now: float) -> list[Action]:
        """The answer to one of `waiting`."""
        self.now = now
        self.waiting.discard(call)
        what, node = call_of(call)
        if error:
            return self._call_failed(what, node, error)
        match what:
            case "workers":
                return self._workers_answered(node, value)
            case "ranks":
                return self._ranks_answered(node, value)
            case "first_token":
                self.first_token = value
                self._enter("verified")
                unknown = self.yardstick not in self.references and self.yardstick == self.head.name
                return [self._ask("evidence"), *([self._reference(self.head)] if unknown else [])]
            case "reference":
                self.references[node] = value
            case "evidence":
                self.evidence = value
        return self.judge(now)

    def _call_failed(self, what: str, node: str, error: str) -> list[Action]:
        if what == "reference":
            self.references[node] = {"skipped": error}
            return self.judge(self.now)
        if what == "first_token":
            return self._fail(
                "launch", f"The engine says it is ready, but no token came through the gateway: {error}"
            )
        if what == "evidence":
            return self._fail(
                "proof", f"A token came, but the evidence for the proof could not be taken: {error}"
            )
        return self._fail("host", f"{what} on {node} failed: {error}")

    def _reference(self, node: NodeSpec) -> Call:
        return self._call(
            node.name, "reference",
            {"model": self.spec.model, "revision": self.spec.revision, "device": self.spec.device,
             "python": node.python, "vllm_arguments": list(self.spec.vllm_arguments),
             "joined": self.spec.joins_ray, "exact": node.name == self.yardstick},
        )  # fmt: skip

    def judge(self, now: float) -> list[Action]:
        """Once the evidence and all references asked for are there; asks every node's copy where they disagree."""
        self.now = now
        if self.phase != "verified" or self.evidence is None or self.yardstick not in self.references:
            return []
        if self.asked_all and not all(node.name in self.references for node in self.nodes):
            return []
        names = dict.fromkeys([self.yardstick, *(node.name for node in self.nodes)])
        ordered = {name: self.references[name] for name in names if name in self.references}
        found = verdict.conclude(
            self.digests, self.yardstick, self.evidence, verdict.references_from_json(ordered)
        )
        self.proof = found
        disagrees = any(layer.name == "reference" and layer.state == "failed" for layer in found.layers)
        unasked = [node for node in self.nodes if node.name not in self.references]
        if disagrees and not self.asked_all and unasked and not self.evidence.deployed_error:
            self.asked_all = True
            return [self._reference(node) for node in unasked]
        self.findings += found.findings
        if found.verdict == "failed":
            texts = [finding.summary for finding in found.findings] or [verdict.summary(found)]
            remedy = next((finding.remedy for finding in found.findings if finding.remedy), "")
            return self._fail("proof", " ".join(texts), remedy)
        self._enter("serving")
        return [SetGateway("ready", replica=self.replica)] if self.epoch > 1 else []


def _holders(groups: Sequence[str]) -> str:
    """Who holds what could not be reserved, as far as placement groups tell; others are actors and tasks without one."""
    if not groups:
        return "Something else holds them, outside of any placement group."
    return f"These placement groups stand in that Ray: {', '.join(map(str, groups))}."

"""The collective over sessions: pairs in rounds, then all nodes, then halves of what failed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from longspan.preflight import remote
from longspan.preflight.checks_collective import only_waited, suspects
from longspan.preflight.scene import GroupResult, Scene
from longspan.preflight.session import Session, SessionLostError, sources

START_SECONDS = 120.0  # importing torch on a slow disk
# Forming a group and each operation; NCCL sets up its transports in the first one.
OPERATION_SECONDS = {"gloo": 15.0, "nccl": 30.0}
# So many groups that only waited are tried a second time: a busy machine is no broken link. More of them are no accident.
TRIED_AGAIN = 2
# Halves of a group whose pairs all pass leave a failing one of at most so many, if a single node is to blame.
NARROWED = 5
BYTES = {"gloo": 8 << 20, "nccl": 256 << 20}


def rounds(names: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Every pair once, in rounds in which each node has at most one partner (the circle method)."""
    ring: list[str | None] = list(names)
    if len(ring) % 2:
        ring.append(None)
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [(a, b) for a, b in pairs if a is not None and b is not None]
        ring = [ring[0], ring[-1], *ring[1:-1]]


class Collective:
    """One run. The members live in the nodes' sessions and end with them."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        scene: Scene,
        pool: ThreadPoolExecutor,
        progress: Callable[[str], None],
    ) -> None:
        self.scene = scene
        self.pool = pool
        self.progress = progress
        self.names = [node.name for node in scene.workers if node.name in sessions]
        self.sessions = sessions
        gpus = {node.name: len(node.gpus) for node in scene.workers}
        self.backend = "nccl" if self.names and all(gpus[name] for name in self.names) else "gloo"
        self.members = {name: gpus[name] if self.backend == "nccl" else 1 for name in self.names}
        self.ports: dict[str, list[int]] = {}

    def run(self) -> tuple[tuple[GroupResult, ...], str]:
        """The groups' results, and why there are none."""
        if sum(self.members.values()) < 2:
            return (), "fewer than two ranks would run"
        self.progress(f"starting torch on {len(self.names)} nodes for a {self.backend} collective …")
        if reason := self._start():
            return (), reason
        try:
            found: list[GroupResult] = []
            if len(self.names) == 1:  # the GPUs of one node
                return tuple(self._round([self.names])), ""
            for number, pairs in enumerate(rounds(self.names), 1):
                self.progress(
                    f"all-reduce and send/receive, pairs, round {number} of {len(self.names) - 1 + len(self.names) % 2} …"
                )
                found += self._round([list(pair) for pair in pairs])
            late = [group for group in found if only_waited(group)]
            if 0 < len(late) <= TRIED_AGAIN:
                self.progress(f"trying {len(late)} pair(s) again that only waited …")
                for group in late:
                    found[found.index(group)] = self._round([group.nodes])[0]
            if len(self.names) > 2 and all(group.ok for group in found):
                self.progress(f"all-reduce over {len(self.names)} nodes …")
                found += self._bisect(self.names)
                found += self._narrow(found)
            return tuple(found), ""
        finally:
            self._everywhere(lambda name: self._ask(name, "collective_stop", 30))

    def _everywhere(self, job: Callable[[str], Any]) -> list[Any]:
        return list(self.pool.map(job, self.names))

    def _ask(self, name: str, do: str, limit_seconds: float, **arguments: Any) -> Any:
        try:
            return self.sessions[name].ask(do, limit_seconds, **arguments)
        except (SessionLostError, ValueError, KeyError) as error:
            return {"lost": str(error)}

    def _start(self) -> str:
        """Starts the members; why it cannot be."""
        line = remote.bundle(sources(remote.COLLECTIVE_MODULES), "collective", {})

        def start(name: str) -> Any:
            want = self.scene.want(name)
            env = {setting.variable: setting.value for setting in self.scene.environment.get(name, ())}
            return self._ask(
                name, "collective_start", START_SECONDS + 10, boot=remote.BOOT, bundle=line, env={**env, **want.env},
                count=self.members[name], gpus=list(range(self.members[name])) if self.backend == "nccl" else [],
                address=want.address, ports=len(self.names) + 16 + TRIED_AGAIN + NARROWED, seconds=START_SECONDS,
            )  # fmt: skip

        for name, answer in zip(self.names, self._everywhere(start), strict=True):
            if "lost" in answer:
                return f"{name}: {answer['lost']}"
            errors = [member["error"] for member in answer["members"] if "error" in member]
            if errors:
                return (
                    f"torch is absent on {name}"
                    if "No module named 'torch'" in errors[0]
                    else f"{name}: {errors[0]}"
                )
            self.ports[name] = list(answer["ports"])
        return ""

    def _round(self, groups: Sequence[Sequence[str]]) -> list[GroupResult]:
        """Groups that share no node, at once."""
        jobs: dict[str, dict[str, Any]] = {}
        seconds = OPERATION_SECONDS[self.backend]
        for group in groups:
            store = [self.scene.want(group[0]).address, self.ports[group[0]].pop()]
            world, rank = sum(self.members[name] for name in group), 0
            for name in group:
                members = []
                for local in range(self.members[name]):
                    members.append(
                        {
                            "local": local, "rank": rank, "world": world, "store": store, "backend": self.backend,
                            "seconds": seconds, "bytes": BYTES[self.backend], "graph": self.backend == "nccl",
                        }
                    )  # fmt: skip
                    rank += 1
                jobs[name] = {"members": members, "seconds": 3 * seconds}
        asked = list(jobs)
        answers = self.pool.map(
            lambda name: self._ask(name, "collective_run", 4 * seconds, **jobs[name]), asked
        )
        told = dict(zip(asked, answers, strict=True))
        return [read_group(group, self.backend, told) for group in groups]

    def _bisect(self, names: Sequence[str]) -> list[GroupResult]:
        """The group, and where it fails its halves, until the failing ones are as small as they can be."""
        (result,) = self._round([names])
        found = [result]
        if not result.ok and len(names) > 2:
            self.progress(f"the group of {len(names)} fails: trying its halves …")
            middle = len(names) // 2
            for half in (names[:middle], names[middle:]):
                if len(half) > 2:  # pairs are known already
                    found += self._bisect(half)
        return found

    def _narrow(self, found: Sequence[GroupResult]) -> list[GroupResult]:
        """The smallest failing group again, with one node after the other changed for one outside, or without it: a node that
        fails in company only is told from the others so."""
        failed = [group for group in found if not group.ok]
        smallest = min(failed, key=lambda group: len(group.nodes), default=None)
        more: list[GroupResult] = []
        if smallest is None or len(smallest.nodes) > NARROWED or smallest.wrong:
            return more
        outside = [name for name in self.names if name not in smallest.nodes]
        for name in smallest.nodes:
            company = [other for other in smallest.nodes if other != name] + outside[:1]
            if len(suspects([*found, *more])) == 1 or len(company) < 3:
                break
            self.progress(f"the group of {len(smallest.nodes)} again without {name} …")
            more += self._round([company])
        return more


def read_group(group: Sequence[str], backend: str, told: Mapping[str, Any]) -> GroupResult:
    """The members' answers; the slowest member's figures count.

    Args:
        told: node -> the list of its members' answers, or {"lost": why}.
    """
    errors: dict[str, str] = {}
    wrong: dict[str, str] = {}
    good: list[Mapping[str, Any]] = []
    for name in group:
        answer = told[name]
        members = [{"error": answer["lost"]}] if isinstance(answer, dict) else answer
        for member in members:
            if "error" in member:
                errors.setdefault(name, str(member["error"]))
            elif member["wrong"] or member.get("graph"):
                wrong.setdefault(name, str(member["wrong"] or member["graph"]))
            else:
                good.append(member)
    if errors or wrong or not good:
        return GroupResult(tuple(group), backend, errors, wrong)
    hops = [member for member in good if "hop_seconds" in member]
    return GroupResult(
        tuple(group), backend, errors, wrong,
        max(float(member["latency_seconds"]) for member in good),
        min(float(member["bus_bytes_per_second"]) for member in good),
        max((float(member["hop_seconds"]) for member in hops), default=0.0),
        min((float(member["hop_bytes_per_second"]) for member in hops), default=0.0),
    )  # fmt: skip


def describe(group: GroupResult) -> dict[str, Any]:
    """For `--json`."""
    return {
        "nodes": list(group.nodes), "backend": group.backend, "ok": group.ok, "errors": dict(group.errors),
        "wrong": dict(group.wrong), "latency_seconds": group.latency_seconds,
        "bus_bytes_per_second": group.bus_bytes_per_second, "hop_seconds": group.hop_seconds,
        "hop_bytes_per_second": group.hop_bytes_per_second,
    }  # fmt: skip

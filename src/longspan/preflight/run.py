"""Runs a pre-flight over sessions with all nodes at once: facts, then every pair, then the collective.

The number of rounds does not grow with the nodes: one session a node, and in each round every node is asked once.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from longspan.host import Host
from longspan.preflight.environment import compile_environment
from longspan.preflight.facts import NodeFacts
from longspan.preflight.groups import Collective
from longspan.preflight.rails import Rails
from longspan.preflight.read import read_facts
from longspan.preflight.scene import PairFacts, PortTrial, Scene, Wanted
from longspan.preflight.session import OPEN_SECONDS, Session, SessionLostError

FACTS_SECONDS = 45.0
LISTEN_SECONDS = 20.0
CONNECT_SECONDS = 90.0
CLOCK_ASKED = 5
RANDOM_PORTS = 5


@dataclass(frozen=True, slots=True)
class Target:
    """How a node is reached, and with which Python and variables its ranks will run."""

    name: str
    address: str
    host: Host
    python: str
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Options:
    """What is checked beside the nodes themselves.

    Attributes:
        fixed_ports: those of Ray's that are tried between nodes; all of `ray_ports` must be free.
        collective: whether to end with a real one.
        device: cpu, cuda or rocm; empty where no launch is planned yet.
        digests_follow: a launch comes next, which compares the copies of the model by digests and says more of them.
    """

    model: str | None = None
    weights_bytes: int = 0
    own_ray: bool = True
    ray_ports: tuple[int, int] = (0, 0)
    fixed_ports: tuple[int, ...] = ()
    tp: int = 0
    vllm_arguments: tuple[str, ...] = ()
    collective: bool = True
    device: str = ""
    digests_follow: bool = False


def preflight(
    targets: Sequence[Target], wanted: Sequence[Wanted], options: Options, progress: Callable[[str], None]
) -> Scene:
    """All that can be seen of these nodes; judged by `catalogue.judge`.

    Args:
        wanted: of the same nodes, in the same order.
        progress: called with a line when a part begins.
    """
    scene = Scene(
        tuple(wanted), (), own_ray=options.own_ray, ray_ports=options.ray_ports, model=options.model,
        weights_bytes=options.weights_bytes, tp=options.tp, vllm_arguments=options.vllm_arguments, device=options.device,
        digests_follow=options.digests_follow,
    )  # fmt: skip
    if not targets:
        return replace(scene, no_pairs="there is no node", no_collective="there is no node")
    with ThreadPoolExecutor(len(targets)) as pool, _Sessions(pool) as sessions:
        progress(f"facts of {len(targets)} node(s) …")
        nodes = sessions.facts(targets, options)
        scene = replace(scene, nodes=nodes, environment=compile_environment(wanted, nodes))
        if len(scene.answering) < 2:
            reason = "there is only one node" if len(targets) == 1 else "fewer than two nodes answer"
            scene = replace(scene, no_pairs=reason)
            if not options.collective or len(targets) > 1 or not scene.answering:
                return replace(scene, no_collective=reason)
            groups, why = Collective(sessions.live, scene, pool, progress).run()
            return replace(scene, groups=groups, no_collective=why)
        count = len(scene.answering)
        progress(
            f"{count * (count - 1)} connections between {count} nodes, on {len(options.fixed_ports) + RANDOM_PORTS} ports each …"
        )
        pairs, taken = sessions.pairs(scene.answering, options)
        scene = replace(scene, pairs=pairs, taken=taken)
        if not options.collective:
            return replace(scene, no_collective="not asked for")
        groups, reason = Collective(sessions.live, scene, pool, progress).run()
        rails, why = Rails(sessions.live, scene, pool, progress).run()
        return replace(scene, groups=groups, no_collective=reason, rails=rails, no_rails=why)


class _Sessions:
    """The sessions that are open, closed at the end whatever happens."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.live: dict[str, Session] = {}

    def __enter__(self) -> "_Sessions":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        sessions = list(self.live.values())
        if kind is None:
            list(self.pool.map(lambda session: session.close(), sessions))
            return
        for session in sessions:  # Ctrl-C: whoever waits for an answer is woken by the end of its session
            session.abort()

    # ---- facts
    def facts(self, targets: Sequence[Target], options: Options) -> tuple[NodeFacts, ...]:
        """What each node says of itself."""
        nonce = secrets.token_hex(8)
        addresses = [target.address for target in targets]

        def one(target: Target) -> NodeFacts:
            request = {
                "address": target.address, "peers": [a for a in addresses if a != target.address],
                "model": options.model, "nonce": nonce, "ports": list(options.ray_ports),
            }  # fmt: skip
            try:
                return self._ask_facts(target, request)
            except SessionLostError as error:
                return NodeFacts(target.name, target.address, refused=error.refused)
            except ValueError as error:
                remedy = "This is an error in Longspan; please report it with the node's Python version."
                return NodeFacts(target.name, target.address, refused=("session-failed", str(error), remedy))

        return tuple(self.pool.map(one, targets))

    def _ask_facts(self, target: Target, request: Mapping[str, Any]) -> NodeFacts:
        session = Session(target.host, target.python, dict(target.env))
        self.live[target.name] = session
        try:
            session.ask("clock", OPEN_SECONDS)
            document = session.ask("facts", FACTS_SECONDS, **request)
            offset, error = clock_offset(session)
        except SessionLostError:
            del self.live[target.name]
            session.close()
            raise
        node = read_facts(target.name, target.address, document)
        return replace(node, clock_offset_seconds=offset, clock_error_seconds=error)

    # ---- pairs
    def pairs(
        self, nodes: Sequence[NodeFacts], options: Options
    ) -> tuple[tuple[PairFacts, ...], dict[str, dict[int, str]]]:
        """Every ordered pair; and what could not be listened on."""
        nonce = secrets.token_hex(8)

        def listen(node: NodeFacts) -> dict[str, Any]:
            held = {one.port for one in node.ports_held}
            ports = [port for port in options.fixed_ports if port not in held]
            return self._try(
                node.name, "listen", LISTEN_SECONDS,
                address=node.address, ports=ports, random=RANDOM_PORTS, nonce=nonce,
            )  # fmt: skip

        opened = dict(zip((node.name for node in nodes), self.pool.map(listen, nodes), strict=True))
        taken = {
            name: {int(port): str(why) for port, why in told["taken"].items() if int(port)}
            for name, told in opened.items()
            if told.get("taken")
        }

        def connect(node: NodeFacts) -> dict[str, Any]:
            nic = node.nic_of(node.address)
            targets = [
                {
                    "name": other.name, "address": other.address, "ports": opened[other.name].get("ports", []),
                    "udp": opened[other.name].get("udp", 0), "mtu": nic.mtu if nic else 0,
                }
                for other in nodes
                if other.name != node.name and opened[other.name].get("ports")
            ]  # fmt: skip
            return self._try(
                node.name, "connect", CONNECT_SECONDS, address=node.address, nonce=nonce, targets=targets
            )

        seen = dict(zip((node.name for node in nodes), self.pool.map(connect, nodes), strict=True))
        list(self.pool.map(lambda node: self._try(node.name, "unlisten", LISTEN_SECONDS), nodes))
        return tuple(read_pairs(seen)), taken

    def _try(self, name: str, do: str, seconds: float, **arguments: Any) -> dict[str, Any]:
        """An answer, or {} from a node that was lost meanwhile."""
        session = self.live.get(name)
        if session is None:
            return {}
        try:
            return dict(session.ask(do, seconds, **arguments) or {})
        except SessionLostError:
            del self.live[name]
            with contextlib.suppress(OSError):
                session.close()
        except ValueError:
            pass
        return {}


def clock_offset(session: Session) -> tuple[float, float]:
    """The node's clock minus ours, and how far the truth may be from it: half of the shortest round trip."""
    best = (float("inf"), 0.0)
    for _ in range(CLOCK_ASKED):
        before = time.time()
        begun = time.monotonic()
        there = float(session.ask("clock", OPEN_SECONDS))
        trip = time.monotonic() - begun
        best = min(best, (trip, there - (before + trip / 2)))
    return best[1], best[0] / 2


def read_pairs(seen: Mapping[str, Mapping[str, Any]]) -> Iterator[PairFacts]:
    """The nodes' answers to "connect"."""
    for source, targets in seen.items():
        for target, told in targets.items():
            trials = tuple(
                PortTrial(
                    int(port), str(one.get("error", "")), str(one.get("stage", "")), str(one.get("peer", ""))
                )
                for port, one in told["ports"].items()
            )
            mtu = told["mtu"] or {"mtu": -1, "wanted": 0}
            yield PairFacts(source, target, trials, int(mtu["mtu"]), int(mtu["wanted"]))

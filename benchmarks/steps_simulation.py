"""The state machine alone, driven for many nodes and replicas with failures: events per second and the time of each decision.

    PYTHONPATH=src:tests python benchmarks/steps_simulation.py [--nodes 1000 --replicas 200 --hours 2 --times 12]

Failures come at the rate of a large training run (466 unexpected interruptions in 54 days on 16,384 GPUs, "The Llama 3 Herd of
Models", 2024, section 3.3.4: 0.0042 a node of 8 GPUs and day), taken `--times` as often so that a short run has some; each is a
rank that dies, a host that falls silent and comes back, or a suspicion that lasts. What must hold is looked at every simulated ten minutes.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "launch"))
from driving import make_spec, make_steps
from world import World

from longspan.deployment import NodeSpec
from longspan.launch.events import AgentSilent, Event, Suspected

FAILURES_PER_NODE_AND_DAY = 466 / 54 / (16384 / 8)
GPUS = 8


@dataclass(slots=True)
class Timed(World):
    """Takes the time of each decision; checks the world only when it is asked to."""

    seconds: list[float] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def tell(self, event: Event) -> None:
        """One event."""
        self.events += 1
        self.kinds[type(event).__name__] += 1
        began = time.perf_counter()
        actions = self.machine.handle(event, self.now)
        self.seconds.append(time.perf_counter() - began)
        self._do(actions)


def fail(world: Timed, rng: random.Random, silent: dict[str, float]) -> None:
    """One failure somewhere."""
    name = rng.choice(list(world.machine.replicas.by_name))
    kind = rng.choice(["rank", "host", "stall"])
    if kind == "rank":
        world.kill_rank(name)
    elif kind == "stall":
        world.tell(Suspected(name, "no token has moved for 9 s"))
    else:
        node = rng.choice(
            world.machine.replicas.by_name[name].nodes[1:] or world.machine.replicas.by_name[name].nodes
        ).name
        world.dead.add(node)
        silent[node] = world.now


def hosts(world: Timed, silent: dict[str, float]) -> None:
    """Silent hosts are noticed, lost, and come back after five minutes."""
    for node, since in list(silent.items()):
        gone = world.now - since
        if gone > 3:
            world.tell(Suspected(node, f"{node} has not answered for {gone:.0f} s"))
            world.tell(AgentSilent(node, gone))
        if gone > 300:
            world.dead.discard(node)
            world.tell(Suspected(node, ""))
            del silent[node]


def main() -> None:
    """Runs it and prints one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=200)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--times", type=float, default=12.0)
    options = parser.parse_args()
    each = options.nodes // options.replicas
    nodes = tuple(
        NodeSpec(f"n{i}", f"10.{i >> 8}.{i & 255}.1", GPUS, ssh=f"n{i}") for i in range(options.nodes)
    )
    places = tuple(
        tuple(f"n{replica * each + i}" for i in range(each) for _ in range(GPUS))
        for replica in range(options.replicas)
    )
    spec = make_spec(
        nodes=nodes, tp=GPUS, pp=each, replicas=options.replicas, placement=places, device="cuda"
    )
    rng = random.Random(1)
    world = Timed(make_steps(spec))
    began = time.perf_counter()
    world.begin()
    world.run(90.0)
    assert world.machine.phase == "serving", world.machine.phase
    start_seconds = time.perf_counter() - began
    launch_events, world.seconds, world.kinds = world.events, [], Counter()
    rate = FAILURES_PER_NODE_AND_DAY * options.nodes * options.times / 86400
    following, failures, silent = world.now + rng.expovariate(rate), 0, {}
    serving, looked, end = 0.0, 0, world.now + options.hours * 3600
    while world.now < end:
        world.run(1.0)
        hosts(world, silent)
        if world.now >= following:
            fail(world, rng, silent)
            failures += 1
            following = world.now + rng.expovariate(rate)
        if world.machine.phase == "gone":
            sys.exit(f"the deployment ended: {world.machine.failure}")
        if int(world.now) % 600 == 0:
            world.check()
        looked += 1
        serving += sum(one.phase == "serving" for one in world.machine.replicas) / options.replicas
    taken = sorted(world.seconds)
    print(json.dumps({
        "nodes": options.nodes, "gpus": options.nodes * GPUS, "replicas": options.replicas, "simulated_hours": options.hours,
        "failures": failures, "restarts": len(world.machine.replicas.restarts), "events": len(taken), "launch_events": launch_events,
        "launch_seconds": round(start_seconds, 2), "events_per_second": round(len(taken) / sum(taken)),
        "decision_ms_p50": round(taken[len(taken) // 2] * 1e3, 3), "decision_ms_p99": round(taken[int(len(taken) * 0.99)] * 1e3, 3),
        "decision_ms_max": round(taken[-1] * 1e3, 2), "replicas_serving_share": round(serving / looked, 5),
        "given_up": sum(one.phase == "failed" for one in world.machine.replicas),
    }))  # fmt: skip


if __name__ == "__main__":
    main()

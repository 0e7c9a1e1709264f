"""The launcher: a plain process that holds a replica's reservation in Ray, and, with the Ray executor, its engine.

One process per replica and start, run by the agent of the first rank's node. It connects to Ray, makes the
placement group (one bundle a GPU, pinned to node ids), and then either runs the engine's front end in an actor
inside that group (Ray executor) or holds each bundle with one actor (mp executor, whose ranks the agents start).
Its life is the reservation's life: neither the group nor the actors are detached, so when this process ends, Ray
frees them. It reads one JSON document on standard input and prints events as lines that start with `EVENT_MARK`;
everything else on its standard output is the engine's own log.
"""

import json
import os
import sys
import threading
import time
from typing import Any

import ray
from ray._private.state import actors  # the only way to an actor's node without the dashboard
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from longspan.launch import engine_main
from longspan.launch.phases import rank_of_title
from longspan.launch.words import EVENT_MARK


def report(event: str, **fields: Any) -> None:
    """One event for the agent, which passes it to the controller."""
    sys.stdout.write(EVENT_MARK + json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


class EngineFrontEnd:
    """vLLM's API server and engine core; the executor's ranks become sibling actors in our placement group."""

    def serve(self, arguments: list[str], env: dict[str, str]) -> None:
        """Runs the engine until it ends. Ray runs it on the process's main thread, as vLLM's signals want."""
        os.environ.update(env)
        engine_main.main(arguments)


class BundleHolder:
    """Keeps one bundle while the mp executor's rank, started by the agent, uses its GPU."""

    def describe(self) -> dict[str, Any]:
        """Where this actor runs and which GPU Ray gave it."""
        context = ray.get_runtime_context()
        return {"pid": os.getpid(), "node_id": context.get_node_id(), "gpu_ids": ray.get_gpu_ids()}


def nodes_by_address(addresses: list[str], gpus: int, deadline: float) -> dict[str, str]:
    """Waits until every wanted node and as many GPUs as the plan needs are alive; address -> node id.

    Waits for GPUs, not for node counts: a node that joined without its GPUs is of no use.
    """
    reported = -1
    while True:
        alive = {n["NodeManagerAddress"]: n for n in ray.nodes() if n["Alive"]}
        found = [a for a in addresses if a in alive]
        have = sum(int(alive[a]["Resources"].get("GPU", 0)) for a in found)
        if have != reported:
            report("gpus", have=have, want=gpus, nodes=found)
            reported = have
        if len(found) == len(addresses) and have >= gpus:
            return {a: alive[a]["NodeID"] for a in addresses}
        if time.monotonic() > deadline:
            missing = sorted(set(addresses) - set(found))
            report("error", kind="gpus", have=have, want=gpus, missing=missing, alive=sorted(alive))
            sys.exit(3)
        time.sleep(0.2)


def reserve(wanted: dict[str, Any], node_ids: dict[str, str]) -> PlacementGroup:
    """Makes the placement group, one bundle per rank in rank order, and waits until it is placed."""
    bundles = [{"GPU": 1, f"node:{address}": 0.001} for address in wanted["rank_addresses"]]
    group = placement_group(bundles, strategy="PACK", name=wanted["name"])
    ready, _ = ray.wait([group.ready()], timeout=wanted["reserve_timeout_seconds"])
    if not ready:
        free = {n["NodeManagerAddress"]: n["Resources"].get("GPU", 0) for n in ray.nodes() if n["Alive"]}
        available = ray.available_resources().get("GPU", 0)
        holders = sorted(
            other["name"] or "one without a name"
            for other in ray.util.placement_group_table().values()
            if other["state"] != "REMOVED" and other["placement_group_id"] != group.id.hex()
        )
        report("error", kind="reserve", want=len(bundles), available=available, nodes=free, groups=holders)
        sys.exit(4)
    table = ray.util.placement_group_table(group)
    address_of = {node_id: address for address, node_id in node_ids.items()}
    placed = {int(i): address_of.get(n, n) for i, n in table["bundles_to_node_id"].items()}
    report("reserved", placement_group=group.id.hex(), bundles=[placed[i] for i in range(len(bundles))])
    return group


def strategy(group: PlacementGroup, bundle: int) -> PlacementGroupSchedulingStrategy:
    """Into this bundle; the executor's own actors follow into the group."""
    return PlacementGroupSchedulingStrategy(
        placement_group=group,
        placement_group_bundle_index=bundle,
        placement_group_capture_child_tasks=True,
    )


def report_ranks(tp: int, world_size: int, others: set[str]) -> None:
    """Reports where Ray's actor table has the executor's ranks, once all of them are alive.

    They belong to the job of the engine core, which connects to Ray by itself, so they are told by their names.

    Args:
        others: the ids of actors that were there before us.
    """
    while True:
        time.sleep(1)
        alive = [a for a in actors().values() if a["State"] == "ALIVE" and a["ActorID"] not in others]
        ranks = {rank_of_title(a["Name"], tp): a for a in alive}
        ranks.pop(None, None)
        if len(ranks) == world_size:
            report(
                "ranks",
                ranks=[
                    {"rank": rank, "pid": a["Pid"], "address": a["Address"]["IPAddress"]}
                    for rank, a in sorted(ranks.items())
                ],
            )
            return


def run(wanted: dict[str, Any]) -> int:
    """Reserves, starts, and stays until the engine ends or this process is stopped."""
    runtime_env: dict[str, Any] = {"env_vars": wanted["env"]}
    if wanted["joined"]:
        # A joined Ray: its workers were started without our per-node values, so a hook sets them in each.
        runtime_env["worker_process_setup_hook"] = "longspan.launch.worker_hook.apply"
    ray.init(
        address=wanted["ray_address"],
        namespace=wanted["name"],
        runtime_env=runtime_env,
        log_to_driver=True,
        logging_level="warning",
        _node_ip_address=wanted.get("node_ip_address"),
    )
    deadline = time.monotonic() + wanted["ray_timeout_seconds"]
    addresses = list(dict.fromkeys(wanted["rank_addresses"]))
    node_ids = nodes_by_address(addresses, len(wanted["rank_addresses"]), deadline)
    others = set(actors())
    group = reserve(wanted, node_ids)
    if wanted["executor"] == "mp":
        holders = [
            ray.remote(num_cpus=0, num_gpus=1, max_restarts=0)(BundleHolder)
            .options(scheduling_strategy=strategy(group, i))
            .remote()
            for i in range(len(wanted["rank_addresses"]))
        ]
        report("holders", holders=ray.get([h.describe.remote() for h in holders]))
        while True:  # until the agent stops this process, or a holder dies with its node
            ray.get([h.describe.remote() for h in holders])
            time.sleep(1)
    actor = ray.remote(num_cpus=0, num_gpus=0, max_restarts=0)(EngineFrontEnd)
    front = actor.options(scheduling_strategy=strategy(group, 0)).remote()
    threading.Thread(
        target=report_ranks, args=(wanted["tp"], len(wanted["rank_addresses"]), others), daemon=True
    ).start()
    ray.get(front.serve.remote(wanted["arguments"], wanted["front_env"]))
    return 0


if __name__ == "__main__":
    sys.exit(run(json.load(sys.stdin)))

"""The status document, from the state machine's state. Pure."""

from typing import Any

from longspan.launch import steps, verdict
from longspan.launch.proof import Proof
from longspan.launch.replica import Replica
from longspan.launch.traffic import CHANGE
from longspan.preflight.environment import COMPILED


def _phases(machine: steps.Steps, now: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for phase in steps.PHASES:
        started = machine.started.get(phase)
        if started is None:
            found.append({"phase": phase, "state": "waiting", "seconds": None, "detail": ""})
            continue
        ended = machine.ended.get(phase)
        failed = machine.failure is not None and machine.failure.phase == phase
        if failed:
            state = "failed"
        elif machine.phase in {"stopping", "gone"} and phase == machine.stopped_in:
            state = "stopped"
        else:
            state = "done" if ended is not None else "running"
        found.append(
            {
                "phase": phase,
                "state": state,
                "seconds": round((ended or now) - started, 3),
                "detail": _detail(machine, phase),
            }
        )
    return found


def _detail(machine: steps.Steps, phase: str) -> str:
    if phase == "agents":
        return f"{len(machine.ground.joined)} of {len(machine.agents)} agents"
    if phase == "gateway":
        return machine.gateway_address
    told = {one.name: _of_replica(one, phase) for one in machine.replicas}
    if len(told) == 1:
        return next(iter(told.values()))
    return "; ".join(f"{name}: {text}" for name, text in told.items() if text)


def _of_replica(replica: Replica, phase: str) -> str:
    group, size = replica.group, replica.spec.world_size
    if group is None:
        return ""
    match phase:
        case "ray":
            return group.gpus_seen
        case "reservation":
            return f"{len(group.bundles)} of {size} GPUs reserved" if group.bundles else ""
        case "engine":
            ranks = f"{len(group.ranks)} of {size} ranks joined"
            return ranks if group.engine_phase == "starting" else f"{group.engine_phase}, {ranks}"
        case "first token":
            return str(group.first_token.get("detail", ""))
        case "verified":
            return verdict.summary(group.proof) if group.proof else "asking one rank for its reference"
        case _:
            return ""


def facts(machine: steps.Steps) -> dict[str, dict[str, Any] | None]:
    """What each node's agent found there, with its copy of the checkpoint; None where it has not answered."""
    found: dict[str, dict[str, Any] | None] = {}
    for node in machine.nodes:
        known, copy = machine.facts.get(node.name), machine.ground.digests.get(node.name)
        found[node.name] = {**known, "checkpoint": copy.fingerprint} if known and copy else known
    return found


def _ranks(replica: Replica) -> list[dict[str, Any]]:
    spec, group = replica.spec, replica.group
    rows = []
    for rank, node in enumerate(spec.rank_nodes()):
        seen = group.ranks.get(rank) if group else None
        devices = group.rank_devices.get(node.name, {}).get(str(seen.pid), []) if group and seen else []
        reserved = group.gpu_ids[rank] if group and rank < len(group.gpu_ids) else []
        bundles = group.bundles if group else []
        rows.append(
            {
                "replica": replica.name,
                "rank": rank, "tp_rank": rank % spec.tp, "pp_rank": rank // spec.tp,
                "planned_node": node.name, "planned_address": node.address,
                "bundle": rank if bundles else None,
                "bundle_address": bundles[rank] if bundles else None,
                # Read back from the rank's own log line; null until it said so.
                "address": seen.address if seen else None,
                "pid": seen.pid if seen else None,
                # From the driver (pid -> UUID) where there is one; on a CPU host there is no GPU to name.
                "gpu": devices or ([f"index {i}" for i in reserved] if spec.device != "cpu" else None) or None,
            }
        )  # fmt: skip
    return rows


def _held(replica: Replica) -> str:
    return "it is being changed" if set(replica.traffic.held) == {CHANGE} else "by the operator"


def _replica(replica: Replica, now: float) -> dict[str, Any]:
    group, traffic = replica.group, replica.traffic
    phase: str = replica.phase
    reason = ""
    if phase == "serving" and traffic.suspicions:
        phase, reason = "suspected", "; ".join(traffic.suspicions.values())
    elif phase == "serving" and traffic.held:
        phase, reason = ("draining" if traffic.is_draining else "isolated"), _held(replica)
    elif replica.failure:
        reason = replica.failure.what
    elif phase in {"fencing", "ports"} and replica.restarts:
        reason = f"being restarted: {replica.restarts[-1][1]}"
    return {
        "name": replica.name, "phase": phase, "seconds": round(now - replica.since, 1), "reason": reason,
        "nodes": [node.name for node in replica.nodes],
        "ranks": _ranks(replica),
        "placement_group": group.placement_group or None if group else None,
        "restarts": len(replica.restarts),
        "proof": verdict.summary(group.proof) if group and group.proof else None,
    }  # fmt: skip


def _proof(found: Proof | None) -> dict[str, Any] | None:
    return {"summary": verdict.summary(found), **found.to_json()} if found else None


def document(
    machine: steps.Steps, *, state_dir: str, api_key_file: str, logs: str, now: float
) -> dict[str, Any]:
    """What `longspan status --json` prints; no secret in it."""
    spec = machine.spec
    # What is told of one engine at the top is told of the one that has the longest way to go.
    behind = machine.replicas.least_advanced()
    group = behind.group if behind else None
    begun = machine.started["agents"]
    first = machine.ended.get("first token") if group and group.first_token else None
    known = facts(machine)
    replicas = [_replica(one, now) for one in machine.replicas]
    return {
        "name": spec.name,
        "phase": machine.phase,
        "age_seconds": round(now - begun, 1),
        "model": spec.model,
        "served_name": spec.served_name,
        "layout": {"tp": spec.tp, "pp": spec.pp, "executor": spec.executor, "device": spec.device},
        "endpoint": f"http://{machine.gateway_address}/v1" if machine.gateway_address else None,
        "api_key_file": api_key_file,
        "ray": {
            "address": machine.ground.ray_address, "joined": spec.joins_ray,
            "head": None if spec.ray_address else spec.ray_nodes()[0].name, "first_port": spec.ray_first_port,
        },
        "placement_group": group.placement_group or None if group else None,
        "nodes": [
            {
                "name": node.name, "address": node.address, "gpus": node.gpus,
                "agent": "joined" if node.name in machine.ground.joined else "waiting",
                "facts": known[node.name],
                # Those that differ by node; the others of the user's may hold secrets.
                "environment": {name: node.env[name] for name in COMPILED if name in node.env},
            }
            for node in machine.nodes
        ],
        "replicas": replicas,
        "served": machine.replicas.served, "wanted_replicas": machine.replicas.wanted, "max_replicas": spec.max_replicas,
        "ranks": [row for one in replicas for row in one["ranks"]],
        "phases": _phases(machine, now),
        "engine_phases": {k: round(v - begun, 3) for k, v in (group.engine_times if group else {}).items()},
        "first_token_seconds": round(first - begun, 3) if first else None,
        "first_token": group.first_token or None if group else None,
        "proof": _proof(group.proof if group else None),
        "lost": [
            {"node": name, "seconds_ago": round(now - lost.since, 1), "step": lost.step}
            for name, lost in machine.ground.lost.items()
        ],
        # The last change while it served, under way or over; null where there was none.
        "change": machine.rolling.document(machine.replicas, now) if machine.rolling else None,
        "restarts": [
            {"seconds_ago": round(now - at, 1), "replica": name, "reason": reason}
            for at, name, reason in machine.replicas.restarts
        ],
        # What the operator keeps out of traffic: name -> "drain" or "isolate".
        "held": machine.replicas.held,
        "subjects": list(machine.replicas.subjects),
        # Requests, queue, share outside and money as the gateway counts them; null while it was not asked.
        "traffic": None,
        # Nodes and replicas that something speaks against, and what: no traffic goes there although they run.
        "suspicions": machine.replicas.suspected,
        "findings": [finding.to_json() for finding in machine.findings],
        "failure": machine.failure.to_json() if machine.failure else None,
        "state_dir": state_dir,
        "logs": logs,
    }  # fmt: skip

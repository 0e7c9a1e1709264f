"""The status document, from the state machine's state. Pure."""

from typing import Any

from longspan.launch import steps, verdict


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
    spec = machine.spec
    match phase:
        case "agents":
            return f"{len(machine.joined)} of {len(machine.agents)} agents"
        case "ray":
            return machine.gpus_seen
        case "reservation":
            return f"{len(machine.bundles)} of {spec.world_size} GPUs reserved" if machine.bundles else ""
        case "engine":
            ranks = f"{len(machine.ranks)} of {spec.world_size} ranks joined"
            return ranks if machine.engine_phase == "starting" else f"{machine.engine_phase}, {ranks}"
        case "gateway":
            return machine.gateway_address
        case "first token":
            return str(machine.first_token.get("detail", ""))
        case "verified":
            return verdict.summary(machine.proof) if machine.proof else "asking one rank for its reference"
        case _:
            return ""


def facts(machine: steps.Steps) -> dict[str, dict[str, Any] | None]:
    """What each node's agent found there, with its copy of the checkpoint; None where it has not answered."""
    found: dict[str, dict[str, Any] | None] = {}
    for node in machine.nodes:
        known, copy = machine.facts.get(node.name), machine.digests.get(node.name)
        found[node.name] = {**known, "checkpoint": copy.fingerprint} if known and copy else known
    return found


def _ranks(machine: steps.Steps) -> list[dict[str, Any]]:
    spec = machine.spec
    rows = []
    for rank, node in enumerate(spec.rank_nodes()):
        seen = machine.ranks.get(rank)
        devices = machine.rank_devices.get(node.name, {}).get(str(seen.pid), []) if seen else []
        reserved = machine.gpu_ids[rank] if rank < len(machine.gpu_ids) else []
        rows.append(
            {
                "rank": rank, "tp_rank": rank % spec.tp, "pp_rank": rank // spec.tp,
                "planned_node": node.name, "planned_address": node.address,
                "bundle": rank if machine.bundles else None,
                "bundle_address": machine.bundles[rank] if machine.bundles else None,
                # Read back from the rank's own log line; null until it said so.
                "address": seen.address if seen else None,
                "pid": seen.pid if seen else None,
                # From the driver (pid -> UUID) where there is one; on a CPU host there is no GPU to name.
                "gpu": devices or ([f"index {i}" for i in reserved] if spec.device != "cpu" else None) or None,
            }
        )  # fmt: skip
    return rows


def document(
    machine: steps.Steps, *, state_dir: str, api_key_file: str, logs: str, now: float
) -> dict[str, Any]:
    """What `longspan status --json` prints; no secret in it."""
    spec = machine.spec
    begun = machine.started["agents"]
    first = machine.ended.get("first token") if machine.first_token else None
    known = facts(machine)
    return {
        "name": spec.name,
        "phase": machine.phase,
        "age_seconds": round(now - begun, 1),
        "model": spec.model,
        "served_name": spec.served_name,
        "layout": {"tp": spec.tp, "pp": spec.pp, "executor": spec.executor, "device": spec.device},
        "endpoint": f"http://{machine.gateway_address}/v1" if machine.gateway_address else None,
        "api_key_file": api_key_file,
        "ray": {"address": machine.ray_address, "joined": bool(spec.ray_address)},
        "placement_group": machine.placement_group or None,
        "nodes": [
            {
                "name": node.name, "address": node.address, "gpus": node.gpus,
                "agent": "joined" if node.name in machine.joined else "waiting",
                "facts": known[node.name],
            }
            for node in machine.nodes
        ],
        "ranks": _ranks(machine),
        "phases": _phases(machine, now),
        "engine_phases": {k: round(v - begun, 3) for k, v in machine.engine_times.items()},
        "first_token_seconds": round(first - begun, 3) if first else None,
        "first_token": machine.first_token or None,
        "proof": {"summary": verdict.summary(machine.proof), **machine.proof.to_json()} if machine.proof else None,
        "findings": [finding.to_json() for finding in machine.findings],
        "failure": machine.failure.to_json() if machine.failure else None,
        "state_dir": state_dir,
        "logs": logs,
    }  # fmt: skip

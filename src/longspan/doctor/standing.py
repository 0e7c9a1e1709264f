"""Where a deployment that does not serve yet stands: its status document in, the phase, ranks and hosts it waits for out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longspan.doctor.silence import RankState, late
from longspan.finding import Finding

# What an in-time launch shows in its stacks and sockets is no fault yet: every rank waits in a collective at some moment.
IN_TIME_CONFIDENCE = 0.3
# How far a rank has come (a number of the doctor's phases) by what the engine's log proved of all ranks. "joined" stays
# below "collectives ready": Ray's actor table proves a rank's process only.
_ENGINE = {"starting": 2, "joined": 3, "loading": 5, "warm-up": 8, "ready": 9}
_AFTER_ENGINE = {"gateway": 10, "first token": 10, "verified": 11, "serving": 11}
# Our phases that the doctor's own budgets and probes do not fit: seconds, what to look at. The seconds are those after
# which the launch gives up by itself, or less.
_OWN: dict[str, tuple[float, str]] = {
    "agents": (30.0, "`ssh HOST true` from this machine, the node's interpreter, and whether it reaches the controller's port"),
    "checkpoint": (900.0, "the read rate of the weights' file system on these hosts: their digests are being made"),
    "ray": (60.0, "the `ray` log of these hosts, and `nc -vz HEAD PORT` from them to the head's Ray port"),
    "gateway": (30.0, "the gateway's log, and whether these ranks' processes are still there"),
    "verified": (900.0, "the agents' logs: one rank is asked for its reference"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Standing:
    """What a launch waits for.

    Attributes:
        phase: as `longspan status` calls it, with the engine's own phase in brackets.
        seconds: how long it has stood there; over_seconds: by how much that is too long, negative while there is time.
        ranks, hosts: who has not passed it.
        next_probe: what to look at before anything is killed.
    """

    phase: str
    seconds: float
    over_seconds: float
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    next_probe: str

    @property
    def who(self) -> str:
        """The ranks and hosts, for people."""
        hosts = ", ".join(self.hosts)
        return f"rank {', '.join(map(str, self.ranks[:16]))} on {hosts}" if self.ranks else hosts

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "phase": self.phase, "seconds": round(self.seconds, 1), "over_seconds": round(self.over_seconds, 1),
            "ranks": list(self.ranks), "hosts": list(self.hosts), "next_probe": self.next_probe,
        }  # fmt: skip


def _engine_phase(status: Mapping[str, Any]) -> str:
    """The furthest of the engine's phases that was seen."""
    return max(
        (p for p in status["engine_phases"] if p in _ENGINE), key=_ENGINE.__getitem__, default="starting"
    )


def _since_seconds(status: Mapping[str, Any]) -> float:
    """How long the present phase (in the engine: its own phase) has lasted."""
    if (
        status["phase"] == "engine"
        and (seen := status["engine_phases"].get(_engine_phase(status))) is not None
    ):
        return max(0.0, float(status["age_seconds"]) - float(seen))
    row = next((row for row in status["phases"] if row["phase"] == status["phase"]), None)
    return float(row["seconds"] or 0.0) if row else 0.0


def rank_states(status: Mapping[str, Any]) -> list[RankState]:
    """How far each planned rank has come, by the controller's status document.

    Args:
        status: what `longspan status --json` prints, of a deployment between "agents" and "verified".
    """
    since = _since_seconds(status)
    return [
        RankState(row["rank"], row["planned_node"], phase, since)
        for row, phase in zip(status["ranks"], _phases_of_ranks(status), strict=True)
    ]


def _phases_of_ranks(status: Mapping[str, Any]) -> list[int]:
    rows, phase = status["ranks"], status["phase"]
    if phase == "agents":
        waiting = {node["name"] for node in status["nodes"] if node["agent"] == "waiting"}
        return [1 if waiting and row["planned_node"] not in waiting else 0 for row in rows]
    if phase == "reservation":
        return [1 if row["bundle_address"] is None else 2 for row in rows]
    if phase == "engine":
        reached = _ENGINE[_engine_phase(status)]
        return [max(reached, 3) if _present(row, status) else reached for row in rows]
    return [_AFTER_ENGINE.get(phase, 0)] * len(rows)


def _present(row: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether a rank announced itself. Under mp only a node's first rank does, for all of its node."""
    if status["layout"]["executor"] != "mp":
        return row["pid"] is not None
    return any(r["pid"] is not None for r in status["ranks"] if r["planned_node"] == row["planned_node"])


def standing(
    status: Mapping[str, Any], states: Sequence[RankState], own_seconds: Mapping[str, float] | None = None
) -> Standing:
    """Names what a launch waits for.

    Args:
        states: from `rank_states` of the same status; at least one.
        own_seconds: what each phase may take by this model's own launches (`history.budgets_seconds`); the defaults are
            lower bounds.
    """
    phase, seconds = status["phase"], _since_seconds(status)
    verdict = late(states)
    ranks, hosts, over, probe = verdict.ranks, verdict.hosts, verdict.over_seconds, verdict.next_probe
    if phase in _OWN:
        budget, probe = _OWN[phase]
        over = seconds - budget
    if phase == "agents" and all(node["agent"] != "waiting" for node in status["nodes"]):
        ranks, hosts, probe = (
            (),
            ("this machine",),
            "controller.log: the agent that runs the gateway is missing",
        )
    name = f"engine ({_engine_phase(status)})" if phase == "engine" else phase
    if own_seconds and name in own_seconds:
        over = min(over, seconds - own_seconds[name])
    return Standing(name, seconds, over, ranks, hosts, probe)


def judged(found: Sequence[Finding], where: Standing) -> list[Finding]:
    """What an examination found, in the light of the time: hints while the launch is within its budget; beyond it
    faults, and the phase, ranks and hosts that it waits for.

    Args:
        found: from `live.examine`; its own word about the phase is replaced by ours, which knows our phases.
    """
    if where.over_seconds <= 0:
        return as_context(found)
    stands = Finding(
        where.who, "warning", "insufficient-evidence",
        f'The launch stands in the phase "{where.phase}" {where.over_seconds:.0f} s beyond its budget; {where.who} has not passed it.',
        (), f"Look at {where.next_probe}.", "", "", 0.4,
    )  # fmt: skip
    return [*(f for f in found if f.cause != "insufficient-evidence"), stands]


def as_context(found: Sequence[Finding]) -> list[Finding]:
    """The same as hints: what ranks wait for while nothing is wrong yet, or after something else went wrong."""
    return [
        replace(f, severity="info", confidence=min(f.confidence, IN_TIME_CONFIDENCE))
        for f in found
        if f.cause != "insufficient-evidence"
    ]

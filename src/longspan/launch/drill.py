"""What a drill breaks and what its observations mean: pure.

A fault is a signal to one process of a deployment that serves. Under a steady load three times are taken from it: until the
controller has said so, until a request that was begun after it got an answer, and until all is as it was.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from longspan.errors import InputError

Outcome = Literal["answered", "refused", "cut", "hung"]
FRONT = "front"
CONTROLLER = "controller"  # which no agent runs: it strikes itself


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.

    Attributes:
        module: the process is found by the Python module it runs; empty for a rank, which is found by its pid.
        program: or, of Ray, by its program's name.
        signal: what it gets; `after_seconds`: then it is continued (SIGCONT); 0 for never.
        text: what it does, for people.
    """

    signal: Literal["KILL", "STOP"]
    module: str
    text: str
    after_seconds: float = 0.0
    program: str = ""


FAULTS: dict[str, Fault] = {
    "kill-rank": Fault("KILL", "", "kill one rank's process"),
    "kill-launcher": Fault(
        "KILL", "longspan.launch.ray_driver", "kill the launcher, and with it the reservation"
    ),
    "kill-gateway": Fault("KILL", "longspan.gateway", "kill the gateway"),
    "kill-controller": Fault(
        "KILL", "longspan.daemon.controller", "kill the controller; another one must go on from its record"
    ),
    "kill-raylet": Fault(
        "KILL",
        "",
        "kill Ray on the node of one rank; only groups with a rank there may notice",
        program="raylet",
    ),
    "kill-ray-head": Fault(
        "KILL",
        "",
        "kill the head of Ray; all of it and every group must be built again",
        program="gcs_server",
    ),
    "freeze-rank": Fault("STOP", "", "freeze one rank's process for good; the restart must end it"),
    "pause-rank": Fault(
        "STOP", "", "freeze one rank's process for 5 s: a blip that must cost no restart", 5.0
    ),
}


def target(
    fault: str, status: Mapping[str, Any], rank: int | None = None, replica: str | None = None
) -> tuple[str, dict[str, Any]]:
    """Whose agent strikes, and what it is told.

    Args:
        status: the status document.
        rank: for faults of a rank; the last one where none is named.
        replica: for faults of an engine; the last one where none is named.

    Raises:
        InputError: there is no such fault, replica or rank.
    """
    if fault not in FAULTS:
        raise InputError(f"There is no fault {fault!r}.", f"There are {', '.join(FAULTS)}.")
    kind = FAULTS[fault]
    replicas = {one["name"]: one for one in status["replicas"]}
    struck = replica or max(replicas, key=lambda name: int(name[1:]))
    if struck not in replicas:
        raise InputError(f"There is no replica {struck!r}.", f"There are {', '.join(replicas)}.")
    ranks = {row["rank"]: row for row in replicas[struck]["ranks"]}
    wanted = max(ranks) if rank is None else rank
    if wanted not in ranks:
        raise InputError(f"There is no rank {wanted}.", f"There are ranks 0 to {max(ranks)}.")
    if kind.module:
        if fault == "kill-controller":
            return CONTROLLER, {"signal": kind.signal}
        if fault == "kill-gateway":
            return FRONT, {"module": kind.module, "signal": kind.signal}
        engine = {"module": kind.module, "signal": kind.signal, "replica": struck}
        return str(ranks[0]["planned_node"]), engine
    row = ranks[wanted]
    if kind.program:
        head = status["ray"]["head"]
        if head is None:
            raise InputError(f"{fault} is for a Ray that Longspan started; this one was joined.")
        node = head if fault == "kill-ray-head" else row["planned_node"]
        return str(node), {"program": kind.program, "signal": kind.signal}
    return str(row["planned_node"]), {"pid": row["pid"], "signal": kind.signal, "replica": struck}


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the load; seconds since the fault, negative before it.

    Attributes:
        outcome: "answered" whole; "refused" with an error that says why, at once or in the stream; "cut" without a word;
            "hung" where neither came in time.
    """

    begun: float
    ended: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Drilled:
    """What one drill came to; seconds since the fault, NaN where it never happened.

    Attributes:
        detect_seconds: until the status said so. A fault that costs nothing is never detected, and need not be.
        reroute_seconds: until a request that was begun after the fault got an answer, whatever it said.
        recover_seconds: until the deployment served again and a request was answered whole.
        counts: of the requests that were under way or begun while it was broken.
    """

    fault: str
    detect_seconds: float
    reroute_seconds: float
    recover_seconds: float
    counts: Mapping[Outcome, int]
    restarts: int

    @property
    def recovered(self) -> bool:
        """It serves again."""
        return not math.isnan(self.recover_seconds)

    def to_json(self) -> dict[str, Any]:
        """Plain; null for what never happened."""
        seconds = {
            name: None if math.isnan(value) else round(value, 2)
            for name, value in (
                ("detect_seconds", self.detect_seconds), ("reroute_seconds", self.reroute_seconds),
                ("recover_seconds", self.recover_seconds),
            )
        }  # fmt: skip
        return {"fault": self.fault, **seconds, "requests": dict(self.counts), "restarts": self.restarts}


def conclude(
    fault: str, states: Sequence[tuple[float, bool]], requests: Sequence[Request], restarts: int
) -> Drilled:
    """Puts the observations together.

    Args:
        states: (seconds since the fault, whether the status said that all is well), in order.
        requests: of the whole load.
        restarts: of the engine, that the fault cost.
    """
    never = math.nan
    detected = next((at for at, well in states if at >= 0 and not well), never)
    last_bad = max((at for at, well in states if at >= 0 and not well), default=0.0)
    well_again = next((at for at, well in states if at >= last_bad and well), never)
    after = [one for one in requests if one.begun >= 0]
    rerouted = min((one.ended for one in after if one.outcome in {"answered", "refused"}), default=never)
    # An answer that began before the last bad sign may be an old one that went through.
    whole = [one.ended for one in after if one.outcome == "answered" and one.ended >= well_again]
    recovered = never if math.isnan(well_again) else min(whole, default=never)
    until = math.inf if math.isnan(recovered) else recovered
    touched = [one for one in requests if one.ended >= 0 and one.begun <= until]
    kinds: tuple[Outcome, ...] = ("answered", "refused", "cut", "hung")
    counts = {kind: sum(one.outcome == kind for one in touched) for kind in kinds}
    return Drilled(fault, detected, rerouted, recovered, counts, restarts)

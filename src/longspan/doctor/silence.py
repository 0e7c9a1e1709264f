"""Silence: which phase a launch stands in, which rank is missing, and whether it has taken too long."""

from collections.abc import Sequence
from dataclasses import dataclass

from longspan.doctor.rules.marks import PHASES
from longspan.doctor.rules.rule import Mark
from longspan.doctor.scene import Guess, Scene
from longspan.doctor.timeline import Event

STALLED_LINES = 3


@dataclass(frozen=True, slots=True)
class Silent:
    """A launch or server that stands still without an error: what it suggests, and the lines that show it."""

    guess: Guess
    evidence: tuple[Event, ...]


def silent(scene: Scene, stopped: bool) -> Silent | None:
    """Reads a log without errors for the marks of a hang.

    Args:
        scene: one attempt.
        stopped: someone ended it; people stop what hangs, which makes the guess a little surer.
    """
    marks = [
        e
        for e in scene.events
        if isinstance(e.rule, Mark) and (e.rule.phase or e.rule.means in ("stalled", "init-start"))
    ]
    if not marks:
        return None
    furthest = max((e.rule.phase for e in marks if isinstance(e.rule, Mark)), default=0)
    starts = _unfinished(scene)
    surer = 0.1 if stopped else 0.0
    if starts and furthest < 5:
        ranks = ", ".join(sorted({e.hit.groups.get("rank") or "?" for e in starts}, key=int)[:16])
        note = f"Init START without Init COMPLETE on rank {ranks}"
        return Silent(
            Guess("nccl-init-hang", 0.65 + surer, ("nccl-wrong-interface", "port-blocked"), note),
            tuple(starts[:3]),
        )
    last = marks[-1]
    if last.rule.id == "autotune-start":
        note = "FlashInfer's autotuning began and did not end"
        return Silent(
            Guess("nccl-init-hang", 0.6, ("collective-hang",), note, "Add --no-enable-flashinfer-autotune."),
            (last,),
        )
    tail = [e for e in marks if e.rule.id in ("throughput", "throughput-zero")][-STALLED_LINES:]
    if len(tail) == STALLED_LINES and all(e.rule.id == "throughput-zero" for e in tail):
        return Silent(
            Guess("collective-hang", 0.5, (), "requests are running and no token moves"), tuple(tail)
        )
    if furthest in (3, 4) and scene.world() > 1:
        note = "the last sign of the ranks is the set-up of their communicators"
        return Silent(
            Guess("nccl-init-hang", 0.4 + 2 * surer, ("insufficient-evidence",), note), (marks[-1],)
        )
    return None


def _unfinished(scene: Scene) -> list[Event]:
    """The Init START lines whose rank has fewer Init COMPLETE lines."""
    done: dict[tuple[str, str], int] = {}
    for event in scene.of("init-done"):
        key = (event.hit.groups.get("rank") or "", event.hit.groups.get("world") or "")
        done[key] = done.get(key, 0) + 1
    left = []
    for event in scene.of("init-start"):
        key = (event.hit.groups.get("rank") or "", event.hit.groups.get("world") or "")
        if done.get(key, 0) > 0:
            done[key] -= 1
        else:
            left.append(event)
    return left


@dataclass(frozen=True, slots=True)
class RankState:
    """How far one rank of a live launch has come.

    Attributes:
        phase: number in `PHASES`.
        since_seconds: how long it has been there.
    """

    rank: int
    host: str
    phase: int
    since_seconds: float


# Median and upper bound of each phase in our own CPU launches of 135M parameters are seconds; the budgets leave room
# for hundreds of gigabytes from a network file system. A guess until a deployment has launches of its own.
BUDGET_SECONDS: dict[int, float] = {
    0: 60, 1: 120, 2: 120, 3: 180, 4: 60, 5: 1800, 6: 300, 7: 600, 8: 300, 9: 120, 10: 60, 11: float("inf"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Late:
    """The verdict over a silent live launch.

    Attributes:
        phase: name of the phase it stands in.
        ranks, hosts: who has not passed it.
        over_seconds: by how much the budget is exceeded; negative while there is time.
        next_probe: what to collect or try before anything is killed.
    """

    phase: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    over_seconds: float
    next_probe: str


_PROBES = {
    0: "the node's ray start log, and `nc -vz HEAD 6379` from it",
    1: "`ray status`: free GPUs against the plan",
    2: "raylet.out of the hosts whose workers did not start",
    3: "NCCL_DEBUG=INFO, the sockets of these ranks in SYN-SENT, and py-spy stacks",
    4: "py-spy stacks of these ranks",
    5: "read rate of the weights' file system on these hosts",
    6: "py-spy stacks (profile run: a stuck collective or a compile)",
    7: "py-spy stacks (compile or autotune)",
    8: "py-spy stacks; try --enforce-eager to tell capture from the rest",
    9: "the API server's log",
    10: "one request by hand to the engine's own port",
}


def late(ranks: Sequence[RankState], budgets: dict[int, float] | None = None) -> Late:
    """Names the phase, ranks and hosts that a launch waits for, and whether its time is over.

    Args:
        ranks: the state of every rank; at least one.
        budgets: seconds per phase; the default is `BUDGET_SECONDS`, own launches are better.
    """
    slowest = min(r.phase for r in ranks)
    behind = [r for r in ranks if r.phase == slowest]
    budget = (budgets or BUDGET_SECONDS).get(slowest, 600.0)
    longest = max(r.since_seconds for r in behind)
    hosts = tuple(dict.fromkeys(r.host for r in behind))
    return Late(
        PHASES[slowest],
        tuple(r.rank for r in behind),
        hosts,
        longest - budget,
        _PROBES.get(slowest, "py-spy stacks"),
    )


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU's counters: utilisation in percent, memory-controller utilisation in percent, power in watts above idle."""

    sm_percent: float
    memory_percent: float
    power_watts: float
    idle_watts: float


def deadlock_fingerprint(gpus: Sequence[GpuReading], running: int, tokens_per_second: float) -> bool:
    """Whether the GPUs spin in a collective: busy by the counters, no memory traffic, little power, no tokens.

    Source: vllm issue 46097 (SM 96 %, memory 0 %, some 15 W above idle on every GPU while requests run and no token moves).
    """
    if not gpus or running == 0 or tokens_per_second > 0:
        return False
    return all(
        g.sm_percent >= 90 and g.memory_percent <= 2 and g.power_watts - g.idle_watts <= 60 for g in gpus
    )

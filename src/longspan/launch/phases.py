"""What the engine's own log says about its start: phases reached, and where each rank really is.

Patterns are of vLLM 0.20 to 0.32. The rank map is read back from here instead of being assumed.
"""

import re
from dataclasses import dataclass
from typing import Literal

EnginePhase = Literal["starting", "joined", "loading", "warm-up", "ready"]
ORDER: tuple[EnginePhase, ...] = ("starting", "joined", "loading", "warm-up", "ready")

# A rank announces itself in vllm/distributed/parallel_state.py.
_ASSIGNED = re.compile(r"rank (\d+) in world size (\d+) is assigned as")
# Ray's driver prefix "(RayWorkerProc pid=123, ip=10.0.0.2) "; no ip for processes on the driver's own node.
_RAY_PREFIX = re.compile(r"\((\w+) pid=(\d+)(?:, ip=([0-9a-fA-F.:]+))?\)")
# The mp executor's prefix "(Worker_PP1 pid=123)" or "(Worker pid=123)".
_WORKER_PREFIX = re.compile(r"\((?:Worker|RayWorkerProc)\w* pid=(\d+)")
_WHEN = re.compile(
    r"^(?:\([^)]*\) ?)*(?:\[?[A-Z]+ )?(?:\[?\d{2,4}[-/]\d\d(?:[-/]\d\d)?[ T]\d\d:\d\d:\d\d[.,\d]*\]? )?(?:\[[\w./-]+:\d+\] )?"
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

_PHASES: tuple[tuple[EnginePhase, re.Pattern[str]], ...] = (
    ("ready", re.compile(r"Application startup complete")),
    (
        "warm-up",
        re.compile(r"Warming up|GPU KV cache size|CPU KV cache|Capturing CUDA graph|init engine .* took"),
    ),
    ("loading", re.compile(r"Starting to load model|Loading safetensors|Loading weights took")),
)


@dataclass(frozen=True, slots=True)
class RankSeen:
    """A rank as its own process announced it; `address` is empty where the line did not carry one."""

    rank: int
    world_size: int
    pid: int
    address: str


def strip_colour(line: str) -> str:
    """The line without terminal colours."""
    return _ANSI.sub("", line)


def said(line: str) -> str:
    """What a line says, without who says it and when: Ray's prefix, vLLM's level, date, time and place in the code."""
    return _WHEN.sub("", strip_colour(line)).strip()


def rank_seen(line: str) -> RankSeen | None:
    """The rank that a line announces, if it is such a line."""
    assigned = _ASSIGNED.search(line)
    if not assigned:
        return None
    pid, address = 0, ""
    for prefix in _RAY_PREFIX.finditer(line[: assigned.start()]):
        pid, address = int(prefix[2]), prefix[3] or address
    if not pid and (worker := _WORKER_PREFIX.search(line)):
        pid = int(worker[1])
    return RankSeen(int(assigned[1]), int(assigned[2]), pid, address)


def rank_of_title(title: str, tp: int) -> int | None:
    """The rank of a worker by the title that vLLM gives its process ("VLLM::Worker_PP1_TP0"), or by the name of its
    Ray actor ("vllm_Worker_3f2a_TP0_PP1"); None for other processes. A size of 1 leaves its part out.

    Args:
        tp: the tensor-parallel size; rank = PP rank x TP + TP rank.
    """
    if not re.match(r"(VLLM::|vllm_)Worker(_|$)", title):
        return None
    parts = {name: int(number) for name, number in re.findall(r"_(PP|TP)(\d+)(?=_|$)", title)}
    return parts.get("PP", 0) * tp + parts.get("TP", 0)


def phase_seen(line: str) -> EnginePhase | None:
    """The phase that a line proves, if any."""
    return next((phase for phase, pattern in _PHASES if pattern.search(line)), None)


def later(one: EnginePhase, other: EnginePhase) -> EnginePhase:
    """The further of two phases."""
    return max(one, other, key=ORDER.index)

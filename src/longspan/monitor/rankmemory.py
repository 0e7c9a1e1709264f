"""How much of its GPU a rank gave to weights and to the KV cache, from the lines in which vLLM says so. Pure."""

import re
from dataclasses import dataclass
from typing import Literal

from longspan.units import GIB

# gpu_model_runner.py and gpu_worker.py of vLLM 0.20 to 0.33; under Ray and mp each rank says so itself, with its pid.
_PID = re.compile(r"\bpid=(\d+)")
_SAID: tuple[tuple[Literal["weights", "kv"], re.Pattern[str]], ...] = (
    ("weights", re.compile(r"Model loading took ([\d.]+) GiB")),
    ("kv", re.compile(r"Available KV cache memory: ([\d.]+) GiB")),
)


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One such line. `pid` is the rank's, 0 where the line does not say."""

    pid: int
    what: Literal["weights", "kv"]
    size_bytes: int


def memory_line(line: str) -> RankMemory | None:
    """What a line of an engine's log says of a rank's memory; None where it says nothing."""
    if "GiB" not in line:
        return None
    for what, pattern in _SAID:
        if found := pattern.search(line):
            pids = _PID.findall(line[: found.start()])
            return RankMemory(int(pids[-1]) if pids else 0, what, round(float(found[1]) * GIB))
    return None

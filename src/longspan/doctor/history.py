"""How long the phases of earlier launches took, and how long the next may take. Pure."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

# A launch may take several times what its kind usually takes: caches are cold, a file system is busy. A guess.
PATIENCE = 3.0
QUANTILE = 0.9


def durations_seconds(status: Mapping[str, Any]) -> dict[str, float]:
    """Seconds that each phase of a launch took: the launch's own, and the engine's as "engine (loading)".

    Args:
        status: the controller's status document of a launch that serves. An engine phase lasts until the next is seen.
    """
    rows = {row["phase"]: row for row in status["phases"]}
    found = {name: float(row["seconds"]) for name, row in rows.items() if row["state"] == "done"}
    seen = sorted(status["engine_phases"].items(), key=lambda item: float(item[1]))
    ends = [float(at) for _, at in seen[1:]]
    for (name, at), end in zip(seen, ends, strict=False):
        found[f"engine ({name})"] = max(0.0, end - float(at))
    return found


def budgets_seconds(launches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Phase -> seconds that it may take by a model's own launches (phase -> seconds each); empty where there are none.

    Three times the 90th percentile (nearest rank) of what was seen. The defaults still hold as lower bounds: three quick launches
    do not make the fourth late.
    """
    seen: dict[str, list[float]] = {}
    for launch in launches:
        for name, seconds in launch.items():
            seen.setdefault(name, []).append(seconds)
    return {name: PATIENCE * _quantile(values) for name, values in seen.items()}


def _quantile(values: Sequence[float]) -> float:
    return sorted(values)[max(0, ceil(QUANTILE * len(values)) - 1)]

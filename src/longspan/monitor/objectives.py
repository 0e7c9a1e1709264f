"""What the operator promises, and where alarms begin: `alarms.toml` in the deployment's directory. Pure."""

import tomllib
from dataclasses import dataclass, fields

from longspan.errors import MonitorConfigError


@dataclass(frozen=True, slots=True)
class Objectives:
    """Limits; None for no promise. All seconds, shares from 0 to 1, dollars.

    Attributes:
        ttft_p99_seconds, tpot_p99_seconds: of every replica, over the last minute.
        overflow_share: of requests that providers may serve. overflow_usd_per_hour: what they may cost.
        memory_free_share: below it a GPU is nearly full. disk_used_share: above it a disk is.
        clock_skew_seconds: above it a node's log lines and the controller's cannot be put in order.
    """

    ttft_p99_seconds: float | None = None
    tpot_p99_seconds: float | None = None
    overflow_share: float | None = None
    overflow_usd_per_hour: float | None = None
    memory_free_share: float = 0.01
    disk_used_share: float = 0.95
    clock_skew_seconds: float = 2.0


def parse_objectives(text: str) -> Objectives:
    """Reads the file's text.

    Raises:
        MonitorConfigError: no TOML, an unknown name, or a value that is no positive number.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MonitorConfigError(f"alarms.toml is not valid TOML: {error}.", "Correct it.") from error
    known = {one.name for one in fields(Objectives)}
    for name, value in table.items():
        if name not in known:
            raise MonitorConfigError(f"alarms.toml sets {name!r}.", f"Known: {', '.join(sorted(known))}.")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
            raise MonitorConfigError(f"{name} in alarms.toml is {value!r}.", "It must be a number above 0.")
    return Objectives(**{name: float(value) for name, value in table.items()})

"""Which field of a config broke its reading: found by leaving fields out, one after another."""

from collections.abc import Callable, Mapping
from typing import Any

Config = Mapping[str, Any]


# Tables within tables that are looked into; published configs have four.
_DEPTH = 6


def culprit(config: Config, reads: Callable[[Config], bool], depth: int = _DEPTH) -> str:
    """The field without which the config can be read, with its path; empty where no single field is to blame.

    Args:
        reads: whether a config can be read. It must fail for `config` itself.
        depth: how many more tables within tables are looked into.
    """
    healing = [name for name in config if reads({key: v for key, v in config.items() if key != name})]
    # Several may do: without experts nobody asks which layers have them. A plain size is the least suspect.
    healing.sort(key=lambda name: type(config[name]) is int and config[name] > 0)
    if healing:
        nested = _within(config, healing[0], reads, depth)
        return f"{healing[0]}.{nested}" if nested else str(healing[0])
    # A part that cannot be left out whole, such as text_config, may hold the field.
    for name in config:
        if nested := _within(config, name, reads, depth):
            return f"{name}.{nested}"
    return ""


def _within(config: Config, name: str, reads: Callable[[Config], bool], depth: int) -> str:
    inner = config[name]
    if depth == 0 or not isinstance(inner, Mapping):
        return ""
    return culprit(inner, lambda changed: reads({**config, name: changed}), depth - 1)

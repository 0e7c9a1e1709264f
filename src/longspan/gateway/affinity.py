"""Where a conversation belongs: rendezvous hashing with bounded load, and a bounded memory of prompt prefixes.

Rendezvous (highest random weight) hashing gives every key its own order of replicas, so that the loss of one
moves only its keys and spreads them; Thaler and Ravishankar 1998. The load bound follows "Consistent Hashing
with Bounded Loads", Mirrokni et al. 2016: nobody takes more than (1 + e) times the mean.
"""

import math
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

LOAD_FACTOR = 1.25
LOAD_SLACK = 2
# Prefix lengths in characters that are remembered. Geometric, so that any prompt costs at most a dozen hashes.
PREFIX_STEPS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
MAX_PREFIXES = 50_000


def rank(key: int, names: Sequence[str]) -> list[str]:
    """The names in this key's order; adding or removing a name changes no other pair's order."""
    seed = key.to_bytes(8, "little", signed=False)
    return sorted(names, key=lambda name: zlib.crc32(name.encode(), zlib.crc32(seed)) * 2654435761 % 2**32)


def load_bound(loads: Sequence[int]) -> int:
    """The most requests a replica may hold before its sessions go to their next choice."""
    return math.ceil(LOAD_FACTOR * (sum(loads) + 1) / max(1, len(loads))) + LOAD_SLACK


def session_key(text: str) -> int:
    """A 64-bit key of a session's name."""
    raw = text.encode("utf-8", "surrogatepass")
    return zlib.crc32(raw) | zlib.adler32(raw) << 32


def prompt_text(body: dict[str, Any], limit: int = PREFIX_STEPS[-1]) -> str:
    """The beginning of a prompt, as the engine will see it: roles and texts in their order."""
    parts: list[str] = []
    size = 0
    for name in ("system", "instructions", "prompt", "input", "messages"):
        value = body.get(name)
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, dict):
                item = f"{item.get('role', '')}:{item.get('content', '')}"  # noqa: PLW2901 - reads best so
            if isinstance(item, str):
                parts.append(item)
                size += len(item)
                if size >= limit:
                    return "\n".join(parts)
    return "\n".join(parts)


def prefix_keys(text: str) -> tuple[int, ...]:
    """A chained hash of each remembered prefix of the text, shortest first; none for short prompts."""
    keys: list[int] = []
    start, crc = 0, 0
    for step in PREFIX_STEPS:
        if len(text) < step:
            break
        crc = zlib.crc32(text[start:step].encode("utf-8", "surrogatepass"), crc)
        keys.append(crc << 20 | step >> 10)
        start = step
    return tuple(keys)


class PrefixMemory:
    """Which replica last saw which prefix; the least recently used are forgotten."""

    __slots__ = ("_seen", "limit")

    def __init__(self, limit: int = MAX_PREFIXES) -> None:
        self.limit = limit
        self._seen: OrderedDict[int, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, keys: Sequence[int]) -> tuple[str, int] | None:
        """The replica with the longest known prefix and that prefix's length in characters."""
        for key in reversed(keys):
            name = self._seen.get(key)
            if name is not None:
                return name, (key & 0xFFFFF) << 10
        return None

    def remember(self, keys: Sequence[int], name: str) -> None:
        """Notes that `name` holds these prefixes now."""
        for key in keys:
            self._seen[key] = name
            self._seen.move_to_end(key)
        while len(self._seen) > self.limit:
            self._seen.popitem(last=False)

    def forget(self, name: str) -> None:
        """A replica restarted: its cache is empty."""
        for key in [key for key, owner in self._seen.items() if owner == name]:
            del self._seen[key]

"""The GPU catalogue: what a type of GPU has, each number with its source. The data stand in `catalog.toml`."""

import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from longspan.errors import InputError
from longspan.units import GIB

_GIGA = 10**9
_TERA = 10**12
# field of the file -> (attribute of GpuType, factor)
_NUMBERS = {
    "memory_gib": ("memory_bytes", GIB),
    "memory_bandwidth_gb_per_second": ("memory_bandwidth_bytes_per_second", _GIGA),
    "bf16_tflops": ("bf16_flops", _TERA),
    "fp8_tflops": ("fp8_flops", _TERA),
    "fp4_tflops": ("fp4_flops", _TERA),
    "int8_tops": ("int8_ops", _TERA),
    "link_gb_per_second": ("link_bytes_per_second", _GIGA),
    "power_watts": ("power_watts", 1),
}


@dataclass(frozen=True, slots=True)
class GpuType:
    """One type of GPU.

    Attributes:
        memory_bytes: what CUDA or HIP reports as total, the base of `gpu_memory_utilization`.
        memory_bandwidth_bytes_per_second: datasheet peak.
        bf16_flops: dense peak per second (FP16 where the chip has no BF16 unit). `fp8_flops`, `fp4_flops` and
            `int8_ops` are 0 where the chip has no such unit.
        link: how the GPUs of one node reach each other by default: nvlink, xgmi, pcie, or pcie-host (through
            host memory, no peer-to-peer). A node of the inventory may say otherwise.
        link_bytes_per_second: over that link, one direction.
        power_watts: board power limit.
        sources: attribute -> where its number comes from.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    compute_capability: str
    memory_bytes: int
    memory_bandwidth_bytes_per_second: float
    bf16_flops: float
    fp8_flops: float
    fp4_flops: float
    int8_ops: float
    link: str
    link_bytes_per_second: float
    power_watts: float
    sources: tuple[tuple[str, str], ...]


def _fold(name: str) -> str:
    """Spelling that does not matter: case, spaces, punctuation and the vendor's name."""
    return re.sub(r"[^a-z0-9]|nvidia|geforce|amdinstinct", "", name.lower())


def _read(entry: dict[str, Any], sources: dict[str, str]) -> GpuType:
    numbers: dict[str, float] = {attribute: 0.0 for attribute, _ in _NUMBERS.values()}
    origin = []
    for field, (attribute, factor) in _NUMBERS.items():
        if field in entry:
            value, source = entry[field]
            numbers[attribute] = value * factor
            origin.append((attribute, sources[source]))
    return GpuType(
        name=entry["name"],
        aliases=tuple(entry.get("aliases", ())),
        vendor=entry["vendor"],
        compute_capability=entry["compute_capability"],
        memory_bytes=round(numbers.pop("memory_bytes")),
        link=entry["link"],
        sources=tuple(origin),
        **numbers,
    )


@cache
def catalog() -> dict[str, GpuType]:
    """All known GPU types by name, in the order of the file."""
    document = tomllib.loads(files("longspan.cluster").joinpath("catalog.toml").read_text("utf-8"))
    found = (_read(entry, document["sources"]) for entry in document["gpu"])
    return {gpu.name: gpu for gpu in found}


@cache
def _by_spelling() -> dict[str, GpuType]:
    return {_fold(name): gpu for gpu in catalog().values() for name in (gpu.name, *gpu.aliases)}


def find_gpu(name: str) -> GpuType | None:
    """The type that a person, nvidia-smi or a benchmark file calls `name`, or None.

    An exact spelling (case, spaces and dashes aside) wins; otherwise the sizes and form factors in the name must
    agree with exactly one type, so that "A100-80GB-PCIe" finds the PCIe card and "A100 48GB" finds nothing.
    """
    wanted = _fold(name)
    exact = _by_spelling().get(wanted)
    if exact is not None:
        return exact
    words = [_fold(word) for word in re.split(r"[\s_-]+", re.sub(r"SXM\d", "SXM", name, flags=re.IGNORECASE))]
    words = [word for word in words if word]
    matches = [
        gpu
        for gpu in catalog().values()
        if words and all(word in [_fold(part) for part in gpu.name.split("-")] for word in words)
    ]
    return matches[0] if len(matches) == 1 else None


def require_gpu(name: str) -> GpuType:
    """Like `find_gpu`, but an unknown name is the user's error.

    Raises:
        InputError: no such type, or several.
    """
    gpu = find_gpu(name)
    if gpu is None:
        raise InputError(
            f"The GPU type {name!r} is not in the catalogue.",
            f"Known types: {', '.join(catalog())}. Another one can be described in the inventory's [gpu_type] tables.",
        )
    return gpu


def custom_gpu(name: str, table: dict[str, Any], links: Collection[str] = ()) -> GpuType:
    """A type that the user's inventory describes in a `[gpu_type.NAME]` table, with plain numbers.

    Args:
        links: the kinds of link that there are; empty for no check.

    Raises:
        InputError: a number is missing or is none.
    """
    needed = {"memory_gib", "memory_bandwidth_gb_per_second", "bf16_tflops"}
    for field in [known for known in _NUMBERS if known in needed or known in table]:
        value: Any = table.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            value = -1
        # 1e-3 to 1e9 of its unit holds every chip, and keeps nan and inf out; 0 says that a chip has no such unit.
        if not 1e-3 <= value <= 1e9 and (value != 0 or field in needed):
            raise InputError(f"[gpu_type.{name}] needs {field} as a number above 0.")
    for field in ("vendor", "compute_capability", "link"):
        if not isinstance(table.get(field, ""), str):
            raise InputError(f"[gpu_type.{name}] needs {field} as a text.")
    if links and "link" in table and table["link"] not in links:
        raise InputError(f"[gpu_type.{name}]: link must be one of {', '.join(links)}.")
    unknown = set(table) - set(_NUMBERS) - {"vendor", "compute_capability", "link"}
    if unknown:
        raise InputError(f"[gpu_type.{name}] has unknown fields: {', '.join(sorted(unknown))}.")
    entry = {field: (value, "user") if field in _NUMBERS else value for field, value in table.items()}
    defaults = {
        "name": name,
        "vendor": "nvidia",
        "compute_capability": "",
        "link": "pcie",
        "link_gb_per_second": (28, "user"),
    }
    return _read({**defaults, **entry}, {"user": "the user's inventory"})

"""AMD GPUs through AMD's own Python library `amdsmi`, which ROCm brings along; imported only where it is there."""

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from longspan.monitor.view import GpuView


class Amd:
    """The library, initialised. `open` makes one."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handles = list(library.amdsmi_get_processor_handles())

    @classmethod
    def open(cls, library: Any = None) -> "Amd | str":
        """Loads and initialises it, or says in a few words why not."""
        try:
            library = library or importlib.import_module("amdsmi")
            library.amdsmi_init()
            return cls(library)
        except Exception as error:  # noqa: BLE001 - it raises whatever its loader meets: KeyError, OSError, its own
            missing = isinstance(error, ImportError)
            return (
                "no amdsmi here"
                if missing
                else f"amdsmi does not answer ({type(error).__name__}: {error})"[:200]
            )

    def read(self, now: float, *, links: bool = True) -> tuple[GpuView, ...]:
        """All GPUs as they are; the arguments are those of NVIDIA's reader."""
        return tuple(self._read(handle, index) for index, handle in enumerate(self._handles))

    def _read(self, handle: Any, index: int) -> GpuView:
        lib = self._library
        asic, use = (
            self._ask(lib.amdsmi_get_gpu_asic_info, handle),
            self._ask(lib.amdsmi_get_gpu_activity, handle),
        )
        power, ecc = (
            self._ask(lib.amdsmi_get_power_info, handle),
            self._ask(lib.amdsmi_get_gpu_total_ecc_count, handle),
        )
        vram = lib.AmdSmiMemoryType.VRAM
        busy = _number(use, "gfx_activity")
        # Instinct cards fill the second, older ones the first.
        watts = _number(power, "current_socket_power") or _number(power, "average_socket_power")
        sensors, current = lib.AmdSmiTemperatureType, lib.AmdSmiTemperatureMetric.CURRENT
        uuid = self._ask(lib.amdsmi_get_gpu_device_uuid, handle)
        return GpuView(
            str(uuid or f"index {index}"), index, str((asic or {}).get("market_name", "")), "amd",
            memory_total_bytes=_whole(self._ask(lib.amdsmi_get_gpu_memory_total, handle, vram)),
            memory_used_bytes=_whole(self._ask(lib.amdsmi_get_gpu_memory_usage, handle, vram)),
            utilisation_share=None if busy is None else busy / 100,
            power_watts=watts,
            temperature_celsius=_float(self._ask(lib.amdsmi_get_temp_metric, handle, sensors.HOTSPOT, current)),
            sm_clock_mhz=_number(self._ask(lib.amdsmi_get_clock_info, handle, lib.AmdSmiClkType.GFX), "clk"),
            memory_clock_mhz=_number(self._ask(lib.amdsmi_get_clock_info, handle, lib.AmdSmiClkType.MEM), "clk"),
            ecc_corrected=_whole((ecc or {}).get("correctable_count")),
            ecc_uncorrected=_whole((ecc or {}).get("uncorrectable_count")),
        )  # fmt: skip

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """An answer, or None where the card has none."""
        with contextlib.suppress(Exception):
            return call(*arguments)
        return None

    def memory_by_pid(self) -> dict[int, int]:
        """Not asked for: the library's list of processes walks over all of /proc."""
        return {}


def _number(document: Any, name: str) -> float | None:
    """A figure of one of its dictionaries, where "N/A" stands for none."""
    return _float(document.get(name)) if isinstance(document, dict) else None


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

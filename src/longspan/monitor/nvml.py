"""NVIDIA GPUs through the driver's own library, called with ctypes: no process is started and nothing has to be installed.

Function names, structures and constants are those of nvml.h, compared with nvidia-ml-py 13.615. Whatever a GPU or a driver does
not support is None.
"""

import ctypes
from ctypes import Structure, byref, c_char, c_int, c_int64, c_uint, c_uint64, c_void_p
from dataclasses import dataclass, field, replace
from typing import Any

from longspan.monitor.rates import per_second
from longspan.monitor.view import GpuView

LIBRARY = "libnvidia-ml.so.1"
OK = 0
CLOCK_SM, CLOCK_MEMORY = 1, 2
ECC_CORRECTED, ECC_UNCORRECTED, ECC_VOLATILE = 0, 1, 0
EVENT_XID = 0x8
FIELD_NVLINK_TX, FIELD_NVLINK_RX = 138, 139  # data since the driver was loaded, in KiB
ALL_LINKS = 0xFFFFFFFF
MAX_LINKS = 36
MAX_XID_EVENTS = 64  # of one reading
# What holds the clock down (nvmlClocksEventReasons). That the GPU is idle, or set to a clock, is no throttling.
THROTTLES = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake",
    0x200: "board limit", 0x400: "reliability",
}  # fmt: skip
MAX_PROCESSES = 256
NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF


class _Memory(Structure):
    _fields_ = (("total", c_uint64), ("free", c_uint64), ("used", c_uint64))


class _Utilisation(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Field(Structure):
    _fields_ = (
        ("id", c_uint), ("scope", c_uint), ("timestamp", c_int64), ("latency", c_int64), ("type", c_uint),
        ("status", c_uint), ("value", c_uint64),
    )  # fmt: skip


class _Event(Structure):
    _fields_ = (
        ("device", c_void_p), ("type", c_uint64), ("data", c_uint64), ("gpu_instance", c_uint), ("compute_instance", c_uint),
    )  # fmt: skip


class _Process(Structure):
    _fields_ = (
        ("pid", c_uint), ("memory", c_uint64), ("gpu_instance", c_uint), ("compute_instance", c_uint),
    )  # fmt: skip


@dataclass(slots=True)
class _Gpu:
    """What of a GPU stays, and what the last reading left."""

    handle: c_void_p
    index: int
    uuid: str
    name: str
    xid: int | None = None
    links: tuple[int | None, int | None] = (None, None)
    nvlink_bytes: tuple[int | None, int | None] = (None, None)
    read_at: float = 0.0


@dataclass(slots=True)
class Nvml:
    """The library, opened. `open` makes one.

    Attributes:
        driver: its version.
        events: the set in which Xid errors are collected; None where the driver gives none.
    """

    library: Any
    driver: str = ""
    gpus: list[_Gpu] = field(default_factory=list)
    events: c_void_p | None = None

    @classmethod
    def open(cls, path: str = LIBRARY) -> "Nvml | str":
        """Loads and initialises it, or says in a few words why not."""
        try:
            library = ctypes.CDLL(path)
            status = library.nvmlInit_v2()
        except (OSError, AttributeError):
            return "no NVIDIA driver here"
        if status != OK:
            return f"the NVIDIA driver does not answer (NVML error {status})"
        found = cls(library)
        text = (c_char * 96)()
        found.driver = text.value.decode() if found._ok("nvmlSystemGetDriverVersion", text, 96) else ""
        found._find_gpus()
        return found

    def _ok(self, name: str, *arguments: Any) -> bool:
        """Whether a call succeeded; one that this driver lacks did not."""
        try:
            return bool(getattr(self.library, name)(*arguments) == OK)
        except AttributeError:
            return False

    def _find_gpus(self) -> None:
        count = c_uint()
        self._ok("nvmlDeviceGetCount_v2", byref(count))
        events = c_void_p()
        if self._ok("nvmlEventSetCreate", byref(events)):
            self.events = events
        for index in range(count.value):
            handle = c_void_p()
            if not self._ok("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle)):
                self.gpus.append(
                    _Gpu(c_void_p(), index, f"index {index}", "")
                )  # there, but it does not answer
                continue
            text = (c_char * 96)()
            uuid = text.value.decode() if self._ok("nvmlDeviceGetUUID", handle, text, c_uint(96)) else ""
            name = text.value.decode() if self._ok("nvmlDeviceGetName", handle, text, c_uint(96)) else ""
            self.gpus.append(_Gpu(handle, index, uuid or f"index {index}", name))
            if self.events:
                self._ok("nvmlDeviceRegisterEvents", handle, c_uint64(EVENT_XID), self.events)

    # ---- reading
    def read(self, now: float, *, links: bool = True) -> tuple[GpuView, ...]:
        """All GPUs as they are.

        Args:
            now: seconds on a steady clock, for rates.
            links: ask for the state of each NVLink too, which is many calls.
        """
        self._take_xids()
        return tuple(self._read(gpu, now, links) for gpu in self.gpus)

    def _read(self, gpu: _Gpu, now: float, links: bool) -> GpuView:
        view = GpuView(gpu.uuid, gpu.index, gpu.name, xid=gpu.xid)
        if not gpu.handle:
            return view
        memory, used = _Memory(), _Utilisation()
        has_memory = self._ok("nvmlDeviceGetMemoryInfo", gpu.handle, byref(memory))
        busy = self._ok("nvmlDeviceGetUtilizationRates", gpu.handle, byref(used))
        milliwatts = self._uint("nvmlDeviceGetPowerUsage", gpu)
        limit = self._uint("nvmlDeviceGetEnforcedPowerLimit", gpu)
        reasons = c_uint64()
        throttled = self._ok("nvmlDeviceGetCurrentClocksThrottleReasons", gpu.handle, byref(reasons))
        if links:
            gpu.links = self._links(gpu)
        rx, tx = self._nvlink_rates(gpu, now)
        return replace(
            view,
            memory_total_bytes=memory.total if has_memory else None,
            memory_used_bytes=memory.used if has_memory else None,
            utilisation_share=used.gpu / 100 if busy else None,
            power_watts=None if milliwatts is None else milliwatts / 1000,
            power_limit_watts=None if limit is None else limit / 1000,
            temperature_celsius=self._uint("nvmlDeviceGetTemperature", gpu, c_int(0)),
            sm_clock_mhz=self._uint("nvmlDeviceGetClockInfo", gpu, c_int(CLOCK_SM)),
            memory_clock_mhz=self._uint("nvmlDeviceGetClockInfo", gpu, c_int(CLOCK_MEMORY)),
            throttled_by=tuple(text for bit, text in THROTTLES.items() if reasons.value & bit)
            if throttled
            else None,
            ecc_corrected=self._ecc(gpu, ECC_CORRECTED),
            ecc_uncorrected=self._ecc(gpu, ECC_UNCORRECTED),
            nvlink_up=gpu.links[0],
            nvlink_down=gpu.links[1],
            nvlink_rx_bytes_per_second=rx,
            nvlink_tx_bytes_per_second=tx,
        )

    def _uint(self, name: str, gpu: _Gpu, *arguments: Any) -> int | None:
        value = c_uint()
        return value.value if self._ok(name, gpu.handle, *arguments, byref(value)) else None

    def _ecc(self, gpu: _Gpu, kind: int) -> int | None:
        value = c_uint64()
        ok = self._ok("nvmlDeviceGetTotalEccErrors", gpu.handle, c_int(kind), c_int(ECC_VOLATILE), byref(value))  # fmt: skip
        return value.value if ok else None

    def _links(self, gpu: _Gpu) -> tuple[int | None, int | None]:
        """How many NVLinks are up and how many are not; unknown where there are none. A card without a bridge has links that
        are all down: none of them should be up."""
        states = []
        for link in range(MAX_LINKS):
            value = c_uint()
            if not self._ok("nvmlDeviceGetNvLinkState", gpu.handle, c_uint(link), byref(value)):
                break
            states.append(bool(value.value))
        up = sum(states)
        return (up, len(states) - up) if up else (None, None)

    def _nvlink_rates(self, gpu: _Gpu, now: float) -> tuple[float | None, float | None]:
        fields = (_Field * 2)()
        fields[0].id, fields[1].id = FIELD_NVLINK_RX, FIELD_NVLINK_TX
        fields[0].scope = fields[1].scope = ALL_LINKS
        values: list[int | None] = [None, None]
        if gpu.links[0] and self._ok("nvmlDeviceGetFieldValues", gpu.handle, c_int(2), fields):
            values = [one.value * 1024 if one.status == OK else None for one in fields]
        (rx, tx), (old_rx, old_tx) = values, gpu.nvlink_bytes
        seconds = now - gpu.read_at
        gpu.nvlink_bytes, gpu.read_at = (rx, tx), now
        return per_second(old_rx, rx, seconds), per_second(old_tx, tx, seconds)

    def _take_xids(self) -> None:
        """The driver keeps the errors of registered GPUs until they are fetched; without any the call returns at once."""
        for _ in range(MAX_XID_EVENTS if self.events else 0):
            event = _Event()
            if not self._ok("nvmlEventSetWait_v2", self.events, byref(event), c_uint(0)):
                return
            for gpu in self.gpus:
                if event.type & EVENT_XID and gpu.handle.value == event.device:
                    gpu.xid = int(event.data)

    def memory_by_pid(self) -> dict[int, int]:
        """pid -> bytes on all GPUs together, of processes that compute; pids are the host's, also in a container."""
        found: dict[int, int] = {}
        for gpu in self.gpus:
            count = c_uint(MAX_PROCESSES)
            processes = (_Process * MAX_PROCESSES)()
            if gpu.handle and self._ok(
                "nvmlDeviceGetComputeRunningProcesses_v3", gpu.handle, byref(count), processes
            ):
                for one in processes[: count.value]:
                    if one.memory != NOT_AVAILABLE:
                        found[one.pid] = found.get(one.pid, 0) + one.memory
        return found

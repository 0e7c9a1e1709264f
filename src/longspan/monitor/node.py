"""One node's telemetry, read once a second by its agent: GPUs, ports, CPU, memory, disks and our processes."""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from longspan.monitor import ports, procfs
from longspan.monitor.amd import Amd
from longspan.monitor.nvml import Nvml
from longspan.monitor.rates import per_second, share
from longspan.monitor.view import NodeView, ProcessView

# What is dear is read every so many seconds: the walk over all of /proc, which ports there are, the state of every NVLink.
SLOW_SECONDS = 10.0
MAX_PROCESSES = 64
Gpus = Nvml | Amd
_RANK = re.compile(r"(?:VLLM::Worker|RayWorkerProc|vllm_Worker)\S*")


def open_gpus() -> tuple[Gpus | None, str]:
    """The library of this node's GPUs, and what it is or why there is none."""
    nvidia = Nvml.open()
    if isinstance(nvidia, Nvml) and nvidia.gpus:
        return nvidia, f"NVML, driver {nvidia.driver}"
    amd = Amd.open()
    if isinstance(amd, Amd):
        return amd, "amdsmi"
    reason = nvidia if isinstance(nvidia, str) else "the NVIDIA driver names no GPU"
    return None, reason if amd == "no amdsmi here" else f"{reason}; {amd}"


@dataclass(slots=True)
class NodeSampler:
    """Reads the node; each reading gives rates since the one before.

    Attributes:
        root: the process whose descendants are ours (the agent). others: further pids of ours, such as those that a Ray
            that is not ours started; asked for now and then.
        disks: paths whose file systems matter.
    """

    name: str
    address: str
    disks: tuple[str, ...] = ()
    root: int = field(default_factory=os.getpid)
    others: Callable[[], set[int]] = set
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    shm: str = "/dev/shm"
    gpus: Gpus | None = None
    gpu_source: str = ""
    clock: Callable[[], float] = time.monotonic
    _at: float = 0.0
    _slow_at: float = -SLOW_SECONDS
    _cpu: procfs.CpuTimes | None = None
    _found: list[ports.Port] = field(default_factory=list)
    _ports: list[ports.PortReading] = field(default_factory=list)
    _pids: set[int] = field(default_factory=set)
    _titles: dict[int, str] = field(default_factory=dict)
    _ticks: dict[tuple[int, int], int] = field(default_factory=dict)
    _gpu_memory: dict[int, int] = field(default_factory=dict)

    def sample(self) -> NodeView:
        """The node as it is now. Takes 1 to 10 ms; not to be called on an event loop, since a sick driver may hang in it."""
        now = self.clock()
        slow = now - self._slow_at >= SLOW_SECONDS
        if slow:
            self._slow_at = now
            self._found = ports.find_ports(self.sys, self.proc)
            self._pids = procfs.below(self.root, procfs.parents(self.proc)) | self.others()
            self._titles = procfs.titles(self.proc, self._pids)
            self._gpu_memory = self.gpus.memory_by_pid() if self.gpus else {}
        seconds, self._at = now - self._at, now
        cpu, current = procfs.cpu_times(self.proc), [ports.read(port) for port in self._found]
        was, self._cpu = self._cpu, cpu
        before, self._ports = self._ports, current
        ram_total, ram_used = procfs.memory(self.proc)
        shm = procfs.disk(self.shm)
        return NodeView(
            self.name,
            self.address,
            gpus=self.gpus.read(now, links=slow) if self.gpus else (),
            gpu_source=self.gpu_source,
            ports=ports.rates(before, current, seconds),
            cpu_count=os.cpu_count(),
            cpu_share=share(cpu.busy - was.busy, cpu.total - was.total) if cpu and was else None,
            load_1min=procfs.load_1min(self.proc),
            ram_total_bytes=ram_total,
            ram_used_bytes=ram_used,
            shm_total_bytes=shm.total_bytes,
            shm_used_bytes=shm.used_bytes,
            disks=tuple(procfs.disk(path) for path in self.disks),
            processes=self._processes(seconds),
        )

    def _processes(self, seconds: float) -> tuple[ProcessView, ...]:
        """Our processes, the largest first."""
        readings = procfs.processes(self.proc, self._pids)
        tick = os.sysconf("SC_CLK_TCK")
        before, self._ticks = self._ticks, {(one.pid, one.start_ticks): one.ticks for one in readings}
        views = []
        for one in readings:
            ticks = per_second(before.get((one.pid, one.start_ticks)), one.ticks, seconds)
            views.append(
                ProcessView(
                    one.pid, process_name(self._titles.get(one.pid, one.name)) if one.pid != self.root else "agent",
                    cpu_share=None if ticks is None else ticks / tick, rss_bytes=one.rss_bytes,
                    gpu_memory_bytes=self._gpu_memory.get(one.pid),
                )
            )  # fmt: skip
        views.sort(key=lambda view: (view.name != "agent", -(view.rss_bytes or 0)))
        return tuple(views[:MAX_PROCESSES])


def process_name(title: str) -> str:
    """What a process is, in a few words, from how it calls itself."""
    if found := _RANK.match(title):
        return found[0]
    known = {
        "VLLM::EngineCore": "engine core", "VLLM::APIServer": "engine front end",
        "longspan.daemon.agent": "agent", "longspan.launch.ray_main": "ray", "longspan.launch.ray_driver": "launcher",
        "longspan.launch.engine_main": "engine", "longspan.gateway": "gateway",
    }  # fmt: skip
    for sign, name in known.items():
        if title.startswith(sign):
            return name
    return title.split(" ", 1)[0][:40] or "?"

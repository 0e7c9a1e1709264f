"""What this machine is: its device, GPUs, memory, and who holds a port."""

import contextlib
import errno
import subprocess
from pathlib import Path
from typing import NoReturn

from longspan.deployment import Device
from longspan.errors import InputError, PortError
from longspan.host import available_memory_bytes, gpu_kind
from longspan.units import MIB

__all__ = [
    "available_memory_bytes",
    "device",
    "gpus",
    "port_holder",
    "refuse_taken_port",
    "smallest_gpu_bytes",
]


def _nvidia(query: str) -> list[str]:
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def gpus() -> list[int]:
    """The indices of this machine's GPUs."""
    return [int(line) for line in _nvidia("index") if line.isdigit()]


def smallest_gpu_bytes() -> int:
    """The memory of the smallest GPU; 0 where there is none."""
    sizes = [int(line) * MIB for line in _nvidia("memory.total") if line.isdigit()]
    return min(sizes, default=0)


def device() -> Device:
    """Which device the engine will use here: GPUs where there are any."""
    return gpu_kind()


def port_holder(port: int) -> str:
    """Who listens on a TCP port, as "python3 (pid 4711)"; empty where /proc does not tell."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return ""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for link in (process / "fd").iterdir():
                if str(link.readlink()) in inodes:
                    return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return ""


def refuse_taken_port(listen: str, port: int, error: OSError) -> NoReturn:
    """Says by whom a port is taken.

    Raises:
        PortError, or InputError where the address is not this machine's.
    """
    if error.errno == errno.EADDRNOTAVAIL:
        raise InputError(f"--listen {listen}: the address is not one of this machine's.") from error
    holder = port_holder(port)
    by = f" by {holder}" if holder else ""
    raise PortError(
        f"Port {port} is taken{by}, so the gateway cannot listen on {listen}.",
        "Stop it, or choose another with --listen HOST:PORT.",
    ) from error

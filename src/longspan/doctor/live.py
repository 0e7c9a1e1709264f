"""Collects from the hosts of a live deployment what a silent launch leaves no other trace of, before anything is killed."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from longspan.doctor.silence import RankState
from longspan.doctor.stacks import Collected, judge
from longspan.errors import HostError
from longspan.finding import Finding
from longspan.host import Host

_IB = (
    "grep -H . /sys/class/infiniband/*/ports/*/state /sys/class/infiniband/*/ports/*/counters/port_{xmit,rcv}_data "
    "/sys/class/infiniband/*/ports/*/hw_counters/*{retry,timeout,out_of_sequence}* 2>/dev/null"
)
# Each of these is read-only. A host that lacks a program gives nothing for it and is no error.
COMMANDS: dict[str, tuple[str, ...]] = {
    "sockets": ("ss", "-tan"),
    "gpus": ("nvidia-smi", "--query-gpu=utilization.gpu,utilization.memory,power.draw", "--format=csv,noheader,nounits"),
    "processes-on-gpus": ("nvidia-smi", "--query-compute-apps=pid,used_memory,gpu_uuid", "--format=csv"),
    "nic-counters": ("bash", "-c", "grep -H . /sys/class/net/*/statistics/[rt]x_{bytes,errors,dropped} 2>/dev/null"),
    "ib-counters": ("bash", "-c", _IB),
    "kernel": ("sh", "-c", "dmesg -T 2>/dev/null | tail -n 200"),
    "shm": ("sh", "-c", "df -h /dev/shm; ls -la /dev/shm | head -n 40"),
}  # fmt: skip
COMMAND_SECONDS = 20.0
# torch's watchdog writes its flight recorder where TORCH_NCCL_DEBUG_INFO_TEMP_FILE says, by default here.
FLIGHT_RECORDER = "/tmp/nccl_trace_rank_"


@dataclass(frozen=True, slots=True)
class Target:
    """One host and the engine processes on it.

    Attributes:
        pids: rank -> process id on that host.
    """

    host: Host
    pids: Mapping[int, int]


def _ask(host: Host, argv: Sequence[str]) -> str:
    try:
        done = host.run(argv, timeout_seconds=COMMAND_SECONDS)
    except HostError:
        return ""
    return done.stdout if done.returncode == 0 or done.stdout else ""


def _stack(host: Host, pid: int) -> str:
    """py-spy's stack of a process; without py-spy the kernel's word about what it waits for."""
    text = _ask(host, ["py-spy", "dump", "--pid", str(pid)])
    return text or _ask(
        host,
        [
            "sh",
            "-c",
            f"cat /proc/{pid}/wchan; echo; grep -E '^(State|Threads)' /proc/{pid}/status; cat /proc/{pid}/stack 2>/dev/null",
        ],
    )


def collect_host(target: Target) -> Collected:
    """Everything from one host."""
    stacks = {rank: _stack(target.host, pid) for rank, pid in target.pids.items()}
    files = {name: _ask(target.host, argv) for name, argv in COMMANDS.items()}
    files["flight-recorder"] = _ask(target.host, ["sh", "-c", f"ls -la {FLIGHT_RECORDER}* 2>/dev/null"])
    return Collected(target.host.name, stacks, files.get("sockets", ""), files.get("gpus", ""), files)


def collect(targets: Sequence[Target]) -> list[Collected]:
    """Everything from all hosts at once: stacks are only worth something if they are of the same moment."""
    if not targets:
        return []
    with ThreadPoolExecutor(max_workers=min(32, len(targets))) as pool:
        return list(pool.map(collect_host, targets))


def examine(
    targets: Sequence[Target],
    ranks: Sequence[RankState],
    *,
    running: int = 0,
    tokens_per_second: float = 0.0,
    budgets: dict[int, float] | None = None,
) -> tuple[list[Finding], list[Collected]]:
    """Collects from a live deployment and says what it waits for.

    Args:
        targets: the hosts and their engine processes.
        ranks: how far each rank has come, as the controller sees it; at least one.
        running: requests in the engines, tokens_per_second: what they make (both 0 before the first answer).
        budgets: seconds per phase from this deployment's own launches, if there are any.
    """
    collected = collect(targets)
    return judge(ranks, collected, running, tokens_per_second, budgets), collected

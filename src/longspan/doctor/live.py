"""Collects from the hosts of a live deployment what a silent launch leaves no other trace of, before anything is killed."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from longspan.doctor import flight
from longspan.doctor.silence import RankState
from longspan.doctor.stacks import Collected, judge, recent_kernel
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
    "kernel": ("sh", "-c", "cat /proc/uptime; dmesg 2>/dev/null | tail -n 400"),
    "shm": ("sh", "-c", "df -h /dev/shm; ls -la /dev/shm | head -n 40"),
}  # fmt: skip
COMMAND_SECONDS = 20.0
_FLIGHT = Path(flight.__file__).read_text()
# Of one text: the newest that a node keeps or sends.
TEXT_CHARACTERS = 100_000
# Commands that run side by side on one host: what counts is that all is of one moment.
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Target:
    """One host and the engine processes on it.

    Attributes:
        pids: rank -> process id on that host.
        others: name -> process id of what is no rank: the engine's core, the API server.
    """

    host: Host
    pids: Mapping[int, int]
    others: Mapping[str, int] = field(default_factory=dict)


def _ask(host: Host, argv: Sequence[str], seconds: float) -> str:
    try:
        done = host.run(argv, timeout_seconds=seconds)
    except HostError:
        return ""
    return done.stdout[-TEXT_CHARACTERS:]


def _stack(host: Host, pid: int, seconds: float) -> str:
    """py-spy's stack of a process; without py-spy, or where it may not look, the kernel's word about what it waits for."""
    text = _ask(host, ["py-spy", "dump", "--pid", str(pid)], seconds)
    waits = f"cat /proc/{pid}/wchan; echo; grep -E '^(State|Threads)' /proc/{pid}/status; cat /proc/{pid}/stack 2>/dev/null"
    return text or _ask(host, ["sh", "-c", waits], seconds)


def collect_host(
    target: Target, *, seconds: float = COMMAND_SECONDS, age_seconds: float = 3600.0
) -> Collected:
    """Everything from one host.

    Args:
        seconds: what a command may take.
        age_seconds: how old a kernel message may be.
    """
    host = target.host
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # The stacks first: they say what waited for what at one moment.
        stacks = {rank: pool.submit(_stack, host, pid, seconds) for rank, pid in target.pids.items()}
        others = {f"stack-{n}": pool.submit(_stack, host, pid, seconds) for n, pid in target.others.items()}
        asked = {name: pool.submit(_ask, host, argv, seconds) for name, argv in COMMANDS.items()}
        recorder = ["python3", "-c", _FLIGHT, str(age_seconds)]
        asked["flight-recorder"] = pool.submit(_ask, host, recorder, seconds)
        files = {name: job.result() for name, job in (others | asked).items()}
        texts = {rank: job.result() for rank, job in stacks.items()}
    files["kernel"] = recent_kernel(files["kernel"], age_seconds)
    return Collected(host.name, texts, files["sockets"], files["gpus"], files)


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

"""Reads what was collected from a silent launch: stacks, sockets, GPU counters. Text in, facts out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longspan.doctor.silence import GpuReading, RankState, deadlock_fingerprint, late
from longspan.finding import Evidence, Finding

_FRAME = re.compile(r"^\s+(\S+) \(([^():]+(?:\.\w+)?):(\d+)\)\s*$")
_MAIN = re.compile(r'^Thread \S+ \(.*\): "?MainThread"?')

# The innermost frame that tells, and the cause it suggests. Order matters: the first that stands in the stack wins.
_TELLING: tuple[tuple[str, str, str], ...] = (
    ("ncclCommInitRank", "nccl-init-hang", "builds an NCCL communicator"),
    ("rendezvous", "nccl-init-hang", "waits in a symmetric-memory rendezvous"),
    ("init_custom_ar", "custom-allreduce-failed", "sets up custom all-reduce"),
    ("autotune", "nccl-init-hang", "autotunes kernels"),
    ("_new_process_group_helper", "port-blocked", "creates a process group"),
    ("_create_c10d_store", "port-blocked", "waits for the TCP store"),
    ("init_process_group", "port-blocked", "waits for the other ranks to join"),
    ("safe_open", "", "reads weights"),
    ("load_weights", "", "loads weights"),
    ("all_reduce", "collective-hang", "waits in an all-reduce"),
    ("all_gather", "collective-hang", "waits in an all-gather"),
    ("broadcast", "collective-hang", "waits in a broadcast"),
    ("recv", "collective-hang", "waits for another pipeline stage"),
    ("synchronize", "collective-hang", "waits for the GPU"),
    ("capture", "collective-hang", "captures CUDA graphs"),
    ("acquire_read", "", "waits for work"),
    ("dequeue", "", "waits for work"),
)


@dataclass(frozen=True, slots=True)
class Stuck:
    """Where one process's main thread stands."""

    cause: str
    doing: str
    frame: str


def parse_py_spy(text: str) -> list[str]:
    """The frames of the main thread in `py-spy dump`'s output, innermost first: "function (file:line)"."""
    frames: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("Thread "):
            if frames:
                break
            inside = bool(_MAIN.match(line))
        elif inside and (match := _FRAME.match(line)):
            frames.append(f"{match[1]} ({match[2]}:{match[3]})")
    return frames


def where(frames: Sequence[str]) -> Stuck | None:
    """What a stack is doing, from the first frame that tells."""
    for function, cause, doing in _TELLING:
        for frame in frames:
            if function in frame.split(" ")[0]:
                return Stuck(cause, doing, frame)
    return None


def parse_sockets(text: str) -> list[tuple[str, str]]:
    """The peers that never answered, from `ss -tan`: (local address, peer address) of sockets in SYN-SENT."""
    found = []
    for line in text.splitlines():
        parts = line.split()
        if len(parts) >= 5 and parts[0] == "SYN-SENT":
            found.append((parts[3], parts[4]))
    return found


def parse_gpus(text: str, idle_watts: float = 60.0) -> list[GpuReading]:
    """GPU counters from `nvidia-smi --query-gpu=utilization.gpu,utilization.memory,power.draw --format=csv,noheader,nounits`.

    Args:
        idle_watts: what such a GPU draws idle; 60 to 75 W for H100/H200 SXM (a guess until measured on the node).
    """
    readings = []
    for line in text.splitlines():
        parts = [p.strip() for p in line.split(",")]
        try:
            readings.append(GpuReading(float(parts[0]), float(parts[1]), float(parts[2]), idle_watts))
        except (IndexError, ValueError):
            continue
    return readings


_KERNEL = re.compile(r"^(?:<\d+>)?\[ *(\d+\.\d+)\] ")


def recent_kernel(text: str, age_seconds: float) -> str:
    """The kernel's messages that are not older than `age_seconds`, out of /proc/uptime's line and `dmesg`.

    An Xid of last week explains no failure of today. Empty where either is missing.
    """
    first, _, rest = text.partition("\n")
    try:
        since = float(first.split()[0]) - age_seconds
    except (IndexError, ValueError):
        return ""
    stamped = ((_KERNEL.match(line), line) for line in rest.splitlines())
    return "\n".join(line for stamp, line in stamped if stamp and float(stamp[1]) >= since)


@dataclass(frozen=True, slots=True)
class Collected:
    """What one host gave.

    Attributes:
        stacks: rank -> py-spy's text; empty where py-spy is missing.
        files: name -> text of everything else, kept as evidence.
    """

    host: str
    stacks: Mapping[int, str]
    sockets: str = ""
    gpus: str = ""
    files: Mapping[str, str] | None = None


def judge(
    ranks: Sequence[RankState],
    collected: Sequence[Collected],
    running: int = 0,
    tokens_per_second: float = 0.0,
    budgets: dict[int, float] | None = None,
) -> list[Finding]:
    """Says what a silent launch or server waits for.

    Args:
        ranks: how far every rank has come; at least one.
        collected: what the hosts gave.
        running, tokens_per_second: of a server that already answered.
        budgets: see `silence.late`.
    """
    verdict = late(ranks, budgets)
    who = f"rank {', '.join(str(r) for r in verdict.ranks[:16])} on {', '.join(verdict.hosts)}"
    findings: list[Finding] = []
    for host in collected:
        for local, peer in parse_sockets(host.sockets)[:4]:
            findings.append(Finding(
                host.host, "error", "port-blocked", f"{host.host} asks {peer} for a connection and gets no answer.",
                (Evidence(f"{host.host}: ss -tan", 0, f"SYN-SENT {local} -> {peer}"),),
                "Open that port between the two hosts, or correct the address.", "", "", 0.8,
            ))  # fmt: skip
    findings += _from_stacks(collected)
    gpus = [g for host in collected for g in parse_gpus(host.gpus)]
    if deadlock_fingerprint(gpus, running, tokens_per_second):
        findings.append(Finding(
            who, "error", "collective-hang", "Every GPU is busy without memory traffic and at idle power, and no token moves: the ranks spin in a collective.",
            tuple(Evidence(f"{h.host}: nvidia-smi", 0, h.gpus.strip().splitlines()[0]) for h in collected if h.gpus.strip()),
            "Keep the stacks that were just taken; then restart the whole group.", "", "https://github.com/vllm-project/vllm/issues/46097", 0.85,
        ))  # fmt: skip
    if verdict.over_seconds > 0:
        findings.append(Finding(
            who, "warning", "insufficient-evidence",
            f'The launch stands in the phase "{verdict.phase}" {verdict.over_seconds:.0f} s beyond its budget; {who} has not passed it.',
            (), f"Look at {verdict.next_probe}.", "", "", 0.4,
        ))  # fmt: skip
    return sorted(findings, key=lambda f: -f.confidence)


def _from_stacks(collected: Sequence[Collected]) -> list[Finding]:
    """Groups the ranks by what they do; a lone rank that does something else is the suspect."""
    doing: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    for host in collected:
        for rank, text in host.stacks.items():
            if stuck := where(parse_py_spy(text)):
                doing.setdefault((stuck.cause, stuck.doing), []).append((rank, host.host, stuck.frame))
    total = sum(len(v) for v in doing.values())
    findings = []
    for (cause, what), members in doing.items():
        if not cause:
            continue
        names = ", ".join(str(rank) for rank, _, _ in members[:16])
        odd = [f"rank {r} {w}" for (_, w), others in doing.items() if w != what for r, _, _ in others][:4]
        summary = f"Rank {names} {what}" + (f", while {'; '.join(odd)}." if odd else ".")
        findings.append(Finding(
            f"rank {names}", "error", cause, summary,
            tuple(Evidence(f"{host}: py-spy rank {rank}", 0, frame) for rank, host, frame in members[:4]),
            "Compare with the ranks that are elsewhere; restart the group only after the stacks are kept.", "", "",
            round(0.6 + 0.2 * len(members) / max(1, total), 2),
        ))  # fmt: skip
    return findings

"""What Slurm says of an allocation -> its nodes: `scontrol show job -d` and `scontrol show node`. Pure.

Read on Slurm 22.05; the fields used here are in all versions since 19.05.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from longspan.errors import SlurmError

MAX_HOSTS = 65_536  # Slurm's own MAX_HOSTS_IN_RANGE (src/common/hostlist.c)
# What srun reads as wishes of its own (srun(1), "input environment variables"). In an allocation they hold what the
# *job* was asked for: a step of one task per node would inherit them, and `--mem` beside SLURM_MEM_PER_CPU is fatal.
SRUN_WISHES = (
    "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE", "SLURM_MEM_BIND", "SLURM_NTASKS", "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET", "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_TRES", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_PER_GPU", "SLURM_TRES_PER_TASK", "SLURM_CPU_BIND",
    "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_VERBOSE", "SLURM_DISTRIBUTION", "SLURM_EXACT",
    "SLURM_EXCLUSIVE", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND",
    "SLURM_GRES", "SLURM_STEP_GRES", "SLURM_HINT", "SLURM_NNODES", "SLURM_NUM_NODES", "SLURM_OPEN_MODE", "SLURM_EXPORT_ENV",
    "SLURM_THREADS_PER_CORE", "SLURM_WHOLE", "SLURM_KILL_BAD_EXIT", "SLURM_WAIT", "SLURM_UNBUFFEREDIO", "SLURM_LABELIO",
    "SLURM_STDINMODE", "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_TIMELIMIT", "SLURM_IMMEDIATE",
)  # fmt: skip
# srun hands the environment of the machine where it is called to the tasks. These belong to that machine alone.
OF_ONE_MACHINE = (
    "VLLM_HOST_IP",
    "VLLM_API_KEY",
    "HOSTNAME",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "PWD",
    "OLDPWD",
)


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node of an allocation.

    Attributes:
        address: NodeAddr, an IP address or a name that has one.
        gpus: those that Slurm gave to the job there; None where it counts no GPUs for the job.
        step: which allocation a job step names to run there: "42", or "42+1" in a heterogeneous job.
    """

    name: str
    address: str
    gpus: int | None
    step: str


def expand_hostlist(text: str) -> list[str]:
    """ "gpu[01-03,7],login" -> gpu01, gpu02, gpu03, gpu7, login, in Slurm's order.

    Raises:
        SlurmError: it is no list of hosts, or names more than Slurm can have.
    """
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            pieces = (
                [literal]
                if literal
                else [number for one in ranges.split(",") for number in _numbers(one, text)]
            )
            if len(names) * len(pieces) > MAX_HOSTS:
                raise _unreadable(text)
            names = [name + piece for name in names for piece in pieces]
        found += names
    if not found:
        raise _unreadable(text)
    return found


def _numbers(text: str, whole: str) -> list[str]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text, re.ASCII)
    if match is None:
        raise _unreadable(whole)
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first or last - first >= MAX_HOSTS:
        raise _unreadable(whole)
    return [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]


def _unreadable(text: str) -> SlurmError:
    return SlurmError(
        f"Slurm's host list {text[:200]!r} cannot be read.", "`scontrol show hostnames` should print it."
    )


def gres_gpus(text: str) -> int | None:
    """GPUs in a gres string such as "gpu:h100:4(IDX:0-3),nvme:1"; None where it names no GPU."""
    counts = re.findall(r"(?:^|,)gpu(?::[^:,()]*[A-Za-z_][^:,()]*)?:(\d+)", text, re.ASCII)
    return sum(map(int, counts)) if counts else None


def parse_allocation(job_text: str, node_text: str) -> tuple[SlurmNode, ...]:
    """The nodes of a job, component by component, in Slurm's order.

    Args:
        job_text: `scontrol --oneliner --detail show job ID`; a heterogeneous job is several lines.
        node_text: `scontrol --oneliner show node LIST` of all its nodes.

    Raises:
        SlurmError: the job does not run, or a node of it is not described.
    """
    addresses = {
        fields["NodeName"]: fields.get("NodeAddr", fields["NodeName"])
        for line in node_text.splitlines()
        if "NodeName" in (fields := _fields(line))
    }
    found: list[SlurmNode] = []
    for line in job_text.splitlines():
        fields = _fields(line)
        if "JobId" not in fields:
            continue
        if fields.get("JobState") != "RUNNING":
            raise SlurmError(
                f"Slurm job {fields['JobId']} is {fields.get('JobState', 'in no state')}, so it holds no nodes.",
                "Get an allocation with salloc or sbatch, and run `longspan up` inside it.",
            )
        gpus = _gpus_by_node(line)
        whole = "HetJobId" in fields
        step = f"{fields['HetJobId']}+{fields['HetJobOffset']}" if whole else fields["JobId"]
        for name in expand_hostlist(fields.get("NodeList", "")):
            if name not in addresses:
                raise SlurmError(f"Slurm does not describe {name}, a node of job {fields['JobId']}.", "")
            found.append(SlurmNode(name, addresses[name], gpus.get(name), step))
    if not found:
        raise SlurmError(
            "`scontrol show job` named no job.", "Is SLURM_JOB_ID that of a job that still runs?"
        )
    return tuple(found)


def _fields(line: str) -> dict[str, str]:
    """KEY=value pairs; the first of a key counts (details repeat some per node)."""
    found: dict[str, str] = {}
    for key, value in re.findall(r"(?:^|\s)([A-Za-z]\w*)=(\S*)", line):
        found.setdefault(key, value)
    return found


def _gpus_by_node(line: str) -> dict[str, int | None]:
    """Out of the details: "Nodes=h[1-2] CPU_IDs=0 Mem=1024 GRES=gpu:1(IDX:0)", once for each kind of share."""
    return {
        name: gres_gpus(gres)
        for nodes, gres in re.findall(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", line)
        for name in expand_hostlist(nodes)
    }


def srun_words(step: str, node: str) -> list[str]:
    """srun's words for one task on one node of an allocation that is in use already.

    `--overlap` shares what other steps hold, `--mem=0` asks for all memory of the job there, and without a binding the
    task may use all of its cores: Slurm would give one core to one task.
    """
    job, _, group = step.partition("+")
    component = [f"--het-group={group}"] if group else []
    return [
        "srun", f"--jobid={job}", *component, "--overlap", "--mem=0", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1",
        f"--nodelist={node}", "--cpu-bind=none", "--kill-on-bad-exit=0", "--unbuffered", "--quiet",
    ]  # fmt: skip


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for srun: the caller's, without the job's own wishes and without what belongs to one machine."""
    dropped = {*SRUN_WISHES, *OF_ONE_MACHINE}
    return {key: value for key, value in environment.items() if key not in dropped}

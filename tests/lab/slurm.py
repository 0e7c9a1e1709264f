"""A real Slurm over lab hosts: munge and the controller on the test machine, one slurmd in each host.

Debian's packages slurm-wlm and munge, all as root, with the files of the lab's own directory. What a test runs with
`Slurm.env` talks to this Slurm only.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.build import Lab

PROGRAMS = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "srun": "slurm-wlm", "munged": "munge"}
SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin"  # where Debian puts daemons, which a user's PATH may lack
START_SECONDS = 30


def why_no_slurm() -> str:
    """Why this machine cannot run Slurm and the command that helps; empty where it can."""
    missing = sorted(
        {package for program, package in PROGRAMS.items() if not shutil.which(program, path=SEARCH)}
    )
    if missing:
        return f"Slurm is not installed: apt-get install --no-install-recommends {' '.join(missing)}"
    if not Path("/sys/fs/cgroup/freezer").exists() and not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "slurmd needs cgroups, and /sys/fs/cgroup holds none"
    return ""


@dataclass(frozen=True, slots=True)
class Slurm:
    """A Slurm that runs; `env` makes its commands find it."""

    lab: Lab
    env: Mapping[str, str]

    def run(
        self, argv: Sequence[str], *, timeout_seconds: float = 60, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on the test machine, which is this Slurm's login node.

        Raises:
            RuntimeError: it failed and `check` is set; with its own words.
        """
        done = subprocess.run(
            list(argv), env=dict(self.env), capture_output=True, text=True, timeout=timeout_seconds, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.returncode}: {done.stderr.strip()}")
        return done

    def steps(self) -> str:
        """The job steps that run, one a line; empty when none does."""
        return self.run(["squeue", "--steps", "--noheader", "--format=%i %j %N"]).stdout.strip()


def _configure(lab: Lab, gpus: Mapping[str, int]) -> Path:
    """Writes slurm.conf with its companions into a directory of its own.

    GPUs are counted, not used.
    """
    folder = lab.root / "slurm"
    for part in ("", "state", "munge"):
        (folder / part).mkdir(mode=0o755)
    name = socket.gethostname().split(".")[0]
    nodes = "".join(
        f"NodeName={host.name} NodeAddr={host.address} CPUs={os.cpu_count()} RealMemory=1024"
        f"{f' Gres=gpu:{gpus[host.name]}' if gpus.get(host.name) else ''} State=UNKNOWN\n"
        for host in lab.hosts
    )
    (folder / "slurm.conf").write_text(
        f"ClusterName=lab\nSlurmctldHost={name}({lab.network.gateway})\n"
        f"AuthType=auth/munge\nAuthInfo=socket={folder}/munge/socket\nCredType=cred/munge\n"
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\nSwitchType=switch/none\n"
        "SlurmUser=root\nSlurmdUser=root\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\n"
        "SlurmctldParameters=enable_configless\nReturnToService=2\nKillWait=5\nInactiveLimit=0\nGresTypes=gpu\n"
        "SchedulerType=sched/backfill\nSchedulerParameters=bf_interval=1,sched_interval=1\n"
        f"StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool-%n\n"
        f"SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd-%n.pid\n"
        f"SlurmctldLogFile={folder}/slurmctld.log\nSlurmdLogFile={folder}/slurmd-%n.log\n"
        f"{nodes}PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO\n"
    )
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    # To Slurm a GPU is a file that is there.
    for number in range(max(gpus.values(), default=0)):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(
        "".join(
            f"NodeName={name} Name=gpu File={folder}/gpu[0-{count - 1}]\n"
            for name, count in gpus.items()
            if count
        )
    )
    return folder


@contextlib.contextmanager
def start_slurm(lab: Lab, gpus: Mapping[str, int] | None = None) -> Iterator[Slurm]:
    """Starts munge, slurmctld and a slurmd in each host; at the end no job and no daemon is left.

    Args:
        gpus: how many GPUs Slurm counts on a host.

    Raises:
        RuntimeError: a node did not become idle; with the end of its log.
    """
    folder = _configure(lab, gpus or {})
    env = {**os.environ, "PATH": SEARCH, "SLURM_CONF": str(folder / "slurm.conf")}
    (folder / "munge" / "key").write_bytes(os.urandom(128))
    (folder / "munge" / "key").chmod(0o400)
    munge = folder / "munge"
    daemons = [
        _daemon(
            [
                "munged", "--force", "--foreground", f"--key-file={munge}/key", f"--socket={munge}/socket",
                f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed",
            ],
            env, folder / "munged.out",
        )
    ]  # fmt: skip
    slurm = Slurm(lab, env)
    try:
        _until((munge / "socket").exists, folder / "munged.out")
        daemons.append(_daemon(["slurmctld", "-D"], env, folder / "slurmctld.out"))
        for host in lab.hosts:
            log = (folder / f"slurmd-{host.name}.out").open("w")
            with log:
                daemons.append(
                    host.popen(
                        [shutil.which("slurmd", path=SEARCH) or "slurmd", "-D", "-N", host.name],
                        env={"SLURM_CONF": env["SLURM_CONF"], "PATH": SEARCH},
                        stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                    )
                )  # fmt: skip
        wanted = len(lab.hosts)
        _until(lambda: _idle(slurm) == wanted, folder / "slurmctld.log")
        yield slurm
        slurm.run(["scancel", "--user=root"], check=False)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()


def _daemon(argv: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    program = shutil.which(argv[0], path=SEARCH)
    assert program is not None
    with log.open("w") as out:
        return subprocess.Popen(
            [program, *argv[1:]],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def _idle(slurm: Slurm) -> int:
    return slurm.run(
        ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"], check=False
    ).stdout.count("\n")


def _until(what: object, log: Path) -> None:
    assert callable(what)
    deadline = time.monotonic() + START_SECONDS
    while not what():
        if time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-2000:] if log.exists() else "no log"
            raise RuntimeError(f"Slurm did not start within {START_SECONDS} s: {tail}")
        time.sleep(0.1)

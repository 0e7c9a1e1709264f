"""The Slurm allocation that this process runs in, as hosts; asked from `scontrol`."""

import ipaddress
import os
import shutil
import socket
from collections.abc import Mapping

from longspan.cluster.hosts import HostEntry, HostsFile
from longspan.cluster.slurm import SlurmNode, parse_allocation
from longspan.errors import HostError, SlurmError
from longspan.host import Host, LocalHost


def allocated_hosts(
    environment: Mapping[str, str] = os.environ, *, host: Host | None = None
) -> HostsFile | None:
    """The nodes of the allocation, without `gpus` where Slurm counts none for the job; None outside of an allocation,
    or where it is nothing but this machine.

    Raises:
        SlurmError: Slurm does not answer, the job does not run, or a node has no address.
    """
    job = environment.get("SLURM_JOB_ID", "")
    if not job or shutil.which("scontrol") is None or shutil.which("srun") is None:
        return None
    ask = host or LocalHost()
    jobs = _scontrol(ask, "--detail", "show", "job", job)
    nodes = parse_allocation(jobs, _scontrol(ask, "show", "node"))
    if len(nodes) == 1 and nodes[0].name == environment.get("SLURMD_NODENAME"):
        return None
    return HostsFile(
        None, tuple(HostEntry(node.name, _address(node), node.gpus, slurm=node.step) for node in nodes)
    )


def _scontrol(host: Host, *words: str) -> str:
    argv = ["scontrol", "--oneliner", *words]
    try:
        done = host.run(argv, timeout_seconds=60)
    except HostError as error:
        raise SlurmError(f"Slurm does not answer: {error.what}", "Try `scontrol ping`.") from error
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise SlurmError(f"`{' '.join(argv)}` failed: {reason[0]}", "Try `scontrol ping`.")
    return done.stdout


def _address(node: SlurmNode) -> str:
    """Ray and NCCL compare addresses as text, so a name is resolved once, here."""
    try:
        found = socket.getaddrinfo(node.address, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SlurmError(
            f"{node.address}, Slurm's address of {node.name}, cannot be resolved here: {error.strerror}.",
            "Run `longspan up` on a node of the allocation (sbatch, or `srun --pty bash` first).",
        ) from error
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    usable = [address for address in addresses if not address.is_loopback and not address.is_link_local]
    if not usable:
        raise SlurmError(
            f"{node.name} resolves to {addresses[0]}, by which no other node reaches it.",
            "Debian writes 127.0.1.1 for a machine's own name into /etc/hosts: give it the address of its network there.",
        )
    return str(min(usable, key=lambda address: address.version))

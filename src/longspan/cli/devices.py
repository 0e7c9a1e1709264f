"""Which device the engine will use: of the nodes, not of the machine on which `up` is typed."""

from collections.abc import Mapping, Sequence
from typing import Any

from longspan.cli import machine
from longspan.cluster.hosts import HostEntry, HostsFile
from longspan.deployment import Device
from longspan.errors import CapacityError, InputError
from longspan.host import Host, SshHost

DEVICES: dict[str, Device] = {"nvidia": "cuda", "amd": "rocm"}
# Prints the node's device. The answer of one node counts for all; their agents say later if another has another.
PROBE = (
    "sh", "-c",
    "if nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then echo cuda; elif [ -e /dev/kfd ]; then echo rocm; else echo cpu; fi",
)  # fmt: skip


def device_of(hosts: HostsFile | None, in_ray: Sequence[Mapping[str, Any]] = ()) -> Device:
    """The device of a cluster file's nodes; without a file, of this machine.

    In this order: the GPU types in the file, what this machine has if it is one of the nodes, what Ray says of its
    nodes, what the first node answers over ssh.

    Args:
        in_ray: the live nodes of a Ray that already runs (`joining.probe_ray`).

    Raises:
        InputError: two vendors in one replica. CapacityError: this machine has not what the file says.
        HostError: the first node does not answer.
    """
    if hosts is None:
        return machine.device()
    used = [host for host in hosts.hosts if host.gpus != 0]
    typed = typed_device(used)
    local = (
        [host for host in used if host.ssh is None and host.slurm is None]
        if hosts.ray_address is None
        else []
    )
    if local:
        here = machine.device()
        if typed and here != typed:
            raise CapacityError(
                f"The cluster file gives {local[0].name} GPUs for {typed}, this machine ({local[0].name}) has"
                f" {'no GPU' if here == 'cpu' else f'GPUs for {here}'}.",
                "Add ssh = … if the node is another machine, or say --device cpu to rehearse on processors.",
            )
        return here
    if typed:
        return typed
    if hosts.ray_address is not None:
        return ray_device(in_ray) or machine.device()
    return probe(SshHost(used[0].name, used[0].ssh or "")) if used else machine.device()


def typed_device(hosts: Sequence[HostEntry]) -> Device | None:
    """What the GPU types in the file say; None where all are plain numbers.

    Raises:
        InputError: types of two vendors.
    """
    found = {DEVICES[host.vendor]: host.name for host in hosts if host.vendor in DEVICES}
    if len(found) > 1:
        raise InputError(
            f"The cluster file mixes GPUs of two vendors ({', '.join(f'{name}: {d}' for d, name in found.items())}).",
            "One replica runs on GPUs of one vendor: leave the others out, or write gpus = 0 for them.",
        )
    return next(iter(found), None)


def ray_device(in_ray: Sequence[Mapping[str, Any]]) -> Device | None:
    """What Ray found on its nodes (its resource `accelerator_type:…`); None where it says nothing."""
    types = [str(node["accelerator"]) for node in in_ray if node["gpus"] and node.get("accelerator")]
    if not types:
        return None
    return "rocm" if types[0].upper().startswith("AMD") else "cuda"


def probe(host: Host) -> Device:
    """Asks a host.

    Raises:
        HostError: it cannot be reached.
    """
    answer = host.run(PROBE).stdout.split()
    return next((device for device in DEVICES.values() if device in answer), "cpu")

"""Room for a deployment on this machine: memory, disk and the gateway's port. A running deployment takes these itself."""

import shutil
import socket
from pathlib import Path

from longspan.cli import machine
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.errors import CapacityError, InputError
from longspan.units import GIB, format_bytes


def check_room(checkpoint: Path | None, spec: DeploymentSpec) -> None:
    """Enough memory for the weights of this machine's ranks, enough disk for Ray's files.

    Other hosts' memory is not known here: their agents' ranks fail there, with vLLM's own words.

    Raises:
        CapacityError
    """
    free_disk = shutil.disk_usage("/tmp").free
    if free_disk < GIB:
        raise CapacityError(
            f"/tmp has {format_bytes(free_disk)} free, Ray and its logs need 1.0 GiB.", "Free some."
        )
    here = [node for node in spec.rank_nodes() if _is_here(node, spec)]
    if checkpoint is None or not here:
        return
    weights_bytes = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
    share = weights_bytes / spec.world_size
    if spec.device == "cpu":
        # Per rank: its share of the weights, 1 GiB of KV cache (what we set) and 1.2 GiB of Python and libraries (measured).
        need = round(share * len(here)) + len(here) * round(2.2 * GIB)
        have = machine.available_memory_bytes()
        if need > have:
            raise CapacityError(
                f"{len(here)} ranks need about {format_bytes(need)} of memory"
                f" (weights {format_bytes(share * len(here))}), {format_bytes(have)} are available.",
                "Stop something, use fewer ranks or a smaller model.",
            )
        return
    smallest = machine.smallest_gpu_bytes()
    if smallest and share > 0.9 * smallest:
        raise CapacityError(
            f"Each rank would hold {format_bytes(share)} of weights, a GPU has {format_bytes(smallest)}.",
            "Use more GPUs (--tp, --pp) or a quantised checkpoint.",
        )


def _is_here(node: NodeSpec, spec: DeploymentSpec) -> bool:
    """Whether the node is this machine for sure: we start its agent as a child, neither over ssh nor by Slurm or Ray."""
    return node.is_here and spec.ray_address is None


def check_port(listen: str) -> None:
    """The gateway's port is free.

    Raises:
        InputError: not host:port. PortError: taken, by whom.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InputError(f"--listen {listen!r} is not HOST:PORT.", "Such as 127.0.0.1:8000.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except PermissionError as error:
            raise InputError(
                f"Port {port} may not be opened by this user.", "Use a port above 1023."
            ) from error
        except socket.gaierror as error:
            raise InputError(f"--listen {listen}: {host!r} is no address of this machine.") from error
        except OSError as error:
            machine.refuse_taken_port(listen, int(port), error)

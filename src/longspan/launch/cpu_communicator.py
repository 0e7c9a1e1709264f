"""vLLM's CPU communicator, which takes ranks of several hosts for ranks of one; apart, because it imports vLLM.

Where the processor has AVX-512 (or on ARM), vLLM 0.32 lets ranks exchange data through /dev/shm if all of them derive the
same segment name, and the name is made of the rendezvous port: ranks on two hosts agree, and the second cannot open what
the first made ("open shm in SHMManager failed. errno: 2"). Here they must also share the file system behind /dev/shm.
"""

from pathlib import Path

import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

SHM = Path("/dev/shm")
BOOT = Path("/proc/sys/kernel/random/boot_id")


def shm_identity(shm: Path = SHM, boot: Path = BOOT) -> str:
    """Which /dev/shm this is: containers of one machine can have their own, and hosts number their mounts alike."""
    return f"{boot.read_text().strip()}/{shm.stat().st_dev}"


class HostAwareCommunicator(CpuCommunicator):  # type: ignore[misc]
    """Through /dev/shm only among ranks that have the same one; else as on a processor without that extension."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        """vLLM's own test, and ours. Collective: every rank of the group makes both in the same order."""
        mine = shm_identity()
        found: list[str] = [""] * self.world_size
        torch.distributed.all_gather_object(found, mine, group=self.device_group)
        named_alike = bool(super()._all_group_ranks_share_shm_group_name())
        return named_alike and set(found) == {mine}

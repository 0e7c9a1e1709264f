"""Ranks on several hosts must not take each other's shared memory for their own, as vLLM's CPU build does."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine]


@pytest.mark.parametrize(
    ("named_alike", "others", "through_memory"),
    [(True, ["here", "here"], True), (True, ["here", "there"], False), (False, ["here", "here"], False)],
)
def test_memory_is_shared_only_by_ranks_that_have_the_same(
    monkeypatch: pytest.MonkeyPatch, named_alike: bool, others: list[str], through_memory: bool
) -> None:
    """vLLM's own test stands, and ours beside it; vLLM's is where it is overridden, else this override would do nothing."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    from longspan.launch import cpu_communicator

    name = "_all_group_ranks_share_shm_group_name"
    assert name in vars(CpuCommunicator)
    monkeypatch.setattr(CpuCommunicator, name, lambda self: named_alike)
    monkeypatch.setattr(cpu_communicator, "shm_identity", lambda: "here")

    def gather(found: list[str], mine: str, group: Any) -> None:
        assert (mine, group) == ("here", "the group")
        found[:] = others

    monkeypatch.setattr(cpu_communicator.torch.distributed, "all_gather_object", gather)
    communicator = object.__new__(cpu_communicator.HostAwareCommunicator)
    communicator.world_size, communicator.device_group = 2, "the group"
    assert getattr(communicator, name)() is through_memory


def test_identity_tells_boots_and_mounts_apart(tmp_path: Path) -> None:
    """Another boot is another host; another file system on one boot another container."""
    from longspan.launch.cpu_communicator import shm_identity

    boots = [tmp_path / "one", tmp_path / "two"]
    for boot in boots:
        boot.write_text(f"{boot.name}\n")
    own = shm_identity(tmp_path, boots[0])
    assert own == shm_identity(tmp_path, boots[0])
    assert len({own, shm_identity(tmp_path, boots[1]), shm_identity(Path("/proc"), boots[0])}) == 3


def test_the_platform_names_it() -> None:
    """The path that vLLM imports is that of the class."""
    from vllm.utils.import_utils import resolve_obj_by_qualname

    from longspan.launch.cpu_communicator import HostAwareCommunicator
    from longspan.launch.cpu_platform_class import CpuRayPlatform

    assert resolve_obj_by_qualname(CpuRayPlatform.get_device_communicator_cls()) is HostAwareCommunicator

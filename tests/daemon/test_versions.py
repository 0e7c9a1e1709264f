"""What an agent reads of its node's driver."""

from pathlib import Path

import pytest

from longspan.daemon.versions import driver_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5 22:23:56 UTC 2024\nGCC version: 12", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build\n", "570.133.20"),
        ("something else\n", ""),
    ],
)  # fmt: skip
def test_driver_version(tmp_path: Path, text: str, version: str) -> None:
    """The open and the closed kernel module's line; anything else is no version, nor is a host without the file."""
    path = tmp_path / "version"
    assert driver_version(path) == ""
    path.write_text(text)
    assert driver_version(path) == version

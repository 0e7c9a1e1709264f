"""What an agent says of the interpreter that will run its node's ranks, and of the driver."""

import asyncio
import sys
from pathlib import Path

import pytest
from real import executable

from longspan.daemon import functions
from longspan.daemon.versions import driver_version, own_versions, versions_of


def test_another_interpreter(tmp_path: Path) -> None:
    """A node with a Python of its own is described by that one's versions, not by the agent's."""
    other = executable(
        tmp_path / "python", ["""echo '{"python": "3.12.9", "ray": "2.55.0", "vllm": "0.30.0"}'"""]
    )
    facts = asyncio.run(functions.facts({"python": str(other)}, str(tmp_path)))
    assert (facts["python"], facts["ray"], facts["vllm"]) == ("3.12.9", "2.55.0", "0.30.0")
    own = asyncio.run(functions.facts({"python": sys.executable}, str(tmp_path)))
    assert own.items() >= own_versions().items()
    assert own["device"] in {"cpu", "cuda", "rocm"}


def test_it_says_the_same_as_a_program() -> None:
    """Asked as a process, an interpreter answers what it finds itself."""
    link = Path(sys.executable)
    assert versions_of(f"{link.parent}/./{link.name}") == own_versions()


def test_an_interpreter_that_cannot_answer(tmp_path: Path) -> None:
    """One that does not exist or has no Longspan is named."""
    with pytest.raises(RuntimeError, match="/nowhere/python cannot be run"):
        versions_of("/nowhere/python")
    bare = executable(tmp_path / "python", ["echo 'No module named longspan' >&2", "exit 1"])
    with pytest.raises(RuntimeError, match="cannot tell its versions: No module named longspan"):
        versions_of(str(bare))


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

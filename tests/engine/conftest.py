"""Fixtures of the tests that start a real Ray and a real vLLM. One engine at a time: the machine has two cores."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from engine.running import Before, Longspan


@pytest.fixture(scope="session", autouse=True)
def engine_installed() -> None:
    """These tests need the engine; `make test` installs it."""
    if find_spec("vllm") is None or find_spec("ray") is None:
        pytest.skip("no engine in this environment: `make test` makes one that has it")
    if shutil.which("nvidia-smi"):
        pytest.skip("these tests are of the CPU engine; on a host with GPUs use docs/gpu-checks.md")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Longspan]:
    """A user without any deployment; at the end nothing of theirs is left on the machine."""
    before = Before.now()
    longspan = Longspan(tmp_path_factory.mktemp("state"))
    yield longspan
    longspan.run("down")
    assert before.left_by(longspan) == []

"""The command line with a state and cache of its own, run in this process or as a user runs it."""

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from longspan.cli import main
from model_made import model_directory

# The shapes of a small Llama with 9 heads, of which 2 and 4 are no divisors; numbers of SmolLM2-135M.
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30, "vocab_size": 49152,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Said:
    """What a verb left: exit code and texts."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one document on standard output."""
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State and cache of this test only."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)  # the tests may themselves run in a job
    return tmp_path


@pytest.fixture
def longspan(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Runs `longspan ARGUMENTS` through its entry point, errors included."""

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["longspan", *arguments])
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main.run()
        code = ended.value.code
        assert isinstance(code, int)
        return Said(code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with a config.json, and weights that take no disk (a sparse file)."""
    return model_directory(tmp_path / "model", CONFIG)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this machine another: an engine, GPUs, memory and disk as a test wants them; hosts over ssh have the same device unless said."""
    from longspan.cli import devices, machine, prepare, room

    def make(
        *,
        gpus: int = 0,
        memory_bytes: int = 64 << 30,
        disk_bytes: int = 64 << 30,
        gpu_bytes: int = 80 << 30,
        over_ssh: str | None = None,
    ) -> None:
        monkeypatch.setattr(prepare, "find_spec", lambda name: object())
        monkeypatch.setattr(prepare, "installed", lambda *names: "99.0")
        monkeypatch.setattr(machine, "gpus", lambda: list(range(gpus)))
        monkeypatch.setattr(machine, "device", lambda: "cuda" if gpus else "cpu")
        monkeypatch.setattr(machine, "available_memory_bytes", lambda: memory_bytes)
        monkeypatch.setattr(machine, "smallest_gpu_bytes", lambda: gpu_bytes)
        usage = type("usage", (), {"free": disk_bytes})
        monkeypatch.setattr(room.shutil, "disk_usage", lambda path: usage)
        other = over_ssh or ("cuda" if gpus else "cpu")
        monkeypatch.setattr(devices, "probe", lambda host: other)

    make()
    return make


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reaching the point where processes would be started fails the test."""
    from longspan.cli import control

    def refuse(*_: object) -> None:
        raise AssertionError("a controller would have been started")

    monkeypatch.setattr(control, "start_controller", refuse)

"""Ctrl-C, a failed phase and `down`, at every phase that takes long: nothing is left behind."""

from pathlib import Path

import pytest

from engine.running import Before, Longspan, interrupt_after
from longspan.errors import LaunchError

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]
LISTEN = ("--listen", "127.0.0.1:18432")


@pytest.mark.parametrize("phase", ["agents", "checkpoint", "reservation", "first token"])
def test_ctrl_c_leaves_nothing(tmp_path: Path, demo_model: Path, phase: str) -> None:
    """Interrupted after a phase (so while Ray or the engine starts or the proof is taken), `up` ends with 130 and leaves
    nothing."""
    before = Before.now()
    longspan = Longspan(tmp_path)
    process = longspan.start_up(*LISTEN)
    try:
        said = interrupt_after(process, phase)
    finally:
        process.kill()
        longspan.run("down")
    assert process.returncode == 130, said
    assert "taking everything down" in said
    assert before.left_by(longspan) == []


def test_an_engine_that_refuses_is_told_and_leaves_nothing(tmp_path: Path, demo_model: Path) -> None:
    """vLLM's own reason reaches the user, with the exit code of a failed launch."""
    before = Before.now()
    longspan = Longspan(tmp_path)
    done = longspan.up(*LISTEN, "--", "--max-model-len", "99999999")
    assert done.returncode == LaunchError.exit_code, done.stderr
    assert "99999999" in done.stderr
    assert "Traceback" not in done.stderr
    assert before.left_by(longspan) == []

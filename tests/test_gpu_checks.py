"""`scripts/gpu_checks.py` where there is no GPU: its verdicts on what it is told."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "gpu_checks.py"
STATUS: dict[str, Any] = {
    "layout": {"device": "cuda"}, "ranks": [{"gpu": ["a"]}, {"gpu": ["b"]}], "first_token_seconds": 1.0,
    "proof": {"layers": [{"name": "reference", "state": "passed", "seen": ""}]},
}  # fmt: skip


@pytest.mark.parametrize(("left", "code", "word"), [({}, 0, "PASS"), ({4711: "GPU-a"}, 1, "FAIL")])
def test_a_process_that_is_left_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], left: dict[int, str], code: int, word: str
) -> None:  # fmt: skip
    """What holds a GPU after `down` and did not before is ours until proved otherwise; what was there before is not."""
    others = {1: "GPU-x"}
    script = runpy.run_path(str(SCRIPT))
    state = {"down": False}

    def longspan(*arguments: str) -> None:
        state["down"] = arguments[0] == "down"

    def deployed(*_: str) -> dict[str, Any]:
        state["down"] = False
        return STATUS

    names = script["main"].__globals__
    monkeypatch.setitem(names, "longspan", longspan)
    monkeypatch.setitem(names, "deployed", deployed)
    seen = iter([others, {**others, **left}] + [others, others] * 2)
    monkeypatch.setitem(names, "compute_processes", lambda: next(seen))
    monkeypatch.setattr(sys, "argv", ["gpu_checks.py", "/model"])
    assert script["main"]() == code
    assert word in capsys.readouterr().out
    assert state["down"]

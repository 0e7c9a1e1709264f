"""Where the proof's one-rank reference may run, and how much of a GPU it takes."""

from pathlib import Path
from typing import Any

import pytest

from longspan.daemon import spare

GIB = 1 << 30


def asked(tmp_path: Path, **changes: Any) -> Any:
    """The wishes for a checkpoint of 8 GiB on a node with GPUs."""
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(8 * GIB)  # sparse
    arguments = {
        "model": str(tmp_path), "revision": None, "device": "cuda", "python": "python", "vllm_arguments": [], "exact": True,
        "joined": False, **changes,
    }  # fmt: skip
    return spare.wishes(arguments)


def test_a_reference_takes_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not vLLM's nine tenths of a GPU that somebody else may want, but weights and a bounded rest; float32 twice that."""
    monkeypatch.setattr(spare, "spare_gpu", lambda: (3, 140 * GIB, "H200"))
    own, exact = asked(tmp_path)
    shares = [
        float(wish.arguments[wish.arguments.index("--gpu-memory-utilization") + 1]) for wish in (own, exact)
    ]
    assert 8 / 140 < shares[0] < 20 / 140 < shares[1] < 30 / 140
    assert own.env["CUDA_VISIBLE_DEVICES"] == "3"
    monkeypatch.setattr(spare, "spare_gpu", lambda: (3, 10 * GIB, "small"))
    own, _ = asked(tmp_path)
    assert own.arguments[-1] == "0.90"


def test_no_gpu_of_a_joined_ray_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is idle there now may be another job's in a moment: the reference is skipped, with the reason."""
    monkeypatch.setattr(spare, "spare_gpu", lambda: pytest.fail("GPUs were looked for"))
    assert "others use too" in asked(tmp_path, joined=True)
    assert len(asked(tmp_path, joined=True, device="cpu")) == 2

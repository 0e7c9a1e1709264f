"""TP=3: another reduction order gives other numbers, and the proof passes all the same."""

from pathlib import Path

import pytest

from engine.running import Before, Longspan

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]


def test_tp3_passes_the_proof_though_its_numbers_differ(
    tmp_path: Path, demo_model: Path, request: pytest.FixtureRequest
) -> None:
    """Log-probabilities agree with the one-rank reference within honest noise, with the mp executor on one node."""
    before = Before.now()
    longspan = Longspan(tmp_path)
    request.addfinalizer(lambda: longspan.run("down"))
    done = longspan.up("--tp", "3", "--nodes", "1", "--executor", "mp", "--listen", "127.0.0.1:18433")
    assert done.returncode == 0, done.stderr + done.stdout
    proof = longspan.status()["proof"]
    figures = next(layer for layer in proof["layers"] if layer["name"] == "reference")
    assert figures["state"] == "passed"
    assert (
        figures["figures"]["mean_abs_nats"] > 0.005
    )  # a proof that compared nothing with itself would find 0
    ranks = longspan.status()["ranks"]
    assert [rank["tp_rank"] for rank in ranks] == [0, 1, 2]
    assert all(rank["pid"] for rank in ranks)
    assert longspan.run("down").returncode == 0
    assert before.left_by(longspan) == []

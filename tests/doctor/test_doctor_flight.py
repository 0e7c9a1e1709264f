"""torch's flight recorder: dumps in, the collectives that had not finished out."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from longspan.doctor import flight
from longspan.doctor.flight import Plain, main, pending

DUMP = {
    "version": "2.10",
    "entries": [
        {"process_group": ("0", "default_pg"), "collective_seq_id": 4, "profiling_name": "nccl:all_reduce",
         "input_sizes": [[8]], "state": "completed"},
        {"process_group": ("0", "default_pg"), "collective_seq_id": 5, "profiling_name": "nccl:all_gather",
         "input_sizes": [[4096]], "state": "started"},
        {"pg_name": "tp", "collective_seq_id": 6, "profiling_name": "nccl:broadcast", "input_sizes": [[1]], "state": "scheduled"},
    ],
}  # fmt: skip


def test_what_had_not_finished() -> None:
    """The last that was done, then what was under way with its number, operation, sizes and group."""
    assert pending(DUMP) == [
        "completed seq 4 nccl:all_reduce sizes [[8]] group default_pg",
        "started seq 5 nccl:all_gather sizes [[4096]] group default_pg",
        "scheduled seq 6 nccl:broadcast sizes [[1]] group tp",
    ]
    assert pending({}) == []


def test_as_it_runs_on_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its source alone, without our package; old dumps are left out, a broken one is named."""
    home = tmp_path / ".cache" / "torch"
    home.mkdir(parents=True)
    (home / "nccl_trace_rank_3").write_bytes(pickle.dumps(DUMP))
    (home / "nccl_trace_rank_4").write_bytes(b"no pickle")
    source = Path(flight.__file__).read_text()
    done = subprocess.run(
        [sys.executable, "-I", "-c", source, "60"],
        env={"HOME": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "started seq 5 nccl:all_gather" in done.stdout
    assert "nccl_trace_rank_4\n  unreadable: UnpicklingError" in done.stdout
    monkeypatch.setattr(flight, "PLACES", (str(home / "*"),))
    main(60.0)
    assert "nccl_trace_rank_3" in capsys.readouterr().out
    main(-1.0)
    assert capsys.readouterr().out == ""


def test_a_dump_loads_no_class(tmp_path: Path) -> None:
    """A pickle that would run something is refused."""
    path = tmp_path / "dump"
    path.write_bytes(pickle.dumps({"entries": [Path("x")]}))
    with path.open("rb") as file, pytest.raises(pickle.UnpicklingError, match="no place in a dump"):
        Plain(file).load()

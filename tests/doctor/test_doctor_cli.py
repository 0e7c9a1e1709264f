"""`longspan doctor` prints one document with --json and something readable without."""

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_doctor_match import FAULTS, HEALTHY

from longspan.cli.doctor import command


@pytest.fixture
def fault(tmp_path: Path) -> Path:
    """A log with a known fault."""
    path = tmp_path / "x.log"
    path.write_text("\n".join(FAULTS["one rank of sixteen"][1]))
    return path


def test_json_is_one_document(fault: Path) -> None:
    """Everything else goes to stderr."""
    result = CliRunner().invoke(command, ["--json", str(fault)])
    document = json.loads(result.stdout)
    first = document["findings"][0]
    assert first["cause"] == "weights-corrupt"
    assert {"severity", "confidence", "summary", "evidence", "remedy", "undo", "source"} <= set(first)
    assert first["evidence"][0]["text"]


def test_standard_input(fault: Path) -> None:
    """`-` and a pipe."""
    result = CliRunner().invoke(command, ["--json", "-"], input=fault.read_bytes())
    assert json.loads(result.stdout)["findings"][0]["evidence"][0]["file"] == "stdin"


def test_people_read_cause_evidence_and_remedy(fault: Path) -> None:
    """Plain text, no colours off a terminal."""
    text = CliRunner().invoke(command, [str(fault), "--timeline"]).stdout
    assert "error: weights-corrupt" in text
    assert "do: " in text
    assert "Consequences, not causes" in text
    assert "\x1b" not in text


def test_a_healthy_log_says_so(tmp_path: Path) -> None:
    """No fault found."""
    path = tmp_path / "x.log"
    path.write_text("\n".join(HEALTHY["serves"]))
    result = CliRunner().invoke(command, [str(path)])
    assert result.exit_code == 0
    assert "No fault found" in result.stdout


def test_bundle_is_written(fault: Path, tmp_path: Path) -> None:
    """With its place on stderr."""
    out = tmp_path / "b.tar.gz"
    result = CliRunner().invoke(command, ["--json", str(fault), "--bundle", str(out)])
    assert json.loads(result.stdout)
    assert "redacted" in result.stderr
    with tarfile.open(out) as archive:
        assert len(archive.getnames()) == 3


HOSTILE = "\x1b]0;title\x07\x1b[2J\x1b]8;;http://x\x1b\\OSError: [Errno 98] Address already in use \x9b31m\u202e\x08\x07"


def test_a_log_does_not_write_to_our_screen(tmp_path: Path) -> None:
    """Titles, links, cursor moves, bells and turned text: neither from a line nor from a file's name."""
    path = tmp_path / "a\x1b[31m\nerror: no.log"
    path.write_text(HOSTILE)
    out = CliRunner().invoke(command, [str(path), "--timeline"], color=True).stdout
    assert "port-in-use" in out
    assert not set("\x07\x08\x9b\u202e") & set(out)
    assert "\x1b]" not in out
    assert "\x1b[31m\n" not in out
    assert "\nerror: no" not in out


LONG = "9" * 5000
COUNTED = (
    f"[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={LONG}, OpType=ALLREDUCE, NumelIn={LONG}, ran",
    f"[Rank {LONG}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, ran",
    f"world_size={LONG} rank={LONG} local_rank=0 distributed_init_method=tcp://1:1 backend=nccl",
    f"n1:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks {LONG} cudaDev 0 busId 1 commId 0x9b1 - Init START",
    f"(Worker pid={LONG}, ip=1) RuntimeError: No CUDA GPUs are available [repeated {LONG}x across cluster]",
)


@pytest.mark.parametrize("text", COUNTED)
def test_a_number_of_thousands_of_digits_is_no_crash(tmp_path: Path, text: str) -> None:
    """Python refuses to turn more than 4300 digits into a number."""
    path = tmp_path / "x.log"
    path.write_text(text)
    result = CliRunner().invoke(command, ["--json", str(path)])
    assert result.exception is None
    assert json.loads(result.stdout)["findings"]

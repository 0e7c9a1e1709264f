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

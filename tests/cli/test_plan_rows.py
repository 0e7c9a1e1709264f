"""`longspan plan --rows` and `--calibrate`, as a user calls them."""

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from longspan.cli.plan import command
from longspan.errors import CalibrationError, InputError

COLUMNS = [
    "row_id",
    "repo_id",
    "gpu",
    "tp",
    "weight_dtype",
    "max_model_len",
    "gpu_mem_util",
    "vllm_version",
    "quantity",
    "value",
]


@pytest.fixture(autouse=True)
def no_corrections_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own calibration file must not reach the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    """A CSV file of rows."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(
            file, list(dict.fromkeys([*COLUMNS, *(name for one in rows for name in one)]))
        )
        writer.writeheader()
        writer.writerows(rows)
    return path


def row(row_id: str, **changes: str) -> dict[str, str]:
    """Llama-3.1-8B on an H100, as in the published log of vLLM 0.19.0."""
    return {
        "row_id": row_id, "repo_id": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100-80GB", "tp": "1",
        "max_model_len": "8192", "gpu_mem_util": "0.95", "vllm_version": "0.19.0", "quantity": "kv_tokens", **changes,
    }  # fmt: skip


def test_rows_print_one_document_and_nothing_else(tmp_path: Path) -> None:
    """--json: values by row_id with intervals; a model that cannot be had is an empty answer and a line on stderr."""
    path = write(tmp_path / "r.csv", [row("a"), row("b", repo_id="nobody/nothing")])
    done = CliRunner().invoke(command, ["--rows", str(path), "--json", "--offline"], catch_exceptions=False)
    assert done.exit_code == 0
    answers = json.loads(done.stdout)
    assert answers["a"]["kv_tokens"]["p50"] == pytest.approx(476016, rel=0.01)
    assert answers["b"] == {}
    assert "nobody/nothing" in done.stderr


@pytest.mark.parametrize(
    ("column", "value"),
    [("tp", "two"), ("isl", "nan"), ("max_model_len", "-1"), ("gpu_mem_util", "90"), ("osl", "inf")],
)
def test_a_row_that_cannot_be_read_costs_only_itself(tmp_path: Path, column: str, value: str) -> None:
    """The others are answered, and stderr names the row and the column."""
    path = write(tmp_path / "r.csv", [row("a"), row("b", **{column: value}), row("")])
    done = CliRunner().invoke(command, ["--rows", str(path), "--json", "--offline"], catch_exceptions=False)
    answers = json.loads(done.stdout)
    assert answers["a"]["kv_tokens"]
    assert answers["b"] == {}
    assert column in done.stderr
    assert "row number 3" in done.stderr


def test_an_unknown_gpu_has_weights_and_nothing_else(tmp_path: Path) -> None:
    """Where nothing supports a number there is none."""
    path = write(tmp_path / "r.csv", [row("a", gpu="not in excerpt", isl="1024", osl="128", concurrency="4")])
    done = CliRunner().invoke(command, ["--rows", str(path), "--json", "--offline"], catch_exceptions=False)
    answer = json.loads(done.stdout)["a"]
    assert answer.pop("weights_gib_per_gpu")["p50"] == pytest.approx(14.99, rel=0.01)
    assert all(value is None for value in answer.values())


def test_rows_for_people(tmp_path: Path) -> None:
    """Without --json every row is one line."""
    path = write(tmp_path / "r.csv", [row("a")])
    done = CliRunner().invoke(command, ["--rows", str(path), "--offline"], catch_exceptions=False)
    assert done.stdout.startswith("a: weights_gib_per_gpu 14.99")


def test_files_without_needed_columns_are_refused(tmp_path: Path) -> None:
    """The error names what is missing."""
    (tmp_path / "r.csv").write_text("id,model\n1,x\n")
    with pytest.raises(InputError, match="repo_id"):
        CliRunner().invoke(command, ["--rows", str(tmp_path / "r.csv")], catch_exceptions=False)
    with pytest.raises(InputError, match="not a file"):
        CliRunner().invoke(command, ["--rows", str(tmp_path / "none.csv")], catch_exceptions=False)


def test_calibration_is_kept_and_used(tmp_path: Path) -> None:
    """A measured activation peak shifts the pool of the next plan on that version and GPU, and of no other."""
    kept = tmp_path / "c.toml"
    measured = write(tmp_path / "m.csv", [row("a", quantity="torch_peak_increase_per_gpu", value="3.89")])
    CliRunner().invoke(
        command,
        ["--calibrate", str(measured), "--calibration", str(kept), "--offline"],
        catch_exceptions=False,
    )
    assert "H100-SXM-80GB" in kept.read_text()
    other = write(tmp_path / "r.csv", [row("a"), row("b", vllm_version="0.18.0"), row("c", gpu="H200")])
    plain, corrected = (
        json.loads(
            CliRunner()
            .invoke(
                command,
                ["--rows", str(other), "--json", "--offline", "--calibration", str(file)],
                catch_exceptions=False,
            )
            .stdout
        )
        for file in (write_empty(tmp_path / "empty.toml"), kept)
    )
    shift = {
        k: plain[k]["kv_pool_gib_per_gpu"]["p50"] - corrected[k]["kv_pool_gib_per_gpu"]["p50"] for k in plain
    }
    assert shift["a"] == pytest.approx(2.0, abs=0.1)
    assert (shift["b"], shift["c"]) == (0.0, 0.0)


def write_empty(path: Path) -> Path:
    """A calibration file without corrections."""
    path.write_text("")
    return path


def test_rows_that_correct_nothing_are_an_error(tmp_path: Path) -> None:
    """A file without comparable values says which quantities count."""
    path = write(tmp_path / "m.csv", [row("a", quantity="colour", value="3")])
    with pytest.raises(CalibrationError, match="No row"):
        CliRunner().invoke(command, ["--calibrate", str(path), "--offline"], catch_exceptions=False)


def test_a_named_calibration_must_be_there(tmp_path: Path) -> None:
    """A typo in --calibration is not ignored."""
    path = write(tmp_path / "r.csv", [row("a")])
    with pytest.raises(CalibrationError, match="not a file"):
        CliRunner().invoke(
            command, ["--rows", str(path), "--calibration", str(tmp_path / "no.toml")], catch_exceptions=False
        )

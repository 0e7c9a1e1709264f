"""`longspan plan` and `longspan cost` from the command line: what is printed, what `--json` holds, and exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from longspan.cli.cost import command as cost
from longspan.cli.plan import command as plan
from longspan.errors import InputError, NoPlanError, PlanFileError
from longspan.planner.plan_file import parse_plan


def run(*words: str) -> Result:
    """`longspan plan` with these words, without the network."""
    return CliRunner().invoke(plan, [*words, "--offline"])


def test_people_get_a_plan() -> None:
    """The plan, the picture, the receipt, the first idea and the commands are there."""
    found = run("Qwen/Qwen3-14B", "--gpus", "2x4xA100-PCIe-80GB", "--network", "ethernet:10")
    assert found.exit_code == 0, found.output
    for words in (
        "Plan:",
        "node1 |",
        "weights",
        "Why not the first idea",
        "What if:",
        "vllm serve Qwen/Qwen3-14B",
    ):
        assert words in found.output


def test_json_is_one_document() -> None:
    """`--json` prints one document and nothing else."""
    found = run("Qwen/Qwen3-14B", "--gpus", "4xH100", "--json", "--quick")
    page = json.loads(found.stdout)
    assert page["plan"]["gpus"] == 4
    estimate = page["plan"]["estimates"]["output_tokens_per_second"]
    assert estimate["p10"] < estimate["p50"] < estimate["p90"]
    assert estimate["source"]


def test_a_plan_is_saved(tmp_path: Path) -> None:
    """`--save` writes what `up` can read."""
    file = tmp_path / "plan.toml"
    found = run("Qwen/Qwen3-14B", "--gpus", "2xH100", "--save", str(file), "--quick", "--json")
    assert found.exit_code == 0, found.output
    assert parse_plan(file.read_text()).model == "Qwen/Qwen3-14B"
    with pytest.raises(PlanFileError):
        parse_plan("model = 3")


def test_what_up_will_refuse_is_said_when_the_plan_is_saved(tmp_path: Path) -> None:
    """Several replicas: `up` launches one of them, and that is not first learnt on the day of the launch."""
    found = run("Qwen/Qwen3-8B", "--gpus", "2x8xH100", "--save", str(tmp_path / "plan.toml"), "--quick")
    assert found.exit_code == 0, found.output
    assert "`longspan up --plan`:" in found.stderr
    assert "--replica r0" in found.stderr
    one = run("Qwen/Qwen3-14B", "--gpus", "1xH100", "--save", str(tmp_path / "one.toml"), "--quick")
    assert "up --plan" not in one.stderr


def test_an_inventory_and_a_trace(tmp_path: Path) -> None:
    """Cluster and load may come from files."""
    cluster = tmp_path / "lab.toml"
    cluster.write_text('[[node]]\nname = "a"\ngpus = "2x H100"\n')
    trace = tmp_path / "trace.csv"
    trace.write_text("seconds,prompt_tokens,output_tokens\n" + "".join(f"{i},500,50\n" for i in range(40)))
    found = run(
        "Qwen/Qwen3-8B",
        "--cluster",
        str(cluster),
        "--trace",
        str(trace),
        "--json",
        "--quick",
        "--slo",
        "ttft_p95=1s",
    )
    assert found.exit_code == 0, found.output
    page = json.loads(found.stdout)
    assert page["workload"]["prompt_tokens"] == 500
    assert page["plan"]["gpus"] == 1


def test_nothing_fits_says_so() -> None:
    """The page is printed and the error names the way out."""
    found = run("meta-llama/Meta-Llama-3-70B-Instruct", "--gpus", "1xRTX-4090")
    assert isinstance(found.exception, NoPlanError)
    assert "--dtype" in found.exception.remedy
    assert "Nothing works" in found.output


def test_nothing_fits_is_one_document_too() -> None:
    """With `--json` the reasons and the error are one document, and the exit code says that there is no plan."""
    found = run("meta-llama/Meta-Llama-3-70B-Instruct", "--gpus", "1xRTX-4090", "--json")
    assert found.exit_code == NoPlanError.exit_code
    page = json.loads(found.stdout)
    assert page["plan"] is None
    assert page["error"]["exit_code"] == NoPlanError.exit_code
    assert page["refused"]


@pytest.mark.parametrize(
    "words",
    [
        ("Qwen/Qwen3-8B",), ("Qwen/Qwen3-8B", "--gpus", "8xH999"), ("Qwen/Qwen3-8B", "--gpus", "8xH100", "--network", "wire:3"),
        ("Qwen/Qwen3-8B", "--gpus", "8xH100", "--slo", "fast"), ("Qwen/Qwen3-8B", "--cluster", "nowhere.toml"),
        ("Qwen/Qwen3-8B", "--gpus", "1xH100", "--concurrency", "4", "--rate", "2"),
        ("Qwen/Qwen3-8B", "--gpus", "1xH100", "--prefix-hits", "1.5"),
    ],
)  # fmt: skip
def test_wrong_words_are_input_errors(words: tuple[str, ...]) -> None:
    """Each mistake is an InputError that names it."""
    assert isinstance(run(*words).exception, InputError)


def test_costs_break_even() -> None:
    """The sums of three ways and the break-even stand in the document."""
    words = ["--input-per-day", "40", "--output-per-day", "10", "--monthly", "4120", "--price", "60000", "--rent", "2", "--rent-gpus", "4",
             "--api", "0.42", "0.84", "--throughput", "1400"]  # fmt: skip
    page = json.loads(CliRunner().invoke(cost, [*words, "--json"]).stdout)
    assert {way["name"] for way in page["ways"]} == {
        "stated monthly cost",
        "own hardware",
        "rented GPUs",
        "API",
    }
    assert 268e6 < page["break_even"]["stated monthly cost"]["tokens_per_day"] < 270e6
    text = CliRunner().invoke(cost, words).output
    assert "Break-even" in text
    assert "idle hours counted" in text


def test_a_cost_without_a_price_is_an_error() -> None:
    """Prices are stated, never guessed."""
    words = ["--input-per-day", "1", "--output-per-day", "1"]
    assert isinstance(CliRunner().invoke(cost, words).exception, InputError)
    assert isinstance(CliRunner().invoke(cost, [*words, "--rent", "2"]).exception, InputError)


@pytest.mark.parametrize(
    "words",
    [
        ("--gpus", "9" * 500 + "xH100"), ("--gpus", "99999999999x8xH100"), ("--network", "ethernet:" + "9" * 400),
        ("--prompt", "900000"), ("--max-model-len", "1"), ("--concurrency", "8193"), ("--save", "/no/such/folder/plan.toml"),
        ("--slo", "ttft_p95=" + "9" * 400 + "s"),
    ],
)  # fmt: skip
def test_absurd_words_are_answers(words: tuple[str, str]) -> None:
    """Whatever number or place is given, the answer is an InputError at once and never a plan of hours."""
    gpus = () if words[0] == "--gpus" else ("--gpus", "4xL4")
    assert isinstance(run("Qwen/Qwen3-14B", "--quick", *gpus, *words).exception, InputError)


@pytest.mark.parametrize("words", [("--rate", "nan"), ("--gpu-memory-utilization", "nan"), ("--rate", "inf")])
def test_no_number_is_a_wrong_command_line(words: tuple[str, str]) -> None:
    """`nan` compares with nothing, so a range alone would let it pass."""
    assert run("Qwen/Qwen3-14B", "--gpus", "4xL4", *words).exit_code == 2


def test_files_that_are_no_text_are_answers(tmp_path: Path) -> None:
    """A trace, an inventory or rows in another encoding end in words."""
    file = tmp_path / "file"
    file.write_bytes(b"\xff\xfe\x00")
    for words in (("--cluster",), ("--gpus", "4xL4", "--trace"), ("--rows",)):
        assert isinstance(run("Qwen/Qwen3-14B", *words, str(file)).exception, InputError)


def test_another_dtype_needs_another_checkpoint() -> None:
    """The commands name the model as given; a plan for other weights says so, in the saved file as well."""
    for words, noted in ((("--dtype", "int4"), True), ((), False)):
        page = json.loads(run("Qwen/Qwen3-14B", "--gpus", "4xH100", "--quick", "--json", *words).stdout)
        assert any("put a checkpoint in int4" in note for note in page["plan"]["notes"]) == noted


def test_the_weights_of_a_model_do_not_depend_on_the_cluster() -> None:
    """The verdict's weights are those of one copy, and not of what tensor parallelism repeats."""
    said = set()
    for gpus in ("3x8xH200", "4x8xH100"):
        page = json.loads(run("deepseek-ai/DeepSeek-V3.2", "--gpus", gpus, "--quick", "--json").stdout)
        said.add(page["verdict"][0].partition("its weights are ")[2].partition(" GiB")[0])
    assert len(said) == 1


def test_a_guess_that_looks_better_says_why_it_lost() -> None:
    """An alternative with better figures and no measurements behind them is marked as a guess."""
    page = json.loads(run("Qwen/Qwen3-235B-A22B-FP8", "--gpus", "8xH100", "--quick", "--json").stdout)
    chosen = page["plan"]["parts"][0]
    better = [
        o for o in page["alternatives"] if o["output_tokens_per_second"] > chosen["output_tokens_per_second"]
    ]
    assert better
    assert all("a guess" in one["why_not"] for one in better)


@pytest.mark.parametrize("words", [("--price", "nan"), ("--monthly", "inf"), ("--input-per-day", "nan")])
def test_costs_that_are_no_amounts_are_answers(words: tuple[str, str]) -> None:
    """`nan` and `inf` never reach the sum, nor the JSON."""
    usual = (
        "--input-per-day",
        "1",
        "--output-per-day",
        "1",
        "--throughput",
        "9",
        "--api",
        "1",
        "1",
        "--json",
    )
    assert isinstance(CliRunner().invoke(cost, [*usual, *words]).exception, InputError)

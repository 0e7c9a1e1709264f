"""The batch script: what Slurm and the shell read out of it."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import InputError
from longspan.launch.slurm_script import batch_script
from longspan.launch.unattended import Serving

EVEN = Serving("default", "/models/m", 8, 2, "ray", (8, 8), vllm_arguments=("--max-model-len", "8192"))


def script(serving: Serving = EVEN, **more: object) -> str:
    """The script of a Longspan at /opt/longspan."""
    return batch_script(serving, longspan=["/opt/longspan"], listen="0.0.0.0:8000", **more)  # type: ignore[arg-type]


def options(text: str) -> list[str]:
    """The words after #SBATCH."""
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_the_whole_script() -> None:
    """Nodes, GPUs, a warning before the time is over, and `up` in the shell's place, so that it gets that warning."""
    text = script(sbatch=["partition=gpu", "--time=8:00:00"], sources=["/opt/env/bin/activate"])
    assert options(text) == [
        "--job-name=longspan-default", "--output=longspan-default-%j.log", "--signal=B:TERM@180", "--nodes=2",
        "--ntasks-per-node=1", "--gres=gpu:8", "--partition=gpu", "--time=8:00:00", "--exclusive",
    ]  # fmt: skip
    source, run = text.splitlines()[-2:]
    assert source == "source /opt/env/bin/activate"
    assert run.startswith(
        "exec /opt/longspan up /models/m --tp 8 --pp 2 --executor ray --name default --listen 0.0.0.0:8000"
    )
    assert run.endswith("--foreground -- --max-model-len 8192")


def test_unequal_nodes_are_components() -> None:
    """Each run of equal nodes is a component of a heterogeneous job, in the order of the ranks."""
    text = script(Serving("d", "m", 4, 3, "ray", (4, 8)), sbatch=["partition=gpu"])
    found = options(text)
    assert found.count("hetjob") == 1
    first, second = found[: found.index("hetjob")], found[found.index("hetjob") + 1 :]
    assert "--gres=gpu:4" in first
    assert second == ["--nodes=1", "--ntasks-per-node=1", "--gres=gpu:8", "--partition=gpu", "--exclusive"]


def test_memory_instead_of_whole_nodes() -> None:
    """Who says how much memory takes part of a node."""
    assert "--exclusive" not in options(script(sbatch=["mem=64G"]))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("partition=gpu\n#SBATCH --uid=0", "no option"),
        ("", "no option"),
        ("comment=a b", "no option"),
        ("wrap=x", "what is to be served"),
        ("nodes=3", "what is to be served"),
        ("gres=gpu:1", "what is to be served"),
    ],
)
def test_options_that_are_none(word: str, said: str) -> None:
    """A line break would be another line of the script; what the plan says is not said twice."""
    with pytest.raises(InputError, match=said):
        script(sbatch=[word])


def test_a_source_is_a_path() -> None:
    """A relative path would be searched for on PATH."""
    with pytest.raises(InputError, match="absolute"):
        script(sources=["activate"])


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(texts, st.lists(texts, max_size=3), texts)
def test_the_shell_reads_every_word_as_it_is(model: str, arguments: list[str], value: str) -> None:
    """Model, arguments and values with quotes, blanks, dollars and line breaks come through bash unchanged, and no line
    of them is one of sbatch's."""
    serving = Serving(
        "d", model, 1, 1, "ray", (1,), environment=(("VALUE", value),), vllm_arguments=tuple(arguments)
    )
    text = batch_script(serving, longspan=["/opt/longspan"], listen="h:1")
    # sbatch stops at the first line that is neither empty nor a comment.
    head = text[: text.index("set -eo pipefail")]
    assert head.count("#SBATCH") == 7
    words = shlex.split(text[text.index("\nexec ") + 6 :])
    assert words[2] == model
    assert words[words.index("--foreground") + 1 :] == (["--", *arguments] if arguments else [])


def test_bash_runs_it(tmp_path: Path) -> None:
    """In a real bash: sources first, then the words, with the environment."""
    (tmp_path / "say").write_text('#!/bin/sh\nprintf "%s|" "$FROM" "$VALUE" "$@"\n')
    (tmp_path / "say").chmod(0o755)
    (tmp_path / "it's").write_text("export FROM='the file'\n")
    serving = Serving(
        "d", "$(id) `id` 'x' \"y\"\n#SBATCH --uid=0", 1, 1, "ray", (1,), environment=(("VALUE", "a'b $HOME"),),
        vllm_arguments=("*", "~"),
    )  # fmt: skip
    text = batch_script(
        serving, longspan=[str(tmp_path / "say")], listen="h:1", sources=[str(tmp_path / "it's")]
    )
    done = subprocess.run(
        ["bash", "-s"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    said = done.stdout.split("|")
    assert said[:3] == ["the file", "a'b $HOME", "up"]
    assert said[3] == serving.model
    assert said[-3:-1] == ["*", "~"]

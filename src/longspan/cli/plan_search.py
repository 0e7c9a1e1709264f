"""The search side of `longspan plan`: question in, plan out."""

import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from longspan.cli.plan_choice import choose
from longspan.cluster.inventory import Cluster
from longspan.cluster.inventory_file import parse_cluster, parse_network, parse_shorthand
from longspan.errors import CapacityError, InputError, NoPlanError
from longspan.model.facts import ModelFacts
from longspan.model.fetch import load_model
from longspan.model.requantise import stored_as
from longspan.plan import Plan
from longspan.planner.assemble import fill, plan_of
from longspan.planner.engine import EngineSettings
from longspan.planner.explain import document, fit, lines
from longspan.planner.options import Option, Question
from longspan.planner.plan_file import to_toml
from longspan.planner.search import search
from longspan.planner.verdicts import nothing_fits
from longspan.planner.versions import LATEST, parse_version
from longspan.planner.whatifs import gpus_words, what_ifs
from longspan.workload import Workload, parse_objectives, parse_trace

# An engine runs at most 1,024 requests at once by default; a queue of as many again says all there is to say.
MOST_CLIENTS_A_GPU = 2048


@dataclass(frozen=True)
class Wish:
    """The command line, as it was typed."""

    model: str
    gpus: str | None = None
    network: str | None = None
    cluster: Path | None = None
    prompt: int = 1000
    output: int = 300
    concurrency: int = 0
    rate: float = 0.0
    trace: Path | None = None
    prefix_hits: float = 0.0
    slo: str = ""
    goal: str = "throughput"
    dtype: str | None = None
    kv_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    utilisation: float | None = None
    vllm: str | None = None
    executor: str = "ray"
    configs: Path | None = None
    offline: bool = False
    quick: bool = False


def read_text(path: Path, what: str) -> str:
    """A file's text.

    Raises:
        InputError: it is not there, may not be read, or is not text.
    """
    try:
        if not path.is_file():
            raise InputError(f"{path} is not a file.", f"Give {what}.")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", f"Give {what}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text (UTF-8).", f"Give {what}.") from error


def save_plan(plan: Plan, path: Path) -> None:
    """Writes the plan.

    Raises:
        InputError: the file cannot be written there.
    """
    try:
        path.write_text(to_toml(plan), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"The plan cannot be saved to {path}: {error.strerror}.",
            "Give --save a file that can be written.",
        ) from error


def wished_cluster(wish: Wish) -> Cluster:
    """The cluster of `--cluster` or `--gpus`."""
    if wish.cluster is not None:
        if wish.gpus:
            raise InputError("--cluster and --gpus both describe the cluster.", "Give one of them.")
        return parse_cluster(read_text(wish.cluster, "an inventory (TOML)"))
    if not wish.gpus:
        raise InputError(
            "Neither --gpus nor --cluster says what there is.", 'Write --gpus "2x8xH100" or --cluster FILE.'
        )
    if wish.network:
        parse_network(wish.network)
    return parse_shorthand(wish.gpus, wish.network or "")


def wished_workload(wish: Wish) -> Workload:
    """The load of the options."""
    if wish.concurrency and (wish.rate or wish.trace):
        raise InputError(
            "--concurrency is a closed loop, --rate and --trace an open one.", "Give one of them."
        )
    trace = (
        parse_trace(read_text(wish.trace, "a CSV of seconds, prompt_tokens, output_tokens"))
        if wish.trace
        else ()
    )
    if not 0 <= wish.prefix_hits < 1:
        raise InputError("--prefix-hits is a share from 0 to below 1.", "Write 0.6 for 60 %.")
    prompt, output = wish.prompt, wish.output
    if trace:
        prompt = round(sum(one.prompt_tokens for one in trace) / len(trace))
        output = round(sum(one.output_tokens for one in trace) / len(trace))
    return Workload(
        prompt_tokens=prompt,
        output_tokens=output,
        requests_per_second=wish.rate,
        concurrency=wish.concurrency,
        prefix_hit_share=wish.prefix_hits,
        objectives=parse_objectives(wish.slo),
        trace=trace,
    )


def question_of(wish: Wish) -> Question:
    """Everything read and checked."""
    facts: ModelFacts = load_model(wish.model, wish.configs, wish.offline)
    if wish.dtype:
        facts = stored_as(facts, wish.dtype)
    workload = wished_workload(wish)
    goal = wish.goal
    if goal == "throughput" and workload.objectives and workload.is_open:
        goal = "cost"  # a load and objectives are given: the cheapest plan that keeps them is asked for
    settings = EngineSettings(
        version=parse_version(wish.vllm) if wish.vllm else LATEST,
        utilisation=wish.utilisation,
        max_model_len=wish.max_model_len,
        max_num_seqs=wish.max_num_seqs,
        kv_dtype=wish.kv_dtype,
    )
    _refuse_long(workload, facts.max_position, wish.max_model_len)
    question = Question(facts, wished_cluster(wish), workload, settings, wish.executor, goal)
    gpus = max(question.cluster.gpu_count, 1)
    if workload.concurrency > MOST_CLIENTS_A_GPU * gpus:
        raise InputError(
            f"{workload.concurrency:,} clients at once on {gpus_words(gpus)} only wait for each other: more than "
            f"{MOST_CLIENTS_A_GPU:,} a GPU are not simulated.",
            "Give a smaller --concurrency, or a --rate.",
        )
    return question


def _refuse_long(workload: Workload, positions: int, max_model_len: int | None) -> None:
    """A mean request that the engine would refuse is no load.

    Raises:
        InputError: it is longer than the model, or than --max-model-len, allows.
    """
    most = min(positions, max_model_len or positions)
    tokens = workload.prompt_tokens + workload.output_tokens
    if tokens <= most:
        return
    why = f"the model takes {positions:,}" if most == positions else f"--max-model-len is {most:,}"
    raise InputError(
        f"A request of {workload.prompt_tokens:,} prompt and {workload.output_tokens:,} output tokens has {tokens:,}, and {why}: "
        "vLLM would refuse it.",
        "Give a shorter --prompt or --output"
        + (", or a larger --max-model-len." if most < positions else "."),
    )


def other_checkpoint(model: str, dtype: str) -> str:
    """What `--dtype` leaves to be done: the commands name the model as it was given, and vLLM loads what is stored there."""
    return (
        f"Planned for {dtype} weights, and the commands name {model} as it is stored: put a checkpoint in {dtype} in its place, "
        "or the engine loads other weights than those of this receipt."
    )


_WAYS_OUT = "Try quantised weights (--dtype fp8 or int4), a shorter --max-model-len, or more GPUs."


def for_people(found: dict[str, Any]) -> list[str]:
    """The lines, wrapped on a terminal; in a pipe each stays one line, so that it can be searched."""
    if not sys.stdout.isatty():
        return lines(found)
    return fit(lines(found), max(shutil.get_terminal_size().columns, 60))


def print_plan(wish: Wish, save: Path | None, as_json: bool) -> Plan:
    """Plans, prints, and saves where asked.

    Raises:
        NoPlanError: nothing works; everything that is known was printed first.
    """
    question = question_of(wish)
    answer = search(question)
    plan: Plan | None = None
    options: tuple[Option, ...] = ()
    if answer.best is not None:
        options = (answer.best, *fill(question, answer.best))
        plan = plan_of(answer, options, wish.model)
        if wish.dtype:
            plan = replace(plan, notes=(*plan.notes, other_checkpoint(wish.model, wish.dtype)))
    changes = [] if wish.quick else what_ifs(answer)
    found = document(answer, options, plan, changes)
    if plan is None:
        error = NoPlanError(nothing_fits(answer), _WAYS_OUT)
        if not as_json:
            click.echo("\n".join(for_people(found)))
            raise error
        # The document is the one thing on stdout, so the error goes into it.
        found["error"] = {
            "kind": "NoPlanError", "what": error.what, "remedy": error.remedy, "exit_code": error.exit_code,
        }  # fmt: skip
        click.echo(json.dumps(found))
        click.echo(f"error: {error}", err=True)
        click.get_current_context().exit(error.exit_code)
    if save is not None and as_json:
        save_plan(plan, save)  # first: if it fails, the one document on stdout is the error
    click.echo(json.dumps(found) if as_json else "\n".join(for_people(found)))
    if save is not None:
        if not as_json:
            save_plan(plan, save)
        click.echo(f"Saved to {save}", err=True)
        try:
            choose(plan, None, str(save))
        except CapacityError as error:  # better now than when it is to be launched
            click.echo(f"`longspan up --plan`: {error.what} {error.remedy}", err=True)
    return plan

"""The options that every verb of `longspan bench` takes which makes a load."""

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click

from longspan.bench.arrivals import KINDS
from longspan.bench.load import ENDPOINTS

_OPTIONS = (
    click.option("--model", default="", help="The model to ask for; needed only where there are several."),
    click.option("--kind", type=click.Choice(list(ENDPOINTS)), default="chat", show_default=True),
    click.option(
        "-c",
        "--concurrency",
        type=click.IntRange(0),
        help="Clients that wait for their answers; with --rate: most in flight.",
    ),
    click.option("-r", "--rate", type=float, help="Requests per second that do not wait for answers."),
    click.option(
        "--arrivals",
        type=click.Choice([kind for kind in KINDS if kind not in ("closed", "trace")]),
        help="How they come (default: poisson).",
    ),
    click.option(
        "--burstiness",
        type=float,
        default=1.0,
        help="Shape of gamma arrivals: 1 is Poisson, less comes in clusters.",
    ),
    click.option("--burst", type=int, default=1, help="Of bursts: requests at one moment."),
    click.option("--rate-end", type=float, help="Of a ramp: the rate at its end."),
    click.option("--ramp", type=float, help="Of a ramp: seconds it takes."),
    click.option(
        "-n", "--requests", type=click.IntRange(1), help="Measured requests (default 100 unless --duration)."
    ),
    click.option("-d", "--duration", type=float, help="Seconds after which no request is sent."),
    click.option(
        "--warmup",
        type=click.IntRange(0),
        default=0,
        help="Requests before the measured ones; 0: the transient is detected.",
    ),
    click.option(
        "--prompt",
        default="512",
        show_default=True,
        help="Tokens: 512, or kind:mean:spread (uniform, normal, lognormal).",
    ),
    click.option("--output", default="128", show_default=True, help="Tokens of an answer, likewise."),
    click.option(
        "--shared-prefix", type=click.IntRange(0), default=0, help="First tokens that all prompts share."
    ),
    click.option("--turns", type=click.IntRange(1), default=1, help="Questions of a conversation."),
    click.option("--think", type=float, default=0.0, help="Seconds between its turns."),
    click.option(
        "--trace", type=click.Path(path_type=Path), help="Mooncake JSONL or BurstGPT CSV, with its own times."
    ),
    click.option(
        "--sharegpt", type=click.Path(path_type=Path), help="Conversations to take the prompts from."
    ),
    click.option(
        "--ignore-eos/--stop-at-eos",
        default=True,
        help="Ask for exactly the output's length (a vLLM extension).",
    ),
    click.option("--stream/--no-stream", default=True),
    click.option(
        "--timeout",
        type=float,
        default=600.0,
        show_default=True,
        help="Seconds after which a request has failed.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Of arrivals and lengths."),
    click.option(
        "--salt", type=int, help="Makes prompts the same as those of another run; drawn anew by default."
    ),
    click.option("--extra", default="", help="JSON object of further fields of each request."),
    click.option("--slo", default="", help='Objectives, e.g. "ttft p95 < 500ms, tpot p95 < 50ms".'),
    click.option(
        "--metrics", multiple=True, help="URL of an engine's /metrics; several times for several engines."
    ),
    click.option("--key-file", type=click.Path(path_type=Path), help="File with the API key."),
    click.option("--key-env", default="OPENAI_API_KEY", show_default=True, help="Variable with the API key."),
    click.option(
        "--processes",
        type=click.IntRange(0),
        default=0,
        help="Worker processes (default: half the cores, at most 8).",
    ),
    click.option(
        "--calibrate/--no-calibrate", default=True, help="Measure the client at a null server first (1 s)."
    ),
)


def load_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds them to a command, in their order."""
    return reduce(lambda found, option: option(found), reversed(_OPTIONS), function)


_VERDICT = (
    click.option(
        "--allow", multiple=True, metavar="NAME",
        help="A condition that may differ, because it is what is under test: engine/version, or layout for all below it.",
    ),
    click.option("--strict", is_flag=True, help="What one side does not know about its conditions forbids too."),
    click.option(
        "--unsound", is_flag=True, help="Compare although a run measured its client, or its counts differ."
    ),
    click.option(
        "--margin", type=click.FloatRange(0, 100), default=2.0, show_default=True, metavar="PERCENT",
        help="Changes within it do not matter.",
    ),
)  # fmt: skip


def verdict_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Those of a verb that says which of two is better."""
    return reduce(lambda found, option: option(found), reversed(_VERDICT), function)

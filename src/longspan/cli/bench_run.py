"""`longspan bench run`: calibrates itself, makes the load, and says what came and how far it is to be believed."""

import asyncio
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from longspan import __version__
from longspan.bench import probe
from longspan.bench.arrivals import KINDS
from longspan.bench.calibrate import Calibration, calibration
from longspan.bench.client import Measured, drive
from longspan.bench.conditions import of_load
from longspan.bench.job import Job, Progress, Target
from longspan.bench.load import ENDPOINTS, Lengths, LoadSpec
from longspan.bench.observe import Observer
from longspan.bench.outcome import Run, conclude, why_unsound
from longspan.bench.prompts import WordRate
from longspan.bench.result import Result
from longspan.cli.bench_load import LoadFiles, build_load
from longspan.cli.bench_show import print_result
from longspan.errors import InputError, ResultError, UnsoundRunError
from longspan.workload import parse_objectives

CALIBRATION_STREAMS = 64


@click.command("run")
@click.argument("url")
@click.option("--model", default="", help="The model to ask for; needed only where there are several.")
@click.option("--kind", type=click.Choice(list(ENDPOINTS)), default="chat", show_default=True)
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(0),
    help="Clients that wait for their answers; with --rate: most in flight.",
)
@click.option("-r", "--rate", type=float, help="Requests per second that do not wait for answers.")
@click.option(
    "--arrivals",
    type=click.Choice([kind for kind in KINDS if kind not in ("closed", "trace")]),
    help="How they come (default: poisson).",
)
@click.option(
    "--burstiness",
    type=float,
    default=1.0,
    help="Shape of gamma arrivals: 1 is Poisson, less comes in clusters.",
)
@click.option("--burst", type=int, default=1, help="Of bursts: requests at one moment.")
@click.option("--rate-end", type=float, help="Of a ramp: the rate at its end.")
@click.option("--ramp", type=float, help="Of a ramp: seconds it takes.")
@click.option(
    "-n", "--requests", type=click.IntRange(1), help="Measured requests (default 100 unless --duration)."
)
@click.option("-d", "--duration", type=float, help="Seconds after which no request is sent.")
@click.option(
    "--warmup",
    type=click.IntRange(0),
    default=0,
    help="Requests before the measured ones; 0: the transient is detected.",
)
@click.option(
    "--prompt",
    default="512",
    show_default=True,
    help="Tokens: 512, or kind:mean:spread (uniform, normal, lognormal).",
)
@click.option("--output", default="128", show_default=True, help="Tokens of an answer, likewise.")
@click.option(
    "--shared-prefix", type=click.IntRange(0), default=0, help="First tokens that all prompts share."
)
@click.option("--turns", type=click.IntRange(1), default=1, help="Questions of a conversation.")
@click.option("--think", type=float, default=0.0, help="Seconds between its turns.")
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Mooncake JSONL or BurstGPT CSV, with its own times."
)
@click.option("--sharegpt", type=click.Path(path_type=Path), help="Conversations to take the prompts from.")
@click.option(
    "--ignore-eos/--stop-at-eos", default=True, help="Ask for exactly the output's length (a vLLM extension)."
)
@click.option("--stream/--no-stream", default=True)
@click.option(
    "--timeout",
    type=float,
    default=600.0,
    show_default=True,
    help="Seconds after which a request has failed.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of arrivals and lengths.")
@click.option(
    "--salt", type=int, help="Makes prompts the same as those of another run; drawn anew by default."
)
@click.option("--extra", default="", help="JSON object of further fields of each request.")
@click.option("--slo", default="", help='Objectives, e.g. "ttft p95 < 500ms, tpot p95 < 50ms".')
@click.option(
    "--metrics", multiple=True, help="URL of an engine's /metrics; several times for several engines."
)
@click.option("--key-file", type=click.Path(path_type=Path), help="File with the API key.")
@click.option("--key-env", default="OPENAI_API_KEY", show_default=True, help="Variable with the API key.")
@click.option(
    "--processes",
    type=click.IntRange(0),
    default=0,
    help="Worker processes (default: half the cores, at most 8).",
)
@click.option(
    "--calibrate/--no-calibrate", default=True, help="Measure the client at a null server first (1 s)."
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Where the result goes (default: a new file here)."
)
@click.option("--json", "as_json", is_flag=True, help="The whole result as one JSON document.")
def command(url: str, model: str, as_json: bool, out: Path | None, **options: Any) -> int:
    """Measure the OpenAI-compatible endpoint URL."""
    target = probe.parse_target(url, _key(options["key_file"], options["key_env"]))
    objectives = parse_objectives(options["slo"]) if options["slo"] else ()
    spec, files = build_load(options)
    result_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    path = out or Path(f"bench-{result_id}.json")
    _try_writing(path)
    model = probe.choose_model(target, model)
    salts = [f"{spec.salt:x}{at}" for at in (1, 2)]
    rate, note = probe.measure_words(target, model, spec, salts)
    calibrated = _calibrate(spec, options["processes"]) if options["calibrate"] else None
    observer = Observer(options["metrics"]) if options["metrics"] else None
    if observer is not None:
        observer.start()
    job = Job(target, model, spec, rate, talks=files.talks, trace=files.trace)
    with _progress(spec) as show:
        measured = asyncio.run(_drive(job, options["processes"], show))
    engine = observer.finish(measured.records, measured.zero) if observer is not None else None
    run = Run(
        result_id, target.url, model, spec, _conditions(target, model, spec, files, rate), measured.records,
        measured.lag, measured.batch, measured.cpu_share, measured.processes, measured.zero_unix_seconds,
        measured.clock_jump_seconds, "Ctrl-C" if measured.stopped else "", (note,) if note else (),
    )  # fmt: skip
    return _report(conclude(run, objectives, engine, calibrated), path, as_json)


def _report(result: Result, path: Path, as_json: bool) -> int:
    document = json.dumps(result.to_json(), allow_nan=False)
    print_result(result, err=as_json)
    if as_json:
        click.echo(document)
    try:
        path.write_text(document)
    except OSError as error:
        with contextlib.suppress(OSError):
            if path.is_file():  # never a device
                path.unlink()  # half a document helps nobody
        raise ResultError(
            f"The result cannot be written to {path}: {error.strerror}. Its figures are above.",
            "Make room, or give --out; `--json > FILE` writes the whole result elsewhere.",
        ) from error
    click.echo(f"saved: {path}", err=True)
    if result.interrupted:
        return 130
    if reason := why_unsound(result):
        if as_json:
            click.echo(f"error: {reason}", err=True)
            return UnsoundRunError.exit_code
        raise UnsoundRunError(reason)
    return 0


def _try_writing(path: Path) -> None:
    """Better now than after an hour of load."""
    existed = path.exists()
    try:
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise ResultError(
            f"The result could not be written to {path}: {error.strerror}.", "Give another place with --out."
        ) from error


def _key(path: Path | None, variable: str) -> str:
    if path is None:
        return os.environ.get(variable, "").strip()
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--key-file {path} cannot be read: {error}.") from error


def _conditions(
    target: Target, model: str, spec: LoadSpec, files: LoadFiles, rate: WordRate
) -> dict[str, Any]:
    """What this client knows by itself; a deployment's own conditions are added by who knows it."""
    return {
        "model/served_name": model,
        "endpoint/url": target.url,
        "client/host": platform.node(),
        "client/version": __version__,
        "client/python": platform.python_version(),
        "client/cores": os.cpu_count(),
        "client/word_tokens": round(rate.tokens_each, 4),
        "client/template_tokens": round(rate.overhead_tokens, 1),
        **of_load(spec),
        "load/trace_requests": len(files.trace) or None,
        "load/conversations": len(files.talks) or None,
    }


async def _drive(job: Job, processes: int, show: Callable[[Progress], None] | None) -> Measured:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return await drive(job, processes, stop, show)


def _calibrate(spec: LoadSpec, processes: int) -> Calibration | None:
    """A short run like the real one against the null server."""
    streams = min(spec.concurrency or CALIBRATION_STREAMS, CALIBRATION_STREAMS)
    load = LoadSpec(
        requests=2 * streams,
        concurrency=streams,
        prompt=Lengths(min(spec.prompt.mean, 2000)),
        output=Lengths(20),
    )
    server = subprocess.Popen(
        [sys.executable, "-m", "longspan.bench.null_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        job = Job(Target("127.0.0.1", port), "null", load, WordRate(), keep_texts=True)
        measured = asyncio.run(_drive(job, processes, None))
        if measured.stopped:
            raise click.Abort
        return calibration(measured.records, measured.texts, measured.zero)
    finally:
        server.communicate()


@contextlib.contextmanager
def _progress(spec: LoadSpec) -> Iterator[Callable[[Progress], None] | None]:
    """Live numbers and time left, on a terminal only."""
    if not sys.stderr.isatty():
        yield None
        return
    begin = time.monotonic()
    with Live(Text("starting"), console=Console(stderr=True), refresh_per_second=4, transient=True) as live:

        def show(now: Progress) -> None:
            passed = time.monotonic() - begin
            share = now.done / spec.total if spec.total else 0.0
            if spec.duration_seconds:
                share = max(share, min(1.0, passed / spec.duration_seconds))
            left = f", {passed / share - passed:.0f} s left" if share > 0 else ""
            flight = now.sent - now.done
            live.update(Text(
                f"{now.done}{f' of {spec.total}' if spec.total else ''} answered, {flight} in flight, {now.failed} failed, "
                f"{now.done / max(passed, 1e-3):.1f} req/s{left}"
            ))  # fmt: skip

        yield show

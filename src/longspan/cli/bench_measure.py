"""One endpoint and one load on it, ready to be measured as often as a verb needs: `bench run`, `sweep` and `compare` share it."""

import asyncio
import contextlib
import os
import platform
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from longspan import __version__
from longspan.bench import probe
from longspan.bench.calibrate import Calibration, calibration
from longspan.bench.client import Measured, drive
from longspan.bench.conditions import of_load
from longspan.bench.job import Job, Progress, Target
from longspan.bench.load import Lengths, LoadSpec
from longspan.bench.observe import Observer
from longspan.bench.outcome import Run, conclude
from longspan.bench.prompts import WordRate
from longspan.bench.result import Result
from longspan.cli import bench_around
from longspan.cli.bench_load import LoadFiles, build_load
from longspan.errors import InputError
from longspan.workload import Objective, parse_objectives

CALIBRATION_STREAMS = 64


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured, and with what.

    Attributes:
        words: how many tokens a word is; note: what a reader must know of that.
        processes: of the client; 0 for its own choice. metrics: of engines, to be read beside.
        around: what else is known of the endpoint, as conditions.
    """

    target: Target
    model: str
    spec: LoadSpec
    files: LoadFiles
    words: WordRate
    note: str
    objectives: tuple[Objective, ...]
    processes: int
    metrics: tuple[str, ...]
    calibrated: Calibration | None
    around: dict[str, Any] = field(default_factory=dict)


def prepare(url: str, options: dict[str, Any]) -> Bench:
    """Reads the options of a load, asks the endpoint what it is, and measures the client at a null server.

    Raises:
        LongspanError: what was asked for makes no sense, or the endpoint is away, refuses the key or has no such model.
    """
    target = probe.parse_target(url, _key(options["key_file"], options["key_env"]))
    objectives = parse_objectives(options["slo"]) if options["slo"] else ()
    spec, files = build_load(options)
    model = probe.choose_model(target, options["model"])
    salts = [f"{spec.salt:x}{at}" for at in (1, 2)]
    words, note = probe.measure_words(target, model, spec, salts)
    calibrated = _calibrate(spec, options["processes"]) if options["calibrate"] else None
    around = bench_around.conditions(target, model)
    return Bench(
        target, model, spec, files, words, note, objectives, options["processes"], options["metrics"], calibrated, around,
    )  # fmt: skip


def new_id() -> str:
    """A result's name: when, and something that no other has."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"


def measure(bench: Bench, result_id: str = "") -> Result:
    """One run, to its end or to Ctrl-C, which its `interrupted` tells."""
    observer = Observer(list(bench.metrics)) if bench.metrics else None
    if observer is not None:
        observer.start()
    spec, files = bench.spec, bench.files
    job = Job(bench.target, bench.model, spec, bench.words, talks=files.talks, trace=files.trace)
    with _progress(spec) as show:
        measured = asyncio.run(_drive(job, bench.processes, show))
    engine = observer.finish(measured.records, measured.zero) if observer is not None else None
    run = Run(
        result_id or new_id(), bench.target.url, bench.model, spec,
        {**_conditions(bench.target, bench.model, spec, files, bench.words), **bench.around}, measured.records,
        measured.lag, measured.batch, measured.cpu_share, measured.processes, measured.zero_unix_seconds,
        measured.clock_jump_seconds, "Ctrl-C" if measured.stopped else "", (bench.note,) if bench.note else (),
    )  # fmt: skip
    return conclude(run, bench.objectives, engine, bench.calibrated)


def with_load(bench: Bench, **changes: Any) -> Bench:
    """The same with another load."""
    return replace(bench, spec=replace(bench.spec, **changes))


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

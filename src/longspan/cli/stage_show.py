"""Progress of `longspan stage`: bars with rate and time left on a terminal, a line every ten seconds elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

import click

from longspan.cli.stage_copy import Progress
from longspan.units import format_bytes, format_seconds

LINE_SECONDS = 10.0
BAR_SECONDS = 0.25


def line(progress: Progress, now: float) -> str:
    """All nodes together: how much of how much, how fast, how long still."""
    sent, left = sum(progress.sent_bytes.values()), sum(progress.left_bytes.values())
    rate = sent / max(now - progress.began, 1e-3)
    done = sum(state in ("done", "shared") for state in progress.state.values())
    text = f"{format_bytes(sent)} of {format_bytes(left)}, {format_bytes(rate)}/s"
    if rate and left > sent:
        text += f", {format_seconds((left - sent) / rate)} left"
    return f"{text}; {done} of {len(progress.state)} nodes done"


@contextlib.contextmanager
def shown(progress: Progress) -> Iterator[None]:
    """Shows the progress while the body runs, on standard error."""
    if not sum(progress.left_bytes.values()):
        yield
        return
    ended = threading.Event()
    show = _bars if sys.stderr.isatty() else _lines
    thread = threading.Thread(target=show, args=(progress, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        click.echo(f"  {line(progress, time.monotonic())}", err=True)


def _lines(progress: Progress, ended: threading.Event) -> None:
    while not ended.wait(LINE_SECONDS):
        click.echo(f"  {line(progress, time.monotonic())}", err=True)


def _bars(progress: Progress, ended: threading.Event) -> None:
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    from longspan.cli.render import console

    columns = (
        "{task.description}",
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console(stderr=True), transient=True) as bars:
        tasks = {node: bars.add_task(node, total=left) for node, left in progress.left_bytes.items() if left}
        while not ended.wait(BAR_SECONDS):
            for node, task in tasks.items():
                bars.update(task, completed=progress.sent_bytes.get(node, 0))

"""`longspan top`: the whole deployment on one terminal screen."""

import contextlib
import json
import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click

from longspan.cli import control
from longspan.cli.top_state import TopState, press
from longspan.errors import ControlPlaneError
from longspan.monitor.aging import aged
from longspan.monitor.record import RecordError
from longspan.monitor.view import ClusterView

EVERY_SECONDS = 1.0
_SEQUENCES = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b[5~": "page-up", "\x1b[6~": "page-down",
    "\x1b": "escape", "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace",
}  # fmt: skip


@click.command("top")
@click.option("--name", default="default", show_default=True, help="The deployment's name.")
@click.option(
    "--once", is_flag=True, help="Print the screen once as text and end; the default without a terminal."
)
@click.option("--json", "as_json", is_flag=True, help="The whole picture as one JSON document.")
def command(name: str, once: bool, as_json: bool) -> int:
    """Watch nodes, GPUs, ports, replicas, queue and alarms.

    Keys: arrows or j/k select, Enter opens a node or replica, Esc goes back, Tab changes the table, s sorts, r reverses, q quits.
    """
    record = control.running(name)
    view = fetch(record)
    if as_json:
        click.echo(json.dumps(view.to_json()))
        return 0
    if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        print_once(view)
        return 0
    watch(record, view)
    return 0


def fetch(record: dict[str, Any]) -> ClusterView:
    """The controller's picture.

    Raises:
        ControlPlaneError: it does not answer, or is of another version.
    """
    try:
        return ClusterView.from_json(printable(control.request(record, "/v1/view")))
    except RecordError as error:
        raise ControlPlaneError(
            f"The controller's picture cannot be read: {error}.",
            "It was started by another version of Longspan.",
        ) from error


def printable(document: Any) -> Any:
    """The same without control characters: reasons and names come from engines and other machines, and go to a terminal."""
    if isinstance(document, str):
        return "".join(c if c.isprintable() else " " for c in document)
    if isinstance(document, list):
        return [printable(item) for item in document]
    if isinstance(document, dict):
        return {key: printable(item) for key, item in document.items()}
    return document


def print_once(view: ClusterView) -> None:
    """The screen as text, everything on it."""
    from rich.console import Console

    from longspan.cli.top_screen import screen

    out = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 100)
    out.print(screen(view, TopState(), height=0, keys=False))


@dataclass(slots=True)
class Watcher:
    """Fetches in a thread, so that a slow controller does not hold up the keys.

    Attributes:
        came_at: of the last picture, by this process's steady clock.
    """

    record: dict[str, Any]
    view: ClusterView
    came_at: float = field(default_factory=time.monotonic)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until stopped."""
        while not self.stop.wait(EVERY_SECONDS):
            with contextlib.suppress(ControlPlaneError):
                self.view = fetch(self.record)
                self.came_at = time.monotonic()

    def now(self) -> ClusterView:
        """The last picture, as old as it is."""
        return aged(self.view, time.monotonic() - self.came_at)


def watch(record: dict[str, Any], view: ClusterView) -> None:
    """The live screen, until q or Ctrl-C."""
    from rich.console import Console, RenderableType
    from rich.live import Live

    from longspan.cli.top_detail import detail
    from longspan.cli.top_screen import screen

    console = Console(highlight=False, markup=False)
    watcher = Watcher(record, view)
    threading.Thread(target=watcher.run, daemon=True).start()
    state: TopState | None = TopState()

    def picture() -> "RenderableType":
        assert state is not None
        if state.opened:
            return Scrolled(detail(watcher.now(), state), state.scroll)
        return screen(watcher.now(), state, height=console.size.height)

    try:
        with raw_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            while state is not None:
                live.update(picture(), refresh=True)
                for key in read_keys(EVERY_SECONDS):
                    state = press(state, key, watcher.now()) if state is not None else None
    except KeyboardInterrupt:
        pass
    finally:
        watcher.stop.set()


@dataclass(frozen=True, slots=True)
class Scrolled:
    """Something taller than the terminal, from a line on."""

    inner: Any
    first: int

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """Rich's way to draw it: the last line is the keys."""
        from rich.segment import Segment
        from rich.text import Text

        lines = console.render_lines(self.inner, options.update(height=None), pad=False)
        room = console.size.height - 2
        first = min(self.first, max(0, len(lines) - room))
        for line in lines[first : first + room]:
            yield from line
            yield Segment.line()
        below = len(lines) - first - room
        yield Text(f"q quit   Esc back   ↑↓ scroll{f'   {below} lines below' if below > 0 else ''}", "dim")


@contextlib.contextmanager
def raw_keys() -> Iterator[None]:
    """The terminal hands over each key at once, without showing it."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read_keys(seconds: float) -> list[str]:
    """What was pressed; waits so long for the first."""
    descriptor = sys.stdin.fileno()
    if not select.select([descriptor], [], [], seconds)[0]:
        return []
    data = os.read(descriptor, 256)
    if not data:  # the terminal is gone
        return ["q"]
    return keys_of(data.decode(errors="replace"))


def keys_of(text: str) -> list[str]:
    """The keys in what a terminal sent; a sequence that is unknown is none."""
    found = []
    while text:
        known = max((s for s in _SEQUENCES if text.startswith(s)), key=len, default="")
        if known == "\x1b" and len(text) > 1 and text[1] in "[O":  # a sequence that we do not know
            end = next((i for i, c in enumerate(text[2:], 2) if "@" <= c <= "~"), len(text) - 1)
            text = text[end + 1 :]
            continue
        found.append(_SEQUENCES[known] if known else text[0])
        text = text[len(known) or 1 :]
    return found

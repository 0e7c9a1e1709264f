"""How verbs print for people. `rich` is imported here only, so that `--json` and `--help` do not pay for it."""

from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from longspan.units import format_seconds

MARKS = {
    "done": ("✓", "green"),
    "running": ("…", "yellow"),
    "failed": ("✗", "red"),
    "stopped": ("-", "yellow"),
    "waiting": ("·", "dim"),
}


def console(*, stderr: bool = False) -> Console:
    """A console that colours only on a terminal."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def phase_line(phase: dict[str, Any]) -> Text:
    """One phase: mark, name, time, detail."""
    mark, style = MARKS[phase["state"]]
    seconds = "" if phase["seconds"] is None else format_seconds(phase["seconds"])
    line = Text.assemble((f"  {mark} ", style), f"{phase['phase']:<12}", (f"{seconds:>10}  ", "dim"))
    line.append(phase["detail"], style="dim" if phase["state"] == "waiting" else "")
    return line


def phases(status: dict[str, Any]) -> Group:
    """All phases, and how long it has been."""
    head = Text(f"{status['name']}: {status['served_name']}, {layout(status)}", style="bold")
    lines = [phase_line(phase) for phase in status["phases"]]
    return Group(head, *lines)


def layout(status: dict[str, Any]) -> str:
    """ "TP 1 x PP 2 on 2 nodes (ray executor, cpu)"."""
    found = status["layout"]
    nodes = len(status["nodes"])
    return (
        f"TP {found['tp']} x PP {found['pp']} on {nodes} node{'s' if nodes != 1 else ''} "
        f"({found['executor']} executor, {found['device']})"
    )


class PhaseView:
    """Shows the phases while they happen: redrawn on a terminal, a line per finished phase elsewhere."""

    def __init__(self) -> None:
        self.out = console(stderr=True)
        self.live = (
            Live(console=self.out, refresh_per_second=8, transient=False) if self.out.is_terminal else None
        )
        self.shown: set[tuple[str, str]] = set()
        self.headed = False

    def __enter__(self) -> "PhaseView":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def update(self, status: dict[str, Any]) -> None:
        """Shows the newest status."""
        if self.live:
            self.live.update(phases(status))
            return
        if not self.headed:
            self.headed = True
            self.out.print(f"{status['name']}: {status['served_name']}, {layout(status)}")
        for phase in status["phases"]:
            key = (phase["phase"], phase["state"])
            if phase["state"] in {"done", "failed"} and key not in self.shown:
                self.shown.add(key)
                self.out.print(phase_line(phase))


def rank_table(status: dict[str, Any]) -> Table:
    """rank -> stage, node, GPU, as the engine itself reported it."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    several = len(status["replicas"]) > 1
    for name in (
        *(("replica",) if several else ()),
        "rank",
        "PP",
        "TP",
        "node",
        "address (read back)",
        "pid",
        "GPU",
    ):
        table.add_column(name)
    for rank in status["ranks"]:
        gpu = (
            ", ".join(rank["gpu"])
            if rank["gpu"]
            else "n/a (CPU)"
            if status["layout"]["device"] == "cpu"
            else "?"
        )
        table.add_row(
            *((rank["replica"],) if several else ()),
            str(rank["rank"]), str(rank["pp_rank"]), str(rank["tp_rank"]), rank["planned_node"],
            rank["address"] or "not yet", str(rank["pid"] or "-"), gpu,
        )  # fmt: skip
    return table


def replica_lines(status: dict[str, Any]) -> list[Text]:
    """Each of several replicas: where it stands, since when, why."""
    if status["max_replicas"] == 1:
        return []
    lines = [Text(f"  {status['wanted_replicas']} of at most {status['max_replicas']} replicas are wanted")]
    if scaling := status.get("autoscale"):
        lines[0].append(
            f"; {scaling['least']} to {scaling['most']}, as the queue wants ({scaling['queue_seconds']:g} s are too many)"
        )
        if last := scaling["last"]:
            lines.append(Text(f"  last changed to {last['replicas']}: {last['reason']}"))
    for one in status["replicas"]:
        style = "green" if one["phase"] == "serving" else "yellow"
        since = f" since {format_seconds(one['seconds'])}"
        why = f": {one['reason']}" if one["reason"] else ""
        proved = f" ({one['proof']})" if one["proof"] else ""
        place = f" on {', '.join(one['nodes'])}"
        lines.append(
            Text.assemble(f"  {one['name']:<4} ", (one["phase"], style), f"{since}{place}{why}{proved}")
        )
    return lines


def proof_lines(proof: dict[str, Any]) -> list[Text]:
    """The layers of the proof: what was seen, and what each can and cannot see."""
    lines = []
    for layer in proof.get("layers", []):
        mark, style = {"passed": MARKS["done"], "failed": MARKS["failed"]}.get(
            layer["state"], ("-", "yellow")
        )
        lines.append(Text.assemble((f"  {mark} ", style), f"{layer['name']}: {layer['seen']}"))
        lines.append(Text(f"      sees {layer['can_see']}", style="dim"))
        lines.append(Text(f"      cannot see {layer['cannot_see']}", style="dim"))
    return lines


def alarm_lines(alarms: list[dict[str, Any]]) -> list[Text]:
    """Each alarm that stands, with what to do."""
    lines = []
    for alarm in alarms:
        colour = {"error": "red", "warning": "yellow"}.get(alarm["severity"], "cyan")
        lines.append(Text.assemble("  ", (alarm["severity"], colour), f": {alarm['summary']}"))
        if alarm["remedy"]:
            lines.append(Text(f"    {alarm['remedy']}", "dim"))
    return lines

"""How a pre-flight's result reads in a terminal: one line a group of checks, findings with their remedy, the environment."""

from collections import defaultdict

from rich.console import Console
from rich.text import Text

from longspan.cli.preflighting import Checked, by_cause
from longspan.cli.render import MARKS
from longspan.preflight.catalogue import GROUPS, Judged
from longspan.preflight.scene import Scene

_STATES = {
    "ok": MARKS["done"],
    "info": MARKS["done"],
    "warning": ("!", "yellow"),
    "error": MARKS["failed"],
    "skipped": ("-", "dim"),
}
_ORDER = ("error", "warning", "info", "ok", "skipped")


def print_checked(out: Console, checked: Checked) -> None:
    """Everything but the summary."""
    for group in GROUPS:
        members = [one for one in checked.judged if one.check.group == group]
        if members:
            out.print(_group_line(group, members))
            for one in members:
                _print_findings(out, one)
    _print_skipped(out, checked)
    if any(checked.scene.environment.values()):
        out.print("\n  environment of each node's ranks (env = { … } in the cluster file overrides)")
        for line in environment_lines(checked.scene):
            out.print(line)


def _group_line(group: str, members: list[Judged]) -> Text:
    worst = min((one.outcome.state for one in members), key=_ORDER.index)
    mark, style = _STATES[worst]
    good = [one for one in members if one.outcome.state in ("ok", "info")]
    told = [one.outcome.seen for one in good if one.outcome.seen]
    line = Text.assemble(
        (f"  {mark} ", style), f"{group:<11}", (f"{len(good):>2} of {len(members)} ok  ", "dim")
    )
    bad = sum(len(one.outcome.findings) for one in members)
    if worst == "skipped":
        line.append("skipped", style="dim")
    elif bad:
        line.append(f"{bad} finding{'s' if bad > 1 else ''}")
    elif told:
        line.append("; ".join(told[:2]), style="dim")
    return line


def _print_findings(out: Console, one: Judged) -> None:
    """Each cause in full, with the names of the nodes that share it."""
    for (severity, cause), found in by_cause(one.outcome.findings).items():
        first = found[0]
        _, style = _STATES[severity]
        out.print(Text.assemble("      ", (severity, style), f" {first.summary} ", (f"({cause})", "dim")))
        if len(found) > 1:
            out.print(Text(f"        likewise: {', '.join(finding.subject for finding in found[1:])}"))
        if first.remedy:
            out.print(Text(f"        → {first.remedy}"))


def _print_skipped(out: Console, checked: Checked) -> None:
    reasons: dict[str, list[str]] = defaultdict(list)
    for one in checked.judged:
        if one.outcome.state == "skipped":
            reasons[one.outcome.skipped].append(one.check.id)
    for reason, ids in reasons.items():
        out.print(Text(f"  skipped: {', '.join(ids)}: {reason}", style="dim"))


def environment_lines(scene: Scene) -> list[Text]:
    """Each node's variables, those with one reason together."""
    lines = []
    for node, settings in scene.environment.items():
        reasons: dict[str, list[str]] = defaultdict(list)
        for setting in settings:
            reasons[setting.why].append(f"{setting.variable}={setting.value}")
        for number, (why, words) in enumerate(reasons.items()):
            name = "" if number else node
            lines.append(Text.assemble(f"  {name:<11} ", " ".join(words), (f"   # {why}", "dim")))
    return lines

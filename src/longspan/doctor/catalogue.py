"""The rules as a document: `docs/rules.md` is this module's output (`python -m longspan.doctor.catalogue`)."""

from longspan.doctor.causes import CAUSES, Cause
from longspan.doctor.rules import MARKS, RULES
from longspan.doctor.rules.rule import Rule

_KINDS = {
    "root": "names its cause", "symptom": "may have another cause behind it", "generic": "says only that something broke",
    "wait": "a wait that may end", "wrapper": "repeats another process's failure",
}  # fmt: skip


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _rule_lines(rule: Rule) -> list[str]:
    lines = [f"- **{rule.id}** ({_KINDS[rule.kind]}, weight {rule.weight:g})"]
    lines.append(f"  - example: `{rule.example.replace('`', chr(39))}`")
    if rule.versions:
        lines.append(f"  - occurs in: {rule.versions}")
    if rule.question:
        lines.append(f"  - ask: {_cell(rule.question)}")
    if rule.also:
        lines.append(f"  - the same text also means: {', '.join(rule.also)}")
    if rule.source:
        lines.append(f"  - source: {rule.source}")
    return lines


def _cause_lines(cause: Cause) -> list[str]:
    rules = [r for r in RULES if r.cause == cause.id]
    lines = [
        f"## {cause.id}",
        "",
        f"{_cell(cause.summary)} *({cause.layer})*",
        "",
        f"**Do:** {_cell(cause.remedy)}",
    ]
    if cause.undo:
        lines += ["", f"**Undo:** {_cell(cause.undo)}"]
    lines.append("")
    for rule in rules:
        lines += _rule_lines(rule)
    if not rules:
        lines.append(
            "- found by comparing other lines (see `doctor/deciders/`, `doctor/collectives.py`, `doctor/silence.py`)"
        )
    return [*lines, ""]


def rules_markdown() -> str:
    """The whole document."""
    lines = [
        "# What the doctor knows",
        "",
        "Generated from `src/longspan/doctor/rules/` by `python -m longspan.doctor.catalogue`; do not edit by hand.",
        "",
        (
            f"{len(RULES)} rules for {len(CAUSES)} causes, and {len(MARKS)} lines that are no fault but tell how far a launch "
            "came, that it serves, or that someone stopped it. A rule's weight is how sure its text alone makes one; what "
            "stands around it raises or lowers it."
        ),
        "",
    ]
    for cause in CAUSES.values():
        lines += _cause_lines(cause)
    wrappers = [r for r in RULES if r.kind == "wrapper"]
    lines += [
        "## Consequences",
        "",
        "These lines only repeat that another process failed. They are shown as such and never as a cause.",
        "",
    ]
    for rule in wrappers:
        lines += _rule_lines(rule)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(rules_markdown(), end="")

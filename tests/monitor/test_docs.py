"""docs/monitor.md lists every rule and every level as they are."""

from dataclasses import fields
from pathlib import Path

from longspan.monitor.objectives import Objectives, parse_objectives
from longspan.monitor.rules import RULES

DOCS = Path(__file__).parent.parent.parent / "docs" / "monitor.md"


def table() -> str:
    """The table of rules."""
    rows = [
        f"| `{r.cause}` | {r.severity} | {r.meaning} | {r.raise_after_seconds:.0f} s | {r.clear_after_seconds:.0f} s |"
        for r in RULES
    ]
    return "\n".join(["| alarm | severity | when | after | goes after |", "|---|---|---|---|---|", *rows])


def test_the_table_of_rules_is_the_rules():
    """The table is what monitor/rules.py holds; to write it anew, paste what this test prints."""
    text = DOCS.read_text()
    found = text[text.index("-->\n", text.index("<!-- rules:")) + 4 : text.index("<!-- end -->")].strip()
    assert found == table(), table()


def test_the_example_of_objectives_names_all_of_them():
    """The example can be used as it stands, and no level is left out."""
    text = DOCS.read_text()
    example = text[text.index("```toml\n") + 8 :].split("```")[0]
    assert parse_objectives(example)
    assert all(f"{one.name} = " in example for one in fields(Objectives))

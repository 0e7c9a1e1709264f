"""Pages that are made from the code say what the code says."""

import runpy
from pathlib import Path

REPO = Path(__file__).parent.parent


def test_audit_page_is_current() -> None:
    """docs/audit.md is what scripts/audit_rules.py writes; run it after changing the rules."""
    script = runpy.run_path(str(REPO / "scripts" / "audit_rules.py"))
    assert (REPO / "docs" / "audit.md").read_text() == script["render"]()


def test_exit_code_page_is_current() -> None:
    """docs/exit-codes.md is what scripts/exit_codes.py writes; run it after changing errors.py."""
    script = runpy.run_path(str(REPO / "scripts" / "exit_codes.py"))
    assert (REPO / "docs" / "exit-codes.md").read_text() == script["render"]()

"""Pages that are made from the code say what the code says."""

import runpy
from pathlib import Path

REPO = Path(__file__).parent.parent


def test_exit_code_page_is_current() -> None:
    """docs/exit-codes.md is what scripts/exit_codes.py writes; run it after changing errors.py."""
    script = runpy.run_path(str(REPO / "scripts" / "exit_codes.py"))
    assert (REPO / "docs" / "exit-codes.md").read_text() == script["render"]()

#!/usr/bin/env python3
"""Writes docs/exit-codes.md from longspan/errors.py; a test fails when the two differ.

PYTHONPATH=src python scripts/exit_codes.py
"""

import inspect
from pathlib import Path

from longspan import errors

TARGET = Path(__file__).parent.parent / "docs" / "exit-codes.md"
FIXED = {
    0: "Success.",
    1: "An error in Longspan itself. `longspan --debug …` shows the traceback to report.",
    2: "A wrong command line: an unknown verb or option, a missing argument.",
    130: "Ended by Ctrl-C.",
}


def codes() -> dict[int, tuple[str, str]]:
    """Exit code to the error's name and the first paragraph of its docstring; codes that click sets have no name."""
    found = {code: ("", text) for code, text in FIXED.items()}
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, errors.LongspanError):
            doc = inspect.getdoc(value) or ""
            found[value.exit_code] = (name, " ".join(doc.split("\n\n")[0].split()))
    return dict(sorted(found.items()))


def render() -> str:
    """The whole page."""
    rows = [f"| {code} | {f'`{name}`' if name else ''} | {text} |" for code, (name, text) in codes().items()]
    return "\n".join(
        [
            "# Exit codes",
            "",
            "Every verb ends with one of these. With `--json` the code is the same: the paragraph goes to stderr, and",
            'standard output holds one document, `{"error": {"kind": …, "what": …, "remedy": …, "exit_code": …}}`.',
            "A wrong command line (2) and Ctrl-C (130) leave standard output empty.",
            "This page is made by `scripts/exit_codes.py` from `longspan/errors.py`.",
            "",
            "| code | error | meaning |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    TARGET.write_text(render())

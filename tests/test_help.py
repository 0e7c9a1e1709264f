"""`longspan --help` is light: it imports no verb and none of the heavy packages."""

import subprocess
import sys

PROBE = """
import sys
sys.argv = ["longspan", *sys.argv[1:]]
from longspan.cli.main import run
try:
    run()
except SystemExit as end:
    print("\\n".join(sorted(sys.modules)), file=sys.stderr)
    raise
"""
# click's own imports stay below this on Python 3.11 (183 were counted); a verb or rich would add hundreds.
MOST_MODULES = 260
HEAVY = {
    "asyncio",
    "rich",
    "aiohttp",
    "huggingface_hub",
    "ray",
    "vllm",
    "torch",
    "numpy",
    "uvloop",
    "httptools",
}


def imported(*args: str) -> tuple[str, set[str]]:
    """What `longspan ARGS` prints and which modules it imports; -I -S keeps other packages' start-up hooks out."""
    paths = [path for path in sys.path if path]
    code = f"import sys; sys.path[:0] = {paths!r}\n{PROBE}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *args],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout, set(done.stderr.split())


def test_help_imports_no_verb() -> None:
    """The help names every verb without importing its module."""
    from longspan.cli.main import VERBS

    text, modules = imported("--help")
    assert {name for name in modules if name.startswith("longspan")} == {
        "longspan", "longspan.cli", "longspan.cli.main", "longspan.errors",
    }  # fmt: skip
    assert [verb for verb in VERBS if verb not in text] == []


def test_help_imports_nothing_heavy() -> None:
    """No engine, no event loop, no table printer; and the number of modules stays bounded."""
    _, modules = imported("--help")
    assert HEAVY & modules == set()
    assert len(modules) < MOST_MODULES

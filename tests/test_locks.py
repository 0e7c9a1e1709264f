"""The locks are closed sets: what they name requires nothing that they do not name."""

import re
import runpy
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent
PIN = re.compile(r"[a-z0-9][a-z0-9-]*==[0-9][0-9a-zA-Z.+!]*")


@pytest.mark.parametrize("name", ["engine-cpu", "test", "build"])
def test_every_line_is_an_exact_pin(name: str) -> None:
    """Each line is a comment or one exact version; no name comes twice."""
    lines = [line for line in (REPO / "locks" / f"{name}.txt").read_text().splitlines() if line[0] != "#"]
    assert [line for line in lines if not PIN.fullmatch(line)] == []
    names = [line.split("==")[0] for line in lines]
    assert len(names) == len(set(names))


def test_locks_agree() -> None:
    """A package in two locks has one version, since all go into one environment."""
    seen: dict[str, str] = {}
    for path in sorted((REPO / "locks").glob("*.txt")):
        for line in path.read_text().splitlines():
            if line[0] != "#":
                name, found = line.split("==")
                assert seen.setdefault(name, found) == found, f"{name} in {path.name}"


def test_locks_are_what_the_roots_require() -> None:
    """In an environment that was made from the locks, scripts/lock.py would write the same locks again."""
    pins = [line for path in (REPO / "locks").glob("*.txt") for line in path.read_text().splitlines()]
    for name, wanted in (line.split("==") for line in pins if line[0] != "#"):
        try:
            found = version(name)
        except PackageNotFoundError:
            found = "missing"
        if found != wanted:
            pytest.skip(
                f"{name} is {found} here and {wanted} in the lock: this runs in `make test`'s environment"
            )
    script = runpy.run_path(str(REPO / "scripts" / "lock.py"))
    for lock, roots in script["roots"]().items():
        found, problems = script["closure"](roots)
        assert problems == []
        assert script["render"](lock, script["pins"](found)) == (REPO / "locks" / f"{lock}.txt").read_text()


def test_what_is_left_out_has_a_reason() -> None:
    """The engine's lock names what it leaves out and why, and does leave it out."""
    script = runpy.run_path(str(REPO / "scripts" / "lock.py"))
    text = (REPO / "locks" / "engine-cpu.txt").read_text()
    for name, why in script["LEFT_OUT"].items():
        assert f"# Left out: {name}: {why}." in text
        assert f"\n{name}==" not in text

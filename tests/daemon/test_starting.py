"""Starting an agent by a command that stays: a container engine that a script plays, with the real agent inside."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_controller import fake_controller, until
from real import environment, executable, processes_with, wait_for

from longspan.cluster.container import Container
from longspan.daemon import starting
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.errors import HostError

# Plays `docker`: keeps what it was called with, and runs the entry point where it is. `--entrypoint` is the last option.
ENGINE = (
    'printf "%s\\n" "$*" >>"$HOME/calls"',
    'case "$1" in image) exit ${NO_IMAGE:-0};; info) exit 0;; esac',
    'while case "$1" in --entrypoint=*) false;; esac; do shift; done',
    'program=${1#--entrypoint=}; shift 2; exec "$program" "$@"',
)


def spec_in(engine: Path) -> tuple[DeploymentSpec, NodeSpec]:
    """One node of this machine whose everything runs in a container."""
    container = Container("image:1", engine=str(engine))
    node = NodeSpec("a", "127.0.0.2", 1, python=sys.executable, container=container)
    spec = DeploymentSpec("d", "id", "org/m", "m", 1, 1, "ray", "cpu", (node,), "127.0.0.1:8000")
    return spec, node


def config_of(url: str, home: Path) -> dict[str, Any]:
    """What the controller tells an agent."""
    return {
        "name": "a", "controller_url": url, "key": "the-key", "mark": "mark-a", "run_dir": str(home / "run"),
        "log_dir": str(home / "logs"),
    }  # fmt: skip


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The played engine, with a home of its own."""
    for key, value in environment(tmp_path, HOME=str(tmp_path)).items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(starting.container, "LOGS", str(tmp_path / "inside"))
    return executable(tmp_path / "docker", ENGINE)


def test_the_agent_lives_and_dies_with_its_container(tmp_path: Path, engine: Path) -> None:
    """The agent gets its key through standard input only, stays the container's first process, and ends it when told."""

    async def test() -> None:
        spec, node = spec_in(engine)
        async with fake_controller() as controller:
            said = tmp_path / "a.start"
            await starting.start_agent(node, config_of(controller.url, tmp_path), spec, said)
            child = starting._stays["a"]
            pid = json.loads(said.read_text().splitlines()[-1])["pid"]
            assert pid == child.pid  # the script became the agent: nothing went into the background
            await until(lambda: controller.messages)
            assert controller.keys == {"Bearer the-key"}
            proc = Path(f"/proc/{pid}")
            assert b"the-key" not in (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
            assert "the-key" not in (tmp_path / "calls").read_text()
            os.kill(pid, 1)  # SIGHUP: the connection that started it is gone
            seen = len(controller.messages)
            await until(lambda: len(controller.messages) > seen + 1)
            controller.command(kind="stop_all", call="stopped:a")
            await until(lambda: controller.answer("stopped:a"))
            await until(lambda: child.poll() is not None)
            assert child.returncode == 0

    asyncio.run(test())
    wait_for(lambda: processes_with("LONGSPAN_AGENT_OF=mark-a") == [])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (('case "$1" in image) exit 1;; esac',), "docker pull image:1|pull image:1"),
        (("exit 1",), "does not answer"),
        (
            ('[ "$1" = run ] && { echo "no such runtime: nvidia" >&2; exit 125; }', "exit 0"),
            "status 125: no such runtime",
        ),
    ],
)
def test_why_a_container_does_not_start(
    tmp_path: Path, engine: Path, lines: tuple[str, ...], said: str
) -> None:
    """No image, no daemon, an engine that refuses: each is said in the engine's words or with what to do."""
    executable(engine, lines)
    spec, node = spec_in(engine)
    with pytest.raises(HostError, match=said):
        asyncio.run(
            starting.start_agent(node, config_of("http://127.0.0.1:9", tmp_path), spec, tmp_path / "said")
        )


def test_a_command_that_stays_too_long(tmp_path: Path, engine: Path) -> None:
    """What is left of them when the deployment is gone (a lost host) is ended, the stubborn one too."""
    stubborn = executable(
        tmp_path / "stubborn", ('trap "" TERM', "echo ready", "while :; do sleep 0.1; done")
    )
    child = starting._spawn([str(stubborn)], {}, "", tmp_path / "said")
    wait_for(lambda: "ready" in (tmp_path / "said").read_text())
    starting._stays["late"] = child
    starting.end_along(0.2)
    assert child.wait(30) == -9


def test_no_engine(tmp_path: Path, engine: Path) -> None:
    """Without docker that is what is said."""
    engine.unlink()
    spec, node = spec_in(engine)
    with pytest.raises(HostError, match="is not installed"):
        asyncio.run(
            starting.start_agent(node, config_of("http://127.0.0.1:9", tmp_path), spec, tmp_path / "said")
        )

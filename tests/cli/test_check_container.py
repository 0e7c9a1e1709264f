"""A pre-flight of hosts whose everything runs in a container: through a stand-in for docker, which runs the words after the image."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from longspan.cli.check_hosts import host_of
from longspan.cluster.container import Container
from longspan.deployment import NodeSpec
from longspan.preflight.facts import NodeFacts
from longspan.preflight.run import Options, Target, preflight
from longspan.preflight.scene import Wanted

# "run" hands everything after the image to the interpreter of --entrypoint, as docker would inside.
DOCKER = """#!/bin/bash
echo "$*" >>"$0.said"
case $1 in
  run)
    for word; do case $word in --entrypoint=*) program=${word#*=};; esac; done
    while [ "$1" != the-image ]; do shift; done
    shift; exec "$program" "$@";;
esac
"""
SSH_GONE = "#!/bin/bash\necho 'ssh: connect to host gpu-a port 22: Connection timed out' >&2\nexit 255\n"
SSH_CHANGED = (
    "#!/bin/bash\necho '@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @' >&2\n"
    "echo 'Host key verification failed.' >&2\nexit 255\n"
)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts a program at the front of PATH; home is a directory of the test's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))

    def put(name: str, text: str) -> Path:
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    return put


def look(image: str = "the-image", ssh: str | None = None, engine: str = "docker") -> NodeFacts:
    """One node's facts."""
    spec = NodeSpec("gpu-a", "127.0.0.2", 1, ssh, sys.executable, container=Container(image, engine=engine))
    target = Target(spec.name, spec.address, host_of(spec, None, "/models/m"), spec.python)
    wanted = [Wanted(spec.name, spec.address, 1)]
    (node,) = preflight([target], wanted, Options(collective=False), lambda _: None).nodes
    return node


def test_the_facts_are_the_containers(program: Callable[[str, str], Path]) -> None:
    """The program runs inside, with the model and the caches mounted, and tells what it finds there."""
    docker = program("docker", DOCKER)
    node = look()
    assert node.answered, node.refused
    assert node.executable == sys.executable
    (run,) = [line for line in Path(f"{docker}.said").read_text().splitlines() if line.startswith("run ")]
    assert "--network=host" in run
    assert "--volume=/models/m:/models/m:ro" in run


@pytest.mark.parametrize(
    ("engine", "text", "words"),
    [
        ("absent-engine", "", "absent-engine is not installed there"),
        ("docker", '#!/bin/sh\n[ "$1" = info ]\n', "the image is not there: `docker pull the-image`"),
        ("docker", "#!/bin/sh\nexit 1\n", "docker does not answer there: try `docker info` as this user"),
    ],
)
def test_a_container_that_cannot_start(
    program: Callable[[str, str], Path], engine: str, text: str, words: str
) -> None:
    """Engine, daemon and image are told apart, with what to do; it is no fault of ssh."""
    if text:
        program(engine, text)
    cause, what, remedy = look(engine=engine).refused or ("", "", "")
    assert (cause, what) == ("container-unusable", words)
    assert "container = …" in remedy


@pytest.mark.parametrize(
    ("text", "cause"),
    [(SSH_GONE, "host-unreachable"), (SSH_CHANGED, "host-key-changed")],
    ids=["gone", "changed"],
)
def test_a_host_that_is_not_reached(program: Callable[[str, str], Path], text: str, cause: str) -> None:
    """The same causes as for a host without a container, in ssh's own words."""
    program("ssh", text)
    found, _, remedy = look(ssh="ops@gpu-a").refused or ("", "", "")
    assert found == cause
    assert ("ops@gpu-a" in remedy) is (cause == "host-unreachable")  # ssh-keygen -R takes the host alone

"""An agent in a real container: podman, an image without content, and this machine's Python mounted into it."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_controller import FakeController, fake_controller, until
from real import SOURCE

from longspan.cluster.container import Container
from longspan.daemon import starting
from longspan.deployment import DeploymentSpec, NodeSpec

PACKAGES = ("podman", "runc", "catatonit")  # each has a program of its name
FOLDERS = ("usr", "lib", "lib64", "bin", "sbin", "etc", "tmp", "proc", "sys", "dev", "run", "var")
# What the container's Python needs of this machine.
MOUNTS = ("/usr", "/lib", "/lib64", "/bin", sys.prefix, sys.base_prefix, SOURCE)


def podman(*words: str, check: bool = True) -> str:
    """Runs podman and returns what it says."""
    done = subprocess.run(["podman", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"podman {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's, on the host."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Container]:
    """A container of this machine's own Python; podman's files, home and configuration are the test's."""
    if os.geteuid() != 0:
        pytest.skip("podman's storage driver without a kernel module needs root: run `sudo make test`")
    if missing := [package for package in PACKAGES if shutil.which(package) is None]:
        pytest.skip(
            f"no container engine is installed: apt-get install --no-install-recommends {' '.join(missing)}"
        )
    tmp_path = tmp_path_factory.mktemp("podman")
    (tmp_path / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/graph"\nrunroot = "{tmp_path}/run"\n'
    )
    # runc, since crun refuses machines with both kinds of cgroups.
    (tmp_path / "containers.conf").write_text(
        f'[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\ntmp_dir = "{tmp_path}/engine"\n'
    )
    patch = pytest.MonkeyPatch()
    patch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
    patch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
    patch.setenv("HOME", str(home))
    for folder in FOLDERS:
        (tmp_path / "root" / folder).mkdir(parents=True)
    subprocess.run(["tar", "-C", str(tmp_path / "root"), "-cf", str(tmp_path / "root.tar"), "."], check=True)
    podman("import", str(tmp_path / "root.tar"), "longspan-test:1")
    options = (
        "--ulimit=nofile=1024:1024",
        "--ulimit=nproc=4096:4096",
    )  # podman's own wish is beyond a small machine's limit
    found = Container(
        "localhost/longspan-test:1", engine="podman", python=sys.executable, gpus="none", shm_gib=1, ulimits=False,
        volumes=tuple(f"{path}:{path}:ro" for path in MOUNTS), options=(*options, f"--env=PYTHONPATH={SOURCE}"),
    )  # fmt: skip
    volumes = [f"--volume={mount}" for mount in found.volumes]
    try:
        podman("run", "--rm", "--network=host", *options, *volumes, found.image, sys.executable, "-c", "")
    except RuntimeError as error:
        patch.undo()
        pytest.skip(f"no container runs on this machine: {error}")
    yield found
    podman("rm", "--force", "--all")
    podman("rmi", "--force", "--all")
    patch.undo()


async def start(
    image: Container, controller: FakeController, model: Path, said: Path
) -> tuple[DeploymentSpec, str]:
    """An agent in its container, once it answers; its deployment and its start's mark."""
    mark = f"podman-{uuid.uuid4().hex[:8]}"
    node = NodeSpec("a", "127.0.0.2", 1, python=sys.executable, container=image)
    spec = DeploymentSpec("d", "id", str(model), "m", 1, 1, "ray", "cpu", (node,), "127.0.0.1:8000")
    config: dict[str, Any] = {
        "name": "a", "controller_url": controller.url, "key": "the-key", "mark": mark, "run_dir": f"/tmp/longspan-{mark}",
        "log_dir": "unused",
    }  # fmt: skip
    await starting.start_agent(node, config, spec, said)
    await until(lambda: controller.messages)
    return spec, mark


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint of a few bytes."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(bytes(100))
    return path


def test_an_agent_in_a_container(image: Container, home: Path, model: Path, tmp_path: Path) -> None:
    """It joins with its key, which the engine never sees; it has the shared memory and the checkpoint; it keeps its logs on
    the host; and when it is told to end, the container is gone."""

    async def test() -> None:
        async with fake_controller() as controller:
            spec, mark = await start(image, controller, model, tmp_path / "said")
            assert controller.keys == {"Bearer the-key"}
            inspected = podman("inspect", f"longspan-{mark}-a")
            assert "the-key" not in inspected
            assert json.loads(inspected)[0]["Config"]["Labels"]["longspan.deployment"] == "d"
            arguments = {"model": spec.model, "revision": None, "nonce": "n", "full": True}
            controller.command(kind="call", call="digest:a", what="digest", arguments=arguments)
            digest = await until(lambda: controller.answer("digest:a"))
            assert [file["path"] for file in digest["value"]["files"]] == ["config.json", "model.safetensors"]
            controller.start(
                "p", "sh", "-c", f"touch {spec.model}/x; df -B1 /dev/shm | tail -n 1; exec sleep 1000"
            )
            await until(lambda: len(controller.lines("p")) == 2)
            refused, shm = controller.lines("p")
            assert "Read-only file system" in refused
            assert shm.split()[1] == str(1 << 30)
            controller.command(kind="stop_all", call="stopped:a")
            await until(lambda: controller.answer("stopped:a"))
            assert await asyncio.to_thread(starting._stays["a"].wait, 60) == 0

    asyncio.run(test())
    assert podman("ps", "--all", "--quiet") == ""
    assert (home / ".local/state/longspan/d/logs/a/p.log").exists()


def test_the_command_that_started_it_may_end(image: Container, model: Path, tmp_path: Path) -> None:
    """A cut connection kills `podman run`; agent and ranks go on. A lost agent's container is ended with all in it."""

    async def test() -> None:
        async with fake_controller() as controller:
            spec, mark = await start(image, controller, model, tmp_path / "said")
            starting._stays["a"].kill()
            await asyncio.to_thread(starting._stays["a"].wait)
            seen = len(controller.messages)
            await until(lambda: len(controller.messages) > seen + 1)
            assert podman("ps", "--quiet") != ""
            assert await starting.sweep(spec.nodes[0], "a", mark, "unused", spec) == {"left": []}

    asyncio.run(test())
    assert podman("ps", "--all", "--quiet") == ""


def test_an_image_that_is_not_there(image: Container, model: Path, tmp_path: Path) -> None:
    """Not pulled while an agent is waited for: said, with the command."""

    async def test() -> None:
        async with fake_controller() as controller:
            missing = Container("localhost/nowhere:1", engine="podman")
            await start(missing, controller, model, tmp_path / "said")

    with pytest.raises(starting.HostError, match="podman pull localhost/nowhere:1"):
        asyncio.run(test())


def test_ci_installs_podman() -> None:
    """`.ci/run` installs what the skip message would ask for."""
    script = (Path(__file__).parents[2] / ".ci" / "run").read_text()
    assert [package for package in PACKAGES if f" {package}" not in script] == []

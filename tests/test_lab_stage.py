"""`longspan stage` over real ssh: what is sent, what is not sent again, what is verified, and what is refused."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from engine.running import Longspan
from lab.build import Lab
from lab.hosts import HostSpec, LabHost
from longspan.errors import CapacityError, InputError, ModelError, StageError
from longspan.launch.staging import PART

pytestmark = pytest.mark.lab
REPO = Path(__file__).parent.parent
WEIGHTS = 6_000_001  # no multiple of any block


@pytest.fixture(scope="module")
def own() -> Iterator[str]:
    """A directory of which each host has its own, empty at first."""
    with tempfile.TemporaryDirectory(prefix="ls-stage-") as path:
        yield path


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., AbstractContextManager[Lab]], own: str) -> Iterator[Lab]:
    """Two hosts with a home and a place for models of their own."""
    env = {"PATH": f"{own}/bin:{os.environ['PATH']}", "PYTHONPATH": str(REPO / "src"), "HOME": own}
    specs = [HostSpec("h1", private=("/tmp/ray", own)), HostSpec("h2", nic="ens7", private=("/tmp/ray", own))]
    with make_lab(specs, env=env) as built:
        yield built


@pytest.fixture
def user(lab: Lab, own: str, tmp_path: Path) -> Iterator[Longspan]:
    """A user on the test machine with a cluster file in the state directory; the hosts begin empty."""
    (tmp_path / "hosts.toml").write_text(
        "".join(
            f'[[node]]\nname = "{host.name}"\naddress = "{host.address}"\ngpus = 1\nssh = "{host.name}"\npython = "{sys.executable}"\n'
            for host in lab.hosts
        )
    )
    env = {
        "PATH": f"{lab.bin}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPO / "src"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    yield Longspan(tmp_path, env)
    for host in lab.hosts:
        subprocess.run(["find", str(host.outside(own)), "-mindepth", "1", "-delete"], check=True)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint; its weights are a link, as in Hugging Face's cache."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "blob").write_bytes(os.urandom(WEIGHTS))
    (path / "model.safetensors").symlink_to(tmp_path / "blob")
    return path


def stage(user: Longspan, *words: str) -> subprocess.CompletedProcess[str]:
    """`longspan stage` with the cluster file."""
    return user.run("stage", "--cluster", str(user.state / "hosts.toml"), *words, "--json")


def document(done: subprocess.CompletedProcess[str]) -> Any:
    """What it printed, if it succeeded."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def copies(lab: Lab, own: str, *parts: str) -> list[Path]:
    """A path below each host's own directory, as the test machine reaches it."""
    return [host.outside(own).joinpath(*parts) for host in lab.hosts]


def test_weights_reach_every_node_once(lab: Lab, own: str, user: Longspan, model: Path) -> None:
    """Both hosts get every byte, links resolved; a second time nothing is sent; a damaged copy is found and mended; a
    foreign weight file is named and left."""
    whole = WEIGHTS + (model / "config.json").stat().st_size
    first = document(stage(user, str(model), "--to", f"{own}/m"))["model"]
    assert first == {
        "path": f"{own}/m",
        "bytes": whole,
        "sent_bytes": {"h1": whole, "h2": whole},
        "from_here_bytes": whole,
        "shared": [],
    }
    for copy in copies(lab, own, "m", "model.safetensors"):
        assert copy.read_bytes() == (model / "model.safetensors").read_bytes()
        assert not copy.is_symlink()
    assert document(stage(user, str(model), "--to", f"{own}/m"))["model"]["sent_bytes"] == {"h1": 0, "h2": 0}

    damaged = copies(lab, own, "m", "model.safetensors")[1]
    with damaged.open("r+b") as file:
        file.seek(1234)
        file.write(b"\0\0\0\0\0\0\0\0")
    done = stage(user, str(model), "--to", f"{own}/m", "--full")
    assert document(done)["model"]["sent_bytes"] == {"h1": 0, "h2": WEIGHTS}
    assert "h2: 1 files are not this machine's" in done.stderr
    assert damaged.read_bytes() == (model / "model.safetensors").read_bytes()

    foreign = copies(lab, own, "m", "other.safetensors")[0]
    foreign.write_bytes(b"weights")
    done = stage(user, str(model), "--to", f"{own}/m")
    assert done.returncode == StageError.exit_code
    assert "other.safetensors is on h1 only" in done.stderr
    assert foreign.read_bytes() == b"weights"


def test_what_was_cut_off_goes_on(lab: Lab, own: str, user: Longspan, model: Path) -> None:
    """A part is gone on from its last byte; the part of another file is found by its digest and sent whole."""
    good, bad = copies(lab, own, "m", f"model.safetensors{PART}")
    for part in (good, bad):
        part.parent.mkdir()
    good.write_bytes((model / "model.safetensors").read_bytes()[: WEIGHTS // 2])
    bad.write_bytes(b"\0" * 1000)
    small = (model / "config.json").stat().st_size
    found = document(stage(user, str(model), "--to", f"{own}/m"))["model"]
    assert found["sent_bytes"] == {
        "h1": WEIGHTS - WEIGHTS // 2 + small,
        "h2": WEIGHTS - 1000 + WEIGHTS + small,
    }
    for copy in copies(lab, own, "m", "model.safetensors"):
        assert copy.read_bytes() == (model / "model.safetensors").read_bytes()
    assert not good.exists()
    assert not bad.exists()


def test_nodes_that_cannot_reach_each_other(lab: Lab, own: str, user: Longspan, model: Path) -> None:
    """Then all of it comes from here, and it is said what did not work between which two."""
    pairs = [(lab["h1"], lab["h2"]), (lab["h2"], lab["h1"])]
    for host, other in pairs:
        host.run(["ip", "route", "add", "blackhole", f"{other.address}/32"])
    try:
        done = stage(user, str(model), "--to", f"{own}/m")
    finally:
        for host, other in pairs:
            host.run(["ip", "route", "del", "blackhole", f"{other.address}/32"])
    found = document(done)["model"]
    assert found["from_here_bytes"] == sum(found["sent_bytes"].values()) == 2 * found["bytes"]
    assert "did not get" in done.stderr
    for copy in copies(lab, own, "m", "model.safetensors"):
        assert copy.read_bytes() == (model / "model.safetensors").read_bytes()


def test_a_shared_directory_is_only_verified(user: Longspan, model: Path) -> None:
    """Where the nodes see the very same files, nothing is sent and the digests are compared all the same."""
    found = document(stage(user, str(model)))["model"]
    assert found["shared"] == ["h1", "h2"]
    assert found["sent_bytes"] == {"h1": 0, "h2": 0}


def test_a_node_that_cannot_take_it(lab: Lab, own: str, user: Longspan, model: Path) -> None:
    """A full disk and a file in the way are found before or while it is sent, the node named; a host that is off too."""
    second = lab["h2"]
    second.run(["mkdir", "-p", f"{own}/small"])
    second.run(["mount", "-t", "tmpfs", "-o", "size=2m", "lab", f"{own}/small"])
    try:
        done = stage(user, str(model), "--to", f"{own}/small/m")
        assert done.returncode == CapacityError.exit_code
        assert "h2 has" in done.stderr
        assert not copies(lab, own, "small", "m")[0].exists()
    finally:
        second.run(["umount", f"{own}/small"])
    (second.outside(own) / "file").write_text("")
    done = stage(user, str(model), "--to", f"{own}/file/m")
    assert done.returncode != 0
    assert "h2" in done.stderr


# Plays docker on a host: keeps its words, and runs the entry point where it is.
ENGINE = """#!/bin/sh
printf '%s\\n' "$*" >>"$HOME/calls"
[ "$1" = run ] || exit 0
while case "$1" in --entrypoint=*) false;; esac; do shift; done
program=${1#--entrypoint=}; shift 2; exec "$program" "$@"
"""


def test_digests_are_made_where_it_is_served(lab: Lab, own: str, user: Longspan, model: Path) -> None:
    """A host that serves in a container may have no Longspan of its own: its image digests the copy, mounted read-only."""
    for engine in copies(lab, own, "bin", "docker"):
        engine.parent.mkdir()
        engine.write_text(ENGINE)
        engine.chmod(0o755)
    hosts = user.state / "hosts.toml"
    hosts.write_text('container = "image:1"\n' + hosts.read_text())
    assert document(stage(user, str(model), "--to", f"{own}/m"))["model"]["sent_bytes"]["h2"] > WEIGHTS
    for calls in copies(lab, own, "calls"):
        run = calls.read_text().splitlines()[-1]
        assert f"--volume={own}/m:{own}/m:ro" in run
        assert run.endswith("image:1 -m longspan.launch.digest_main")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), InputError.exit_code),
        (("./nowhere",), ModelError.exit_code),
        (("--lock", "/nowhere/lock.txt"), InputError.exit_code),
        (("--hf-token-file", "/nowhere/token"), InputError.exit_code),
    ],
)
def test_wishes_that_cannot_be(user: Longspan, words: tuple[str, ...], code: int) -> None:
    """Each ends with its own exit code before a host is asked for anything."""
    assert stage(user, *words).returncode == code


def test_the_token_is_handed_over_by_file(lab: Lab, own: str, user: Longspan, tmp_path: Path) -> None:
    """Mode 0600, at the place where huggingface_hub looks, and in no command line."""
    (tmp_path / "token").write_text("hf_secret\n")
    done = stage(user, "--hf-token-file", str(tmp_path / "token"))
    assert done.returncode == 0, done.stderr
    for path in copies(lab, own, ".cache", "huggingface", "token"):
        assert path.read_text() == "hf_secret"
        assert path.stat().st_mode & 0o777 == 0o600
    assert "hf_secret" not in done.stdout + done.stderr


# ---- the environment
def wheel(folder: Path, name: str, version: str) -> Path:
    """A wheel with one module, made by hand: no index and no build tool is asked."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}_module.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    with zipfile.ZipFile(path, "w") as out:
        for file, text in files.items():
            out.writestr(file, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            lines.append(f"{file},sha256={digest},{len(text)}")
        out.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,"]) + "\n")
    return path


def versions(host: LabHost, python: str) -> str:
    """What the environment's interpreter finds."""
    code = "import tiny_module; print(tiny_module.VERSION)"
    return host.run(["env", "-u", "PYTHONPATH", python, "-c", code]).stdout.strip()


def test_one_lock_one_environment(lab: Lab, own: str, user: Longspan, tmp_path: Path) -> None:
    """The lock's wheels are fetched once, copied, installed without an index on each host, and compared; a second time
    nothing is installed; a loose requirement is refused."""
    wheels = [wheel(tmp_path, name, version) for name, version in (("tiny", "1.5"), ("longspan", "0.0.1"))]
    lock = tmp_path / "lock.txt"
    lock.write_text(
        "# made by hand\n" + "".join(f"{path.name.split('-')[0]} @ {path.as_uri()}\n" for path in wheels)
    )
    found = document(stage(user, "--lock", str(lock), "--venv", "~/env"))["environment"]
    assert found["venv"] == {"h1": f"{own}/env", "h2": f"{own}/env"}
    assert [versions(host, f"{own}/env/bin/python") for host in lab.hosts] == ["1.5", "1.5"]
    stamps = [path.stat().st_mtime_ns for path in copies(lab, own, "env", "longspan-lock")]
    document(stage(user, "--lock", str(lock), "--venv", "~/env"))
    assert [path.stat().st_mtime_ns for path in copies(lab, own, "env", "longspan-lock")] == stamps

    copies(
        lab,
        own,
        "env",
        "lib",
        f"python3.{sys.version_info[1]}",
        "site-packages",
        "tiny-1.5.dist-info",
        "METADATA",
    )[1].write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.6\n")
    done = stage(user, "--lock", str(lock), "--venv", "~/env")
    assert done.returncode == StageError.exit_code
    assert "tiny==1.6" in done.stderr
    lock.write_text("tiny>=1\n")
    assert stage(user, "--lock", str(lock)).returncode == InputError.exit_code

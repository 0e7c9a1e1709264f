"""`up` with bad input: one paragraph with what was seen and what to do, its exit code, and nothing started."""

import errno
import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longspan import errors
from longspan.cli import joining, keys, main, prepare, room
from longspan.deployment import DeploymentSpec, NodeSpec

pytestmark = pytest.mark.usefixtures("nothing_starts", "machine")


def refused(said: Any, error: type[errors.LongspanError], *words: str) -> None:
    """The exit code of this error, its words in one paragraph on standard error, nothing on standard output."""
    assert said.code == error.exit_code, said.err
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert "Traceback" not in said.err
    flat = " ".join(said.err.split())
    for text in words:
        assert text in flat


def test_a_directory_without_a_config(longspan: Callable[..., Any], tmp_path: Path) -> None:
    """A directory that is no model."""
    refused(longspan("up", str(tmp_path)), errors.ModelFetchError, "has no config.json", "*.safetensors")


@pytest.mark.parametrize("name", ["/nowhere/model", "./nowhere", "~/nowhere", "nowhere", "a/b/c", "a b/c"])
def test_neither_directory_nor_id(longspan: Callable[..., Any], name: str) -> None:
    """A path that does not exist is not mistaken for a name on Hugging Face."""
    refused(
        longspan("up", name),
        errors.ModelError,
        "is neither a directory on this machine nor a Hugging Face id",
    )


def test_a_config_that_is_no_json(longspan: Callable[..., Any], model: Path) -> None:
    """A damaged config.json is the model's error."""
    (model / "config.json").write_text("{")
    refused(longspan("up", str(model)), errors.ModelError, "config.json")


def test_illegal_tp(longspan: Callable[..., Any], model: Path) -> None:
    """The heads decide; the legal values and vLLM's own words are shown."""
    refused(
        longspan("up", str(model), "--tp", "2"), errors.LayoutError,
        "9 attention heads are not divisible by 2; legal TP sizes are 1, 3, 9.",
        'vLLM would say: "Total number of attention heads (9) must be divisible by tensor parallel size (2)."',
        "Every rule together allows TP 1, 3.",
    )  # fmt: skip


def test_illegal_pp(longspan: Callable[..., Any], model: Path) -> None:
    """More stages than layers."""
    refused(
        longspan("up", str(model), "--pp", "31"),
        errors.LayoutError,
        "30 layers cannot fill 31 pipeline stages.",
    )


@pytest.mark.parametrize("flag", ["--tp", "--pp", "--nodes"])
@pytest.mark.parametrize("value", ["0", "-1"])
def test_sizes_below_one(longspan: Callable[..., Any], model: Path, flag: str, value: str) -> None:
    """Zero is not taken for "choose yourself"."""
    refused(longspan("up", str(model), flag, value), errors.InputError, f"{flag} {value} makes no sense")


def test_more_nodes_than_ranks(longspan: Callable[..., Any], model: Path) -> None:
    """Nodes that would hold nothing."""
    refused(
        longspan("up", str(model), "--nodes", "3", "--tp", "1"), errors.CapacityError,
        "is 1 rank(s), too few for 3 nodes",
    )  # fmt: skip
    refused(longspan("up", str(model), "--nodes", "65"), errors.InputError, "--nodes 65")


def test_more_gpus_than_there_are(
    longspan: Callable[..., Any], model: Path, machine: Callable[..., None]
) -> None:
    """Asked for more ranks than GPUs: both counts and where the GPUs are."""
    machine(gpus=2)
    refused(
        longspan("up", str(model), "--tp", "3"), errors.CapacityError,
        "TP 3 x PP 1 needs 3 GPUs, the cluster has 2 (node-1: 2).",
    )  # fmt: skip
    refused(longspan("up", str(model), "--nodes", "3"), errors.CapacityError, "This machine has 2 GPUs")


def test_mp_with_uneven_nodes(longspan: Callable[..., Any], model: Path) -> None:
    """The mp executor's ranks are equal per node."""
    said = longspan("up", str(model), "--tp", "3", "--nodes", "2", "--executor", "mp")
    refused(said, errors.LayoutError)


@pytest.mark.parametrize(
    ("missing", "words"),
    [(("vllm", "ray"), "vllm and ray are not installed"), (("ray",), "ray is not installed")],
)
def test_no_engine(
    longspan: Callable[..., Any],
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    missing: tuple[str, ...],
    words: str,
) -> None:
    """What is missing, for which interpreter, and how to get it with and without GPUs."""
    monkeypatch.setattr(prepare, "find_spec", lambda name: None if name in missing else object())
    refused(
        longspan("up", str(model)),
        errors.EngineMissingError,
        words,
        "pip install 'longspan[engine]'",
        "make up",
    )


@pytest.mark.parametrize(
    ("package", "version", "words"),
    [
        ("vllm", "0.22.1", "vLLM 0.22.1 is older than 0.23"),
        ("vllm", "0.9", "vLLM 0.9 is older"),
        ("ray", "2.48.0", "Ray 2.48.0 is older than 2.52"),
    ],
)
def test_an_engine_that_is_too_old(
    longspan: Callable[..., Any], model: Path, monkeypatch: pytest.MonkeyPatch, package: str, version: str, words: str
) -> None:  # fmt: skip
    """Found before anything starts, with both versions and the way out."""
    monkeypatch.setattr(prepare, "installed", lambda *names: version if package in names else "99.0")
    refused(longspan("up", str(model)), errors.EngineMissingError, words, f"pip install --upgrade {package}")


def test_too_little_memory(longspan: Callable[..., Any], model: Path, machine: Callable[..., None]) -> None:
    """What the ranks need and what there is."""
    machine(memory_bytes=4 << 30)
    said = longspan("up", str(model), "--pp", "2")
    refused(said, errors.CapacityError, "2 ranks need about 4.4 GiB", "4.0 GiB are available")


def test_too_small_gpus(longspan: Callable[..., Any], model: Path, machine: Callable[..., None]) -> None:
    """A share of the weights that no GPU can hold, with both sizes."""
    with (model / "model.safetensors").open("wb") as file:
        file.truncate(300 << 30)  # sparse
    machine(gpus=3, gpu_bytes=80 << 30)
    spec = DeploymentSpec(
        name="t", identity="i", model=str(model), served_name="m", tp=3, pp=1, executor="ray", device="cuda",
        nodes=(NodeSpec("a", "127.0.0.2", 3),), listen="127.0.0.1:0",
    )  # fmt: skip
    with pytest.raises(
        errors.CapacityError, match=r"Each rank would hold 100(\.0)? GiB of weights, a GPU has 80(\.0)? GiB"
    ):
        room.check_room(model, spec)


def test_too_little_disk(longspan: Callable[..., Any], model: Path, machine: Callable[..., None]) -> None:
    """Ray's files need room."""
    machine(disk_bytes=100 << 20)
    refused(longspan("up", str(model)), errors.CapacityError, "/tmp has 100", "Ray and its logs need 1.0 GiB")


def test_a_taken_port(longspan: Callable[..., Any], model: Path) -> None:
    """The holder is named with its pid."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = longspan("up", str(model), "--listen", f"127.0.0.1:{port}")
    refused(said, errors.PortError, f"Port {port} is taken by", f"(pid {os.getpid()})", "--listen HOST:PORT")


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        ("8000", "is not HOST:PORT"), ("127.0.0.1:", "is not HOST:PORT"), ("127.0.0.1:x", "is not HOST:PORT"),
        ("127.0.0.1:65536", "is not HOST:PORT"), ("203.0.113.7:8000", "not one of this machine's"),
        ("no.such.host.invalid:8000", "is no address of this machine"),
    ],
)  # fmt: skip
def test_an_address_that_is_none(longspan: Callable[..., Any], model: Path, listen: str, words: str) -> None:
    """Each is the user's input, not a taken port."""
    refused(longspan("up", str(model), "--listen", listen), errors.InputError, words)


@pytest.mark.parametrize(
    "arguments", [("--tensor-parallel-size", "2"), ("-tp=2",), ("--max-model-len", "9", "--port=1")]
)
def test_owned_flags(longspan: Callable[..., Any], model: Path, arguments: tuple[str, ...]) -> None:
    """A flag of vLLM's that Longspan owns is refused, with and without a MODEL."""
    refused(longspan("up", "--", *arguments), errors.InputError, "Longspan owns it", "Use --")
    refused(longspan("up", str(model), "--", *arguments), errors.InputError, "Longspan owns it")


@pytest.mark.parametrize("name", ["", "UPPER", "../x", "-x", "a" * 32, "a b"])
def test_names(longspan: Callable[..., Any], name: str) -> None:
    """A deployment's name is a directory's."""
    refused(longspan("up", "--name", name), errors.InputError, "cannot be a deployment's name")


def test_a_cluster_file_that_is_wrong(longspan: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    """Missing, with a typo, without GPU counts, without any GPU, or together with --nodes."""
    file = tmp_path / "c.toml"
    up = ("up", str(model), "--cluster", str(file))
    refused(longspan(*up), errors.InputError, "cannot be read: No such file")
    refused(longspan(*up, "--nodes", "2"), errors.InputError, "Give one of them")
    file.write_text("[[node]]\nname = a\n")
    refused(longspan(*up), errors.InputError, "line 2, column 8")
    file.write_text('[[node]]\nname = "a"\naddress = "10.0.0.1"\n')
    refused(longspan(*up), errors.InputError, "does not say how many GPUs a has")
    file.write_text('[[node]]\nname = "a"\naddress = "10.0.0.1"\ngpus = 0\n')
    refused(longspan(*up), errors.CapacityError, "No node of the cluster has a GPU")
    file.write_text('[[node]]\nname = "a"\naddress = "10.0.0.1"\ngpus = 2\n')
    refused(longspan(*up, "--pp", "3"), errors.CapacityError, "needs 3 GPUs, the cluster has 2 (a: 2)")


RAY_FILE = '[ray]\naddress = "10.0.0.1:6379"\n'
MISMATCH = """Traceback (most recent call last):
RuntimeError: Version mismatch: The cluster was started with:
    Ray: 2.50.0
    Python: 3.11.2
This process on Node 127.0.0.1 was started with:
    Ray: 2.60.0
    Python: 3.11.2
"""


def ray_answers(monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str) -> None:
    """The probe of a running Ray ends like this."""
    monkeypatch.setattr(
        joining.subprocess, "run", lambda argv, **_: subprocess.CompletedProcess(argv, code, out, err)
    )


def test_a_ray_of_another_version(
    longspan: Callable[..., Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both versions are named, and which must change."""
    (tmp_path / "c.toml").write_text(RAY_FILE)
    ray_answers(monkeypatch, 1, "", MISMATCH)
    said = longspan("up", str(model), "--cluster", str(tmp_path / "c.toml"))
    refused(said, errors.RayError, "The Ray cluster at 10.0.0.1:6379 cannot be joined", "Ray: 2.50.0", "Ray: 2.60.0",
            "Install the same Ray and Python")  # fmt: skip


def test_a_ray_that_is_not_there(
    longspan: Callable[..., Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own last words are shown; a silent one is given up."""
    (tmp_path / "c.toml").write_text(RAY_FILE)
    up = ("up", str(model), "--cluster", str(tmp_path / "c.toml"))
    ray_answers(monkeypatch, 1, "", "ConnectionError: nobody listens\n")
    refused(longspan(*up), errors.RayError, "ConnectionError: nobody listens", "ray status")

    def hangs(argv: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(argv, 120)

    monkeypatch.setattr(joining.subprocess, "run", hangs)
    refused(longspan(*up), errors.RayError, "has not answered for 120 s")


def test_nodes_that_ray_does_not_know(
    longspan: Callable[..., Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is not in the Ray cluster, or with fewer GPUs than the file says, is named."""
    file = tmp_path / "c.toml"
    nodes = [{"id": "x", "address": "10.0.0.1", "hostname": "h", "gpus": 1, "head": True}]
    ray_answers(monkeypatch, 0, "noise\n" + json.dumps({"version": "2.60.0", "nodes": nodes}), "")
    host = '[[node]]\nname = "b"\naddress = "{}"\ngpus = {}\n'
    file.write_text(RAY_FILE + host.format("10.0.0.2", 1))
    refused(longspan("up", str(model), "--cluster", str(file)), errors.CapacityError,
            "b (10.0.0.2) is not in the Ray cluster at 10.0.0.1:6379, which has 10.0.0.1")  # fmt: skip
    file.write_text(RAY_FILE + host.format("10.0.0.1", 4))
    refused(longspan("up", str(model), "--cluster", str(file)), errors.CapacityError,
            "b offers 1 GPUs to Ray, the cluster file says 4")  # fmt: skip


def test_with_json_the_error_is_the_document(longspan: Callable[..., Any]) -> None:
    """A program that reads standard output finds one document there, also when it went wrong."""
    said = longspan("up", "/nowhere", "--json")
    assert said.code == errors.ModelError.exit_code
    assert said.document["error"]["kind"] == "ModelError"
    assert said.document["error"]["exit_code"] == said.code
    assert said.document["error"]["remedy"] in said.err
    assert longspan("up", "/nowhere", "--", "--json").out == ""


def test_no_traceback_unless_debug(longspan: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Even an error of ours is one paragraph with a way to report it; --debug shows the whole."""

    def broken() -> None:
        raise ZeroDivisionError("by our own hand")

    monkeypatch.setattr(prepare, "require_engine", broken)
    said = longspan("up")
    assert said.code == 1
    assert said.err.startswith("bug: ZeroDivisionError: by our own hand")
    assert "Traceback" not in said.err
    monkeypatch.setattr("sys.argv", ["longspan", "--debug", "up"])
    with pytest.raises(ZeroDivisionError):
        main.run()


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "Free some space"), (errno.EROFS, "XDG_STATE_HOME"), (errno.EACCES, "right to write")]
)  # fmt: skip
def test_a_home_that_cannot_be_written(
    longspan: Callable[..., Any], model: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    """A full disk, a read-only home or one of another user's is no bug: the file is named, and what to do."""

    def fails(path: Path, text: str) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(keys, "write_private", fails)
    said = longspan("up", str(model))
    refused(
        said, errors.StateError, "state/longspan/default/api-key cannot be used", os.strerror(number), remedy
    )

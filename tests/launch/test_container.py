"""The container of a node's agent, as text: no container engine is needed to read what would be run."""

import json
import shlex
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.cluster.container import Container, parse_container
from longspan.errors import InputError
from longspan.host import SshHost
from longspan.launch.container import LOGS, Job, model_mounts, prepare_command, run_command

JOB = Job("default", "gpu-a", "default-0123", "/home/ops", "/data/models/m")
AGENT = ("python3", "-m", "longspan.daemon.agent")


PLAIN = Container("vllm/vllm-openai:v0.20.0")


def words(container: Container = PLAIN, job: Job = JOB) -> list[str]:
    """The command line."""
    return run_command(container, job, AGENT)


def test_the_whole_command() -> None:
    """All that a node's ranks need: network, GPUs, shared memory, limits, caches, model, and the agent as entry point."""
    assert shlex.join(words()) == (
        "docker run --rm --interactive --init --sig-proxy=false --pull=never --name=longspan-default-0123-gpu-a"
        " --label=longspan.deployment=default --label=longspan.mark=default-0123 --network=host --shm-size=32g"
        " --ulimit=memlock=-1:-1 --ulimit=stack=67108864:67108864 --ulimit=nofile=1048576:1048576 --gpus=all"
        " --volume=/home/ops/.cache/huggingface:/longspan/huggingface --env=HF_HOME=/longspan/huggingface"
        " --volume=/home/ops/.cache/vllm:/longspan/vllm --env=VLLM_CACHE_ROOT=/longspan/vllm"
        " --volume=/home/ops/.cache/longspan:/longspan/cache/longspan"
        " --volume=/home/ops/.local/state/longspan/default/logs/gpu-a:/longspan/logs --env=XDG_CACHE_HOME=/longspan/cache"
        " --volume=/data/models/m:/data/models/m:ro --env=LONGSPAN_AGENT_OF=default-0123"
        " --entrypoint=python3 vllm/vllm-openai:v0.20.0 -m longspan.daemon.agent"
    )


def test_podman_and_rdma_and_amd() -> None:
    """Each engine and vendor has its own way to hand devices in."""
    podman = words(Container("i", engine="podman", rdma=True))
    assert podman[0] == "podman"
    assert {"--device=nvidia.com/gpu=all", "--device=/dev/infiniband", "--cap-add=IPC_LOCK"} <= set(podman)
    assert "--security-opt=label=disable" in podman
    assert "--gpus=all" not in podman
    amd = words(Container("i", gpus="amd"))
    assert {"--device=/dev/kfd", "--device=/dev/dri", "--group-add=video"} <= set(amd)
    assert not [word for word in words(Container("i", gpus="none")) if "gpu" in word.replace("gpu-a", "")]


def test_what_the_user_adds() -> None:
    """Own volumes and options come through as they are, before the image; a secret by its name only."""
    found = words(
        Container(
            "i", volumes=("/a b:/a:ro",), options=("--cap-add=SYS_PTRACE",), env=("HF_TOKEN",), shm_gib=5
        )
    )
    image = found.index("i")
    for word in ("--volume=/a b:/a:ro", "--cap-add=SYS_PTRACE", "--env=HF_TOKEN", "--shm-size=5g"):
        assert found.index(word) < image


@pytest.mark.parametrize(
    ("model", "mounts"),
    [
        ("/data/m", ["/data/m:/data/m:ro"]),
        ("org/name", []),
        ("/c/hub/models--org--m/snapshots/0a1b", ["/c/hub/models--org--m:/c/hub/models--org--m:ro"]),
    ],
)
def test_the_model_is_mounted(model: str, mounts: list[str]) -> None:
    """A directory at its own path, read-only; of a Hugging Face snapshot what its links lead to; an id not at all."""
    assert model_mounts(model) == mounts


@given(
    st.from_regex(r"/[^:\0]{1,40}", fullmatch=True), st.from_regex(r"--[a-z]+=[^\0]{1,30}", fullmatch=True)
)
def test_no_shell_reads_it_wrong(path: str, option: str) -> None:
    """Whatever stands in a path or an option, ssh's far shell splits the line into the same words again."""
    line = run_command(Container("i", options=(option,)), Job("d", "n", "m", "/home/o", path), AGENT)
    sent = SshHost("n", "n").argv(line)[-1]
    assert shlex.split(sent) == line


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("-it evil", "image"),
        ("a image", "image"),
        (7, "container must be"),
        ({"engine": "docker"}, "image"),
        ({"image": "i", "engine": "lxc"}, "docker or podman"),
        ({"image": "i", "volumes": "/a:/a"}, "volumes"),
        ({"image": "i", "volumes": ["data:/a"]}, "volumes"),
        ({"image": "i", "options": ["rm"]}, "options"),
        ({"image": "i", "env": ["HF_TOKEN=hf_x"]}, "env"),
        ({"image": "i", "shm_gib": 0}, "shm_gib"),
        ({"image": "i", "gpu_vendor": "intel"}, "gpu_vendor"),
        ({"image": "i", "python": "-c"}, "python"),
        ({"image": "i", "gpu": 1}, "unknown field gpu"),
    ],
)
def test_a_wrong_table_is_named(value: Any, said: str) -> None:
    """The field is named; a value where only a variable's name belongs is refused, so that no secret gets into argv."""
    with pytest.raises(InputError, match=said):
        parse_container(value, "hosts.toml: node 1")


def test_short_and_long_form_agree() -> None:
    """An image alone is a table with nothing but the image; it survives the deployment's file."""
    short = parse_container("ghcr.io/o/vllm@sha256:0a", "f")
    assert (
        short
        == parse_container({"image": "ghcr.io/o/vllm@sha256:0a"}, "f")
        == Container("ghcr.io/o/vllm@sha256:0a")
    )
    assert short is not None
    assert Container.from_json(json.loads(json.dumps(asdict(short)))) == short
    assert parse_container(None, "f") is parse_container(False, "f") is None


def test_the_host_is_made_ready(tmp_path: Path) -> None:
    """The preparing command makes what is mounted below the home, and tells engine, daemon, image and home apart."""
    home = tmp_path / "home"
    home.mkdir()
    engine = tmp_path / "docker"
    argv = prepare_command(Container("i", engine=str(engine)), JOB)

    def asked(*lines: str) -> str:
        if lines:
            engine.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
            engine.chmod(0o755)
        env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            argv, env=env, capture_output=True, text=True, check=True, cwd="/"
        ).stdout.strip()

    assert asked() == "no-engine"
    assert asked("exit 1") == "no-daemon"
    assert asked('[ "$1" = info ]') == "no-image"
    assert asked("exit 0") == f"home {home}"
    assert (home / ".cache/huggingface").is_dir()
    assert (home / ".local/state/longspan/default/logs/gpu-a").is_dir()
    assert LOGS

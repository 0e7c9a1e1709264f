"""What a node shows: the probe as it is sent, over a process that listens and carries secrets."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longspan.audit import node_probe

LISTENING = """
import socket, sys, time
held = []
for address in ("127.0.0.1", "0.0.0.0"):
    held.append(socket.create_server((address, 0)))
    print(held[-1].getsockname()[1], flush=True)
time.sleep(600)
"""


@pytest.fixture
def process() -> Iterator[tuple[str, list[int]]]:
    """A marked process with two ports; its mark and the ports."""
    mark = f"audit-{os.getpid()}"
    env = {
        **os.environ, "LONGSPAN_MARK": mark, "HF_TOKEN": "hf_" + "a" * 30, "HF_TOKEN_PATH": "/etc/token",
        "HARMLESS": "sk-" + "b" * 30, "MAX_TOKENS": "100000000", "VLLM_API_KEY": "c" * 43,
    }  # fmt: skip
    argv = [sys.executable, "-c", LISTENING, "--api-key", "abcdefgh", "--token-file", "/x", "--max-tokens=5"]
    child = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    yield mark, [int(child.stdout.readline()) for _ in range(2)]
    child.kill()
    child.wait()
    child.stdout.close()


def probed(mark: str) -> Any:
    """The probe's answer; it comes through standard input, as over ssh."""
    text = Path(node_probe.__file__).read_text()
    done = subprocess.run(
        [sys.executable, "-I", "-", mark], input=text, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout), done.stdout


def test_ports_and_secrets_of_marked_processes(process: tuple[str, list[int]]) -> None:
    """Each port with its address, each secret by its name; paths, counts and the values themselves are not told."""
    mark, (inner, outer) = process
    found, text = probed(mark)
    assert found["seen"] == 1
    assert [[address, port] for address, port, _ in found["listeners"]] == [
        ["0.0.0.0", outer],
        ["127.0.0.1", inner],
    ]
    assert sorted((where, name) for _, where, name in found["secrets"]) == [
        ("argv", "--api-key"), ("environment", "HARMLESS"), ("environment", "HF_TOKEN"),
    ]  # fmt: skip
    for secret in ("abcdefgh", "hf_a", "sk-b"):
        assert secret not in text


def test_other_processes_are_not_looked_at(process: tuple[str, list[int]]) -> None:
    """Without the mark nothing is told."""
    found, _ = probed("another-start")
    assert (found["listeners"], found["secrets"], found["seen"]) == ([], [], 0)

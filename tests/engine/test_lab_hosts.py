"""The same deployment over hosts with own addresses: a Ray that already runs, and bare hosts over ssh."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import longspan as package
from engine.running import RUN, UP_TIMEOUT_SECONDS, Before, Longspan
from lab.build import Lab
from lab.hosts import HostSpec, LabHost
from longspan.errors import ProofError

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.timeout(1500)]
MakeLab = Callable[..., AbstractContextManager[Lab]]


def build(make_lab: MakeLab) -> AbstractContextManager[Lab]:
    """Two hosts whose NICs have different names."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/root"),
        "RAY_USAGE_STATS_ENABLED": "0",
        # The hosts run what is tested here, also where another checkout is the one that is installed.
        "PYTHONPATH": str(Path(package.__file__).parent.parent),
    }
    return make_lab([HostSpec("h1", nic="eth0"), HostSpec("h2", nic="ens7")], env=env)


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Iterator[Lab]:
    """Bare hosts, shared by the tests of this file."""
    with build(make_lab) as built:
        yield built


@pytest.fixture
def ssh_user(lab: Lab, tmp_path: Path) -> Iterator[tuple[Longspan, Path]]:
    """A user on the test machine who reaches both hosts by ssh, with a cluster file."""
    cluster = tmp_path / "hosts.toml"
    cluster.write_text(
        "".join(
            f'[[node]]\nname = "{host.name}"\naddress = "{host.address}"\ngpus = 1\nssh = "{host.name}"\n'
            f'env = {{ GLOO_SOCKET_IFNAME = "{host.spec.nic}" }}\n'
            for host in lab.hosts
        )
    )
    longspan = Longspan(tmp_path / "state", {"PATH": f"{lab.bin}:{os.environ['PATH']}"})
    before = Before.now()
    yield longspan, cluster
    longspan.run("down")
    assert before.left_by(longspan) == []
    for host in lab.hosts:
        assert strangers(host) == []


def strangers(host: LabHost) -> list[str]:
    """What runs in a host beside the lab's own processes, and the shared memory that is left there."""
    listing = host.run(["ps", "-eww", "-o", "pid,args"]).stdout.splitlines()[1:]
    own = ("host_init", "sshd", "ps -eww", "nsenter", "setpriv")
    left = [line for line in listing if not any(word in line for word in own)]
    return left + host.run(["ls", "/dev/shm"]).stdout.split()


def chat(endpoint: str, key: str) -> str:
    """One question by the OpenAI client."""
    import openai

    with openai.OpenAI(base_url=endpoint, api_key=key, timeout=300) as client:
        model = client.models.list().data[0].id
        messages: Any = [{"role": "user", "content": "What is the capital of France?"}]
        answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=20)
    return answer.choices[0].message.content or ""


def test_mp_executor_over_ssh(lab: Lab, ssh_user: tuple[Longspan, Path], demo_model: Path) -> None:
    """Bare hosts reached by ssh: agents, our own Ray, mp ranks; each rank on its host, each host with its own NIC."""
    longspan, cluster = ssh_user
    done = longspan.up("--cluster", str(cluster), "--executor", "mp", "--listen", "127.0.0.1:18434")
    assert done.returncode == 0, done.stderr + done.stdout
    status = longspan.status()
    assert [rank["address"] for rank in status["ranks"]] == [host.address for host in lab.hosts]
    assert status["proof"]["verdict"] == "verified"
    assert "Paris" in chat(status["endpoint"], Path(status["api_key_file"]).read_text())
    for host, rank in zip(lab.hosts, status["ranks"], strict=True):
        environ = host.run(["cat", f"/proc/{rank['pid']}/environ"]).stdout.split("\0")
        assert f"GLOO_SOCKET_IFNAME={host.spec.nic}" in environ
        assert f"VLLM_HOST_IP={host.address}" in environ
    a_host_that_freezes_loses_its_traffic(longspan, lab["h2"], status)
    assert longspan.run("down").returncode == 0


def a_host_that_freezes_loses_its_traffic(longspan: Longspan, host: LabHost, status: dict[str, Any]) -> None:
    """vLLM's own `/health` says 200 and requests hang; the gateway says 503 and names the host. Thawed, it answers again."""
    import httpx

    key = Path(status["api_key_file"]).read_text().strip()
    body = {"model": status["served_name"], "prompt": "The capital of France is", "max_tokens": 3}

    def ask() -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.post(f"{status['endpoint']}/completions", json=body, headers=headers, timeout=120)

    host.freeze()
    try:
        deadline = time.monotonic() + 60
        while not longspan.status()["suspicions"]:
            assert time.monotonic() < deadline
        time.sleep(1)  # the gateway reads its configuration four times a second
        answer = ask()
        assert (answer.status_code, "h2 has not answered" in answer.text) == (503, True), answer.text
    finally:
        host.thaw()
    deadline = time.monotonic() + 60
    while longspan.status()["suspicions"]:
        assert time.monotonic() < deadline
    time.sleep(1)
    assert ask().status_code == 200
    assert longspan.status()["phase"] == "serving"


@pytest.mark.skipif(
    not os.environ.get("LONGSPAN_LONG_TESTS"),
    reason="five minutes: a host must be silent for longer than its lease; LONGSPAN_LONG_TESTS=1 runs it",
)
@pytest.mark.parametrize("executor", ["ray", "mp"])
def test_a_host_that_is_cut_off_for_a_minute_comes_back(
    lab: Lab, ssh_user: tuple[Longspan, Path], executor: str
) -> None:
    """Longer than its lease: its agent ends its ranks and itself; once it can be reached it is swept, joined to Ray again, and
    the next group runs on it, with its proof."""
    longspan, cluster = ssh_user
    done = longspan.up("--cluster", str(cluster), "--executor", executor, "--listen", "127.0.0.1:18434")
    assert done.returncode == 0, done.stderr + done.stdout
    before = longspan.status()
    began = time.monotonic()
    lab["h2"].cut()
    try:
        while not longspan.status()["lost"]:
            assert time.monotonic() < began + 120
            time.sleep(0.2)
        print(f"given up after {time.monotonic() - began:.1f} s")
        time.sleep(20)
    finally:
        lab["h2"].heal()
    healed = time.monotonic()
    while (status := longspan.status())["phase"] != "serving":
        assert time.monotonic() < healed + 400, status["phase"]
        time.sleep(0.5)
    print(f"serves {time.monotonic() - healed:.1f} s after the link was back")
    assert status["lost"] == []
    assert len(status["restarts"]) == 1
    assert [rank["address"] for rank in status["ranks"]] == [host.address for host in lab.hosts]
    assert status["proof"]["verdict"] == "verified"
    assert {rank["pid"] for rank in status["ranks"]}.isdisjoint({rank["pid"] for rank in before["ranks"]})
    assert "Paris" in chat(status["endpoint"], Path(status["api_key_file"]).read_text())
    assert longspan.run("down").returncode == 0


RAY = (
    RUN[0],
    "-m",
    "longspan.launch.ray_main",
    "start",
    "--block",
    "--num-gpus=1",
    "--object-store-memory=100000000",
)


def start_ray(host: LabHost, *arguments: str) -> subprocess.Popen[str]:
    """Somebody else's Ray on a host, once it runs."""
    log = host.folder / "ray.log"
    with log.open("w") as out:
        process = host.popen([*RAY, f"--node-ip-address={host.address}", *arguments], stdout=out, stderr=out)
    deadline = time.monotonic() + 180
    while "Ray runtime started" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
    return process


def test_joins_a_ray_that_runs(make_lab: MakeLab, demo_model: Path, tmp_path: Path) -> None:
    """`up --cluster` with a running Ray, on one of its hosts: agents by a task per node, the Ray executor, and a
    `down` that leaves that Ray as it was."""
    with build(make_lab) as lab:
        first, second = lab.hosts
        address = f"{first.address}:6379"
        rays = [start_ray(first, "--head", "--port=6379", "--include-dashboard=false")]
        try:
            rays.append(start_ray(second, f"--address={address}"))
            join(lab, address, demo_model, tmp_path)
            assert all(ray.poll() is None for ray in rays)
        finally:
            for ray in rays:
                ray.kill()
                ray.wait()


RESERVED = """
import json, sys, ray
from ray.util import placement_group_table
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
states = [group["state"] for group in placement_group_table().values()]
print(json.dumps({"states": states, "free_gpus": ray.available_resources().get("GPU", 0)}))
"""


def join(lab: Lab, address: str, model: Path, folder: Path) -> None:
    """Up, a question, down; nothing of ours is left in the hosts."""
    first = lab.hosts[0]
    cluster = folder / "ray.toml"
    cluster.write_text(f'[ray]\naddress = "{address}"\n')
    arguments = ["up", "--cluster", str(cluster), "--listen", f"{first.address}:18435", str(model)]
    done = first.run([*RUN, *arguments], timeout_seconds=UP_TIMEOUT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    status = json.loads(first.run([*RUN, "status", "--json"]).stdout)
    assert [rank["address"] for rank in status["ranks"]] == [host.address for host in lab.hosts]
    assert (status["ray"]["address"], status["ray"]["joined"]) == (address, True)
    assert "Paris" in chat(status["endpoint"], Path(status["api_key_file"]).read_text())
    assert first.run([*RUN, "down"], timeout_seconds=120).returncode == 0
    # Nothing of ours is reserved in somebody else's Ray.
    seen = json.loads(
        first.run([RUN[0], "-c", RESERVED, address], timeout_seconds=120).stdout.splitlines()[-1]
    )
    assert seen["states"] == ["REMOVED"]
    assert seen["free_gpus"] == 2
    ours = (
        "longspan.daemon", "longspan.gateway", "ray_driver", "EngineFrontEnd", "EngineCore", "RayWorkerProc",
    )  # fmt: skip
    left = [line for host in lab.hosts for line in strangers(host) if any(word in line for word in ours)]
    assert left == []


# ---- what must fail, with the node named
@pytest.fixture
def own_checkpoint(lab: Lab, demo_model: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint that both hosts have under one path, the second a copy of its own; with the copy's place."""
    shared = tmp_path / f"model-of-{tmp_path.name}"
    shutil.copytree(demo_model, shared)
    return shared, lab["h2"].own_copy(shared)


def up_fails(ssh_user: tuple[Longspan, Path], model: Path, *more: str) -> str:
    """`up` must end with the proof's exit code; returns what it said."""
    longspan, cluster = ssh_user
    done = longspan.up(str(model), "--cluster", str(cluster), "--listen", "127.0.0.1:18436", *more)
    assert done.returncode == ProofError.exit_code, done.stderr + done.stdout
    return done.stderr


def blamed(ssh_user: tuple[Longspan, Path]) -> set[str]:
    """The nodes that the last launch's errors are about: its words name the good node too, to compare with."""
    findings = json.loads((ssh_user[0].state / "longspan/default/last-status.json").read_text())["findings"]
    return {finding["subject"] for finding in findings if finding["severity"] == "error"}


def test_another_revision_on_one_host(
    ssh_user: tuple[Longspan, Path], own_checkpoint: tuple[Path, Path]
) -> None:
    """A host with another revision of the checkpoint is named before anything is loaded."""
    shared, copy = own_checkpoint
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rope_theta": 20000}))
    flip(copy / "model.safetensors", -1)
    said = up_fails(ssh_user, shared)
    assert blamed(ssh_user) == {"h2"}
    assert "revision" in said
    assert "✓ ray" not in said


def flip(path: Path, offset: int) -> None:
    """Flips one bit."""
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        at = file.tell()
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_one_flipped_bit(ssh_user: tuple[Longspan, Path], own_checkpoint: tuple[Path, Path]) -> None:
    """One bit of one file on one host: host and file are named."""
    shared, copy = own_checkpoint
    flip(copy / "model.safetensors", -100_000_001)
    said = up_fails(ssh_user, shared, "--full")
    assert blamed(ssh_user) == {"h2"}
    assert "model.safetensors" in said


def test_a_dead_layer_behind_a_forged_digest(
    lab: Lab, ssh_user: tuple[Longspan, Path], own_checkpoint: tuple[Path, Path], tmp_path: Path
) -> None:
    """A copy that is changed after its digest was taken: the log-probabilities tell, and name the host."""
    import torch
    from safetensors.torch import load_file, save_file

    shared, copy = own_checkpoint
    tensors = load_file(copy / "model.safetensors")
    dead = "model.layers.20.self_attn.o_proj.weight"  # of the second stage, which h2 holds
    tensors[dead] = torch.zeros_like(tensors[dead])
    save_file(tensors, copy / "dead.safetensors.new", metadata={"format": "pt"})
    longspan, cluster = ssh_user
    process = longspan.start_up(str(shared), "--cluster", str(cluster), "--listen", "127.0.0.1:18437")
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "✓ checkpoint" in line:
            (copy / "dead.safetensors.new").rename(copy / "model.safetensors")
    process.wait(60)
    process.stderr.close()
    text = "".join(said)
    assert process.returncode == ProofError.exit_code, text
    assert blamed(ssh_user) == {"h2"}

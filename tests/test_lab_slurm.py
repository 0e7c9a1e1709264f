"""A real Slurm over lab hosts: what an allocation is, agents as job steps, and how they end."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from lab.build import Lab
from lab.hosts import HostSpec, LabHost
from lab.slurm import PROGRAMS, Slurm, start_slurm, why_no_slurm
from longspan.cluster.slurm import expand_hostlist
from longspan.launch.slurm_script import batch_script
from longspan.launch.unattended import Serving

pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm())]
REPO = Path(__file__).parent.parent

ALLOCATION = """
import dataclasses, json
from longspan.cli.allocation import allocated_hosts
hosts = allocated_hosts()
print("HOSTS" + json.dumps([dataclasses.asdict(host) for host in hosts.hosts] if hosts else None))
"""

# Plays the controller of one agent a node: starts them, asks who they are, gives each a process, then waits for the word
# on standard input: "stop" tells them to end, "leave" goes away without a farewell.
DRIVER = """
import asyncio, json, sys
from contextlib import AsyncExitStack
from pathlib import Path
from fake_controller import fake_controller, until
from longspan.cli.allocation import allocated_hosts
from longspan.daemon import starting
from longspan.deployment import DeploymentSpec, NodeSpec

async def main(host, folder):
    hosts = allocated_hosts().hosts
    nodes = tuple(NodeSpec(h.name, h.address, 1, python=sys.executable, slurm=h.slurm) for h in hosts)
    spec = DeploymentSpec("d", "id", "org/m", "m", 1, 2, "ray", "cpu", nodes, "127.0.0.1:8000")
    async with AsyncExitStack() as stack:
        controllers = [await stack.enter_async_context(fake_controller(host)) for _ in nodes]
        async def start(node, controller):
            config = {"name": "a", "controller_url": controller.url, "key": "the-key", "mark": f"mark-{node.name}",
                      "run_dir": f"{folder}/run-{node.name}", "log_dir": f"{folder}/logs-{node.name}"}
            await starting.start_agent(node, config, spec, Path(folder) / f"{node.name}.start")
            controller.start("p", "sh", "-c", "echo $(hostname) $SLURM_NTASKS ${VLLM_HOST_IP:-none} $NCCL_SOCKET_IFNAME; exec sleep 1000")
            lines = await until(lambda: controller.lines("p"))
            return {"words": lines[0].split(), "keys": sorted(controller.keys)}
        told = await asyncio.gather(*map(start, nodes, controllers))
        print("AGENTS" + json.dumps(told), flush=True)
        if (await asyncio.to_thread(sys.stdin.readline)).strip() == "leave":
            sys.exit(0)
        for controller in controllers:
            controller.command(kind="stop_all", call="stopped:a")
        for controller in controllers:
            await until(lambda: controller.answer("stopped:a"))
        codes = [await asyncio.to_thread(child.wait, 30) for child in starting._stays.values()]
        print("ENDED" + json.dumps(codes), flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory of which each host has its own."""
    return str(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def slurm(make_lab: Callable[..., AbstractContextManager[Lab]], own: str) -> Iterator[Slurm]:
    """Two hosts with different NICs and GPU counts; only `env` knows of this Slurm."""
    private = ("/tmp/ray", own)
    with (
        make_lab([HostSpec("h1", private=private), HostSpec("h2", nic="ens7", private=private)]) as lab,
        start_slurm(lab, {"h1": 2, "h2": 1}) as found,
    ):
        yield found
        assert found.steps() == ""


@pytest.fixture
def ours(slurm: Slurm) -> Slurm:
    """With our source, and what a user may have exported."""
    path = os.pathsep.join(
        [str(REPO / "src"), str(REPO / "tests" / "daemon"), os.environ.get("PYTHONPATH", "")]
    )
    more = {"PYTHONPATH": path, "VLLM_HOST_IP": "10.9.9.9", "NCCL_SOCKET_IFNAME": "ib0"}
    return Slurm(slurm.lab, {**slurm.env, **more})


def sleeping(host: LabHost) -> list[str]:
    """Our processes in a host."""
    listing = host.run(["ps", "-eww", "-o", "args="]).stdout.splitlines()
    return [line for line in listing if "longspan.daemon.agent" in line or "sleep 1000" in line]


def until_gone(slurm: Slurm, *, seconds: float = 60) -> None:
    """Waits until no step and no process of ours is left."""
    deadline = time.monotonic() + seconds
    while left := [slurm.steps(), *(sleeping(host) for host in slurm.lab.hosts)]:
        if not any(left):
            return
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def hosts_in(slurm: Slurm, *salloc: str) -> Any:
    """What `up` would see inside `salloc WORDS`."""
    done = slurm.run(["salloc", "--quiet", *salloc, sys.executable, "-c", ALLOCATION])
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("HOSTS"))[5:])


def test_an_allocation_is_a_cluster(ours: Slurm) -> None:
    """Names, addresses and the job's GPUs (not the node's) come from Slurm."""
    found = hosts_in(ours, "-N2", "--gres=gpu:1")
    assert [(host["name"], host["address"], host["gpus"]) for host in found] == [
        (host.name, host.address, 1) for host in ours.lab.hosts
    ]
    assert len({host["slurm"] for host in found}) == 1
    assert [host["gpus"] for host in hosts_in(ours, "-N2")] == [None, None]


def test_a_heterogeneous_allocation(ours: Slurm) -> None:
    """Both components are there, each with its own GPUs and its own number for the steps."""
    found = hosts_in(ours, "-N1", "-w", "h1", "--gres=gpu:2", ":", "-N1", "-w", "h2", "--gres=gpu:1")
    assert [(host["name"], host["gpus"], host["slurm"].partition("+")[2]) for host in found] == [
        ("h1", 2, "0"), ("h2", 1, "1"),
    ]  # fmt: skip


def test_outside_of_an_allocation(ours: Slurm) -> None:
    """Without a job there is no cluster, however much Slurm there is."""
    done = ours.run([sys.executable, "-c", ALLOCATION])
    assert done.stdout.strip() == "HOSTSnull"


def driver(slurm: Slurm, folder: Path, word: str, *salloc: str) -> dict[str, Any]:
    """Agents on all nodes of an allocation; returns what the driver said by its marks."""
    argv = [sys.executable, "-c", DRIVER, slurm.lab.network.gateway, str(folder)]
    done = slurm.run(
        ["sh", "-c", 'echo "$0" | exec salloc --quiet "$@"', word, *salloc, *argv], timeout_seconds=180
    )
    lines = done.stdout.splitlines()
    return {
        mark: json.loads(line.removeprefix(mark))
        for mark in ("AGENTS", "ENDED")
        for line in lines
        if line.startswith(mark)
    }


HET = ("-N1", "-w", "h1", "--gres=gpu:2", ":", "-N1", "-w", "h2", "--gres=gpu:1")


@pytest.mark.parametrize("salloc", [("-N2", "--gres=gpu:1", "--mem-per-cpu=100"), HET], ids=["plain", "het"])
def test_agents_as_steps(ours: Slurm, tmp_path: Path, salloc: tuple[str, ...]) -> None:
    """srun starts one agent a node, each on its own host and with its key through standard input; the user's variables
    come along, one machine's address does not; told to stop, the steps end with status 0 and leave nothing."""
    said = driver(ours, tmp_path, "stop", *salloc)
    for agent in said["AGENTS"]:
        assert agent["keys"] == ["Bearer the-key"]
        assert agent["words"][1:] == ["1", "none", "ib0"]
    assert [agent["words"][0] for agent in said["AGENTS"]] == ["h1", "h2"]
    assert said["ENDED"] == [0, 0]
    until_gone(ours)


def test_the_end_of_the_allocation_ends_the_agents(ours: Slurm, tmp_path: Path) -> None:
    """When the allocation is given back while agents and their processes run, nothing is left on any host."""
    said = driver(ours, tmp_path, "leave", "-N2")
    assert len(said["AGENTS"]) == 2
    until_gone(ours)


def test_a_step_that_cannot_start(ours: Slurm, tmp_path: Path) -> None:
    """A node outside of the allocation: srun's own words are the error."""
    code = (
        "import asyncio, os, sys\nfrom pathlib import Path\nfrom longspan.daemon import starting\n"
        "from longspan.deployment import DeploymentSpec, NodeSpec\n"
        "node = NodeSpec('h2', '10.0.0.1', 1, python=sys.executable, slurm=os.environ['SLURM_JOB_ID'])\n"
        "spec = DeploymentSpec('d', 'id', 'o/m', 'm', 1, 1, 'ray', 'cpu', (node,), '127.0.0.1:8000')\n"
        "try: asyncio.run(starting.start_agent(node, {'name': 'a', 'mark': 'm'}, spec, Path(sys.argv[1])))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "said")]
    done = ours.run(["salloc", "--quiet", "-N1", "-w", "h1", *argv])
    assert "HostError srun ended with status 1: " in done.stdout
    assert "h2" in done.stdout or "node" in done.stdout.lower()


@pytest.mark.parametrize("text", ["h[1-2]", "gpu[08-11,20]", "a1,b[1-3]", "r[1-2]n[1-3]"])
def test_host_lists_are_slurms(ours: Slurm, text: str) -> None:
    """Our reading of a host list is `scontrol show hostnames`'."""
    assert expand_hostlist(text) == ours.run(["scontrol", "show", "hostnames", text]).stdout.split()


@pytest.mark.parametrize("gpus", [(1, 1), (2, 1)], ids=["plain", "het"])
def test_slurm_takes_the_script(ours: Slurm, tmp_path: Path, gpus: tuple[int, ...]) -> None:
    """sbatch reads what `manifest slurm` writes, unequal nodes as a heterogeneous job, and runs `up` on the first node."""
    program, log = tmp_path / "longspan", tmp_path / "log"
    program.write_text('#!/bin/sh\nprintf "%s|" "$(hostname)" "${SLURM_HET_SIZE:-1}" "$VALUE" "$@" end\n')
    program.chmod(0o755)
    serving = Serving(
        "d", "/m/a 'b'", 1, len(gpus), "ray", gpus, environment=(("VALUE", "$HOME"),), vllm_arguments=("x y",)
    )
    script = tmp_path / "script"
    script.write_text(
        batch_script(
            serving, longspan=[str(program)], listen="h:1", sbatch=[f"chdir={tmp_path}", "time=1"]
        ).replace("--output=longspan-d-%j.log", f"--output={log}")
    )
    ours.run(["sbatch", "--wait", str(script)], timeout_seconds=120)
    said = log.read_text().split("|")
    assert said[:4] == ["h1", "1" if len(set(gpus)) == 1 else "2", "$HOME", "up"]
    assert said[4] == "/m/a 'b'"
    assert said[-3:-1] == ["x y", "end"]


def test_ci_installs_slurm() -> None:
    """`.ci/run` installs what the skip message would ask for."""
    script = (REPO / ".ci" / "run").read_text()
    assert [package for package in PROGRAMS.values() if f" {package}" not in script] == []


def test_weights_are_staged_over_job_steps(ours: Slurm, own: str, tmp_path: Path) -> None:
    """Inside an allocation `stage` needs no cluster file: each byte leaves this machine once, the nodes pass it on, digests agree,
    and no step is left. A second time nothing moves."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    for number in range(4):
        (model / f"model-{number}.safetensors").write_bytes(os.urandom(1_000_001))
    whole = sum(path.stat().st_size for path in model.iterdir())
    argv = ["salloc", "--quiet", "-N2", sys.executable, "-c", "from longspan.cli.main import run; run()"]
    words = ["stage", str(model), "--to", f"{own}/m", "--full", "--json"]
    for moved in (whole, 0):
        done = ours.run([*argv, *words], timeout_seconds=180)
        told = json.loads(done.stdout.splitlines()[-1])["model"]
        assert told["sent_bytes"] == {"h1": moved, "h2": moved}
        assert told["from_here_bytes"] == moved
    for host in ours.lab.hosts:
        for path in model.iterdir():
            assert (host.outside(own) / "m" / path.name).read_bytes() == path.read_bytes()
    assert ours.steps() == ""

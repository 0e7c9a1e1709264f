"""From bare hosts to a checked Ray: the head without GPU, the fixed ports, each node's own environment, and nothing left."""

import json
import os
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from engine.running import Longspan
from engine.test_lab_hosts import strangers
from lab.build import Lab
from lab.hosts import HostSpec, LabHost
from longspan.daemon.launch_store import LaunchStore
from longspan.daemon.places import Places
from longspan.deployment import RayPorts
from longspan.errors import CheckError
from longspan.monitor.view import ClusterView, NodeView

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.timeout(900)]
MakeLab = Callable[..., AbstractContextManager[Lab]]
PORTS = RayPorts()


def cluster_file(lab: Lab, path: Path) -> Path:
    """The first host has no GPU; no variable is set by hand."""
    path.write_text(
        "".join(
            f'[[node]]\nname = "{host.name}"\naddress = "{host.address}"\ngpus = {0 if host.name == "h1" else 1}\nssh = "{host.name}"\n'
            for host in lab.hosts
        )
    )
    return path


def listening(host: LabHost) -> dict[int, str]:
    """The TCP ports that others could reach, sshd's aside -> who listens."""
    found = {}
    for line in host.run(["ss", "-Hltnp"]).stdout.splitlines():
        address, _, port = line.split()[3].rpartition(":")
        if not address.startswith(("127.", "[::1]")) and port != "2222":
            found[int(port)] = line.split()[-1]
    return found


def raylet_environment(host: LabHost) -> dict[str, str]:
    """The environment of the raylet in a host."""
    script = "for p in /proc/[0-9]*; do case $(tr '\\0' ' ' < $p/cmdline) in */raylet\\ *) cat $p/environ; exit;; esac; done"
    words = host.run(["bash", "-c", script]).stdout.split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_bare_hosts_to_a_checked_ray(make_lab: MakeLab, demo_model: Path, tmp_path: Path) -> None:
    """`up` checks the hosts, Ray's head runs where there is no GPU, Ray listens on its documented ports only, each raylet has
    its own host's NIC, the launch is recorded, and Ctrl-C leaves nothing. With a wrong host `up` stops before Ray."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/root"),
        "RAY_USAGE_STATS_ENABLED": "0",
        # The hosts run the code under test, also where it is not the installed one.
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    specs = [HostSpec("h1", "eth0"), HostSpec("h2", "ens7"), HostSpec("h3", "enp3s0")]
    with make_lab(specs, env=env) as lab:
        cluster = cluster_file(lab, tmp_path / "hosts.toml")
        longspan = Longspan(tmp_path / "state", {"PATH": f"{lab.bin}:{os.environ['PATH']}"})
        begun = time.monotonic()
        process = longspan.start_up(str(demo_model), "--cluster", str(cluster), "--listen", "127.0.0.1:18438")
        assert process.stderr is not None
        said = []
        try:
            for line in process.stderr:
                said.append(line)
                if re.search(r"✓ reservation\b", line):
                    break
            print(f"seconds from bare hosts to a checked Ray: {time.monotonic() - begun:.1f}", "".join(said))
            assert process.poll() is None, "".join(said)
            look(lab, longspan)
            watch(lab, longspan)
        finally:
            longspan.run("down")
            process.communicate(timeout=120)
        assert [strangers(host) for host in lab.hosts] == [[], [], []]
        (launch,) = LaunchStore(Places(tmp_path / "state/longspan/default").launches).all()
        assert launch.outcome == "stopped"
        assert launch.made_of["h2/GLOO_SOCKET_IFNAME"] == "ens7"
        lab["h3"].cut()
        refused = longspan.run(
            "up", str(demo_model), "--cluster", str(cluster), "--listen", "127.0.0.1:18438"
        )
        lab["h3"].heal()
        assert refused.returncode == CheckError.exit_code
        assert "h3 cannot be used" in refused.stderr
        assert longspan.processes() == []


def look(lab: Lab, longspan: Longspan) -> None:
    """While Ray runs."""
    status = longspan.status()
    assert status["ray"]["head"] == "h1"
    assert status["ray"]["address"] == f"{lab['h1'].address}:{PORTS.gcs}"
    assert [node["name"] for node in status["nodes"]] == ["h2", "h3"]
    for host in lab.hosts:
        others = {port: who for port, who in listening(host).items() if not PORTS.first <= port <= PORTS.last}
        assert others == {}, host.name
        environment = raylet_environment(host)
        assert environment["GLOO_SOCKET_IFNAME"] == host.spec.nic
        assert environment["VLLM_HOST_IP"] == host.address
        assert environment["RAY_AUTH_MODE"] == "token"
    assert {node["name"]: node["environment"]["GLOO_SOCKET_IFNAME"] for node in status["nodes"]} == {
        "h2": "ens7",
        "h3": "enp3s0",
    }


def watch(lab: Lab, longspan: Longspan) -> None:
    """Every host is in the picture with its own NIC, its logs come here, and one that is cut off is an alarm until it is back."""

    def seen() -> dict[str, NodeView]:
        return {
            node.name: node
            for node in ClusterView.from_json(json.loads(longspan.run("top", "--json").stdout)).nodes
        }

    def until(true: Callable[[], object], told: Callable[[], object] = str) -> float:
        begun = time.monotonic()
        while not true():
            assert time.monotonic() < begun + 120, told()
            time.sleep(0.2)
        return time.monotonic() - begun

    def silent() -> set[str]:
        return {a["subject"] for a in longspan.status()["alarms"] if a["cause"] == "node-silent"}

    def picture() -> dict[str, tuple[str, float | None]]:
        return {name: (node.state, node.age_seconds) for name, node in seen().items()}

    until(lambda: {state for state, _ in picture().values()} == {"up"}, picture)
    found = seen()
    assert set(found) == {"h1", "h2", "h3"}
    for host in lab.hosts:
        assert host.spec.nic in {port.name for port in found[host.name].ports}
    path = longspan.state / "longspan/default/collected/h2/ray.log"
    until(path.exists)
    assert not path.parent.is_symlink()
    assert "Ray runtime started" in longspan.run("logs", "h2").stdout
    lab["h3"].cut()
    try:
        print(f"seconds from a cut to the alarm: {until(lambda: silent() == {'h3'}):.1f}")
    finally:
        lab["h3"].heal()
    print(f"seconds from healing to its end: {until(lambda: not silent()):.1f}")

"""The example for a virtual address before two gateways (deploy/keepalived), on two hosts of the lab with the real keepalived."""

import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

import longspan as package
from lab.build import Lab
from lab.hosts import HostSpec, LabHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        shutil.which("keepalived") is None or shutil.which("curl") is None,
        reason="no keepalived or curl here: apt-get install keepalived curl",
    ),
]
EXAMPLE = Path(__file__).parent.parent / "deploy" / "keepalived" / "keepalived.conf"
GATEWAY = f"""
listen = "0.0.0.0:8000"
[[keys]]
name = "k"
sha256 = "{"0" * 64}"
[[models]]
name = "m"
[[replicas]]
name = "r0"
url = "http://127.0.0.1:9"
model = "m"
state = "out"
"""


@pytest.fixture
def lab(make_lab: Callable[..., AbstractContextManager[Lab]]) -> Iterator[Lab]:
    """Two hosts that have the interface of the example."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(Path(package.__file__).parent.parent)}
    with make_lab([HostSpec("h1"), HostSpec("h2")], env=env) as built:
        yield built


def example(lab: Lab, host: LabHost) -> str:
    """The example with this lab's addresses, as its head says."""
    other = next(one for one in lab.hosts if one is not host)
    text = EXAMPLE.read_text()
    for wrong, right in (
        ("unicast_src_ip 10.0.0.1", f"unicast_src_ip {host.address}"),
        ("        10.0.0.2", f"        {other.address}"),
        ("10.0.0.100/24", f"{virtual(host)}/24"),
        ("priority 100", f"priority {100 + 10 * (host.name == 'h1')}"),
    ):
        assert text.count(wrong) == 1
        text = text.replace(wrong, right)
    return text


def virtual(host: LabHost) -> str:
    """The address that clients know."""
    return f"{host.address.rpartition('.')[0]}.100"


def has_it(host: LabHost) -> bool:
    """Whether the virtual address is on this host."""
    return virtual(host) in host.run(["ip", "-4", "address", "show", "dev", "eth0"]).stdout


def answers(address: str) -> bool:
    """Whether a gateway answers there."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}:8000/health", timeout=1) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def until(seen: Callable[[], bool], seconds: float = 60) -> None:
    """Waits for something true; the machine may be busy."""
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_address_moves_to_the_gateway_that_answers(lab: Lab) -> None:
    """The gateway that has it is killed: the address answers again, from the other host, and stays there when the first is back."""
    first, second = lab["h1"], lab["h2"]
    running: dict[str, subprocess.Popen[str]] = {}

    def started(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
        return process

    def gateway(host: LabHost) -> subprocess.Popen[str]:
        file = host.folder / "gateway.toml"
        file.write_text(GATEWAY)
        with (host.folder / "gateway.log").open("a") as log:
            return started(
                host.popen(
                    [sys.executable, "-m", "longspan.gateway", "--config", str(file)], stdout=log, stderr=log
                )
            )

    with ExitStack() as stack:
        for host in lab.hosts:
            running[host.name] = gateway(host)
            until(lambda host=host: answers(host.address))  # type: ignore[misc]
            file = host.folder / "keepalived.conf"
            file.write_text(example(lab, host))
            file.chmod(0o600)
            pids = [f"--{name}={host.folder}/{name}.pid" for name in ("pid", "vrrp_pid")]
            log = stack.enter_context((host.folder / "keepalived.log").open("w"))
            started(
                host.popen(
                    ["keepalived", "--dont-fork", "--log-console", "--vrrp", f"--use-file={file}", *pids],
                    stdout=log,
                    stderr=log,
                )
            )
            if host is first:
                until(lambda: has_it(first))
        until(lambda: answers(virtual(first)))
        assert has_it(first)
        running["h1"].kill()
        until(lambda: has_it(second) and not has_it(first))
        until(lambda: answers(virtual(first)))
        running["h1"] = gateway(first)
        until(lambda: answers(first.address))
        time.sleep(5)
        assert has_it(second)
        assert not has_it(first)

"""The pre-flight on lab hosts: nothing on healthy ones, and each fault found with its node."""

import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lab.build import Lab
from lab.hosts import HostSpec
from longspan.cli import check_record, preflighting
from longspan.deployment import NodeSpec
from longspan.host import Conversation, SshHost
from longspan.preflight.run import Options
from preflight.lab_faults import FAULTS, MODEL, PORTS, Bench, Fault

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("ray") is None or find_spec("vllm") is None, reason="vLLM and Ray are not installed, so a healthy host has an error"),
]  # fmt: skip
MakeLab = Callable[..., AbstractContextManager[Lab]]
# True on a machine whose own hard limit is lower than Ray's wish.
TRUE_HERE = {"ulimit-nofile"} if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 65536 else set()


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Iterator[Lab]:
    """Three hosts, each with a NIC of another name, and a place for a model of its own."""
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root")}
    specs = [
        HostSpec("h1", "eth0", ("/tmp/ray", MODEL)),
        HostSpec("h2", "ens7", ("/tmp/ray", MODEL)),
        HostSpec("h3", "enp3s0", ("/tmp/ray", MODEL)),
    ]
    with make_lab(specs, env=env) as built:
        yield built


@pytest.fixture
def bench(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The nodes as a correct cluster file names them."""
    monkeypatch.setenv("PATH", f"{lab.bin}:{os.environ['PATH']}")
    for host in lab.hosts:
        for old in list(host.outside(MODEL).rglob("config.json")):
            old.unlink()
            old.parent.rmdir()
    nodes = {host.name: NodeSpec(host.name, host.address, 1, host.name, sys.executable) for host in lab.hosts}
    return Bench(lab, tmp_path, nodes)


def check(bench: Bench, **options: Any) -> preflighting.Checked:
    """A pre-flight of the bench, without the collective unless asked for."""
    given = {
        "collective": False,
        "ray_ports": (PORTS.first, PORTS.last),
        "fixed_ports": PORTS.tried,
        **options,
    }
    return preflighting.run(list(bench.nodes.values()), None, Options(**given), lambda _: None)


def test_healthy_hosts_raise_no_alarm(bench: Bench) -> None:
    """No error and no warning but what is true of this machine; every check that could judge did; NICs are each host's own."""
    checked = check(bench)
    assert {finding.cause for finding in checked.findings} <= TRUE_HERE
    states = {one.check.id: one.outcome.state for one in checked.judged}
    for name in (
        "reachable",
        "python",
        "ray",
        "clock",
        "routes",
        "nic-address",
        "ports",
        "data",
        "mtu",
        "addresses-seen",
    ):
        assert states[name] == "ok", name
    for host in bench.lab.hosts:
        assert checked.scene.value(host.name, "GLOO_SOCKET_IFNAME") == host.spec.nic
        assert checked.scene.value(host.name, "NCCL_SOCKET_IFNAME") == f"={host.spec.nic}"
        assert checked.scene.value(host.name, "VLLM_HOST_IP") == host.address


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_is_found_with_its_node(bench: Bench, fault: Fault) -> None:
    """The finding has the fault's cause, names the node, says what to do, and no other cause is invented."""
    with fault.make(bench):
        checked = check(bench, model=fault.model)
    found = [
        finding for finding in checked.findings if finding.cause == fault.cause or finding.cause in fault.also
    ]
    assert found, [finding.summary for finding in checked.findings]
    assert any(finding.subject == fault.node and finding.severity == fault.severity for finding in found), (
        found
    )
    assert all(finding.remedy for finding in found)
    others = {finding.cause for finding in checked.findings} - {fault.cause, *fault.also} - TRUE_HERE
    assert others == set()


def test_half_of_the_workers_missing(bench: Bench) -> None:
    """Each of the hosts that are gone is named, and the rest is still checked."""
    for name in ("h2", "h3"):
        bench.lab[name].cut()
    try:
        checked = check(bench)
    finally:
        for name in ("h2", "h3"):
            bench.lab[name].heal()
    assert sorted(f.subject for f in checked.findings if f.severity == "error") == ["h2", "h3"]
    assert next(one for one in checked.judged if one.check.id == "python").outcome.state == "ok"
    assert (
        next(one for one in checked.judged if one.check.id == "ports").outcome.skipped
        == "fewer than two nodes answer"
    )


def test_nothing_stays_on_the_hosts(bench: Bench) -> None:
    """After a check no process of it is left in any host."""
    check(bench)
    for host in bench.lab.hosts:
        listing = host.run(["ps", "-eww", "-o", "args"]).stdout
        assert "longspan-old" not in listing  # stands in the argument of the program that was sent


def test_sixteen_hosts(make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """One session a host, however many pairs there are; all 240 ordered pairs are tried and pass. How long it takes is measured
    by benchmarks/check_seconds.py."""
    opened: list[str] = []
    real = SshHost.open

    def counted(host: SshHost, argv: Sequence[str]) -> Conversation:
        opened.append(host.name)
        return real(host, argv)

    monkeypatch.setattr(SshHost, "open", counted)
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root")}
    with make_lab([HostSpec(f"h{number}", f"eth{number}") for number in range(1, 17)], env=env) as many:
        monkeypatch.setenv("PATH", f"{many.bin}:{os.environ['PATH']}")
        nodes = {
            host.name: NodeSpec(host.name, host.address, 1, host.name, sys.executable) for host in many.hosts
        }
        checked = check(Bench(many, many.root, nodes))
    assert {finding.cause for finding in checked.findings} <= TRUE_HERE
    assert sorted(opened) == sorted(nodes)
    assert len(checked.scene.pairs) == 240
    assert all(not trial.error for pair in checked.scene.pairs for trial in pair.ports)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_collective_that_fails_names_its_node(bench: Bench) -> None:
    """A host whose Gloo is told to use a NIC that is not there: every pair with it fails, the others measure, it is named."""
    bench.change("h2", env={"GLOO_SOCKET_IFNAME": "eth9"})
    checked = check(bench, collective=True)
    outcome = next(one.outcome for one in checked.judged if one.check.id == "collective")
    (finding,) = outcome.findings
    assert (finding.subject, finding.cause) == ("h2", "collective-failed")
    assert "h2: eth9" in finding.remedy
    good = [group for group in checked.scene.groups if group.ok]
    assert [set(group.nodes) for group in good] == [{"h1", "h3"}]
    assert check_record.measured_links(checked.scene).keys() == {"h1", "h3"}

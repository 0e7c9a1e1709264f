"""The lab keeps its own promises: hosts that are apart, can be broken in stated ways, and leave nothing behind."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from lab.build import PROGRAMS, Lab, build_lab, leftovers, start_time, sweep
from lab.hosts import SSH_PORT, HostPopen, HostSpec, LabHost
from lab.network import bridges, namespaces

MakeLab = Callable[..., AbstractContextManager[Lab]]
pytestmark = pytest.mark.lab
# Long enough for a busy machine, short enough for a test that waits for silence.
SILENCE_SECONDS = 1.0


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts whose NICs have different names."""
    with make_lab([HostSpec("h1", nic="eth0"), HostSpec("h2", nic="ens7")], env={"LAB_SAYS": "a b"}) as built:
        yield built


def ssh(lab: Lab, host: str, command: str) -> str:
    """What a command says when it is run by ssh from the test machine."""
    argv = ["ssh", "-F", str(lab.ssh_config), host, command]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def reaches(source: LabHost, target: LabHost, timeout_seconds: float = 10) -> bool:
    """Whether a TCP connection from one host to the other's sshd is accepted in time."""
    code = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3]))"
    argv = [sys.executable, "-c", code, target.address, str(SSH_PORT), str(timeout_seconds)]
    return source.run(argv, check=False).returncode == 0


def test_ssh_reaches_each_host_by_name(lab: Lab) -> None:
    """ssh with the generated file arrives at the host that it names, as root, with the lab's environment."""
    for host in lab.hosts:
        said = ssh(lab, host.name, 'hostname; id -un; echo "$LAB_SAYS"; echo "$XDG_STATE_HOME"').splitlines()
        assert said == [host.name, "root", "a b", str(host.folder / "state")]


def test_ssh_from_path_and_between_hosts(lab: Lab) -> None:
    """The `ssh` in the lab's bin directory needs no option, on the test machine and from host to host."""
    wrapper = str(lab.bin / "ssh")
    assert lab["h1"].run([wrapper, "h2", "hostname"]).stdout.strip() == "h2"
    done = subprocess.run([wrapper, "h1", "hostname"], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "h1"


def test_ssh_refuses_without_the_key(lab: Lab) -> None:
    """Only the lab's key opens a host."""
    options = [option for option in lab.ssh_options(lab["h1"]) if not option.startswith("IdentityFile=")]
    options += [f"IdentityFile={lab.root / 'keys' / 'host-h2'}", "BatchMode=yes"]
    argv = ["ssh", "-F", "none", *(part for option in options for part in ("-o", option)), "h1", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 255
    assert "Permission denied" in done.stderr


def test_hosts_reach_each_other_and_the_test_machine(lab: Lab) -> None:
    """TCP works in both directions, and between a host and the test machine on the bridge."""
    first, second = lab.hosts
    assert reaches(first, second)
    assert reaches(second, first)
    with socket.create_server((lab.network.gateway, 0)) as server:
        code = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)"
        first.run([sys.executable, "-c", code, lab.network.gateway, str(server.getsockname()[1])])
        peer = server.accept()
        peer[0].close()
        assert peer[1][0] == first.address


def test_names_and_nics_differ(lab: Lab) -> None:
    """Each host has its own NIC name, host name and address, and resolves the others."""
    for host, nic in zip(lab.hosts, ("eth0", "ens7"), strict=True):
        assert f"inet {host.address}/24" in host.run(["ip", "-o", "address", "show", "dev", nic]).stdout
        assert host.run(["getent", "hosts", "h2"]).stdout.split() == [lab["h2"].address, "h2"]


def sleeping(host: LabHost) -> HostPopen:
    """A `sleep 1000` in a host; on a busy machine it takes a while until what starts it has become it."""
    sleeper = host.popen(["sh", "-c", "echo runs; exec sleep 1000"], stdout=subprocess.PIPE)
    assert sleeper.stdout is not None
    assert sleeper.stdout.readline() == b"runs\n"
    while not host.run(["pgrep", "-fx", "sleep 1000"], check=False).stdout:
        time.sleep(0.05)
    return sleeper


def test_hosts_do_not_see_each_others_processes(lab: Lab) -> None:
    """The process table of a host holds its own only."""
    first, second = lab.hosts
    sleeper = sleeping(first)
    try:
        assert "sleep 1000" not in second.run(["ps", "-eww", "-o", "args"]).stdout
        assert first.run(["pgrep", "-fx", "sleep 1000"]).stdout.strip()
        sleeper.terminate()
        assert sleeper.wait(timeout=10) == -signal.SIGTERM
    finally:
        sleeper.kill()
        sleeper.communicate(timeout=10)


def test_shared_memory_and_ray_directory_are_private(lab: Lab) -> None:
    """What one host writes to /dev/shm or /tmp/ray neither the other nor the test machine has under that path."""
    first, second = lab.hosts
    for folder in ("/dev/shm", "/tmp/ray"):
        path = f"{folder}/only-h1"
        first.run(["touch", path])
        assert second.run(["test", "-e", path], check=False).returncode == 1
        assert not Path(path).exists()
    assert (first.outside("/tmp/ray") / "only-h1").exists()


def test_own_copy_of_a_directory(lab: Lab, tmp_path: Path) -> None:
    """A host can hold another content under the same path; the others keep theirs."""
    (tmp_path / "weights").write_text("good")
    copy = lab["h2"].own_copy(tmp_path)
    (copy / "weights").write_text("bad")
    seen = [host.run(["cat", str(tmp_path / "weights")]).stdout for host in lab.hosts]
    assert seen == ["good", "bad"]


@pytest.mark.parametrize("silent", [False, True])
def test_cut_and_heal(lab: Lab, silent: bool) -> None:
    """A cut host is out of reach until it is healed; its NIC notices only when the cut is not silent."""
    first, second = lab.hosts
    second.cut(silent=silent)
    try:
        assert not reaches(first, second, SILENCE_SECONDS)
        state = second.run(["ip", "-o", "link", "show", "dev", second.spec.nic]).stdout
        assert ("NO-CARRIER" in state) is not silent
    finally:
        second.heal()
    assert reaches(first, second)


def test_block_one_port(lab: Lab) -> None:
    """A blocked port is silent, not refused, and others stay open."""
    first, second = lab.hosts
    second.block_tcp(SSH_PORT)
    try:
        assert not reaches(first, second, SILENCE_SECONDS)
        code = "import socket,sys; print(socket.socket().connect_ex((sys.argv[1], 9)))"
        refused = first.run([sys.executable, "-c", code, second.address]).stdout.strip()
        assert refused == "111"  # ECONNREFUSED: another port answers
    finally:
        second.unblock()
    assert reaches(first, second)


def test_freeze_and_thaw(lab: Lab) -> None:
    """Every process of a frozen host is stopped, and goes on after the thaw."""
    host = lab["h2"]
    sleeper = sleeping(host)
    try:
        host.freeze()
        states = [
            Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] for pid in host.processes()
        ]
        assert len(states) >= 3
        assert set(states) <= {"T", "Z"}
        host.thaw()
        assert ssh(lab, "h2", "echo awake") == "awake"
    finally:
        host.thaw()
        sleeper.kill()
        sleeper.communicate(timeout=10)


def test_kill_and_power_on(make_lab: MakeLab) -> None:
    """A killed host has no process and answers nothing; after power-on it is back with its private files."""
    with make_lab() as lab:
        first, second = lab.hosts
        second.run(["touch", "/tmp/ray/kept", "/dev/shm/lost"])
        sleeper = second.popen(["sleep", "1000"])
        second.kill()
        assert second.processes() == []
        assert sleeper.wait(timeout=10) != 0
        assert not reaches(first, second, SILENCE_SECONDS)
        second.power_on()
        assert reaches(first, second)
        assert second.run(["ls", "/tmp/ray", "/dev/shm"]).stdout.split() == ["/dev/shm:", "/tmp/ray:", "kept"]


def test_orphans_are_reaped(lab: Lab) -> None:
    """A daemon that ends in a host leaves no zombie behind."""
    host = lab["h1"]
    before = host.processes()
    host.run(["sh", "-c", "setsid sh -c 'sleep 0.1' & exit"])
    code = "import pathlib,time\nwhile any('Z' in p.read_text().rsplit(')', 1)[1][:3] or 'sleep' in p.read_text() for p in pathlib.Path('/proc').glob('[0-9]*/stat')): time.sleep(0.05)"
    host.run([sys.executable, "-c", code])
    assert set(host.processes()) <= set(before)


def test_two_labs_and_nothing_left(make_lab: MakeLab) -> None:
    """Two labs at once have different names and addresses; afterwards nothing of either is left, on errors too."""
    with make_lab([HostSpec("h1")]) as one, make_lab([HostSpec("h1")]) as two:
        assert one.network != two.network
        assert one.hosts[0].address != two.hosts[0].address
    assert leftovers(one) == leftovers(two) == []
    with pytest.raises(ZeroDivisionError), make_lab([HostSpec("h1")]) as broken:
        1 / 0  # noqa: B018
    assert leftovers(broken) == []


def test_sweep_removes_the_lab_of_a_killed_run(make_lab: MakeLab) -> None:
    """A test run that was killed cannot clean up; the next lab does, and touches no living lab."""
    code = "import lab.build, sys, time\nwith lab.build.build_lab([lab.build.HostSpec('h1')]) as b: print(b.network.bridge, b.root, flush=True); time.sleep(600)"
    run = subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    bridge, root = run.stdout.readline().split()
    with make_lab([HostSpec("h1")]) as living:
        sweep()
        assert bridge in bridges()
        run.kill()
        run.wait()
        run.stdout.close()
        sweep()
        assert bridge not in bridges()
        assert namespaces(bridge) == []
        assert not Path(root).exists()
        assert ssh(living, "h1", "hostname") == "h1"
    assert start_time(run.pid) == ""


def test_ci_installs_the_packages() -> None:
    """`.ci/run` installs every package that the skip message would ask for."""
    script = (Path(__file__).parent.parent / ".ci" / "run").read_text()
    assert [package for package in PROGRAMS.values() if package not in script] == []
    assert build_lab is not None

"""Faults that are made for real on lab hosts, each with what must be found."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab.build import Lab
from lab.hosts import SSH_PORT, LabHost
from lab.network import ip, nft
from longspan.deployment import NodeSpec, RayPorts

PORTS = RayPorts()
MODEL = "/srv/longspan-lab-model"


@dataclass(slots=True)
class Bench:
    """The lab and the nodes as a cluster file would name them; a fault changes one or the other."""

    lab: Lab
    folder: Path
    nodes: dict[str, NodeSpec] = field(default_factory=dict)

    def change(self, name: str, **changes: object) -> None:
        """Another value for a node of the cluster file."""
        self.nodes[name] = replace(self.nodes[name], **changes)  # type: ignore[arg-type]

    def python(self, name: str, script: str) -> None:
        """An interpreter of its own for a node: a shell script that ends with the real one."""
        path = self.folder / f"python-{name}-{time.monotonic_ns()}"
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        self.change(name, python=str(path))

    def ssh_alias(self, name: str, **options: str) -> None:
        """ssh reaches the node with other options."""
        alias = f"{name}-{time.monotonic_ns()}"
        host = self.lab[name]
        own = dict(option.split("=", 1) for option in self.lab.ssh_options(host)) | options
        lines = "\n  ".join(f"{key} {value}" for key, value in own.items())
        with self.lab.ssh_config.open("a") as file:
            file.write(f"Host {alias}\n  {lines}\n")
        self.change(name, ssh=alias)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done, and what must be found of which node.

    Attributes:
        also: further causes that may be found beside it, being true too.
    """

    name: str
    make: Callable[[Bench], AbstractContextManager[None]]
    cause: str
    node: str
    severity: str = "error"
    also: tuple[str, ...] = ()
    model: str | None = None


def host_state(
    make: Callable[[LabHost], object], undo: Callable[[LabHost], object], name: str = "h2"
) -> Callable[[Bench], AbstractContextManager[None]]:
    """A fault of the host itself."""

    @contextlib.contextmanager
    def fault(bench: Bench) -> Iterator[None]:
        host = bench.lab[name]
        make(host)
        try:
            yield
        finally:
            undo(host)

    return fault


def file_state(make: Callable[[Bench], object]) -> Callable[[Bench], AbstractContextManager[None]]:
    """A fault of the cluster file or of what it names; nothing is to be undone."""

    @contextlib.contextmanager
    def fault(bench: Bench) -> Iterator[None]:
        make(bench)
        yield

    return fault


def run(*argv: str) -> Callable[[LabHost], object]:
    """A command in the host, with ADDRESS and NIC for its own."""
    return lambda host: host.run([word.replace("NIC", host.spec.nic) for word in argv])


def firewall(*rules: str) -> Callable[[LabHost], object]:
    """Rules of the host's input chain; H1 stands for the first host's address."""

    def make(host: LabHost) -> None:
        first = host.network.address(1)
        commands = ["add table inet lab", "add chain inet lab input { type filter hook input priority 0; }"]
        nft(
            host.namespace,
            commands + [f"add rule inet lab input {rule.replace('H1', first)}" for rule in rules],
        )

    return make


def unblock(host: LabHost) -> None:
    """Removes the rules."""
    host.unblock()


@contextlib.contextmanager
def process(bench: Bench, name: str, argv: list[str]) -> Iterator[None]:
    """A process in a host while the check runs."""
    running = bench.lab[name].popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(1.5)
    try:
        yield
    finally:
        running.kill()
        running.wait()


@contextlib.contextmanager
def hosts_file(bench: Bench) -> Iterator[None]:
    """The Debian habit: the own name on 127.0.1.1."""
    path = bench.folder / "etc_hosts"
    path.write_text("127.0.0.1 localhost\n127.0.1.1 h2\n")
    bench.lab["h2"].run(["mount", "--bind", str(path), "/etc/hosts"])
    try:
        yield
    finally:
        bench.lab["h2"].run(["umount", "/etc/hosts"])


@contextlib.contextmanager
def twice(bench: Bench) -> Iterator[None]:
    """h3 carries h2's address too; it does not answer for it, so that h2 stays reachable."""
    host = bench.lab["h3"]
    host.run(["sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1"])
    host.run(["ip", "address", "add", f"{bench.lab['h2'].address}/32", "dev", "lo"])
    try:
        yield
    finally:
        host.run(["ip", "address", "delete", f"{bench.lab['h2'].address}/32", "dev", "lo"])
        host.run(["sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=0"])


@contextlib.contextmanager
def narrow(bench: Bench) -> Iterator[None]:
    """The switch's port to h2 takes smaller packets than the NICs send."""
    veth = bench.lab.network.veth(2)
    ip("link", "set", veth, "mtu", "1400")
    try:
        yield
    finally:
        ip("link", "set", veth, "mtu", "1500")


def wrong_key(bench: Bench) -> None:
    """A key that no host knows."""
    bench.ssh_alias("h2", IdentityFile=str(bench.lab.root / "keys" / "host-h1"))


def changed_host_key(bench: Bench) -> None:
    """known_hosts holds another key for the host."""
    known = bench.folder / "known_hosts"
    other = (bench.lab.root / "keys" / "host-h3.pub").read_text().strip()
    known.write_text(f"[{bench.lab['h2'].address}]:{SSH_PORT} {other}\n")
    bench.ssh_alias("h2", UserKnownHostsFile=str(known))


def other_ray(bench: Bench) -> None:
    """A Python that finds another Ray's metadata first."""
    info = bench.folder / "fake" / "ray-2.50.1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.50.1\n")
    bench.python("h2", f'PYTHONPATH={bench.folder / "fake"} exec {sys.executable} "$@"')


def wrong_clock(bench: Bench) -> None:
    """The node's Python reads a clock that is two minutes ahead."""
    code = "import sys, time; real = time.time; time.time = lambda: real() + 120; exec(sys.argv[2])"
    bench.python("h2", f"exec {sys.executable} -c '{code}' \"$@\"")


def low_limit(bench: Bench) -> None:
    """A hard limit of open files that Ray cannot live with."""
    bench.python("h2", f'ulimit -n 2048; exec {sys.executable} "$@"')


def no_engine(bench: Bench) -> None:
    """A Python without anything of ours."""
    bench.python("h2", f'exec {sys.executable} -I -S "$@"')


def on_one_node(bench: Bench) -> None:
    """The model lies on the first host only; the private directories of the others are empty."""
    for name in ("h1", "h3"):
        (bench.lab[name].outside(MODEL) / "m").mkdir(exist_ok=True)
        (bench.lab[name].outside(MODEL) / "m" / "config.json").write_text("{}")


def other_copy(bench: Bench) -> None:
    """h2's copy has another size."""
    on_one_node(bench)
    (bench.lab["h2"].outside(MODEL) / "m").mkdir(exist_ok=True)
    (bench.lab["h2"].outside(MODEL) / "m" / "config.json").write_text('{"other": 1}')


def no_route(host: LabHost) -> object:
    """A route that leads nowhere, to the first host."""
    return host.run(["ip", "route", "add", "unreachable", f"{host.network.address(1)}/32"])


def mend_route(host: LabHost) -> object:
    """Undoes `no_route`."""
    return host.run(["ip", "route", "delete", "unreachable", f"{host.network.address(1)}/32"])


SYN = "tcp flags & (syn | ack) == syn"
FAULTS = (
    Fault("unreachable", host_state(lambda host: host.cut(), lambda host: host.heal()), "host-unreachable", "h2"),
    Fault("frozen", host_state(lambda host: host.freeze(), lambda host: host.thaw()), "host-silent", "h2", also=("host-unreachable",)),
    Fault("wrong key", file_state(wrong_key), "ssh-key-refused", "h2"),
    Fault("host key changed", file_state(changed_host_key), "host-key-changed", "h2"),
    Fault("name unknown", file_state(lambda bench: bench.change("h2", ssh="nowhere.invalid")), "host-name-unknown", "h2"),
    Fault("no Python", file_state(lambda bench: bench.change("h2", python="/nowhere/python3")), "python-missing", "h2"),
    Fault("no engine", file_state(no_engine), "engine-missing", "h2"),
    Fault("other Ray", file_state(other_ray), "version-ray", "h2"),
    Fault("no route", host_state(no_route, mend_route), "route-missing", "h2", also=("port-blocked", "ephemeral-blocked")),
    Fault("NIC that is not there", file_state(lambda bench: bench.change("h2", env={"GLOO_SOCKET_IFNAME": "eth9"})), "nic-missing", "h2"),
    Fault("address of nobody", file_state(lambda bench: bench.change("h2", address=bench.lab.network.address(77))), "address-missing", "h2",
          also=("listen-failed", "port-blocked", "ephemeral-blocked", "route-missing", "route-other-source")),
    Fault("Ray's port blocked", host_state(firewall(f"tcp dport {PORTS.gcs} drop"), unblock), "port-blocked", "h2"),
    Fault("blocked in one direction", host_state(firewall(f"ip saddr H1 tcp dport 1024-65535 {SYN} drop"), unblock), "port-blocked", "h2"),
    Fault("ephemeral range blocked", host_state(firewall(f"tcp dport 32768-60999 {SYN} reject with tcp reset"), unblock), "ephemeral-blocked", "h2"),
    Fault("MTU on the way", narrow, "mtu-path", "h2", "warning", also=("data-stuck",)),
    Fault("clock off", file_state(wrong_clock), "clock-skew", "h2"),
    Fault("/dev/shm too small", host_state(run("mount", "-o", "remount,size=64m", "/dev/shm"), run("mount", "-o", "remount,size=50%", "/dev/shm")),
          "shm-too-small", "h2"),
    Fault("segments of a dead engine", host_state(run("touch", "-d", "1 hour ago", "/dev/shm/nccl-AbCdEf"), run("rm", "/dev/shm/nccl-AbCdEf")), "shm-stale", "h2", "warning"),
    Fault("ulimit low", file_state(low_limit), "ulimit-nofile", "h2"),
    Fault("model on one node only", file_state(on_one_node), "model-path-missing", "h2", model=f"{MODEL}/m"),
    Fault("another copy of the model", file_state(other_copy), "model-copies-differ", "h2", model=f"{MODEL}/m"),
    Fault("address twice", twice, "address-duplicate", "h2", also=("port-blocked",)),
    Fault("own name on 127.0.1.1", hosts_file, "hostname-loopback", "h2", "warning"),
    Fault("Ray's port taken", lambda bench: process(bench, "h2", [sys.executable, "-m", "http.server", str(PORTS.first + 20)]), "port-taken", "h2"),
    Fault("another Ray runs", lambda bench: process(bench, "h2", ["bash", "-c", "exec -a raylet sleep 600"]), "leftover-processes", "h2", "warning"),
    Fault("two entries, one machine", file_state(lambda bench: bench.change("h3", ssh="h2", address=bench.lab["h2"].address)), "same-machine", "h3",
          "warning", also=("address-duplicate", "port-blocked", "address-missing", "listen-failed")),
)  # fmt: skip

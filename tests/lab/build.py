"""Building a lab and taking it down without a trace."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.hosts import SSH_PORT, HostSpec, LabHost
from lab.network import (
    NETNS,
    Network,
    bridges,
    claim_network,
    links,
    namespaces,
    plug_in,
    processes,
    take_down,
)

# Program -> Debian package. `.ci/run` installs the packages (a test compares).
PROGRAMS = {
    "ip": "iproute2",
    "/usr/sbin/sshd": "openssh-server",
    "ssh": "openssh-client",
    "nft": "nftables",
    "nsenter": "util-linux",
    "mount": "mount",
}
OWNER = re.compile(r"longspan-lab pid=(\d+) start=(\d+) root=(\S+)")
ROOT_PREFIX = "longspan-lab-"


def why_no_lab() -> str:
    """Why this machine cannot have a lab and what would help; empty where it can."""
    if os.geteuid() != 0:
        return "the lab needs root for network namespaces: run `sudo make test`"
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    if missing:
        return f"the lab needs packages: apt-get install {' '.join(missing)}"
    if subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], check=False).returncode:
        return "this machine (a container?) does not allow namespaces: run the tests on a whole machine"
    return ""


@dataclass(frozen=True, slots=True)
class Lab:
    """Hosts on one bridge. The test machine itself is on it too, at `network.gateway`.

    Attributes:
        root: the lab's directory, removed at the end.
        ssh_config: a file for `ssh -F`, which knows each host by its name.
        bin: a directory for the front of PATH: its `ssh` uses that file, so that any program reaches the hosts.
    """

    network: Network
    root: Path
    hosts: tuple[LabHost, ...]

    @property
    def ssh_config(self) -> Path:
        """See the class."""
        return self.root / "ssh_config"

    @property
    def bin(self) -> Path:
        """See the class."""
        return self.root / "bin"

    def __getitem__(self, name: str) -> LabHost:
        return next(host for host in self.hosts if host.name == name)

    def ssh_options(self, host: LabHost) -> tuple[str, ...]:
        """The `-o` values that reach a host without the configuration file."""
        return (
            f"HostName={host.address}",
            f"Port={SSH_PORT}",
            "User=root",
            f"IdentityFile={self.root / 'keys' / 'client'}",
            "IdentitiesOnly=yes",
            f"UserKnownHostsFile={self.root / 'known_hosts'}",
            "StrictHostKeyChecking=yes",
            "LogLevel=ERROR",
        )


def start_time(pid: int) -> str:
    """The start time of a process in clock ticks, which tells it from a later one of the same id; "" if gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


def sweep() -> None:
    """Removes labs whose test run is gone (it was killed, so nothing could clean up)."""
    for bridge, alias in bridges().items():
        owner = OWNER.fullmatch(alias)
        if owner and start_time(int(owner[1])) != owner[2]:
            for namespace in namespaces(bridge):
                for pid in processes(namespace):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            take_down(bridge)
            if Path(owner[3]).name.startswith(ROOT_PREFIX):
                shutil.rmtree(owner[3], ignore_errors=True)


def leftovers(lab: Lab) -> list[str]:
    """What is still there of a lab that was taken down; empty is right."""
    bridge = lab.network.bridge
    found = [f"namespace {name}" for name in namespaces(bridge)]
    found += [f"link {name}" for name in links(bridge)]
    found += [f"directory {lab.root}"] if lab.root.exists() else []
    mounts = Path("/proc/self/mounts").read_text()
    found += [f"mount {line}" for line in mounts.splitlines() if str(lab.root) in line]
    return found


def _keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(path)], check=True)


def _write_ssh_files(lab: Lab) -> None:
    """Keys, known hosts, the client's configuration and the `ssh` that uses it."""
    blocks, known, names = [], [], ["127.0.0.1 localhost"]
    for host in lab.hosts:
        _keygen(lab.root / "keys" / f"host-{host.name}")
        public = (lab.root / "keys" / f"host-{host.name}.pub").read_text().strip()
        known.append(f"[{host.address}]:{SSH_PORT} {public}")
        lines = [option.replace("=", " ", 1) for option in lab.ssh_options(host)]
        blocks.append("\n  ".join([f"Host {host.name} {host.address}", *lines]))
        names.append(f"{host.address} {host.name}")
    (lab.root / "known_hosts").write_text("\n".join(known) + "\n")
    (lab.root / "etc_hosts").write_text("\n".join(names) + "\n")
    lab.ssh_config.write_text("\n".join(blocks) + "\n")
    for program in ("ssh", "scp"):
        real = shutil.which(program)
        assert real is not None
        wrapper = lab.bin / program
        wrapper.write_text(
            f'#!/bin/sh\nexec {shlex.quote(real)} -F {shlex.quote(str(lab.ssh_config))} "$@"\n'
        )
        wrapper.chmod(0o755)


def _make_mountpoints(specs: Sequence[HostSpec]) -> list[Path]:
    """Creates the private paths that do not exist here, since a mount needs a place; returns what was created."""
    created: list[Path] = []
    for path in sorted({Path(path) for spec in specs for path in spec.private}):
        missing = [part for part in [path, *path.parents] if not part.exists()]
        path.mkdir(parents=True, exist_ok=True)
        created += reversed(missing)
    return created


@contextlib.contextmanager
def build_lab(
    specs: Sequence[HostSpec] = (HostSpec("h1"), HostSpec("h2")), env: Mapping[str, str] | None = None
) -> Iterator[Lab]:
    """Builds the hosts and boots them; at the end nothing of them is left, which is checked.

    Call it in a thread that lives as long as the lab: the kernel ends the hosts with the thread that started them.

    Args:
        specs: the hosts, 1 to 32 of them.
        env: what is set for every command in a host, by ssh too.

    Raises:
        RuntimeError: a host did not come up, or something was left over.
    """
    assert 1 <= len(specs) <= 32
    sweep()
    root = Path(tempfile.mkdtemp(prefix=ROOT_PREFIX))
    created = _make_mountpoints(specs)
    network = claim_network(f"longspan-lab pid={os.getpid()} start={start_time(os.getpid())} root={root}")
    hosts = tuple(
        LabHost(
            spec, network, index, root / spec.name, root / "keys", root / "etc_hosts", env or {}
        )
        for index, spec in enumerate(specs, start=1)
    )  # fmt: skip
    lab = Lab(network, root, hosts)
    try:
        for folder in ("keys", "bin", *(spec.name for spec in specs)):
            (root / folder).mkdir()
        _keygen(root / "keys" / "client")
        _write_ssh_files(lab)
        for host in hosts:
            plug_in(network, host.index, host.spec.nic)
            host.boot()
        yield lab
    finally:
        _take_down(lab, created)
    if found := leftovers(lab):
        raise RuntimeError(f"the lab left behind: {found}")


def _take_down(lab: Lab, created: Sequence[Path]) -> None:
    for host in lab.hosts:
        if host.namespace in namespaces(lab.network.bridge):
            host.power_off()
    take_down(lab.network.bridge)
    shutil.rmtree(lab.root)
    if any(NETNS.glob("lsp*")):
        return  # another lab has them mounted over
    for path in reversed(created):
        with contextlib.suppress(OSError):
            path.rmdir()

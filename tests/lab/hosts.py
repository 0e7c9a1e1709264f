"""A lab host: what a test can do to it. Ids of processes are those of the test machine, not of the host's inside."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.network import Network, ip, nft, processes

SSH_PORT = 2222
INIT = Path(__file__).with_name("host_init.py")
NFT_TABLE = "inet lab"


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What is asked for.

    Attributes:
        name: its host name, which ssh and the other hosts know.
        nic: the name of its network interface; hosts may differ.
        private: directories of which the host has its own, empty at first, under the same path.
    """

    name: str
    nic: str = "eth0"
    private: tuple[str, ...] = ("/tmp/ray",)


class HostPopen(subprocess.Popen):
    """A command in a host. Signals go to the command, not to the nsenter that waits for it."""

    def send_signal(self, sig: int) -> None:
        """See `subprocess.Popen.send_signal`; `terminate` and `kill` use it too."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        with contextlib.suppress(OSError):
            inner = [int(pid) for pid in children.read_text().split()]
            for pid in inner:
                os.kill(pid, sig)
            if inner:
                return
        super().send_signal(sig)


@dataclass(slots=True)
class LabHost:
    """One host.

    Attributes:
        folder: the host's own files on the test machine: keys, logs, private directories.
        init: the process whose end is the end of all processes in the host; None while it is off.
    """

    spec: HostSpec
    network: Network
    index: int
    folder: Path
    ssh_keys: Path
    etc_hosts: Path
    env: Mapping[str, str]
    init: subprocess.Popen[str] | None = None
    copies: dict[str, Path] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its host name."""
        return self.spec.name

    @property
    def address(self) -> str:
        """Its address on the bridge."""
        return self.network.address(self.index)

    @property
    def namespace(self) -> str:
        """Its network namespace."""
        return self.network.namespace(self.index)

    def outside(self, path: str) -> Path:
        """Where the test machine finds what the host sees under one of its private paths."""
        if path in self.copies:
            return self.copies[path]
        return self.folder / "private" / path.strip("/").replace("/", "-")

    def environment(self) -> dict[str, str]:
        """What is set in the host for each command, by ssh too: state directories of its own."""
        own = {"XDG_RUNTIME_DIR": "/run/user/0", "XDG_STATE_HOME": str(self.folder / "state")}
        return {**own, **self.env}

    def boot(self) -> None:
        """Turns the host on and waits until sshd listens. The link must not be cut.

        Raises:
            RuntimeError: it did not come up; with what it said.
        """
        assert self.init is None
        for path in self.spec.private:
            self.outside(path).mkdir(parents=True, exist_ok=True)
        (self.folder / "state").mkdir(exist_ok=True)
        log = self.folder / "init.log"
        with log.open("a") as file:
            self.init = subprocess.Popen(
                [
                    # Should the test run be killed, the host goes with it.
                    "setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/run/netns/{self.namespace}",
                    "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc",
                    sys.executable, "-I", str(INIT), json.dumps(self._setup()),
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, text=True, cwd="/",
            )  # fmt: skip
        assert self.init.stdout is not None
        if self.init.stdout.readline() != "ready\n":
            self.power_off()
            raise RuntimeError(f"host {self.name} did not come up: {log.read_text()}")

    def _setup(self) -> dict[str, Any]:
        """The argument of host_init.py. Later mounts lie on top of earlier ones."""
        binds = {path: str(self.outside(path)) for path in self.spec.private}
        binds |= {path: str(copy) for path, copy in self.copies.items()}
        return {
            "name": self.name,
            "address": self.address,
            "port": SSH_PORT,
            "tmpfs": ["/dev/shm", "/run"],
            "binds": {**binds, "/etc/hosts": str(self.etc_hosts)},
            "sshd": ["/usr/sbin/sshd", "-D", "-e", "-f", str(self._sshd_config())],
        }

    def _sshd_config(self) -> Path:
        """Writes the configuration of the host's sshd: root by key only."""
        path = self.folder / "sshd_config"
        values = " ".join(f'"{key}={value}"' for key, value in self.environment().items())
        path.write_text(
            f"Port {SSH_PORT}\nListenAddress {self.address}\n"
            f"HostKey {self.ssh_keys / f'host-{self.name}'}\nPidFile none\n"
            f"AuthorizedKeysFile {self.ssh_keys / 'client.pub'}\n"
            # The lab's directory lies below a world-writable one.
            "StrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nMaxStartups 100\nSetEnv {values}\n"
            "Subsystem sftp internal-sftp\n"
        )
        return path

    def inside(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
        """The command line that runs `argv` in the host's namespaces."""
        assert self.init is not None, f"{self.name} is off"
        words = [f"{key}={value}" for key, value in {**self.environment(), **(env or {})}.items()]
        return [
            "nsenter", "--target", str(self.init_pid()), "--net", "--uts", "--ipc", "--mount", "--pid", "--",
            "setpriv", "--pdeathsig", "KILL", "env", *words, *argv,
        ]  # fmt: skip

    def init_pid(self) -> int:
        """Process 1 of the host, as the test machine counts."""
        assert self.init is not None, f"{self.name} is off"
        return int(Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text().split()[0])

    def popen(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> HostPopen:
        """Starts a command in the host; `options` are those of `subprocess.Popen`."""
        return HostPopen(self.inside(argv, env), **options)

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float = 60,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in the host to its end.

        Raises:
            RuntimeError: it failed and `check` is set; with its own words.
        """
        done = subprocess.run(
            self.inside(argv, env),
            capture_output=True, text=True, timeout=timeout_seconds, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise RuntimeError(f"{shlex.join(argv)} on {self.name}: {done.returncode}: {done.stderr.strip()}")
        return done

    def own_copy(self, path: Path) -> Path:
        """Gives the host a copy of a directory of its own under the same path; it outlasts a power cycle.

        Returns:
            where the test machine reaches the copy, to change it.
        """
        copy = self.folder / "copies" / path.name
        shutil.copytree(path, copy)
        self.copies[str(path)] = copy
        self.run(["mount", "--bind", str(copy), str(path)])
        return copy

    def cut(self, *, silent: bool = False) -> None:
        """Takes the host off the network. The NIC loses its carrier, unless `silent`: then it only hears nothing."""
        veth = self.network.veth(self.index)
        ip("link", "set", veth, *(["nomaster"] if silent else ["down"]))

    def heal(self) -> None:
        """Undoes `cut`, whichever it was."""
        ip("link", "set", self.network.veth(self.index), "master", self.network.bridge, "up")

    def block_tcp(self, port: int) -> None:
        """Drops what comes in to a TCP port, as a firewall does: no answer at all."""
        chain = "{ type filter hook input priority 0; }"
        nft(
            self.namespace,
            [
                f"add table {NFT_TABLE}",
                f"add chain {NFT_TABLE} input {chain}",
                f"add rule {NFT_TABLE} input tcp dport {port} drop",
            ],
        )

    def unblock(self) -> None:
        """Removes every rule that `block_tcp` set."""
        nft(self.namespace, [f"add table {NFT_TABLE}", f"delete table {NFT_TABLE}"])

    def processes(self) -> list[int]:
        """Every process in the host, the lab's own (init, sshd, waiting nsenters) included."""
        return processes(self.namespace)

    def _signal_all(self, sig: int) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)

    def freeze(self) -> None:
        """Stops every process, and waits until each has: a signal sent is not yet a process stopped, and one that
        forks at that moment leaves a child that heard nothing. The kernel still answers for the host.

        Raises:
            RuntimeError: one went on for ten seconds.
        """
        for _ in range(1000):
            self._signal_all(signal.SIGSTOP)
            if all(state in "TZ" for state in self._states().values()):
                return
            time.sleep(0.01)
        raise RuntimeError(f"{self.name} does not freeze: {self._states()}")

    def thaw(self) -> None:
        """Undoes `freeze`."""
        self._signal_all(signal.SIGCONT)

    def kill(self) -> None:
        """Pulls the plug: the link first, so that peers hear no closing packet, then every process at once."""
        self.cut()
        self.power_off()

    def power_off(self) -> None:
        """Kills every process of the host and waits until none is left.

        Raises:
            RuntimeError: one could not be killed within ten seconds.
        """
        for _ in range(200):
            self._signal_all(signal.SIGKILL)
            if self.init is not None:
                self.init.poll()
            if not self._alive():
                break
            time.sleep(0.05)
        else:
            raise RuntimeError(f"{self.name} still has processes: {self.processes()}")
        if self.init is not None:
            self.init.wait()
            if self.init.stdout is not None:
                self.init.stdout.close()
        self.init = None

    def _alive(self) -> list[int]:
        """Its processes without those that only wait for the test to collect them (zombies)."""
        return [pid for pid, state in self._states().items() if state != "Z"]

    def _states(self) -> dict[int, str]:
        """The state of every process, as the kernel writes it (proc_pid_stat(5)): R, S, D, T, Z."""
        found = {}
        for pid in self.processes():
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return found

    def power_on(self) -> None:
        """Boots it again after `kill` or `power_off`, with its private directories as they were."""
        self.heal()
        self.boot()

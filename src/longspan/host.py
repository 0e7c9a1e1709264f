"""The only door to subprocesses and SSH. Everything above asks a `Host` to run an argv and reads a `Completed`."""

import contextlib
import os
import queue
import shlex
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from longspan.errors import HostError


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command left: its exit status and its text."""

    returncode: int
    stdout: str
    stderr: str


class Conversation:
    """One command that stays, spoken to line by line. It must end when its standard input ends.

    Attributes:
        errors: the last lines of its standard error.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Starts it; `env` is its whole environment, by default ours.

        Raises:
            HostError: the program does not exist.
        """
        try:
            self._child = subprocess.Popen(
                list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=None if env is None else dict(env),
            )  # fmt: skip
        except FileNotFoundError as error:
            raise HostError(f"{argv[0]!r} is not installed on this machine.") from error
        self.errors: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._threads = [threading.Thread(target=job, daemon=True) for job in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.put(line.decode(errors="replace").rstrip("\n"))
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self.errors.append(line.decode(errors="replace").rstrip())
            del self.errors[:-100]

    def send(self, line: str) -> None:
        """One line to its standard input; a command that is gone is noticed by `receive`."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.write(line.encode() + b"\n")
            self._child.stdin.flush()

    def receive(self, timeout_seconds: float) -> str | None:
        """The next line of its standard output, without the newline; None once it has ended.

        Raises:
            TimeoutError: no line came in time.
        """
        try:
            line = self._lines.get(timeout=timeout_seconds)
        except queue.Empty:
            raise TimeoutError from None
        if line is None:
            self._lines.put(None)
            self._threads[1].join(5)
        return line

    def close(self, grace_seconds: float = 3) -> int:
        """Ends its input, waits, then ends the command; returns its exit status (negative: the signal)."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self._child.kill()
        status = self._child.wait()
        for thread, pipe in zip(self._threads, (self._child.stdout, self._child.stderr), strict=True):
            # What the command itself started may hold the pipe open; its reader then stays behind as a daemon.
            thread.join(1)
            if pipe is not None and not thread.is_alive():
                pipe.close()
        return status


class Host(Protocol):
    """A machine that runs commands."""

    @property
    def name(self) -> str:
        """How people call it."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = 30,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Completed:
        """Runs one command to its end. A command that fails is no error here; one that cannot run is.

        Raises:
            HostError: the host cannot be reached, the program does not exist, or the time ran out.
        """
        ...

    def open(self, argv: Sequence[str]) -> Conversation:
        """Starts a command and stays in touch with it.

        Raises:
            HostError: what reaches the host (ssh) is not installed here.
        """
        ...


def _with(env: Mapping[str, str] | None, argv: Sequence[str]) -> list[str]:
    """The command with these variables in its environment, where only words can be handed over."""
    words = [f"{key}={value}" for key, value in (env or {}).items()]
    return ["env", *words, *argv] if words else list(argv)


def _run(
    name: str, argv: Sequence[str], timeout_seconds: float, env: Mapping[str, str] | None, stdin: str | None
) -> Completed:
    """`env` is the whole environment; None for ours."""
    try:
        done = subprocess.run(
            list(argv),
            capture_output=True,
            timeout=timeout_seconds,
            env=env,
            input=None if stdin is None else stdin.encode(),
            stdin=subprocess.DEVNULL if stdin is None else None,
            check=False,
        )
    except FileNotFoundError as error:
        raise HostError(f"{argv[0]!r} is not installed on {name}.") from error
    except subprocess.TimeoutExpired as error:
        raise HostError(f"{argv[0]!r} on {name} did not end within {timeout_seconds:.0f} s.") from error
    return Completed(
        done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )


def available_memory_bytes() -> int:
    """What this machine can give without swapping: MemAvailable of /proc/meminfo, 0 where there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def gpu_kind() -> Literal["cpu", "cuda", "rocm"]:
    """Whose GPUs this machine has, as vLLM calls their platforms; "cpu" where it has none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True)
        if listed.stdout.startswith("GPU "):
            return "cuda"
    return "rocm" if Path("/dev/kfd").exists() else "cpu"  # the ROCm kernel driver


@dataclass(frozen=True, slots=True)
class LocalHost:
    """This machine."""

    name: str = "localhost"

    def argv(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
        """The command line as it is run here."""
        return _with(env, argv)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = 30,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Completed:
        """See `Host.run`."""
        whole = None if env is None else {**os.environ, **env}
        return _run(self.name, argv, timeout_seconds, whole, stdin)

    def open(self, argv: Sequence[str]) -> Conversation:
        """See `Host.open`."""
        return Conversation(argv)


@dataclass(frozen=True, slots=True)
class SshHost:
    """A machine behind the system's `ssh`, so that the user's configuration, agent and jump hosts work.

    Attributes:
        target: what one would type after `ssh`: an alias, a host or user@host.
        options: further `-o` values, such as `IdentityFile=…`.
    """

    name: str
    target: str
    options: tuple[str, ...] = ()

    def argv(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
        """The ssh command line; every word is quoted, since the far side's shell splits it again."""
        remote = shlex.join(_with(env, argv))
        options = [part for option in self.options for part in ("-o", option)]
        return ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", *options, "--", self.target, remote]

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = 30,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Completed:
        """See `Host.run`. ssh's own failures (status 255) are told apart from the command's."""
        done = _run(self.name, self.argv(argv, env), timeout_seconds, None, stdin)
        if done.returncode == 255:
            reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
            raise HostError(
                f"{self.name} cannot be reached: {reason[0]}", f"Try `ssh {self.target} true` until it works."
            )
        return done

    def open(self, argv: Sequence[str]) -> Conversation:
        """See `Host.open`. A host that falls silent is noticed within half a minute."""
        words = self.argv(argv)
        return Conversation(
            [words[0], "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3", *words[1:]]
        )


@dataclass(frozen=True, slots=True)
class SlurmHost:
    """A node of a Slurm allocation, reached by a job step of one task (`cluster.slurm` makes the words).

    Attributes:
        step_words: srun and its options, up to the command.
        env: the whole environment of srun, which hands it on.
    """

    name: str
    step_words: tuple[str, ...]
    env: Mapping[str, str]

    def argv(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
        """The srun command line; no shell splits it again."""
        return [*self.step_words, *_with(env, argv)]

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = 30,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Completed:
        """See `Host.run`."""
        return _run(self.name, self.argv(argv, env), timeout_seconds, self.env, stdin)

    def open(self, argv: Sequence[str]) -> Conversation:
        """See `Host.open`: a job step as long as the conversation."""
        return Conversation(self.argv(argv), self.env)


@dataclass(slots=True)
class RecordedHost:
    """A stand-in for tests: answers with recorded output and remembers what was asked."""

    name: str
    answers: dict[tuple[str, ...], Completed]
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = 30,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Completed:
        """Looks the command up; one that was not recorded is a program that is not installed."""
        self.asked.append(tuple(argv))
        try:
            return self.answers[tuple(argv)]
        except KeyError:
            raise HostError(f"{argv[0]!r} is not installed on {self.name}.") from None

    def open(self, argv: Sequence[str]) -> Conversation:
        """Nothing was recorded of it."""
        raise HostError(f"{argv[0]!r} is not installed on {self.name}.")


def feed(
    name: str,
    argv: Sequence[str],
    chunks: Iterable[bytes],
    *,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float = 60,
) -> Completed:
    """Runs a command and writes `chunks` to its standard input as fast as it takes them.

    Args:
        timeout_seconds: for the command to end once it has all.

    Raises:
        HostError: it cannot be run, or does not end. What `chunks` raises; the command is killed then.
    """
    try:
        child = subprocess.Popen(
            list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=None if env is None else dict(env)
        )  # fmt: skip
    except OSError as error:
        raise HostError(f"{argv[0]!r} cannot be run for {name}: {error.strerror}.") from error
    assert child.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # it ended early: its status and words say why
            for chunk in chunks:
                child.stdin.write(chunk)
        out, err = child.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired as error:
        raise HostError(f"{argv[0]!r} for {name} did not end within {timeout_seconds:.0f} s.") from error
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    return Completed(child.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

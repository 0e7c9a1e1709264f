"""The same Python environment on every node, from one lock: wheels fetched once here, copied, installed without an index."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

import longspan
from longspan import __version__
from longspan.cli import stage_show
from longspan.cli.stage_copy import Progress, Reached, listing, shell, sources
from longspan.cli.stage_spread import send_all
from longspan.cluster.hosts import HostEntry
from longspan.errors import InputError, StageError
from longspan.host import LocalHost
from longspan.launch.staging import plan_node

INSTALL_TIMEOUT_SECONDS = 1800.0
_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]*\])?\s*(==|@)\s*\S+.*")
# What decides whether a wheel fits: printed by each node's interpreter.
PLATFORM = "import platform, sys; print(platform.machine(), *sys.version_info[:2], sys.implementation.name, platform.libc_ver()[0])"
# Arguments: the interpreter, the environment, the wheels, the lock's digest. The stamp makes a second run a glance.
INSTALL = (
    'd=$2; case $d in "~/"*) d=$HOME/${d#"~/"};; esac; w=$3; case $w in "~/"*) w=$HOME/${w#"~/"};; esac; [ "$(cat "$d/longspan-lock" 2>/dev/null)" = "$4" ] && { echo "$d"; exit 0; };'
    ' "$1" -m venv "$d" >&2 && rm -f "$d/longspan-lock" && "$d/bin/python" -m pip --disable-pip-version-check --quiet install'
    ' --no-index --no-deps --find-links "$w" -r "$w/lock.txt" >&2 && echo "$4" >"$d/longspan-lock" && echo "$d"'
)
# Names and versions, and the interpreter: what must be the same on all nodes.
FREEZE = (
    "import importlib.metadata as m, sys; print(sys.version.split()[0], *sorted({f'{d.name}=={d.version}' for d in"
    " m.distributions()}), sep='\\n')"
)


def read_lock(path: Path) -> list[str]:
    """The lock's requirements.

    Raises:
        InputError: it cannot be read, or does not name exact versions: it would resolve to something else tomorrow.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise InputError(f"--lock {path} cannot be read: {error.strerror}.") from error
    lines = [stripped for line in text.splitlines() if (stripped := re.sub(r"(^|\s)#.*", "", line).strip())]
    loose = [line for line in lines if not _PIN.fullmatch(line)]
    if loose or not lines:
        raise InputError(
            f"--lock {path} is no lock: {loose[0]!r} names no exact version."
            if loose
            else f"--lock {path} is empty.",
            "Make one: `pip freeze`, `pip-compile` or `uv pip compile` (without --generate-hashes).",
        )
    return lines


def stage(
    lock: Path, venv: str, entries: Sequence[HostEntry], hosts: dict[str, Reached], parallel: int
) -> dict[str, Any]:
    """Fetches, copies, installs, compares.

    Raises:
        InputError: the lock. StageError: a node of another platform, pip's own words, or environments that differ.
    """
    if venv.startswith("-") or not venv.startswith(("/", "~/")):
        raise InputError(f"--venv {venv!r} must be an absolute path or begin with ~/.")
    requirements = read_lock(lock)
    pythons = {entry.name: entry.python or "python3" for entry in entries}
    _same_platform(hosts, pythons)
    digest = hashlib.sha256("\n".join([*requirements, __version__, PLATFORM]).encode()).hexdigest()[:16]
    wheels = fetch(requirements, digest)
    place_of_wheels = f"~/.cache/longspan/wheels/{digest}"
    _copy(wheels, place_of_wheels, entries, hosts, parallel)
    click.echo(f"Installing into {venv} …", err=True)

    def install(name: str) -> str:
        words = (pythons[name], venv, place_of_wheels, digest)
        done = shell(hosts[name], INSTALL, *words, timeout_seconds=INSTALL_TIMEOUT_SECONDS)
        if done.returncode:
            raise StageError(
                f"pip on {name} failed: {done.stderr.strip()[-400:]}",
                "Its Python needs the venv module and pip.",
            )
        return done.stdout.strip().splitlines()[-1]

    with ThreadPoolExecutor(parallel) as pool:
        places = dict(zip(hosts, pool.map(install, hosts), strict=True))
        frozen = dict(
            zip(hosts, pool.map(lambda name: _freeze(hosts[name], places[name]), hosts), strict=True)
        )
    _compare(frozen)
    place = next(iter(places.values()))
    click.echo(
        f'The same environment on {len(hosts)} nodes: write python = "{place}/bin/python" into the cluster file.',
        err=True,
    )
    return {"venv": places, "packages": len(next(iter(frozen.values()))) - 1, "lock": digest}


def _same_platform(hosts: dict[str, Reached], pythons: dict[str, str]) -> None:
    """Wheels are fetched by this machine's pip, for machines like it."""
    done = LocalHost().run([sys.executable, "-c", PLATFORM])
    for name, host in hosts.items():
        there = host.run([pythons[name], "-c", PLATFORM])
        if there.returncode:
            raise StageError(
                f"{pythons[name]} on {name} does not run: {there.stderr.strip()[-200:]}",
                "Set python = … in the cluster file.",
            )
        if there.stdout != done.stdout:
            raise StageError(
                f"{name} has {there.stdout.strip()} (machine, Python, C library), this machine has {done.stdout.strip()}:"
                " wheels that are fetched here do not fit there.",
                "Run `stage` on a machine like the nodes, or set python = … to the same version there.",
            )


def fetch(requirements: Sequence[str], digest: str) -> Path:
    """A directory with a wheel for each requirement and for Longspan itself; what is sdist only is built here, once.

    Raises:
        StageError: pip's own words.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longspan" / "wheels" / digest
    if (cache / "complete").exists():
        return cache
    cache.mkdir(parents=True, exist_ok=True)
    click.echo(f"Fetching {len(requirements)} packages …", err=True)
    own = [] if any(re.match(r"longspan\b", line) for line in requirements) else [_own_source()]
    (cache / "wanted.txt").write_text("\n".join([*requirements, *own]) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(cache),
         "-r", str(cache / "wanted.txt")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise StageError(f"pip could not fetch the lock: {done.stderr.strip()[-400:]}")
    plain = [line.split("@", 1)[0].strip() if " @ " in line else line for line in requirements]
    (cache / "lock.txt").write_text("\n".join([*plain, *(["longspan"] if own else [])]) + "\n")
    (cache / "complete").touch()
    return cache


def _own_source() -> str:
    """What pip takes for this Longspan: its checkout where it runs from one, else its version."""
    root = Path(longspan.__file__).parents[2]
    return str(root) if (root / "pyproject.toml").exists() else f"longspan=={__version__}"


def _copy(
    wheels: Path, target: str, entries: Sequence[HostEntry], hosts: dict[str, Reached], parallel: int
) -> None:
    """Over ssh only: this is code that will run, and no digest looks at it on the nodes."""
    files = sources(wheels, lambda path: [*sorted(path.glob("*.whl")), path / "lock.txt"])
    here = listing(LocalHost("this machine"), str(wheels))
    plans = [plan_node(name, listing(host, target), files, here) for name, host in hosts.items()]
    progress = Progress({plan.node: plan.left_bytes for plan in plans})
    with stage_show.shown(progress):
        errors = send_all(wheels, plans, entries, hosts, progress, streams=parallel, are_copies_trusted=False)
    if errors:
        raise errors[0]


def _freeze(host: Reached, place: str) -> tuple[str, ...]:
    done = host.run([f"{place}/bin/python", "-c", FREEZE], timeout_seconds=120)
    if done.returncode:
        raise StageError(f"The environment on {host.name} does not run: {done.stderr.strip()[-200:]}")
    return tuple(done.stdout.split())


def _compare(frozen: dict[str, tuple[str, ...]]) -> None:
    first, *others = frozen
    for name in others:
        if differing := sorted(set(frozen[first]) ^ set(frozen[name])):
            raise StageError(
                f"{first} and {name} differ after the installation: {', '.join(differing[:5])}.",
                "Remove the environment on both and stage again.",
            )

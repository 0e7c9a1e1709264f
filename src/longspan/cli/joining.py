"""Reading a cluster file, and asking a Ray that already runs who is in it and what was reserved there."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from longspan.cluster.hosts import HostsFile, parse_hosts
from longspan.daemon.places import Places
from longspan.errors import InputError, RayError
from longspan.preflight.scene import Reservation


def read_cluster(path: Path) -> HostsFile:
    """The cluster file.

    Raises:
        InputError: it cannot be read, or is wrong.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    return parse_hosts(text, str(path))


def probe_ray(address: str) -> list[dict[str, Any]]:
    """The live nodes of a running Ray, head first.

    Raises:
        RayError: see `ask_ray`.
    """
    nodes: list[dict[str, Any]] = ask_ray("probe", address)["nodes"]
    return sorted(nodes, key=lambda node: (not node["head"], node["address"]))


def reservations_in(address: str) -> tuple[Reservation, ...] | None:
    """What Longspan's deployments hold in a running Ray; None where it does not say."""
    try:
        found = ask_ray("groups", address)["groups"]
    except RayError:
        return None  # who is in it was asked first, and that said why
    return tuple(_reservation(group, address) for group in found)


def _reservation(group: dict[str, Any], address: str) -> Reservation:
    named = re.fullmatch(r"longspan-(.+)-r\d+(?:-\d+)?", group["name"])
    deployment = named[1] if named else group["name"]
    try:
        controlled = Places.of(deployment).running() is not None
    except InputError:  # no name that `up` takes
        controlled = False
    argv = [sys.executable, "-m", "longspan.launch.ray_join", "release", address, group["name"]]
    return Reservation(
        group["name"], deployment, group["gpus"], tuple(group["nodes"]), group["driver"], group["driver_lives"],
        controlled, shlex.join(argv),
    )  # fmt: skip


def ask_ray(verb: str, address: str, wanted: str = "") -> dict[str, Any]:
    """What `launch.ray_join` answers to `probe`, `groups` or `ask`, in a process of its own; `wanted` is its standard input.

    Raises:
        RayError: the cluster cannot be joined, with Ray's own reason (another version, wrong token, nobody there).
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "longspan.launch.ray_join", verb, address],
            input=wanted, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RayError(
            f"The Ray cluster at {address} has not answered for 120 s.",
            "`ray status` on its head shows whether it runs.",
        ) from error
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    mismatch = [
        line
        for line in lines
        if "ersion mismatch" in line or line.startswith(("Ray:", "Python:", "This process"))
    ]
    reason = " ".join(mismatch) if mismatch else (lines[-1] if lines else "no reason given")
    remedy = (
        "Install the same Ray and Python on this machine as the cluster has."
        if mismatch
        else "Run this on a machine of that cluster, with its RAY_AUTH_TOKEN_PATH if it uses tokens; `ray status` shows it."
    )
    raise RayError(f"The Ray cluster at {address} cannot be joined: {reason}", remedy)

"""`down` after a crash: what a start left on other hosts is ended there too, from the records on disk."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from lab.build import Lab
from lab.hosts import HostSpec
from longspan import errors
from longspan.daemon.places import Places, write_private
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.launch.words import MARK_VARIABLE

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
MARK = "default-crashed"


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., AbstractContextManager[Lab]]) -> Iterator[Lab]:
    """Two hosts, the first of which holds no rank."""
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root")}
    with make_lab([HostSpec("h1"), HostSpec("h2")], env=env) as built:
        yield built


@pytest.fixture
def crashed(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """What is on disk of a deployment whose controller died."""
    monkeypatch.setenv("PATH", f"{lab.bin}:{os.environ['PATH']}")
    head, node = (
        NodeSpec(host.name, host.address, gpus, host.name, sys.executable)
        for gpus, host in enumerate(lab.hosts)
    )
    spec = DeploymentSpec(
        name="default", identity="i", model="/m", served_name="m", tp=1, pp=1, executor="ray", device="cpu", nodes=(node,),
        listen="127.0.0.1:8000", ray_head=head,
    )  # fmt: skip
    places = Places.of("default")
    write_private(places.spec, json.dumps({"spec": spec.to_json(), "controller_host": lab.network.gateway}))
    record = {
        "pid": 2**22 - 1, "start_ticks": 1, "url": "http://127.0.0.1:9", "key": "k", "mark": MARK, "identity": "i",
        "run_dir": str(tmp_path / "run"),
    }  # fmt: skip
    write_private(places.controller, json.dumps(record))
    return places


def left(lab: Lab) -> list[subprocess.Popen[str]]:
    """A process of that start on each host, and a stranger."""
    kinds: list[dict[str, Any]] = [
        {"env": {MARK_VARIABLE: MARK}},
        {"env": {MARK_VARIABLE: MARK}},
        {"env": {MARK_VARIABLE: "another"}},
    ]
    hosts = (*lab.hosts, lab["h2"])
    return [
        host.popen(["sleep", "600"], stdin=subprocess.DEVNULL, **kind)
        for host, kind in zip(hosts, kinds, strict=True)
    ]


def test_down_ends_what_is_left_on_every_host(
    lab: Lab, crashed: Places, longspan: Callable[..., Any]
) -> None:
    """The marked processes of both hosts end, the one of another start stays, and a second `down` finds nothing."""
    *ours, stranger = left(lab)
    try:
        said = longspan("down")
        assert said.code == 0, said.out + said.err
        for process in ours:
            process.wait(30)
        assert stranger.poll() is None
        assert not crashed.controller.exists()
        assert "nothing was running" in longspan("down").out
    finally:
        for process in (*ours, stranger):
            process.kill()
            process.wait()


def test_a_host_that_is_gone_is_said(lab: Lab, crashed: Places, longspan: Callable[..., Any]) -> None:
    """The others are swept, the lost one is named, and the exit code says that something may be left."""
    first, second, stranger = left(lab)
    lab["h2"].cut()
    try:
        said = longspan("down")
        first.wait(30)
    finally:
        lab["h2"].heal()
        for process in (first, second, stranger):
            process.kill()
            process.wait()
    assert said.code == errors.ControlPlaneError.exit_code
    assert "h2 could not be swept" in said.out

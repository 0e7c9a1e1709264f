"""What `bench` knows of an endpoint: everything of a deployment of this machine, of others what they tell."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from longspan.bench.job import Target
from longspan.cli import bench_around, control
from longspan.daemon.places import Places, write_private

STATUS: dict[str, Any] = {
    "endpoint": "http://127.0.0.1:8000/v1", "model": "/m", "served_name": "m",
    "layout": {"tp": 1, "pp": 2, "executor": "ray", "device": "cpu"},
    "ranks": [{"rank": 0, "planned_node": "a", "gpu": None}], "replicas": [{"name": "r0"}, {"name": "r1"}],
    "nodes": [{"name": "a", "environment": {"NCCL_SOCKET_IFNAME": "eth0"}, "facts": {"vllm": "0.32.0", "checkpoint": "c1"}}],
}  # fmt: skip


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> Places:
    """A deployment called "t" that runs, as its files and its controller tell."""
    places = Places.of("t")
    spec = {"vllm_arguments": ["--max-num-seqs", "8"], "gateway_extra": "[overflow]\n"}
    write_private(places.spec, json.dumps({"spec": spec}))
    write_private(places.gateway_config, 'listen = "127.0.0.1:8000"\nmax_running = 8\n')
    monkeypatch.setattr(
        Places, "running", lambda self: {"url": "http://x"} if self.root == places.root else None
    )
    monkeypatch.setattr(control, "request", lambda record, path: STATUS)
    return places


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_deployment_of_this_machine_is_known_whole(deployed: Places, host: str) -> None:
    """By its endpoint; what the gateway was given counts, its addresses and keys do not."""
    found = bench_around.conditions(Target(host, 8000), "m")
    assert (found["model/checkpoint"], found["engine/version"], found["layout/replicas"]) == (
        "c1",
        "0.32.0",
        2,
    )
    assert found["engine/argument/max-num-seqs"] == "8"
    assert found["node/a/NCCL_SOCKET_IFNAME"] == "eth0"
    digest = hashlib.sha256(b"max_running = 8\n[overflow]\n").hexdigest()[:16]
    assert found["gateway/configuration"] == digest
    deployed.gateway_config.write_text('listen = "127.0.0.1:9"\nmax_running = 8\n')
    assert bench_around.conditions(Target(host, 8000), "m")["gateway/configuration"] == digest


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 9), ("203.0.113.1", 8000)])
def test_another_endpoint_is_not_taken_for_it(
    deployed: Places, monkeypatch: pytest.MonkeyPatch, host: str, port: int
) -> None:
    """The same port on another host is somebody else; what it does not tell is unknown."""
    monkeypatch.setattr(bench_around.probe, "ask", lambda *_, **__: (404, b""))
    found = bench_around.conditions(Target(host, port), "m")
    assert (found["model/checkpoint"], found["engine/version"], found["layout/rank_map"]) == (
        None,
        None,
        None,
    )


def test_no_deployment_at_all(tmp_path: Path) -> None:
    """Without a state directory there is none."""
    assert bench_around.deployment_at(Target("127.0.0.1", 8000)) is None

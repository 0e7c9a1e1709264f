"""`longspan audit` as a user calls it, over a deployment whose controller and engine a test plays."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from longspan.cli import audit_gather, control
from longspan.daemon.places import Places, write_private
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.errors import AuditError, InputError, NoDeploymentError

TARGETS = [
    {"labels": {"part": part, "__metrics_path__": path}}
    for part, path in {"nodes": "/metrics", "r0": "/v1/metrics/r0", "gateway": "/v1/metrics/gateway"}.items()
]
INFLIGHT = 'longspan_gateway_replica_inflight{replica="r0"} 0\n'
METRICS = 'vllm:request_prompt_tokens_bucket{le="+Inf"} 3\nvllm:request_prompt_tokens_count 3\nvllm:num_preemptions_total 1\n'


@pytest.fixture
def server() -> Iterator[int]:
    """Plays gateway, engine and the controller's metrics: asks for a key, and tells who has one."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            key = self.headers["Authorization"] == "Bearer engine"
            told = {
                "/metrics": METRICS, "/v1/metrics/r0": METRICS, "/v1/metrics/gateway": INFLIGHT, "/v1/sd": json.dumps(TARGETS),
            }  # fmt: skip
            body = told.get(self.path, json.dumps({"data": [{"max_model_len": 64}]})).encode()
            self.send_response(200 if key else 401)
            self.send_header("Content-Length", str(len(body) if key else 0))
            self.end_headers()
            self.wfile.write(body if key else b"")

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.daemon_threads = True
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found.server_port
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def deployment(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A deployment on this machine that serves a model with a card."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Model\n")
    places = Places.of("default")
    node = NodeSpec("node-1", "127.0.0.2", 2, python=sys.executable)
    spec = DeploymentSpec(
        "default", "id", str(tmp_path / "model"), "m", 2, 1, "ray", "cpu", (node,), f"127.0.0.1:{server}"
    )
    write_private(places.spec, json.dumps({"spec": spec.to_json()}))
    write_private(places.api_key, "lsp_k")
    write_private(places.engine_key, "engine")
    write_private(places.root / "metrics-key", "engine")
    write_private(
        places.gateway_config, f'listen = "x"\n[[replicas]]\nname = "r0"\nurl = "http://127.0.0.1:{server}"\n'
    )
    status = {
        "phase": "serving", "proof": {"verdict": "partly verified", "layers": [{"name": "reference", "state": "skipped", "seen": "no GPU is free"}]},
        "nodes": [{"name": "node-1", "facts": {"python": "3.11", "ray": "2", "vllm": "1"}}],
    }  # fmt: skip
    monkeypatch.setattr(
        Places, "running", lambda self: {"mark": "nobody's", "url": f"http://127.0.0.1:{server}"}
    )
    monkeypatch.setattr(control, "request", lambda record, path: status)
    return places


def test_the_audit_of_a_deployment(longspan: Callable[..., Any], deployment: Places) -> None:
    """Gathers from files, gateway, engine and node; what a warning found is no failure unless --strict."""
    said = longspan("audit", "--json")
    assert said.code == 0, said.err
    states = {row["rule"]: row["state"] for row in said.document["rules"]}
    assert states == {
        "serving": "failed", "versions-equal": "passed", "keys": "passed", "open-ports": "skipped", "dashboard": "skipped",
        "secrets": "skipped", "tls": "passed", "slow-links": "passed", "memory-fits": "failed", "context-fits": "skipped",
        "standby": "failed", "drain": "passed", "metrics": "passed", "licence": "passed",
    }  # fmt: skip
    assert longspan("audit", "--strict").code == AuditError.exit_code
    shown = longspan("audit")
    assert "info: The proof of default left out reference" in shown.out
    assert "One replica and nobody else" in shown.out
    assert "do:" in shown.out


def test_metrics_and_drain_are_asked_for(
    longspan: Callable[..., Any], deployment: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What gives no metrics is named, a replica that the gateway does not count cannot be drained, and a wrong key is no answer."""

    def rows() -> dict[str, Any]:
        return {row["rule"]: row for row in longspan("audit", "--json").document["rules"]}

    monkeypatch.setattr(f"{__name__}.INFLIGHT", 'longspan_gateway_replica_inflight{replica="other"} 0\n')
    assert rows()["drain"]["findings"][0]["subject"] == "r0"
    monkeypatch.setattr(f"{__name__}.TARGETS", TARGETS[:2])
    (gateway,) = rows()["metrics"]["findings"]
    assert gateway["subject"] == "gateway"
    write_private(deployment.root / "metrics-key", "another")
    found = rows()
    assert {found[rule]["state"] for rule in ("drain", "metrics")} == {"skipped"}
    assert "HTTP 401" in found["metrics"]["why"]


def test_an_error_fails_it(longspan: Callable[..., Any], deployment: Places) -> None:
    """A key file that others can read: exit code for CI, one document on standard output all the same."""
    deployment.api_key.chmod(0o644)
    said = longspan("audit", "--json")
    assert said.code == AuditError.exit_code
    (keys,) = [row for row in said.document["rules"] if row["rule"] == "keys"]
    assert "0644" in keys["findings"][0]["evidence"][0]["text"]
    assert longspan("audit").code == AuditError.exit_code


OPEN = """
from http.server import HTTPServer, BaseHTTPRequestHandler
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
server = HTTPServer(("0.0.0.0", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_what_a_node_shows_is_judged(longspan: Callable[..., Any], deployment: Places) -> None:
    """A process of the deployment that answers anyone, with a token in its environment, fails two rules by its own facts."""
    secret = "hf_" + "a" * 30
    env = {**os.environ, "LONGSPAN_MARK": "nobody's", "HF_TOKEN": secret}
    child = subprocess.Popen(
        [sys.executable, "-c", OPEN], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        said = longspan("audit", "--json")
    finally:
        child.kill()
        child.communicate()
    assert said.code == AuditError.exit_code
    rows = {row["rule"]: row for row in said.document["rules"]}
    (reached,) = rows["open-ports"]["findings"]
    assert (reached["subject"], reached["evidence"][0]["text"]) == (
        "node-1", f"0.0.0.0:{port} answered 200 without a key",
    )  # fmt: skip
    (told,) = rows["secrets"]["findings"]
    assert "environment (HF_TOKEN)" in told["summary"]
    assert rows["dashboard"]["state"] == "passed"
    assert secret not in said.out


def test_networks_come_from_the_file_only(tmp_path: Path) -> None:
    """A node whose network the file does not name has none here, whatever the planner assumes for it."""
    path = tmp_path / "hosts.toml"
    path.write_text(
        '[[node]]\nname = "a"\naddress = "10.0.0.1"\ngpus = "8x H100"\n'
        '[[node]]\nname = "b"\naddress = "10.0.0.2"\ngpus = "8x H100"\nnetwork = { kind = "ethernet", rate_gbit_per_second = 10 }\n'
    )
    unseen: dict[str, str] = {}
    assert audit_gather._networks(path, unseen) == {"b": "ethernet"}
    assert audit_gather._networks(None, unseen) == {}
    assert "networks" in unseen
    with pytest.raises(InputError):
        audit_gather._networks(tmp_path / "nowhere", unseen)


def test_nodes_that_only_ray_reaches(longspan: Callable[..., Any], deployment: Places) -> None:
    """A node of a joined Ray on another machine is not called looked at, and does not hide the others."""
    document = json.loads(deployment.spec.read_text())
    far = {**document["spec"]["nodes"][0], "name": "far", "address": "192.0.2.77", "gpus": 2}
    document["spec"] |= {
        "nodes": [*document["spec"]["nodes"], far],
        "pp": 2,
        "ray_address": "192.0.2.77:6379",
    }
    write_private(deployment.spec, json.dumps(document))
    (ports,) = [row for row in longspan("audit", "--json").document["rules"] if row["rule"] == "open-ports"]
    assert ports["state"] == "skipped"
    assert "far: reached by Ray only" in ports["why"]


def test_nothing_to_audit(longspan: Callable[..., Any]) -> None:
    """No deployment, no checklist."""
    assert longspan("audit").code == NoDeploymentError.exit_code

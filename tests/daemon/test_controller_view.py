"""The picture of a real controller and its real agents: telemetry comes, an agent that stops is missed and found again."""

import json
import os
import signal
from typing import Any

from click.testing import CliRunner
from real import wait_for
from test_controller import Deployed, deployed

from longspan.cli.logs import command as logs_verb
from longspan.cli.top import command as top_verb
from longspan.monitor.view import ClusterView, NodeView

__all__ = ["deployed"]  # a fixture


def picture(deployment: Deployed) -> ClusterView:
    """The controller's picture."""
    status, answer = deployment.request("/v1/view")
    assert status == 200
    return ClusterView.from_json(answer)


def nodes_up(deployment: Deployed) -> dict[str, NodeView]:
    """Both nodes, once their telemetry is fresh and has rates."""
    found = {node.name: node for node in picture(deployment).nodes}
    return (
        found
        if all(n.state == "up" and n.cpu_share is not None and n.processes for n in found.values())
        else {}
    )


def alarms(deployment: Deployed) -> set[str]:
    """The causes of the alarms that the status tells."""
    return {alarm["cause"] for alarm in deployment.request("/v1/status")[1]["alarms"]}


def test_nodes_are_seen_missed_and_found_again(deployed: Deployed) -> None:
    """Agents of both nodes are in the picture with their processes; one that is frozen becomes an alarm within seconds, its last
    figures stay with their age, and once it goes on all is well again. `top` and `logs` show the same."""
    deployed.start()
    nodes = wait_for(lambda: nodes_up(deployed))
    assert set(nodes) == {"n1", "n2"}
    agent = nodes["n2"].processes[0]
    assert agent.name == "agent"
    assert nodes["n2"].gpu_source
    assert nodes["n2"].ram_total_bytes
    assert abs(nodes["n2"].clock_skew_seconds or 0.0) < 5
    assert "node-silent" not in alarms(deployed)
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: "node-silent" in alarms(deployed))
        view = picture(deployed)
        frozen = next(node for node in view.nodes if node.name == "n2")
        assert frozen.state in {"late", "silent"}
        assert frozen.ram_total_bytes == nodes["n2"].ram_total_bytes
        assert any(event.kind == "alarm" and event.subject == "n2" for event in view.events)
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    wait_for(lambda: "node-silent" not in alarms(deployed) and nodes_up(deployed))
    shown = CliRunner().invoke(top_verb, ["--once", "--name", "t"], catch_exceptions=False)
    assert "n1" in shown.output
    wait_for(_ray_lines)
    assert deployed.request("/v1/down", body=b"")[0] == 200
    deployed.gone()
    after = CliRunner().invoke(logs_verb, ["n1", "--name", "t", "--json"], catch_exceptions=False)
    processes = {part["process"] for part in json.loads(after.output)["logs"]}
    assert {"agent", "ray"} <= processes


def _ray_lines() -> Any:
    found = CliRunner().invoke(logs_verb, ["n1", "--name", "t"])
    return "Ray runtime started." in found.output

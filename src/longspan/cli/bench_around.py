"""What is known of an endpoint beside what the client itself knows: of a deployment of this machine everything, else what it tells."""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from longspan.bench import gathered, probe
from longspan.bench.job import Target
from longspan.cli import control
from longspan.daemon.places import Places, state_root
from longspan.errors import BenchError, ControlPlaneError

TIMEOUT_SECONDS = 5


def conditions(target: Target, model: str) -> dict[str, Any]:
    """The lock of what answers at an address; what cannot be learned is None, said openly."""
    found = deployment_at(target)
    if found is None:
        models, version = _json(target, "/v1/models"), _json(target, "/version")
        return gathered.of_endpoint(models, version, _text(target, "/metrics"), model)
    places, status = found
    spec = json.loads(places.spec.read_text())["spec"]
    return {
        **gathered.of_deployment(status, spec),
        "layout/replicas": len(status["replicas"]),
        "gateway/configuration": _digest(places.gateway_config, spec.get("gateway_extra", "")),
    }


def deployment_at(target: Target) -> tuple[Places, dict[str, Any]] | None:
    """The deployment of this machine and user whose gateway answers there, with its status; None where there is none."""
    root = state_root()
    for directory in sorted(root.iterdir()) if root.is_dir() else ():
        places = Places(directory)
        if record := places.running():
            with contextlib.suppress(ControlPlaneError, OSError, LookupError):
                status = control.request(record, "/v1/status")
                host, _, port = (
                    str(status["endpoint"] or "").removeprefix("http://").partition("/v1")[0].rpartition(":")
                )
                if port == str(target.port) and target.host in {host.strip("[]"), "127.0.0.1", "localhost"}:
                    return places, status
    return None


def _digest(path: Path, extra: str) -> str | None:
    """Of what the operator gave the gateway, and of its queue limits; addresses and keys are new at each start."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    kept = [line for line in lines if line.startswith("max_running")]
    return hashlib.sha256("\n".join([*kept, extra]).encode()).hexdigest()[:16]


def _text(target: Target, path: str) -> str:
    """What is told there; empty where it is not."""
    try:
        status, content = probe.ask(target, "GET", path, seconds=TIMEOUT_SECONDS)
    except BenchError:
        return ""
    return content.decode("utf-8", "replace") if status == 200 else ""


def _json(target: Target, path: str) -> dict[str, Any] | None:
    try:
        found = json.loads(_text(target, path))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None

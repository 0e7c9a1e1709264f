"""Gathers what `longspan audit` judges: the deployment's files and status, its gateway, its engine, and all its nodes."""

import http.client
import json
import re
import socket
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from longspan.audit import node_probe
from longspan.audit.facts import Facts, Listener, SecretSeen, Traffic
from longspan.audit.traffic import read_traffic
from longspan.cli import control
from longspan.cluster.inventory_file import parse_cluster
from longspan.daemon.places import Places
from longspan.daemon.reach import host_of
from longspan.deployment import DeploymentSpec, NodeSpec
from longspan.errors import HostError, InputError, NoDeploymentError

NODE_TIMEOUT_SECONDS = 60.0
ASK_SECONDS = 3.0
# What a stranger would ask first: an OpenAI-compatible server's models, and a dashboard's page.
QUESTIONS = ("/v1/models", "/")


def gather(places: Places, cluster: Path | None) -> Facts:
    """All that can be seen from here.

    Raises:
        NoDeploymentError: nothing runs under this name. ControlPlaneError: its controller does not answer.
        InputError: the cluster file.
    """
    record = places.running()
    if record is None:
        raise NoDeploymentError(
            f"No deployment runs in {places.root}.", "Audit what serves: `longspan up` first."
        )
    status = control.request(record, "/v1/status")
    spec = DeploymentSpec.from_json(json.loads(places.spec.read_text())["spec"])
    gateway = _gateway_file(places)
    unseen: dict[str, str] = {}
    facts = Facts(
        name=spec.name, phase=status["phase"], listen=spec.listen, tls="tls" in gateway, tp=spec.tp, pp=spec.pp,
        joined_ray=spec.ray_address is not None, proof=str((status["proof"] or {}).get("verdict", "")),
        unproved={
            layer["name"]: layer["seen"] for layer in (status["proof"] or {}).get("layers", ()) if layer["state"] == "skipped"
        },
        versions={
            node["name"]: {key: node["facts"][key] for key in ("python", "ray", "vllm")}
            for node in status["nodes"] if node["facts"]
        },
        rank_nodes=tuple(node.name for node in spec.rank_nodes()), networks=_networks(cluster, unseen),
        key_file_mode=places.api_key.stat().st_mode & 0o777 if places.api_key.exists() else None,
        keyless_answer=_answer(*_split(spec.listen), ("/v1/models",)), replicas=len(gateway.get("replicas", [])),
        providers=len(gateway.get("providers", [])),
        traffic=_traffic(places, gateway, unseen), licence=_licence(spec.model, unseen), vllm_arguments=spec.vllm_arguments,
    )  # fmt: skip
    listeners, secrets = _nodes(spec, record["mark"], unseen)
    uncollected, uncounted = _metrics(places, record["url"], gateway, unseen)
    return replace(
        facts,
        listeners=listeners,
        secrets=secrets,
        unseen=unseen,
        uncollected=uncollected,
        uncounted=uncounted,
    )


def _gateway_file(places: Places) -> dict[str, Any]:
    try:
        return tomllib.loads(places.gateway_config.read_text())
    except (OSError, tomllib.TOMLDecodeError):
        return {}


def _networks(cluster: Path | None, unseen: dict[str, str]) -> dict[str, str]:
    """What the cluster file says of each node; what it leaves out is not guessed here, whatever the planner assumes.

    Raises:
        InputError: the file.
    """
    if cluster is None:
        unseen["networks"] = "no --cluster file was given"
        return {}
    try:
        text = cluster.read_text()
    except OSError as error:
        raise InputError(f"{cluster} cannot be read: {error.strerror}.") from error
    nodes = parse_cluster(text).nodes  # first: it says what is wrong with a file
    document = tomllib.loads(text)
    whole = "network" in document
    said = {table.get("name") for table in document.get("node", []) if "network" in table or whole}
    return {node.name: node.network.kind for node in nodes if node.name in said}


def _split(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host), int(port)  # noqa: S104 - compared


def _answer(host: str, port: int, paths: tuple[str, ...] = QUESTIONS) -> int | None:
    """The best status that a request without a key gets; 0 for no HTTP, None for nobody there."""
    best: int | None = None
    for path in paths:
        connection = http.client.HTTPConnection(host, port, timeout=ASK_SECONDS)
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
        except http.client.HTTPException:
            status = 0
        except OSError as error:
            if isinstance(error, ConnectionResetError | TimeoutError):
                status = 0
            else:
                return best
        finally:
            connection.close()
        if best is None or 200 <= status < 300 or best == 0:
            best = status
        if 200 <= best < 300 or status == 0:
            break
    return best


def _traffic(places: Places, gateway: Mapping[str, Any], unseen: dict[str, str]) -> Traffic | None:
    """The engine's counters, with the key that the gateway shows it."""
    try:
        url = str(gateway["replicas"][0]["url"])
        key = places.engine_key.read_text().strip()
        models = json.loads(_get(f"{url}/v1/models", key))
        return read_traffic(_get(f"{url}/metrics", key), int(models["data"][0]["max_model_len"]))
    except (OSError, ValueError, LookupError, TypeError) as error:
        unseen["traffic"] = f"the engine's counters could not be read ({_reason(error)})"
        return None


def _metrics(
    places: Places, url: str, gateway: Mapping[str, Any], unseen: dict[str, str]
) -> tuple[dict[str, str] | None, tuple[str, ...] | None]:
    """Asks the controller for all that Prometheus would, with Prometheus' key: what gives nothing and why, and the replicas
    whose requests the gateway does not count."""
    try:
        key = (places.root / "metrics-key").read_text().strip()
        parts = {
            one["labels"]["part"]: one["labels"]["__metrics_path__"]
            for one in json.loads(_get(f"{url}/v1/sd", key))
        }
    except (OSError, ValueError, LookupError, TypeError) as error:
        unseen["metrics"] = f"the controller does not say what there is to collect ({_reason(error)})"
        return None, None
    names = [str(one.get("name", "")) for one in gateway.get("replicas", [])]
    # A replica without an engine, such as one that is drained, has nothing to collect.
    bad = {} if "gateway" in parts else {"gateway": "not among what there is to collect"}
    texts = {}
    for part, path in parts.items():
        try:
            texts[part] = _get(f"{url}{path}", key)
        except OSError as error:
            bad[part] = _reason(error)
    counted = set(
        re.findall(r'(?m)^longspan_gateway_replica_inflight\{replica="([^"]*)"\}', texts.get("gateway", ""))
    )
    return bad, tuple(name for name in names if name not in counted)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"HTTP {error.code}"
    return f"{type(error).__name__}: {error}"


def _get(url: str, key: str) -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})  # noqa: S310 - our own gateway's file
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as response:
        return str(response.read().decode(errors="replace"))


def _licence(model: str, unseen: dict[str, str]) -> str | None:
    """Out of the model card's head, else the first line of a licence file."""
    folder = Path(model)
    if not folder.is_dir():
        unseen["licence"] = "the model's directory is not on this machine: look on its page"
        return None
    card = folder / "README.md"
    try:
        head = card.read_text(errors="replace").split("\n---", 1)[0] if card.exists() else ""
        if found := re.search(r"(?m)^license(?:_name)?:\s*[\"']?([^\"'\n]+)", head):
            return found[1].strip()
        for path in sorted(folder.glob("LICEN[CS]E*")):
            lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
            return lines[0][:200] if lines else None
    except OSError as error:
        unseen["licence"] = str(error)
    return None


def _nodes(
    spec: DeploymentSpec, mark: str, unseen: dict[str, str]
) -> tuple[tuple[Listener, ...], tuple[SecretSeen, ...]]:
    """Every node at once. The probe's text goes through standard input, so the node needs Python and nothing else."""
    program = Path(node_probe.__file__).read_text()

    def one(node: NodeSpec) -> dict[str, Any] | str:
        if node.is_here and not _is_own(node.address):
            return "reached by Ray only; give it ssh = … in the cluster file"
        python = "python3" if node.container else node.python
        try:
            done = host_of(node).run([python, "-", mark], stdin=program, timeout_seconds=NODE_TIMEOUT_SECONDS)
            found: dict[str, Any] = json.loads(done.stdout)
        except HostError as error:
            return error.what
        except ValueError:
            return f"{python} failed: {done.stderr.strip()[-200:]}"
        return (
            found if found["seen"] else "none of its processes can be read there (are they another user's?)"
        )

    nodes = spec.used_nodes()
    # Nodes of one machine would each show all of it.
    local = [node for node in nodes if node.is_here and _is_own(node.address)]
    asked = [node for node in nodes if node not in local[1:]]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one, asked))
    listeners: list[Listener] = []
    secrets: list[SecretSeen] = []
    for node, answer in zip(asked, answers, strict=True):
        if isinstance(answer, str):
            unseen[f"listeners:{node.name}"] = unseen[f"secrets:{node.name}"] = answer
            continue
        listeners += [Listener(node.name, address, port, name) for address, port, name in answer["listeners"]]
        secrets += [SecretSeen(node.name, process, where, name) for process, where, name in answer["secrets"]]
    return _asked(listeners, {node.name: node.address for node in nodes}), tuple(secrets)


def _is_own(address: str) -> bool:
    """Whether an address is this machine's: only such a one can be bound."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _asked(listeners: list[Listener], addresses: Mapping[str, str]) -> tuple[Listener, ...]:
    """Asks what others reach, from here, at the node's own address."""

    def one(listener: Listener) -> Listener:
        if not listener.outside:
            return listener
        everywhere = listener.address in ("0.0.0.0", "::")  # noqa: S104 - compared
        host = addresses[listener.node] if everywhere else listener.address
        return replace(listener, answer=_answer(host, listener.port))

    with ThreadPoolExecutor(16) as pool:
        return tuple(pool.map(one, listeners))

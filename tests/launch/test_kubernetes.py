"""The Kubernetes documents: valid by the published schemas, and right where a schema cannot tell."""

import functools
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import LayoutError
from longspan.launch.kubernetes import leader_worker_set, ray_cluster
from longspan.launch.pods import Wishes
from longspan.launch.unattended import Serving, of_replica
from longspan.launch.yaml_text import to_yaml
from longspan.plan import Layout, Place, Replica

SCHEMAS = Path(__file__).parents[2].parent / "shared" / "k8s"
EVEN = Serving("default", "org/m", 8, 2, "ray", (8, 8), vllm_arguments=("--max-model-len", "8192"))
UNEVEN = Serving("mixed", "/models/m", 4, 3, "ray", (4, 8))
FULL = Wishes(
    "registry.example.com/longspan-vllm:1", "llm", hf_secret="hf", pull_secret="pull", claim="models", rdma="rdma/hca",
    cpus=64, memory_gib=900, node_selector=(("gpu", "h100"),), tolerate=("dedicated",), replicas=2,
)  # fmt: skip
SPARE = Wishes("i:1", api_secret=None)
MAKERS: list[Callable[[Serving, Wishes], list[Any]]] = [ray_cluster, leader_worker_set]


@functools.cache
def schema(file: str) -> dict[str, Any]:
    """A published custom resource's schema, made strict: a field that it does not name is an error, as for
    `kubectl apply` with server-side validation."""

    def strict(node: Any) -> Any:
        if isinstance(node, list):
            return [strict(item) for item in node]
        if not isinstance(node, dict):
            return node
        found = {key: strict(value) for key, value in node.items()}
        if found.pop("x-kubernetes-int-or-string", False) is True:
            return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
        if "properties" in found and isinstance(found["properties"], dict) and found.get("type") == "object":
            found.setdefault("additionalProperties", False)
        return found

    path = SCHEMAS / file
    if not path.exists():
        pytest.skip(f"the published schemas are not beside this repository ({path})")
    versions = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)["spec"]["versions"]
    whole = strict(next(v for v in versions if v["name"] == "v1")["schema"]["openAPIV3Schema"])
    whole["properties"]["metadata"] = {"type": "object"}
    return whole


@pytest.mark.parametrize("wishes", [FULL, SPARE], ids=["full", "spare"])
@pytest.mark.parametrize(
    ("make", "serving", "file"),
    [
        (ray_cluster, EVEN, "ray.io_rayclusters.yaml"),
        (ray_cluster, UNEVEN, "ray.io_rayclusters.yaml"),
        (leader_worker_set, EVEN, "leaderworkersets.yaml"),
    ],
    ids=["kuberay", "kuberay-uneven", "lws"],
)
def test_valid_by_the_published_schema(make: Any, serving: Serving, file: str, wishes: Wishes) -> None:
    """The text, read back as YAML, is what the custom resource's own schema allows, with no unknown field."""
    jsonschema = pytest.importorskip("jsonschema")
    resource, service = list(yaml.safe_load_all(to_yaml(make(serving, wishes))))
    errors = [
        error.json_path + ": " + error.message
        for error in jsonschema.Draft202012Validator(schema(file)).iter_errors(resource)
    ]
    assert errors == []
    assert service["kind"] == "Service"


def test_the_schema_test_can_fail() -> None:
    """A misspelt field of a pod is an error of the strict schema."""
    jsonschema = pytest.importorskip("jsonschema")
    resource, _ = ray_cluster(EVEN, SPARE)
    resource["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    assert not jsonschema.Draft202012Validator(schema("ray.io_rayclusters.yaml")).is_valid(resource)


def containers(documents: list[Any]) -> Iterator[dict[str, Any]]:
    """Every container of every pod template."""
    spec = documents[0]["spec"]
    if "headGroupSpec" in spec:
        templates = [
            spec["headGroupSpec"]["template"],
            *(group["template"] for group in spec["workerGroupSpecs"]),
        ]
    else:
        group = spec["leaderWorkerTemplate"]
        templates = [group["leaderTemplate"], group["workerTemplate"]]
    for template in templates:
        yield from template["spec"]["containers"]


@pytest.mark.parametrize("make", MAKERS)
def test_probes_ask_for_tokens(make: Any) -> None:
    """No probe asks for /health: the front is ready by the gateway's sight of tokens, alive by a token asked for."""
    documents = make(EVEN, FULL)
    assert "/health" not in to_yaml(documents)
    front = next(one for one in containers(documents) if one["name"] == "longspan")
    assert front["readinessProbe"]["httpGet"] == {"path": "/ready", "port": 8000}
    for probe in ("startupProbe", "livenessProbe"):
        command = front[probe]["exec"]["command"]
        assert command[:2] == ["longspan", "probe"]
        assert front[probe]["timeoutSeconds"] > float(command[command.index("--timeout") + 1])
    startup = front["startupProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] >= FULL.startup_seconds


@pytest.mark.parametrize("make", MAKERS)
def test_what_ranks_need(make: Any) -> None:
    """Pods with ranks have the GPUs, the RDMA device with its capability, memory, and shared memory of their own; the
    first pod's two containers share Ray's sockets and shared memory."""
    documents = make(EVEN, FULL)
    ranks = [one for one in containers(documents) if "nvidia.com/gpu" in one["resources"].get("limits", {})]
    assert ranks
    for one in ranks:
        assert one["resources"]["limits"] == one["resources"]["requests"]
        assert one["resources"]["limits"] == {
            "nvidia.com/gpu": 8,
            "rdma/hca": 1,
            "cpu": 64,
            "memory": "900Gi",
        }
        assert one["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    for one in containers(documents):
        mounts = {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]}
        assert {"shm": "/dev/shm", "ray": "/tmp/ray"}.items() <= mounts.items()
    assert "medium: Memory" in to_yaml(documents)
    assert "sizeLimit: 32Gi" in to_yaml(documents).replace('"', "")


@pytest.mark.parametrize("make", MAKERS)
def test_secrets_are_named_only(make: Any) -> None:
    """Each secret is a volume by name, readable by its owner; no environment variable takes its value out of one."""
    for one in containers(make(EVEN, FULL)):
        assert [env for env in one["env"] if "secretKeyRef" in str(env)] == []
        by_name = {env["name"]: env.get("value") for env in one["env"]}
        assert by_name["RAY_AUTH_MODE"] == "token"
        for variable in ("RAY_AUTH_TOKEN_PATH", "HF_TOKEN_PATH"):
            mounts = [
                m for m in one["volumeMounts"] if str(by_name[variable]).startswith(m["mountPath"] + "/")
            ]
            assert [mount["readOnly"] for mount in mounts] == [True]
    text = to_yaml(make(EVEN, FULL))
    assert "defaultMode: 256" in text
    front = next(one for one in containers(make(EVEN, FULL)) if one["name"] == "longspan")
    assert front["command"][front["command"].index("--api-key-file") + 1].startswith("/etc/longspan/api/")


def test_worker_groups_follow_the_plan() -> None:
    """One group for each run of equal nodes; the head has none of the GPUs."""
    groups = ray_cluster(UNEVEN, SPARE)[0]["spec"]["workerGroupSpecs"]
    assert [(group["replicas"], group["minReplicas"], group["rayStartParams"]["num-gpus"]) for group in groups] == [
        (1, 1, "4"), (1, 1, "8"),
    ]  # fmt: skip
    head = ray_cluster(UNEVEN, SPARE)[0]["spec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-gpus"] == "0"
    assert {type(value) for group in groups for value in group["rayStartParams"].values()} == {str}


def test_what_pods_cannot_do() -> None:
    """A layout that needs its nodes in order, and unequal pods in one group, are refused before anything is written."""
    with pytest.raises(LayoutError, match="order"):
        ray_cluster(Serving("d", "m", 3, 2, "ray", (2, 4)), SPARE)
    with pytest.raises(LayoutError, match="alike"):
        leader_worker_set(UNEVEN, SPARE)


def test_a_replica_of_a_plan() -> None:
    """Sizes, the stages' layers and the arguments come from the plan; its node names are forgotten."""
    places = tuple(Place(node, gpu) for node in ("a", "b") for gpu in range(4))
    found = of_replica("d", "m", Replica("r0", Layout(tp=4, pp=2, partition=(3, 5)), places), ["--x"])
    assert (found.tp, found.pp, found.gpus, found.groups) == (4, 2, (4, 4), ((2, 4),))
    assert found.environment == (("VLLM_PP_LAYER_PARTITION", "3,5"),)
    # The planner writes the stages' layers into the environment too; a script should not export them twice.
    planned = Replica(
        "r0", Layout(tp=4, pp=2, partition=(3, 5)), places,
        environment=(("VLLM_PP_LAYER_PARTITION", "3,5"), ("A", "1")),
    )  # fmt: skip
    assert of_replica("d", "m", planned, []).environment == (("VLLM_PP_LAYER_PARTITION", "3,5"), ("A", "1"))
    front = next(one for one in containers(ray_cluster(found, SPARE)) if one["name"] == "longspan")
    assert {"name": "VLLM_PP_LAYER_PARTITION", "value": "3,5"} in front["env"]
    assert front["command"][-2:] == ["--", "--x"]


def test_workers_wait_for_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Ray a worker tries the leader's name and port until a connection opens, and then lets Ray start."""
    asked: list[tuple[str, int]] = []
    slept: list[float] = []

    class Connection:
        def close(self) -> None:
            slept.append(0)

    def connect(address: tuple[str, int], _: float) -> Connection:
        asked.append(address)
        if len(asked) == 1:
            raise socket.gaierror("not in DNS yet")
        if len(asked) == 2:
            raise ConnectionRefusedError
        return Connection()

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(time, "sleep", slept.append)
    worker = leader_worker_set(EVEN, SPARE)[0]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    (wait,) = worker["initContainers"]
    python, flag, program, leader, port = wait["command"]
    assert (python, flag, leader) == ("python3", "-c", "$(LWS_LEADER_ADDRESS)")
    monkeypatch.setattr(sys, "argv", ["-c", "leader", port])
    exec(program, {})
    assert asked == [("leader", 6379)] * 3
    assert slept == [1, 1, 0]


def test_the_kubelet_expands_nothing_of_the_users() -> None:
    """$(NAME) in an argument stays text; in our own words it is the pod's address."""
    front = next(
        one
        for one in containers(ray_cluster(Serving("d", "a/$(PATH)", 1, 1, "ray", (1,)), SPARE))
        if one["name"] == "longspan"
    )
    assert "a/$$(PATH)" in front["command"]
    assert front["command"][front["command"].index("--ray") + 1] == "$(POD_IP):6379"
    assert {"name": "VLLM_HOST_IP", "value": "$(POD_IP)"} in front["env"]


plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
documents = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
surrogates = st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF)


@given(st.lists(documents, min_size=1, max_size=3))
def test_yaml_reads_back(values: list[Any]) -> None:
    """Whatever a document holds (yes, 1e3, "- x", line breaks), a YAML reader gets the same value back."""
    assert list(yaml.safe_load_all(to_yaml(values))) == values

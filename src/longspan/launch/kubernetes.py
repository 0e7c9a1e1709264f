"""What is to be served -> Kubernetes documents: a KubeRay RayCluster or a LeaderWorkerSet, and a Service. Pure.

In both, Ray runs in the pods and `longspan up --ray` in a second container of the first pod: it joins that Ray, starts
its agents by a task per node, and serves. Its probes ask for tokens. Secrets are named, never written: they are
mounted as files, since an environment is read by too many.

Made for KubeRay's ray.io/v1 and leaderworkerset.x-k8s.io/v1; a test reads the result with their published schemas.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longspan.errors import LayoutError
from longspan.launch.commands import OBJECT_STORE_BYTES, ray_environment
from longspan.launch.unattended import Serving, up_words

Document = dict[str, Any]

GCS_PORT = 6379
NODE_MANAGER_PORT = 9010
OBJECT_MANAGER_PORT = 9011
WORKER_PORTS = (20000, 29999)
GATEWAY_PORT = 8000
SECRETS = "/etc/longspan"
RAY_TOKEN = f"{SECRETS}/ray/token"
API_KEY = f"{SECRETS}/api/key"
HF_TOKEN = f"{SECRETS}/huggingface/token"
STATE = "/var/lib/longspan"
JOIN_SECONDS = 1800  # for images of 10 GB and nodes that an autoscaler brings up

# Run in a worker before Ray: the leader's name is in DNS before its port is open, and `ray start` gives up early.
WAIT_FOR_HEAD = (
    "import socket, sys, time\n"
    "while True:\n"
    "    try:\n"
    "        socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).close()\n"
    "        break\n"
    "    except OSError:\n"
    "        time.sleep(1)\n"
)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a cluster's owner decides. Sizes are of each pod that holds ranks; None leaves a resource out.

    Attributes:
        image: has Longspan and the engine (the Dockerfile of this project makes one).
        ray_secret: a Secret with the key "token". api_secret: with "key", the clients' key; None lets Longspan make one.
        hf_secret: with "token". pull_secret: for the image's registry.
        claim: a PersistentVolumeClaim with the models, mounted at `mount`; without one each pod has a cache of its own.
        rdma: the resource of one RDMA device, such as "rdma/hca".
        device: what the pods with ranks have; None goes by the GPU resource.
        startup_seconds: until the first token: weights of hundreds of GiB load for long.
    """

    image: str
    namespace: str | None = None
    ray_secret: str = "longspan-ray"  # noqa: S105 - a Secret's name
    api_secret: str | None = "longspan-api"  # noqa: S105
    hf_secret: str | None = None
    pull_secret: str | None = None
    claim: str | None = None
    mount: str = "/models"
    gpu_resource: str = "nvidia.com/gpu"
    rdma: str | None = None
    cpus: int | None = None
    memory_gib: int | None = None
    shm_gib: int = 32
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerate: tuple[str, ...] = ()
    replicas: int = 1
    startup_seconds: int = 3600
    device: str | None = None


def ray_cluster(serving: Serving, wishes: Wishes) -> list[Document]:
    """A RayCluster whose head holds no GPU, one worker group for each run of nodes that are alike; and its Service.

    Raises:
        LayoutError: ranks that only fit nodes in a given order, which Kubernetes does not keep.
    """
    _any_order(serving)
    head = _pod(
        serving, wishes, [_ray_container("ray-head", serving, wishes, 0, GCS_PORT), _front(serving, wishes)]
    )
    workers = []
    for number, (nodes, gpus) in enumerate(serving.groups):
        pod = _pod(
            serving,
            wishes,
            [_ray_container("ray-worker", serving, wishes, gpus, NODE_MANAGER_PORT)],
            placed=True,
        )
        workers.append(
            {
                "groupName": f"gpu-{number}", "replicas": nodes, "minReplicas": nodes, "maxReplicas": nodes,
                "rayStartParams": _start_parameters(gpus), "template": pod,
            }
        )  # fmt: skip
    cluster = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _metadata(serving, wishes),
        "spec": {
            "headGroupSpec": {
                "rayStartParams": {
                    **_start_parameters(0),
                    "include-dashboard": "false",
                    "dashboard-host": "127.0.0.1",
                },
                "template": head,
            },
            "workerGroupSpecs": workers,
        },
    }
    selector = {"ray.io/cluster": _name(serving), "ray.io/node-type": "head"}
    return [cluster, _service(serving, wishes, selector)]


def leader_worker_set(serving: Serving, wishes: Wishes) -> list[Document]:
    """A LeaderWorkerSet of `replicas` groups, each the whole model on as many pods as it has nodes; and its Service.

    Raises:
        LayoutError: nodes that are not alike: the workers of a group have one template.
    """
    if len(serving.groups) != 1:
        raise LayoutError(
            f"The pods of a LeaderWorkerSet are alike, and this layout has nodes with {serving.gpus} GPUs.",
            "Use kuberay, which has a worker group for each kind of node, or plan with equal nodes.",
        )
    size, gpus = len(serving.gpus), serving.gpus[0]
    ray = _ray_container("ray", serving, wishes, gpus, GCS_PORT)
    ray["command"] = _ray_start(gpus, ["--head", f"--port={GCS_PORT}", "--include-dashboard=false"])
    leader = _pod(serving, wishes, [ray, _front(serving, wishes)], placed=True)
    worker_ray = _ray_container("ray", serving, wishes, gpus, NODE_MANAGER_PORT)
    worker_ray["command"] = _ray_start(gpus, [f"--address=$(LWS_LEADER_ADDRESS):{GCS_PORT}"])
    worker = _pod(serving, wishes, [worker_ray], placed=True)
    worker["spec"]["initContainers"] = [
        {
            "name": "wait-for-head", "image": wishes.image,
            "command": ["python3", "-c", WAIT_FOR_HEAD, "$(LWS_LEADER_ADDRESS)", str(GCS_PORT)],
        }
    ]  # fmt: skip
    group = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": _metadata(serving, wishes),
        "spec": {
            "replicas": wishes.replicas,
            # Not LeaderReady: the leader is ready when tokens flow, for which it needs its workers.
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": size,
                "restartPolicy": "RecreateGroupOnPodRestart",  # a replica fails and restarts as a whole
                "leaderTemplate": _labelled(leader, serving),
                "workerTemplate": _labelled(worker, serving),
            },
        },
    }
    selector = {
        "leaderworkerset.sigs.k8s.io/name": _name(serving),
        "leaderworkerset.sigs.k8s.io/worker-index": "0",
    }
    return [group, _service(serving, wishes, selector)]


def _any_order(serving: Serving) -> None:
    """Pods come in no order, so a layout over unequal nodes must be right in every one."""
    split = any(name == "VLLM_PP_LAYER_PARTITION" for name, _ in serving.environment)
    if len(set(serving.gpus)) > 1 and (split or any(count % serving.tp for count in serving.gpus)):
        raise LayoutError(
            f"The layout over nodes with {serving.gpus} GPUs depends on their order, and pods have none.",
            "Plan with equal nodes, or with a TP that divides the GPUs of each.",
        )


def _name(serving: Serving) -> str:
    return f"longspan-{serving.name}"


def _metadata(serving: Serving, wishes: Wishes) -> Document:
    found: Document = {"name": _name(serving), "labels": {"app.kubernetes.io/name": "longspan"}}
    return {**found, "namespace": wishes.namespace} if wishes.namespace else found


def _service(serving: Serving, wishes: Wishes, selector: Mapping[str, str]) -> Document:
    port = {"name": "openai", "port": GATEWAY_PORT, "targetPort": GATEWAY_PORT}
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": _metadata(serving, wishes),
        "spec": {"selector": dict(selector), "ports": [port]},
    }  # fmt: skip


def _labelled(pod: Document, serving: Serving) -> Document:
    return {"metadata": {"labels": {"app.kubernetes.io/instance": _name(serving)}}, **pod}


def _start_parameters(gpus: int) -> dict[str, str]:
    """Fixed ports, so that a network policy can name them. The engines' rendezvous uses ephemeral ones."""
    return {
        "num-gpus": str(gpus),
        "object-store-memory": str(OBJECT_STORE_BYTES),
        "node-manager-port": str(NODE_MANAGER_PORT),
        "object-manager-port": str(OBJECT_MANAGER_PORT),
        "min-worker-port": str(WORKER_PORTS[0]),
        "max-worker-port": str(WORKER_PORTS[1]),
        "disable-usage-stats": "true",
    }


def _ray_start(gpus: int, where: list[str]) -> list[str]:
    words = [
        "--disable-usage-stats" if name == "disable-usage-stats" else f"--{name}={value}"
        for name, value in _start_parameters(gpus).items()
    ]
    return [
        "python3", "-m", "longspan.launch.ray_main", "start", *where, "--node-ip-address=$(POD_IP)", *words, "--block",
    ]  # fmt: skip


def _environment(serving: Serving, wishes: Wishes) -> list[Document]:
    """POD_IP first: a variable can only use those that stand before it."""
    by_field = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    plain = {
        "VLLM_HOST_IP": "$(POD_IP)",
        "HF_HOME": f"{wishes.mount}/huggingface",
        "XDG_STATE_HOME": STATE,
        **({"HF_TOKEN_PATH": HF_TOKEN} if wishes.hf_secret else {}),
        **ray_environment(RAY_TOKEN),
        **{name: _literal(value) for name, value in serving.environment},
    }
    return [by_field, *({"name": name, "value": value} for name, value in plain.items())]


def _literal(text: str) -> str:
    """The kubelet puts a variable's value in for $(NAME); what a user wrote stays as it is."""
    return text.replace("$(", "$$(")


def _volumes(wishes: Wishes) -> list[tuple[Document, str]]:
    """(volume, mount path); all containers of a pod have all of them: Ray's driver needs Ray's sockets and memory."""
    models: Document = {"name": "models", "emptyDir": {}}
    if wishes.claim:
        models = {"name": "models", "persistentVolumeClaim": {"claimName": wishes.claim}}
    found = [
        ({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{wishes.shm_gib}Gi"}}, "/dev/shm"),
        ({"name": "ray", "emptyDir": {}}, "/tmp/ray"),
        ({"name": "state", "emptyDir": {}}, STATE),
        (models, wishes.mount),
    ]
    secrets = {"ray": wishes.ray_secret, "api": wishes.api_secret, "huggingface": wishes.hf_secret}
    for kind, secret in secrets.items():
        if secret:
            source = {"secretName": secret, "defaultMode": 0o400}
            found.append(({"name": f"secret-{kind}", "secret": source}, f"{SECRETS}/{kind}"))
    return found


def _container(name: str, serving: Serving, wishes: Wishes) -> Document:
    mounts = [
        {"name": volume["name"], "mountPath": path, **({"readOnly": True} if "secret" in volume else {})}
        for volume, path in _volumes(wishes)
    ]
    return {
        "name": name, "image": wishes.image, "env": _environment(serving, wishes), "volumeMounts": mounts,
    }  # fmt: skip


def _ray_container(name: str, serving: Serving, wishes: Wishes, gpus: int, port: int) -> Document:
    """Ray on one pod. Its probes test Ray only; what is served is the front's to judge."""
    resources: dict[str, Any] = {wishes.gpu_resource: gpus} if gpus else {}
    if gpus and wishes.rdma:
        resources[wishes.rdma] = 1
    if gpus and wishes.cpus:
        resources["cpu"] = wishes.cpus
    if gpus and wishes.memory_gib:
        resources["memory"] = f"{wishes.memory_gib}Gi"
    probe = {"tcpSocket": {"port": port}, "periodSeconds": 10, "timeoutSeconds": 5}
    return {
        **_container(name, serving, wishes),
        "ports": [{"name": "ray", "containerPort": port}],
        "resources": {"limits": resources, "requests": resources} if resources else {},
        **({"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}} if gpus and wishes.rdma else {}),
        "startupProbe": {**probe, "failureThreshold": 60},
        "readinessProbe": {**probe, "failureThreshold": 3},
        "livenessProbe": {**probe, "failureThreshold": 6},
    }


def _front(serving: Serving, wishes: Wishes) -> Document:
    """`longspan up`: joins the pod's Ray, serves, and is judged by tokens.

    Ready is what the gateway says: work outstanding without a token makes it say no. Alive is a token asked for; where
    none comes in time, the gateway's word counts, so that a long queue does not restart a replica that works.
    """
    # This container holds no GPU, so it cannot tell what the others hold.
    device = wishes.device or ("rocm" if wishes.gpu_resource.startswith("amd.com/") else "cuda")
    more = ["--ray", f"127.0.0.1:{GCS_PORT}", "--ray-wait", str(JOIN_SECONDS), "--device", device]
    more += ["--api-key-file", API_KEY] if wishes.api_secret else []
    words = up_words(serving, listen=f"0.0.0.0:{GATEWAY_PORT}", more=more)
    ask = ["longspan", "probe", "--name", serving.name, "--timeout"]
    token = {"exec": {"command": [*ask, "60"]}, "timeoutSeconds": 90, "periodSeconds": 60}
    return {
        **_container("longspan", serving, wishes),
        "command": ["longspan", *map(_literal, words)],
        "ports": [{"name": "openai", "containerPort": GATEWAY_PORT}],
        "resources": {"requests": {"cpu": 2, "memory": "4Gi"}},
        "startupProbe": {
            "exec": {"command": [*ask, "20"]}, "timeoutSeconds": 30, "periodSeconds": 30,
            "failureThreshold": max(1, -(-wishes.startup_seconds // 30)),
        },
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": GATEWAY_PORT}, "periodSeconds": 5, "timeoutSeconds": 3,
            "failureThreshold": 2,
        },
        "livenessProbe": {**token, "failureThreshold": 3},
    }  # fmt: skip


def _pod(serving: Serving, wishes: Wishes, containers: list[Document], *, placed: bool = False) -> Document:
    """A pod's template.

    Args:
        placed: it holds ranks: it goes where the GPUs are.
    """
    spec: Document = {
        "containers": containers,
        "volumes": [volume for volume, _ in _volumes(wishes)],
        "terminationGracePeriodSeconds": 120,
    }
    if placed and wishes.node_selector:
        spec["nodeSelector"] = dict(wishes.node_selector)
    if placed:
        keys = dict.fromkeys([wishes.gpu_resource, *wishes.tolerate])
        spec["tolerations"] = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    if wishes.pull_secret:
        spec["imagePullSecrets"] = [{"name": wishes.pull_secret}]
    return {"spec": spec}

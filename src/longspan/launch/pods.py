"""The pods of a served model: Ray's containers, the front's, their volumes, secrets and probes. Pure; see `kubernetes`."""

from dataclasses import dataclass
from typing import Any

from longspan.launch.commands import OBJECT_STORE_BYTES, ray_environment
from longspan.launch.unattended import Serving, up_words

Document = dict[str, Any]

GCS_PORT = 6379
NODE_MANAGER_PORT = 9010
OBJECT_MANAGER_PORT = 9011
WORKER_PORTS = (20000, 29999)
GATEWAY_PORT = 8000
# Not 127.0.0.1: the address is handed on to the pods that hold the ranks.
OWN_RAY = f"$(POD_IP):{GCS_PORT}"
SECRETS = "/etc/longspan"
RAY_TOKEN = f"{SECRETS}/ray/token"
API_KEY = f"{SECRETS}/api/key"
HF_TOKEN = f"{SECRETS}/huggingface/token"
STATE = "/var/lib/longspan"
JOIN_SECONDS = 1800  # for images of 10 GB and nodes that an autoscaler brings up


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


def start_parameters(gpus: int) -> dict[str, str]:
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


def ray_start(gpus: int, where: list[str]) -> list[str]:
    """`ray start` in the foreground, for a pod that no operator starts Ray in; `where` makes it the head or joins one."""
    words = [
        "--disable-usage-stats" if name == "disable-usage-stats" else f"--{name}={value}"
        for name, value in start_parameters(gpus).items()
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


def ray_container(name: str, serving: Serving, wishes: Wishes, gpus: int, port: int) -> Document:
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


def front(serving: Serving, wishes: Wishes) -> Document:
    """`longspan up`: joins the pod's Ray, serves, and is judged by tokens.

    Ready is what the gateway says: work outstanding without a token makes it say no. Alive is a token asked for; where
    none comes in time, the gateway's word counts, so that a long queue does not restart a replica that works.
    """
    # This container holds no GPU, so it cannot tell what the others hold.
    device = wishes.device or ("rocm" if wishes.gpu_resource.startswith("amd.com/") else "cuda")
    more = ["--ray", OWN_RAY, "--ray-wait", str(JOIN_SECONDS), "--device", device]
    more += ["--api-key-file", API_KEY] if wishes.api_secret else []
    words = up_words(serving, listen=f"0.0.0.0:{GATEWAY_PORT}", more=more)
    ask = ["longspan", "probe", "--name", serving.name, "--timeout"]
    token = {"exec": {"command": [*ask, "60"]}, "timeoutSeconds": 90, "periodSeconds": 60}
    return {
        **_container("longspan", serving, wishes),
        "command": ["longspan", *(word if word == OWN_RAY else _literal(word) for word in words)],
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


def pod(serving: Serving, wishes: Wishes, containers: list[Document], *, placed: bool = False) -> Document:
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

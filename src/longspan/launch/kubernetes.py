"""What is to be served -> Kubernetes documents: a KubeRay RayCluster or a LeaderWorkerSet, and a Service. Pure.

In both, Ray runs in the pods and `longspan up --ray` in a second container of the first pod: it joins that Ray, starts
its agents by a task per node, and serves. Its probes ask for tokens. Secrets are named, never written: they are
mounted as files, since an environment is read by too many.

Made for KubeRay's ray.io/v1 and leaderworkerset.x-k8s.io/v1; a test reads the result with their published schemas.
"""

from collections.abc import Mapping

from longspan.errors import LayoutError
from longspan.launch.pods import (
    GATEWAY_PORT,
    GCS_PORT,
    NODE_MANAGER_PORT,
    Document,
    Wishes,
    front,
    pod,
    ray_container,
    ray_start,
    start_parameters,
)
from longspan.launch.unattended import Serving

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


def ray_cluster(serving: Serving, wishes: Wishes) -> list[Document]:
    """A RayCluster whose head holds no GPU, one worker group for each run of nodes that are alike; and its Service.

    Raises:
        LayoutError: ranks that only fit nodes in a given order, which Kubernetes does not keep.
    """
    _any_order(serving)
    head = pod(
        serving, wishes, [ray_container("ray-head", serving, wishes, 0, GCS_PORT), front(serving, wishes)]
    )
    workers = []
    for number, (nodes, gpus) in enumerate(serving.groups):
        template = pod(
            serving,
            wishes,
            [ray_container("ray-worker", serving, wishes, gpus, NODE_MANAGER_PORT)],
            placed=True,
        )
        workers.append(
            {
                "groupName": f"gpu-{number}", "replicas": nodes, "minReplicas": nodes, "maxReplicas": nodes,
                "rayStartParams": start_parameters(gpus), "template": template,
            }
        )  # fmt: skip
    cluster = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _metadata(serving, wishes),
        "spec": {
            "headGroupSpec": {
                "rayStartParams": {
                    **start_parameters(0),
                    "include-dashboard": "false",
                    "no-monitor": "true",
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
    ray = ray_container("ray", serving, wishes, gpus, GCS_PORT)
    ray["command"] = ray_start(
        gpus, ["--head", f"--port={GCS_PORT}", "--include-dashboard=false", "--no-monitor"]
    )
    leader = pod(serving, wishes, [ray, front(serving, wishes)], placed=True)
    worker_ray = ray_container("ray", serving, wishes, gpus, NODE_MANAGER_PORT)
    worker_ray["command"] = ray_start(gpus, [f"--address=$(LWS_LEADER_ADDRESS):{GCS_PORT}"])
    worker = pod(serving, wishes, [worker_ray], placed=True)
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

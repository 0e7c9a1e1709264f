"""The commands that a plan means: `vllm serve` and `ray start` with the environment of each node, ready to be pasted."""

from dataclasses import dataclass

from longspan.cluster.inventory import Cluster, Node
from longspan.plan import Layout, Plan, Replica

_RAY_PORT = 6379
_HTTP_PORT = 8000


@dataclass(frozen=True, slots=True)
class Command:
    """One command line. `node`: where it is typed; `environment` goes before it."""

    node: str
    environment: tuple[tuple[str, str], ...]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([f"{name}={value}" for name, value in self.environment] + list(self.words))


def node_environment(node: Node) -> tuple[tuple[str, str], ...]:
    """Variables that differ from node to node: its own address and interface, and how NCCL may leave it."""
    found = [("VLLM_HOST_IP", node.address)]
    if node.network.interface:
        found += [
            ("NCCL_SOCKET_IFNAME", node.network.interface),
            ("GLOO_SOCKET_IFNAME", node.network.interface),
        ]
    if node.network.hcas:
        found.append(("NCCL_IB_HCA", ",".join(node.network.hcas)))
    if not node.network.is_rdma:
        found.append(("NCCL_IB_DISABLE", "1"))
    return tuple(found)


def serve_words(model: str, replica: Replica, port: int) -> tuple[str, ...]:
    """`vllm serve` for one replica; sizes of 1 are left out, as vLLM's defaults."""
    layout = replica.layout
    words = ["vllm", "serve", model]
    for flag, value in (
        ("--tensor-parallel-size", layout.tp), ("--pipeline-parallel-size", layout.pp),
        ("--data-parallel-size", layout.dp), ("--decode-context-parallel-size", layout.dcp),
    ):  # fmt: skip
        if value > 1:
            words += [flag, str(value)]
    if layout.ep:
        words.append("--enable-expert-parallel")
    if layout.gpus > 1:
        words += ["--distributed-executor-backend", replica.executor]
    if layout.dp > 1 and replica.executor == "ray":
        words += ["--data-parallel-backend", "ray"]
    if replica.max_model_len:
        words += ["--max-model-len", str(replica.max_model_len)]
    if replica.max_num_seqs:
        words += ["--max-num-seqs", str(replica.max_num_seqs)]
    return (*words, *replica.arguments, "--port", str(port))


def commands(plan: Plan, cluster: Cluster) -> tuple[Command, ...]:
    """Everything to type, in order: Ray on every node of a replica that spans several, then the engines."""
    found: list[Command] = []
    started: set[str] = set()
    head = ""
    for number, replica in enumerate(plan.replicas):
        if len(replica.nodes) > 1:
            for name in replica.nodes:
                if name in started:
                    continue
                node = cluster.node(name)
                where = ("--head", f"--port={_RAY_PORT}") if not head else (f"--address={head}:{_RAY_PORT}",)
                head = head or node.address
                words = (
                    "ray",
                    "start",
                    *where,
                    f"--node-ip-address={node.address}",
                    f"--num-gpus={len(node.gpus)}",
                )
                found.append(Command(name, node_environment(node), words))
                started.add(name)
        first = cluster.node(replica.nodes[0])
        environment = list(replica.environment)
        if len(replica.nodes) == 1 and len(replica.places) < len(first.gpus):
            devices = ",".join(str(place.gpu) for place in replica.places)
            environment.append(("CUDA_VISIBLE_DEVICES", devices))
        if len(replica.nodes) > 1:
            environment.append(("VLLM_HOST_IP", first.address))
        port = _HTTP_PORT + number
        found.append(Command(first.name, tuple(environment), serve_words(plan.model, replica, port)))
    return tuple(found)


def picture(plan: Plan, cluster: Cluster) -> list[str]:
    """The ranks on the nodes, a line a node: "node0 | r0 PP0 TP0 | r0 PP0 TP1 | free"."""
    held: dict[tuple[str, int], str] = {}
    for replica in plan.replicas:
        for rank, place in enumerate(replica.places):
            held[place.node, place.gpu] = f"{replica.name} {rank_words(replica.layout, rank)}"
    width = max((len(text) for text in held.values()), default=4)
    name_width = max(len(node.name) for node in cluster.nodes)
    lines: list[str] = []
    folded = 0
    for node in cluster.nodes:
        cells = [held.get((node.name, gpu.index), "free") for gpu in node.gpus]
        if len(cluster.nodes) > 8 and len(lines) >= 4 and node is not cluster.nodes[-1]:
            folded += 1
            continue
        if folded:
            lines.append(f"{'...':<{name_width}}   {folded} more nodes")
            folded = 0
        lines.append(
            f"{node.name:<{name_width}} | " + " | ".join(f"{cell:<{width}}" for cell in cells) + " |"
        )
    return lines


def rank_words(layout: Layout, rank: int) -> str:
    """What a rank is: "DP0 PP1 TP3"; sizes of 1 are left out."""
    rest, tp = divmod(rank, layout.tp)
    dp, pp = divmod(rest, layout.pp)
    parts = [f"DP{dp}"] if layout.dp > 1 else []
    parts += [f"PP{pp}"] if layout.pp > 1 else []
    parts += [f"TP{tp}"] if layout.tp > 1 else []
    return " ".join(parts) or "all"

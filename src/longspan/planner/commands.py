"""The commands that a plan means: `vllm serve` and `ray start` with the environment of each node, ready to be pasted."""

from dataclasses import dataclass

from longspan.cluster.inventory import Cluster, Node
from longspan.plan import Layout, Plan, Replica

_RAY_PORT = 6379
_HTTP_PORT = 8000
_MASTER_PORT = 29500
_WIDE = 100


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
    if replica.max_model_len:
        words += ["--max-model-len", str(replica.max_model_len)]
    if replica.max_num_seqs:
        words += ["--max-num-seqs", str(replica.max_num_seqs)]
    return (*words, *replica.arguments, "--port", str(port))


def data_parallel_counts(replica: Replica) -> dict[str, int]:
    """Data-parallel ranks that start on each node, in rank order."""
    size = replica.layout.tp * replica.layout.pp
    counts: dict[str, int] = {}
    for place in replica.places[::size]:
        counts[place.node] = counts.get(place.node, 0) + 1
    return counts


def ray_rank_words(replica: Replica) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """What tells vLLM's Ray executor where ranks stand: variables and words.

    A group's bundles are taken in their own order (vLLM sorts them by random node id otherwise). Data-parallel engines are packed
    node by node, `--data-parallel-size-local` to each (vLLM `create_dp_placement_groups`).
    """
    layout = replica.layout
    size = layout.tp * layout.pp
    if layout.dp == 1:
        return (("VLLM_RAY_BUNDLE_INDICES", ",".join(map(str, range(size)))),), ()
    words = ("--data-parallel-backend", "ray")
    groups = [replica.places[start : start + size] for start in range(0, len(replica.places), size)]
    if any(len({place.node for place in group}) > 1 for group in groups):
        return (("VLLM_RAY_DP_PACK_STRATEGY", "span"),), words
    counts = list(data_parallel_counts(replica).values())
    strategy = () if len(set(counts)) == 1 else (("VLLM_RAY_DP_PACK_STRATEGY", "fill"),)
    return strategy, (*words, "--data-parallel-size-local", str(counts[0]))


def mp_rank_words(replica: Replica, cluster: Cluster, number: int, port: int) -> tuple[str, ...]:
    """The words by which the mp executor's part on the replica's node `number` finds the others; all but the first serve nothing."""
    first = cluster.node(replica.nodes[0]).address
    if replica.layout.dp > 1:
        counts = list(data_parallel_counts(replica).values())
        words = [
            "--data-parallel-size-local", str(counts[number]), "--data-parallel-address", first,
            "--data-parallel-rpc-port", str(port),
        ]  # fmt: skip
        words += ["--data-parallel-start-rank", str(sum(counts[:number]))] if number else []
    else:
        words = ["--nnodes", str(len(replica.nodes)), "--node-rank", str(number)]
        words += ["--master-addr", first, "--master-port", str(port)]
    return (*words, "--headless") if number else tuple(words)


def _devices(used: list[int], node: Node) -> tuple[tuple[str, str], ...]:
    """CUDA_VISIBLE_DEVICES where a part of a node is taken."""
    return (("CUDA_VISIBLE_DEVICES", ",".join(map(str, used))),) if len(used) < len(node.gpus) else ()


def commands(plan: Plan, cluster: Cluster) -> tuple[Command, ...]:
    """Everything to type, in order: Ray on every node of a replica that spans several, then the engines."""
    across = [r for r in plan.replicas if len(r.nodes) > 1 and r.executor == "ray"]
    names = list(dict.fromkeys(name for replica in across for name in replica.nodes))
    found = []
    head = f"{cluster.node(names[0]).address}:{_RAY_PORT}" if names else ""
    for number, name in enumerate(names):
        node = cluster.node(name)
        where = (f"--address={head}",) if number else ("--head", f"--port={_RAY_PORT}")
        used = [place.gpu for replica in across for place in replica.places if place.node == name]
        words = ("ray", "start", *where, f"--node-ip-address={node.address}", f"--num-gpus={len(used)}")
        found.append(Command(name, (*node_environment(node), *_devices(used, node)), words))
    for number, replica in enumerate(plan.replicas):
        first = cluster.node(replica.nodes[0])
        words = serve_words(plan.model, replica, _HTTP_PORT + number)
        if len(replica.nodes) == 1:
            used = [place.gpu for place in replica.places]
            found.append(Command(first.name, (*replica.environment, *_devices(used, first)), words))
        elif replica.executor == "ray":
            order, more = ray_rank_words(replica)
            own = (("RAY_ADDRESS", head), ("VLLM_HOST_IP", first.address))
            found.append(Command(first.name, (*replica.environment, *order, *own), (*words, *more)))
        else:
            for rank, name in enumerate(replica.nodes):
                node = cluster.node(name)
                used = [place.gpu for place in replica.places if place.node == name]
                environment = (*replica.environment, *node_environment(node), *_devices(used, node))
                more = mp_rank_words(replica, cluster, rank, _MASTER_PORT + number)
                found.append(Command(name, environment, (*words, *more)))
    return tuple(found)


def picture(plan: Plan, cluster: Cluster) -> list[str]:
    """The ranks on the nodes, a line a node: "node0 | r0 PP0 TP0 | r0 PP0 TP1 | free"; a wide one in runs of neighbours."""
    held: dict[tuple[str, int], str] = {}
    for replica in plan.replicas:
        for rank, place in enumerate(replica.places):
            held[place.node, place.gpu] = f"{replica.name} {rank_words(replica.layout, rank)}"
    rows = {
        node.name: [held.get((node.name, gpu.index), "free") for gpu in node.gpus] for node in cluster.nodes
    }
    name_width = max(len(node.name) for node in cluster.nodes)
    width = max((len(text) for cells in rows.values() for text in cells), default=4)
    if name_width + max(map(len, rows.values())) * (width + 3) > _WIDE:
        rows = {name: _runs(cells) for name, cells in rows.items()}
        width = max((len(text) for cells in rows.values() for text in cells), default=4)
    lines: list[str] = []
    folded = 0
    for node in cluster.nodes:
        if len(cluster.nodes) > 8 and len(lines) >= 4 and node is not cluster.nodes[-1]:
            folded += 1
            continue
        if folded:
            lines.append(f"{'...':<{name_width}}   {folded} more nodes")
            folded = 0
        cells = " | ".join(f"{cell:<{width}}" for cell in rows[node.name])
        lines.append(f"{node.name:<{name_width}} | {cells} |")
    return lines


def _runs(cells: list[str]) -> list[str]:
    """Neighbours that differ in TP rank only, or in nothing, as one: "r0 DP1 TP0-3", "3 free"."""
    found: list[list[str]] = []
    for cell in cells:
        if found and _same_group(found[-1][-1], cell):
            found[-1].append(cell)
        else:
            found.append([cell])
    return [_run(run) for run in found]


def _same_group(one: str, other: str) -> bool:
    first, last = one.rpartition(" TP"), other.rpartition(" TP")
    return one == other == "free" or bool(first[0] and first[0] == last[0])


def _run(run: list[str]) -> str:
    if len(run) == 1:
        return run[0]
    if run[0] == "free":
        return f"{len(run)} free"
    return f"{run[0]}-{run[-1].rpartition('TP')[2]}"


def rank_words(layout: Layout, rank: int) -> str:
    """What a rank is: "DP0 PP1 TP3"; sizes of 1 are left out."""
    rest, tp = divmod(rank, layout.tp)
    dp, pp = divmod(rest, layout.pp)
    parts = [f"DP{dp}"] if layout.dp > 1 else []
    parts += [f"PP{pp}"] if layout.pp > 1 else []
    parts += [f"TP{tp}"] if layout.tp > 1 else []
    return " ".join(parts) or "all"

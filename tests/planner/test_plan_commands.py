"""The printed commands are those that run: ranks where the plan has them, every node with its own values."""

from longspan.cluster.inventory import Cluster
from longspan.cluster.inventory_file import parse_cluster, parse_shorthand
from longspan.plan import Layout, Place, Plan, Replica
from longspan.planner.commands import commands, picture
from longspan.planner.explain import fit

TWO_NODES = parse_cluster("""
[[node]]
name = "a"
address = "10.0.0.1"
gpus = "4x H100"
network = { kind = "ethernet", rate_gbit_per_second = 10, interface = "eno1" }
[[node]]
name = "b"
address = "10.0.0.2"
gpus = "4x H100"
network = { kind = "infiniband", rate_gbit_per_second = 400, interface = "ib0", hcas = ["mlx5_0"] }
""")


def plan(layout: Layout, executor: str = "ray", cluster: Cluster = TWO_NODES, free: int = 0) -> Plan:
    """One replica on all GPUs of the cluster, or without the last `free` ones of each node."""
    places = tuple(
        Place(node.name, gpu.index) for node in cluster.nodes for gpu in node.gpus[: len(node.gpus) - free]
    )
    return Plan("org/m", (Replica("r0", layout, places, executor),))


def typed(layout: Layout, executor: str = "ray", free: int = 0) -> list[str]:
    """The lines."""
    return [str(one) for one in commands(plan(layout, executor, free=free), TWO_NODES)]


def test_stages_over_ray_keep_their_order() -> None:
    """The engine takes its bundles in rank order and joins the Ray that was started; each node gets its own interface."""
    first, second, engine = typed(Layout(4, 2))
    assert "NCCL_SOCKET_IFNAME=eno1" in first
    assert "--head" in first
    assert "NCCL_SOCKET_IFNAME=ib0" in second
    assert "NCCL_IB_HCA=mlx5_0" in second
    assert "--address=10.0.0.1:6379" in second
    assert engine.startswith(
        "VLLM_RAY_BUNDLE_INDICES=0,1,2,3,4,5,6,7 RAY_ADDRESS=10.0.0.1:6379 VLLM_HOST_IP=10.0.0.1 vllm serve org/m"
    )
    assert "IFNAME" not in engine


def test_data_parallel_engines_over_ray_are_told_how_many_go_to_a_node() -> None:
    """vLLM would put all of them on the first node; a group wider than a node is spread instead."""
    assert typed(Layout(2, 1, 4, ep=True))[-1].endswith(
        "--data-parallel-backend ray --data-parallel-size-local 2"
    )
    assert "VLLM_RAY_BUNDLE_INDICES" not in typed(Layout(2, 1, 4))[-1]
    uneven = parse_shorthand("1x4xH100+2xH100", "ib:400")
    lines = [str(one) for one in commands(plan(Layout(2, 1, 3), cluster=uneven), uneven)]
    assert lines[-1].startswith("VLLM_RAY_DP_PACK_STRATEGY=fill")
    wide = parse_shorthand("4x2xH100", "ib:400")
    lines = [str(one) for one in commands(plan(Layout(4, 1, 2), cluster=wide), wide)]
    assert lines[-1].startswith("VLLM_RAY_DP_PACK_STRATEGY=span")
    assert "--data-parallel-size-local" not in lines[-1]


def test_mp_over_nodes_needs_no_ray() -> None:
    """Each node has its own command with its rank; only the first serves."""
    first, second = typed(Layout(4, 2), "mp")
    assert "--nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500" in first
    assert "--headless" not in first
    assert "--node-rank 1" in second
    assert second.endswith("--headless")
    assert "NCCL_SOCKET_IFNAME=ib0" in second
    first, second = typed(Layout(2, 1, 4), "mp")
    assert "--data-parallel-size-local 2 --data-parallel-address 10.0.0.1" in first
    assert "--data-parallel-start-rank 2 --headless" in second


def test_ray_offers_no_more_than_the_plan_takes() -> None:
    """GPUs left to others are neither declared to Ray nor visible to it."""
    first, _, engine = typed(Layout(2, 2), free=2)
    assert "CUDA_VISIBLE_DEVICES=0,1 ray start" in first
    assert "--num-gpus=2" in first
    assert "CUDA_VISIBLE_DEVICES" not in engine


def test_a_wide_picture_is_drawn_in_runs() -> None:
    """Eight ranks of a data-parallel layout fit a terminal of 100 columns, and every rank is in one of the runs."""
    cluster = parse_shorthand("2x8xH100", "ib:400")
    lines = picture(plan(Layout(4, 1, 4), cluster=cluster), cluster)
    assert lines == ["node0 | r0 DP0 TP0-3 | r0 DP1 TP0-3 |", "node1 | r0 DP2 TP0-3 | r0 DP3 TP0-3 |"]
    assert "r0 PP0 TP1" in picture(plan(Layout(4, 2)), TWO_NODES)[0]
    idle = picture(plan(Layout(3, 1, 4), cluster=cluster, free=2), cluster)
    assert idle[0] == "node0 | r0 DP0 TP0-2 | r0 DP1 TP0-2 | 2 free       |"


def test_sentences_are_wrapped_and_commands_stay_whole() -> None:
    """On a terminal no sentence is cut, nothing is lost, and what is to be pasted remains one line."""
    command = "  " + "vllm serve m --flag value " * 8
    rows = [
        "A sentence of several words " * 6,
        "  an indented one " * 9,
        "Commands:",
        command,
        "",
        "Note: " + "word " * 40,
    ]
    out = fit(rows, 80)
    assert command in out
    assert all(len(row) <= 80 for row in out if row != command)
    assert " ".join(" ".join(out).split()) == " ".join(" ".join(rows).split())

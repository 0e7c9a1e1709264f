"""The wanted deployment: which node gets which rank, and its document."""

import json

from hypothesis import given
from hypothesis import strategies as st

from longspan.deployment import DeploymentSpec, NodeSpec

counts = st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(lambda found: sum(found) > 0)


def spec_of(gpus: list[int], tp: int, pp: int) -> DeploymentSpec:
    """A deployment over nodes with so many GPUs."""
    nodes = tuple(
        NodeSpec(f"n{i}", f"10.0.0.{i + 1}", count, ssh=None, env={"A": str(i)}, gpu_ids=tuple(range(count)))
        for i, count in enumerate(gpus)
    )
    return DeploymentSpec(
        name="d", identity="i", model="/m", served_name="m", tp=tp, pp=pp, executor="ray", device="cuda", nodes=nodes,
        listen="127.0.0.1:1", vllm_arguments=("--x", "1"), ray_address=None,
    )  # fmt: skip


@given(counts, st.data())
def test_ranks_fill_nodes_in_order(gpus: list[int], data: st.DataObject) -> None:
    """Ranks fill the nodes in their order, none beyond its GPUs, and only nodes with ranks are in use."""
    size = data.draw(st.integers(1, sum(gpus)))
    spec = spec_of(gpus, size, 1)
    ranks = spec.rank_nodes()
    assert len(ranks) == size
    order = [spec.nodes.index(node) for node in ranks]
    assert order == sorted(order)
    assert all(ranks.count(node) <= node.gpus for node in spec.nodes)
    assert [node.name for node in spec.used_nodes()] == list(dict.fromkeys(node.name for node in ranks))


@given(counts)
def test_round_trip(gpus: list[int]) -> None:
    """The document that the controller reads is the deployment that the command line wrote."""
    spec = spec_of(gpus, 1, 1)
    assert DeploymentSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec

"""Which versions and devices a node may have."""

import re
from pathlib import Path

import pytest
from driving import FACTS, NODES

from longspan.launch.requirements import MINIMUM, too_old, unfit

REPO = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("package", "version", "old"),
    [
        ("vllm", "0.22.9", True), ("vllm", "0.23.0", False), ("vllm", "0.32.0+cpu", False), ("vllm", "1.0", False),
        ("vllm", "0.9.2", True), ("vllm", "0.23.0rc1", False), ("vllm", "0.1.dev1+g1234567", False), ("vllm", "", False),
        ("vllm", "unknown", False), ("ray", "2.51.2", True), ("ray", "2.52.0", False), ("ray", "3", False), ("ray", "1.13", True),
    ],
)  # fmt: skip
def test_versions(package: str, version: str, old: bool) -> None:
    """Compared as numbers, not as text; a version that says nothing is not refused."""
    assert bool(too_old(package, version)) == old


@pytest.mark.parametrize(
    ("deployment", "node", "says"),
    [
        ("cuda", "cpu", "b has no GPU"),
        ("rocm", "cuda", "b has NVIDIA GPUs"),
        ("cuda", "rocm", "b has AMD GPUs"),
    ],
)
def test_a_node_of_another_device(deployment: str, node: str, says: str) -> None:
    """A node whose agent finds another device is named before anything is loaded; an agent that does not say is believed."""
    facts = {"a": {**FACTS, "device": deployment}, "b": {**FACTS, "device": node}}
    found = unfit(NODES, facts, deployment)
    assert found is not None
    assert says in found[0]
    assert unfit(NODES, {"a": FACTS, "b": FACTS}, deployment) is None
    assert unfit(NODES, facts, "cpu") is None  # --device cpu, to rehearse where there are GPUs


def test_one_minimum() -> None:
    """What pip is told, and what the doctor says of the Ray executor V2, are the numbers that are checked."""
    vllm, ray = (".".join(map(str, MINIMUM[name])) for name in ("vllm", "ray"))
    assert f'engine = ["ray>={ray}", "vllm>={vllm}"]' in (REPO / "pyproject.toml").read_text()
    said = re.findall(
        r"Ray executor V2 \((\S+) or newer\)", (REPO / "src/longspan/doctor/causes.py").read_text()
    )
    assert said == [vllm]
